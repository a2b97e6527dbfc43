"""The address that a client is given, made the one that it connects to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from duplex.clients.errors import BadConfig

NATIVE_PATH: Final = "/v1/duplex"
REALTIME_PATH: Final = "/v1/realtime"

_TO_WEBSOCKET: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_TO_HTTP: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def websocket_url(url: str, path: str) -> str:
    """`url` with the scheme of a WebSocket, and with `path` where it has none of its own.

    Raises:
        BadConfig: it is no address of a server.
    """
    parts = _checked(url, _TO_WEBSOCKET)
    return urlunsplit(parts._replace(path=path) if parts.path in ("", "/") else parts)


def http_url(url: str) -> str:
    """`url` with the scheme of HTTP, and without a slash at its end.

    Raises:
        BadConfig: it is no address of a server.
    """
    return urlunsplit(_checked(url, _TO_HTTP)).rstrip("/")


def _checked(url: str, schemes: Mapping[str, str]) -> SplitResult:
    """The address in parts, its scheme replaced."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is none
        host = (parts.hostname or "").encode("idna")
        url.encode()
    except ValueError as error:
        raise BadConfig(f"{url!r} is no address of a server: {error}") from None
    if parts.scheme not in schemes or not host:
        raise BadConfig(f"the address must begin with ws://host, wss://, http:// or https://, not {url!r}")
    if b" " in host or parts.fragment:
        what = "a host has no spaces" if b" " in host else "it has a fragment (#)"
        raise BadConfig(f"{url!r} is no address of a server: {what}")
    return parts._replace(scheme=schemes[parts.scheme])
