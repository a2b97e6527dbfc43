"""A client of the OpenAI Realtime dialect that comes back when its connection breaks.

Other clients of that API work as well (docs/realtime.md), but none of them can take a session up again. This
one is thin: events are the dictionaries that the server sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final, Self

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from duplex.clients.address import REALTIME_PATH, websocket_url
from duplex.clients.buffers import Outbox
from duplex.clients.connection import dialled
from duplex.clients.errors import (
    ClientError,
    ConnectionLost,
    SessionClosed,
    SessionOver,
    error_code,
    session_over,
)
from duplex.clients.reconnect import Sent, connect_again, send_kept

Event = dict[str, Any]

GRACE_S: Final = 30.0
"""How long it is tried to come back, where the server does not say."""
MAX_EVENTS: Final = 4096
"""Events that may wait to be taken; beyond it the socket is not read."""
_BEGINNINGS: Final = ("session.created", "session.resumed")


class AsyncRealtimeClient:
    """A session of the Realtime API::

        async with AsyncRealtimeClient("ws://127.0.0.1:8600/v1/realtime", reconnect=True) as client:
            await client.send("response.create")
            async for event in client:
                print(event["type"])

    Iteration ends when the client has closed the session, and raises the `SessionOver` that names why when it
    ended any other way. With `reconnect`, `client.disconnected` and `client.reconnected` (with `attempts`,
    `kept`, `replayed` and `lost`) come in between; every event of the server comes once.

    Args:
        url: `ws://host:port/v1/realtime`, or `wss`; `http` and `https` are taken for these, and an address
            without a path (`ws://host:port`) for the one with it. More query parameters may be in it.
        model, token: the model to ask for, and the server's bearer token.
        ext: private events to ask for.
        reconnect: take the session up again after a break.
        max_kept_bytes: input that is kept meanwhile, and of the input before that.
        open_timeout_s: for a handshake.

    Raises:
        BadConfig: the address is none.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        token: str | None = None,
        ext: Iterable[str] = (),
        reconnect: bool = False,
        max_kept_bytes: int = 1024 * 1024,
        open_timeout_s: float = 10.0,
    ) -> None:
        wanted = list(dict.fromkeys([*ext, *(["resume"] if reconnect else [])]))
        query = {"model": model, "ext": ",".join(wanted)}
        self.session: Event = {}
        """The newest session object."""
        self._url = websocket_url(url, REALTIME_PATH)
        self._query = {key: value for key, value in query.items() if value}
        self._token = token
        self._reconnects = reconnect
        self._open_timeout_s = open_timeout_s
        self._resume_token: str | None = None
        self._grace_s = GRACE_S
        self._last_seq: int | None = None
        self._socket: ClientConnection | None = None
        """None while the connection is down."""
        self._sent = Sent(max_kept_bytes)
        self._outbox = Outbox(max_kept_bytes)
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(MAX_EVENTS)
        self._fault: Event = {}
        self._over: SessionOver | None = None
        self._task: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------

    async def open(self) -> Event:
        """Connect; returns `session.created`. Raises the `SessionOver` that names why there is no session."""
        if self._task is not None or self._over is not None:
            raise ClientError("a client is opened once")
        self._socket, created = await self._connect(self._url, self._query)
        self._begun(created)
        self._events.put_nowait(created)
        self._task = asyncio.create_task(self._run(self._socket), name="realtime client")
        return created

    async def close(self) -> None:
        """Leave: the server ends the session. Idempotent."""
        self._over = self._over or SessionClosed("the client was closed")
        socket, self._socket = self._socket, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if socket is not None:
            await socket.close()
        if self._events.full():
            self._events.get_nowait()
        self._events.put_nowait(None)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # --- events and requests ------------------------------------------------------------------------

    async def send(self, type: str, **fields: Any) -> None:
        """Send a message, or keep it until the connection is back.

        Raises:
            SessionOver: the session has ended.
            ReconnectBufferFull: the connection is down and enough is kept.
        """
        if self._over is not None:
            raise self._over
        frame = msgspec.json.encode({"type": type, **fields}).decode()
        if self._socket is None or self._outbox:
            self._outbox.put(frame)
            return
        try:
            self._sent.add(frame)
            await self._socket.send(frame)
        except ConnectionClosed:
            if not self._reconnects:
                raise ConnectionLost("the connection is lost") from None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._over is not None and self._events.empty():
            return self._ended()
        event = await self._events.get()
        return self._ended() if event is None else event

    def _ended(self) -> Event:
        if self._over is None or isinstance(self._over, SessionClosed):
            raise StopAsyncIteration
        raise self._over

    # --- the connection -----------------------------------------------------------------------------

    async def _run(self, socket: ClientConnection) -> None:
        try:
            while True:
                await self._read(socket)
                over = self._why(socket)
                self._socket = None
                again = isinstance(over, ConnectionLost) and self._reconnects and self._last_seq is not None
                if not again or self._resume_token is None:
                    raise over
                await self._events.put({"type": "client.disconnected", "reason": str(over)})
                socket = await self._come_back()
        except SessionOver as over:
            self._over = self._over or over
        except Exception as error:  # what came is no message of this API
            self._over = self._over or SessionOver(f"{type(error).__name__}: {error}")
            await socket.close()
        await self._events.put(None)

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for frame in socket:
                await self._events.put(self._receive(frame))
        except ConnectionClosed:
            pass

    def _receive(self, frame: str | bytes) -> Event:
        event = msgspec.json.decode(frame, type=Event)
        self._last_seq = event.pop("seq", None)
        if event["type"] in ("session.created", "session.updated"):
            self.session = event["session"]
        elif event["type"] == "error":
            self._fault = event["error"]
        return event

    async def _come_back(self) -> ClientConnection:
        query = {**self._query, "resume": self._resume_token, "last_seq": self._last_seq}
        (socket, resumed), attempts = await connect_again(
            lambda url: self._connect(url, query), self._url, within_s=self._grace_s
        )
        again: list[str | bytes] = []
        forgotten = 0
        if resumed["type"] == "session.resumed":
            self._last_seq = resumed["seq"] - 1
            again, forgotten = self._sent.after(resumed["received"])
        else:  # the server keeps nothing for us (any more)
            self._sent.reset()
            self._begun(resumed)
            await self._events.put(resumed)
        back = {
            "type": "client.reconnected",
            "attempts": attempts,
            "kept": len(again) + len(self._outbox),
            "replayed": resumed.get("replayed", 0),
            "lost": resumed.get("lost", 0) + forgotten,
        }
        await self._events.put(back)
        await send_kept(socket, again, self._outbox, self._sent)
        self._socket = socket
        return socket

    def _begun(self, created: Event) -> None:
        self._resume_token = created.get("resume_token")
        self._grace_s = (created.get("limits") or {}).get("resume_grace_s", GRACE_S)

    async def _connect(self, url: str, query: Event) -> tuple[ClientConnection, Event]:
        """A connection and the server's first message on it."""
        self._fault = {}
        async with dialled(
            url,
            query,
            token=self._token,
            timeout_s=self._open_timeout_s,
            subprotocols=[Subprotocol("realtime")],
        ) as socket:
            with suppress(ConnectionClosed):
                async for frame in socket:
                    if msgspec.json.decode(frame, type=Event)["type"] in _BEGINNINGS:
                        return socket, self._first(frame)
                    self._receive(frame)
            raise self._why(socket)

    def _first(self, frame: str | bytes) -> Event:
        event = msgspec.json.decode(frame, type=Event)
        return event if event["type"] == "session.resumed" else self._receive(frame)

    def _why(self, socket: ClientConnection) -> SessionOver:
        code = error_code(str(self._fault.get("code", "")))
        ends = code is not None and code.fatal
        return session_over(
            socket.close_code,
            socket.close_reason or "",
            fault=code if ends else None,
            words=str(self._fault.get("message", "")) if ends else "",
            owner=str(self._fault.get("owner", "")),
        )
