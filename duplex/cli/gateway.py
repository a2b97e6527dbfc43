"""The gateway that a command talks to: a running one, or one started for it in this process."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from duplex.cli import logs
from duplex.cli.errors import CommandError, UsageError
from duplex.cli.options import ADAPTER_FLAGS
from duplex.clients import ClientError
from duplex.config import ServerConfig, load_config
from duplex.core.errors import DuplexError, ErrorCode

VOICE: Final = "embedded-voice"
COMMENTARY: Final = "embedded-commentary"

SESSION_PATH: Final = "/v1/duplex"
VIDEO_PATH: Final = "/v1/mage-vl/duplex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to connect. `model` None: the gateway's default."""

    url: str
    token: str | None
    model: str | None

    def path(self, path: str) -> str:
        """The address of an endpoint, or the one that the user gave in full."""
        parts = urlsplit(self.url)
        return self.url if parts.path not in ("", "/") else urlunsplit(parts._replace(path=path))


@contextlib.asynccontextmanager
async def target(args: argparse.Namespace, *default_adapters: str) -> AsyncIterator[Target]:
    """The gateway of `--url`, or a new one that serves `--model`, by default `default_adapters`.

    Raises:
        UsageError, CommandError: the address is none, the model is not there or cannot be loaded.
    """
    url = args.url or os.environ.get("DUPLEX_URL")
    if url:
        if getattr(args, "option", None):
            raise UsageError("--option is for a gateway that is started here, not for one that runs at --url")
        token = args.token or os.environ.get("DUPLEX_TOKEN")
        yield Target(url=_address(url), token=token, model=args.model)
        return
    flags = {"host": "127.0.0.1", "port": 0, "adapter": (args.model,) if args.model else default_adapters}
    async with started(settings(args, flags)) as found:
        yield found


@contextlib.asynccontextmanager
async def started(config: ServerConfig) -> AsyncIterator[Target]:
    """A gateway in this process, with its models loaded."""
    from duplex.server.run import running_gateway

    logs.to_stderr(tracebacks=config.log_level == "debug")
    logging.getLogger("duplex").setLevel(logging.DEBUG if config.log_level == "debug" else logging.ERROR)
    async with contextlib.AsyncExitStack() as stack:
        with in_words(), loading():
            gateway = await stack.enter_async_context(running_gateway(config))
        yield Target(url=gateway.ws_url, token=config.auth_token, model=None)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A model that cannot be loaded may raise anything."""
    try:
        yield
    except (DuplexError, CommandError):
        raise
    except Exception as error:
        raise CommandError(f"a model cannot be loaded: {type(error).__name__}: {error}") from error


def settings(args: argparse.Namespace, flags: dict[str, Any], file: str | None = None) -> ServerConfig:
    """The gateway's configuration: file and environment, over them `flags`, and the adapters' own flags.

    Raises:
        UsageError: a key or value that is wrong, by name.
    """
    with in_words():
        config = load_config(flags, file=file)
    options = {name: dict(table) for name, table in config.adapters.items()}
    for name, (adapter, _, _) in ADAPTER_FLAGS.items():
        value = getattr(args, name, None)
        if value is not None:
            options.setdefault(adapter, {})[name] = value
    for text in getattr(args, "option", ()):
        adapter, key, value = _option(text)
        options.setdefault(adapter, {})[key] = value
    return ServerConfig(
        **{name: getattr(config, name) for name in config.__struct_fields__} | {"adapters": options}
    )


def _option(text: str) -> tuple[str, str, Any]:
    """`ADAPTER.KEY=VALUE`. A name like `module:factory` may have dots of its own: the last one counts."""
    import tomllib

    path, equals, value = text.partition("=")
    adapter, dot, key = path.rpartition(".")
    if not (equals and dot and adapter and key):
        raise UsageError(f"--option {text}: must be ADAPTER.KEY=VALUE")
    try:
        return adapter, key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return adapter, key, value


def _address(url: str) -> str:
    """`url` as a WebSocket address.

    Raises:
        UsageError: it is none.
    """
    parts = urlsplit(url if "//" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    try:
        usable = scheme in ("ws", "wss") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"--url {url}: not an address such as ws://127.0.0.1:8600")
    return urlunsplit(parts._replace(scheme=scheme))


_USAGE: Final = frozenset(
    (
        ErrorCode.BAD_CONFIG,
        ErrorCode.INVALID_VALUE,
        ErrorCode.UNKNOWN_FIELD,
        ErrorCode.UNSUPPORTED_FORMAT,
        ErrorCode.MODEL_NOT_FOUND,
    )
)


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Faults of the gateway and of the client as one line for the user."""
    try:
        yield
    except DuplexError as error:
        # an address that cannot be had is no mistake in what was asked for
        asked = error.code in _USAGE and not (
            error.param == "port" and isinstance(error.__context__, OSError)
        )
        raise (UsageError if asked else CommandError)(error.message) from error
    except ClientError as error:
        raise (UsageError if error.code in _USAGE else CommandError)(error.message) from error
