"""Opening a connection, and what its end means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from msgspec import UNSET
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.typing import Subprotocol

from duplex.clients.errors import BadConfig, ConnectionLost, SessionOver, handshake_refused, session_over
from duplex.clients.events import SessionCreated, SessionResumed
from duplex.clients.protocol import ClientProtocol

CLOSE_TIMEOUT_S: Final = 1.0
"""For the closing handshake. A session that was closed gracefully has ended before it begins."""


@asynccontextmanager
async def dialled(
    url: str,
    query: Mapping[str, Any],
    *,
    token: str | None,
    timeout_s: float,
    subprotocols: Sequence[Subprotocol] | None = None,
) -> AsyncIterator[ClientConnection]:
    """A new connection, and time to hear the server's first words. It stays open unless that fails.

    Raises:
        SessionOver: of the class that names why there is none.
    """
    try:
        async with asyncio.timeout(timeout_s):
            socket = await connect(
                with_query(url, query),
                additional_headers={"Authorization": f"Bearer {token}"} if token else None,
                subprotocols=subprotocols,
                compression=None,
                max_size=None,
                open_timeout=None,
                close_timeout=CLOSE_TIMEOUT_S,
            )
            try:
                yield socket
            except BaseException:
                await socket.close()
                raise
    except InvalidStatus as error:
        raise handshake_refused(error.response.status_code, bytes(error.response.body or b"")) from None
    except TimeoutError:
        raise ConnectionLost(f"{url} did not answer within {timeout_s:g} s") from None
    except InvalidURI as error:
        raise BadConfig(f"{url!r} is no address of a server: {error.msg}") from None
    except (OSError, WebSocketException) as error:
        raise ConnectionLost(f"no connection to {url}: {error or type(error).__name__}") from None


async def open_connection(
    url: str,
    query: Mapping[str, Any],
    *,
    protocol: ClientProtocol,
    token: str | None = None,
    timeout_s: float = 10.0,
) -> tuple[ClientConnection, SessionCreated | SessionResumed]:
    """A connection on which the server has said `session.created` or `session.resumed`.

    Raises:
        SessionOver: of the class that names why there is none.
    """
    protocol.fatal = None
    async with dialled(url, query, token=token, timeout_s=timeout_s) as socket:
        return socket, await session_created(socket, protocol)


async def session_created(
    socket: ClientConnection, protocol: ClientProtocol
) -> SessionCreated | SessionResumed:
    """What the server says first. Raises the `SessionOver` that names why it does not."""
    try:
        async for frame in socket:
            for event in protocol.receive(frame):
                if isinstance(event, SessionCreated | SessionResumed):
                    return event
    except ConnectionClosed:
        pass
    raise why_closed(socket, protocol)


def why_closed(socket: ClientConnection, protocol: ClientProtocol) -> SessionOver:
    """What the end of a connection means, by its close frame and the fatal error before it."""
    code, words = protocol.fault
    owner = protocol.fatal.owner if protocol.fatal is not None else UNSET
    return session_over(
        socket.close_code,
        socket.close_reason or "",
        fault=code,
        words=words,
        owner=owner if isinstance(owner, str) else "",
    )


def with_query(url: str, query: Mapping[str, Any]) -> str:
    """The address with more parameters."""
    parts = urlsplit(url)
    more = urlencode(query)
    return urlunsplit(parts._replace(query=f"{parts.query}&{more}" if parts.query else more))
