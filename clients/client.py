"""The asynchronous client: one session, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Literal, Self
from urllib.parse import quote_plus

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from duplex.clients.buffers import Inbox, Outbox
from duplex.clients.connection import open_connection, why_closed
from duplex.clients.errors import (
    ClientError,
    ConnectionLost,
    RequestRefused,
    SessionClosed,
    SessionOver,
    error_code,
)
from duplex.clients.events import (
    AudioDelta,
    ClientEvent,
    Disconnected,
    PlaybackClear,
    Reconnected,
    ResponseCancelled,
    ResponseDone,
    SessionCreated,
)
from duplex.clients.playback import Player
from duplex.clients.protocol import EXTENSIONS, ClientProtocol, Frame
from duplex.clients.requests import Requests
from duplex.clients.response import Response, ResponseGatherer
from duplex.core.errors import ErrorCode

BACKOFF_S: Final = (0.05, 2.0)
"""First and longest wait between two attempts to reconnect."""
MAX_QUERY_BYTES: Final = 4096
"""Of instructions in the query. Servers and proxies bound an address; longer ones go by `session.update`."""
MAX_EVENTS: Final = 4096
"""Events that may wait to be taken; beyond it the socket is not read, and the server's bounds act."""


class AsyncDuplexClient(Requests):
    """A full-duplex session with a gateway.

    Iterate it for events; call its methods at any time::

        async with AsyncDuplexClient("ws://127.0.0.1:8600/v1/duplex") as client:
            await client.speak("Hello there.")
            response = await client.response()

    Requests raise `SessionOver` once the session has ended, and `RequestRefused` for a message that is over
    the server's size limit. Iteration ends when the session was closed as asked and raises the `SessionOver`
    when it ended any other way.

    When the connection breaks, the client resumes the session by itself: `Disconnected`, later `Reconnected`
    are told. What ran is told as cancelled (reason `connection_lost`), input is kept up to `max_kept_bytes`
    and sent when the session is back; beyond that it is refused with `ReconnectBufferFull`. What was written
    just before the break may or may not have reached the server.

    Args:
        url: `ws://host:port/v1/duplex`; more query parameters may be in it.
        model, session_id: None lets the server choose.
        token: the server's bearer token.
        frames: how media travel.
        ext: private events to ask for (`signals`, `playback`, `lifecycle`).
        options: session settings by query parameter (`voice`, `codec`, `sample_rate`, …). Long instructions
            are sent in a `session.update` instead, before anything else.
        resume: reconnect after a break.
        max_kept_bytes: input that is kept meanwhile.
        player: gets the audio as it arrives; what it says was played is acknowledged to the server every
            `ack_interval_ms`.
        open_timeout_s, close_timeout_s: for the handshake, and for a graceful end.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        session_id: str | None = None,
        token: str | None = None,
        frames: Literal["binary", "json"] = "binary",
        ext: Iterable[str] = EXTENSIONS,
        options: Mapping[str, str | int | float] | None = None,
        resume: bool = True,
        max_kept_bytes: int = 1024 * 1024,
        player: Player | None = None,
        ack_interval_ms: float = 200.0,
        open_timeout_s: float = 10.0,
        close_timeout_s: float = 15.0,
    ) -> None:
        options = dict(options or {})
        instructions = str(options.get("instructions", ""))
        self._late: dict[str, Any] = {}
        """Settings that are too long for the query."""
        if len(quote_plus(instructions)) > MAX_QUERY_BYTES:
            self._late["instructions"] = options.pop("instructions")
        query = {"model": model, "session_id": session_id, "frames": frames, "ext": ",".join(ext)}
        self._url = url
        self._query: dict[str, Any] = {k: v for k, v in (query | options).items() if v is not None}
        self._token = token
        self._resume = resume
        self._player = player
        self._ack_interval_s = ack_interval_ms / 1000
        self._open_timeout_s = open_timeout_s
        self._close_timeout_s = close_timeout_s
        self.protocol = ClientProtocol(
            binary=frames == "binary",
            codec=str(options.get("codec", "pcm_s16le")),
            sample_rate=int(options.get("sample_rate", 24000)),
        )
        self._socket: ClientConnection | None = None
        """None while the connection is down."""
        self._inbox = Inbox(MAX_EVENTS, self.protocol.stale)
        self._outbox = Outbox(max_kept_bytes)
        self._audio_ready = asyncio.Event()
        self._over: SessionOver | None = None
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, url: str, **options: Any) -> Self:
        """A client that is open. Takes what the constructor takes, raises what `open` raises."""
        client = cls(url, **options)
        await client.open()
        return client

    # --- life ---------------------------------------------------------------------------------------

    async def open(self) -> SessionCreated:
        """Connect and begin the session.

        Raises:
            SessionOver: of the class that names why: `Unauthorized`, `ServerFull`, `Draining`, `EngineDown`,
                `BadConfig`, `ModelNotFound`, `InvalidSessionId`, `SessionIdInUse`, `ConnectionLost`, …
        """
        if self._tasks or self._over:
            raise ClientError("a client is opened once")
        self._socket, created = await self._connect(self._query)
        self._publish([created])
        self._tasks.append(asyncio.create_task(self._run(self._socket), name="duplex client"))
        if self._player is not None:
            acks = self._acknowledge(self._player)
            self._tasks.append(asyncio.create_task(acks, name="duplex client acks"))
        if self._late:
            event_id = self.protocol.event_id()
            update = self.protocol.request("session.update", session=self._late, event_id=event_id)
            await self._write(update, urgent=True)
        return created

    async def close(self) -> None:
        """End gracefully: the running response finishes first, then the server closes. Idempotent.

        Events can be taken meanwhile and afterwards. After `close_timeout_s` the connection is cut.
        """
        if not self._closing and self._over is None:
            self._closing = True
            self._inbox.unbound()
            await self._write(self.protocol.request("close"), urgent=True)
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=self._close_timeout_s)
        await self.abort()

    async def abort(self) -> None:
        """End at once. What runs is cancelled by the server, which keeps the session for its grace time."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        self._end(SessionClosed("the client was closed"))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await (self.close() if exception[0] is None else self.abort())

    @property
    def session(self) -> SessionCreated:
        """What the server said when the session began, or was resumed."""
        if self.protocol.session is None:
            raise ClientError("the client is not open")
        return self.protocol.session

    @property
    def connected(self) -> bool:
        """False while the connection is down."""
        return self._socket is not None

    # --- requests, beside those of `Requests` --------------------------------------------------------

    async def cancel(self, response_index: int | None = None) -> str:
        """Barge in: by default on all that runs or sounds. From this call on no delta of it is seen, and the
        player is silent. Returns the request's event id."""
        event_id = self.protocol.event_id()
        frame = self.protocol.cancel(response_index, event_id=event_id)
        player = self._player
        if player is not None:
            position = player.position()
            player.cancel(response_index or self.protocol.last_index)
            if position is not None and response_index in (None, position[0]):
                player.cancel(position[0])
                await self.ack(position[1], position[0])  # first what was heard, then the cut
        await self._send(frame)
        return event_id

    async def ack(self, cursor_ms: float, response_index: int | None = None) -> None:
        """`cursor_ms` of the response's audio were played. Told only while connected."""
        if self._socket is not None:
            cursor = round(cursor_ms, 3)
            frame = self.protocol.request("playback.ack", cursor=cursor, response_index=response_index)
            try:
                await self._socket.send(frame)
            except ConnectionClosed:
                pass

    async def update(
        self, changes: Mapping[str, Any] | None = None, *, extensions: Iterable[str] | None = None
    ) -> str:
        """Change session settings, and which private events are sent. Returns the request's event id."""
        wanted = list(extensions) if extensions is not None else None
        event_id = await self._request("session.update", session=dict(changes or {}), extensions=wanted)
        if wanted is not None:
            self._query["ext"] = ",".join(wanted)  # a later connection asks for them in its handshake
        return event_id

    async def _send(self, frame: Frame) -> None:
        if self._over is not None:
            raise self._over
        if self._closing:
            raise SessionClosed("the client is closing")
        limit = self.session.limits.get("max_message_bytes")
        size = len(frame) if isinstance(frame, bytes) or frame.isascii() else len(frame.encode())
        if limit is not None and size > limit:
            raise RequestRefused(
                f"the message has {size} bytes, the server takes {limit:.0f}",
                code=ErrorCode.MESSAGE_TOO_LARGE,
            )
        await self._write(frame)

    async def _write(self, frame: Frame, *, urgent: bool = False) -> None:
        if self._socket is not None and not self._outbox:
            try:
                await self._socket.send(frame)
                return
            except ConnectionClosed:
                pass
        if self._over is not None and not urgent:
            raise self._over
        if not self._resume and not urgent:
            raise ConnectionLost("the connection is lost")
        self._outbox.put(frame, urgent=urgent)

    # --- events -------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[ClientEvent]:
        return self

    async def __anext__(self) -> ClientEvent:
        try:
            return await self._inbox.get()
        except SessionClosed:
            raise StopAsyncIteration from None

    async def response(self) -> Response:
        """Take events until the next response has ended, and gather it.

        Raises:
            RequestRefused: an error came before any response began.
            SessionOver: the session ended before one did.
        """
        gatherer = ResponseGatherer()
        while (response := gatherer.feed(await self._inbox.get())) is None:
            refusal = gatherer.refusal
            if refusal is not None and not refusal.fatal:
                raise RequestRefused(
                    refusal.message,
                    code=error_code(refusal.code),
                    event_id=refusal.event_id,
                    param=refusal.param,
                )
        return response

    def _publish(self, events: Iterable[ClientEvent]) -> None:
        events = list(events)
        if self._player is not None:
            for event in events:
                self._play(event, self._player)
        self._inbox.put(events)

    def _play(self, event: ClientEvent, player: Player) -> None:
        match event:
            case AudioDelta():
                player.receive(event)
                self._audio_ready.set()
            case ResponseDone():
                player.finish(event.response_index)
            case ResponseCancelled() | PlaybackClear():
                player.cancel(event.response_index)
            case _:
                pass

    def _end(self, over: SessionOver) -> None:
        if self._over is None:
            over.unsent = len(self._outbox)
            self._over = over
            self._inbox.end(over)

    # --- the connection -----------------------------------------------------------------------------

    async def _connect(self, query: Mapping[str, Any]) -> tuple[ClientConnection, SessionCreated]:
        return await open_connection(
            self._url, query, protocol=self.protocol, token=self._token, timeout_s=self._open_timeout_s
        )

    async def _run(self, socket: ClientConnection) -> None:
        """Read, and reconnect, until the session is over."""
        try:
            while True:
                await self._read(socket)
                over = why_closed(socket, self.protocol)
                self._socket = None
                self._publish(self.protocol.disconnected())
                if not isinstance(over, ConnectionLost) or not self._resume or not self.session.resume_token:
                    raise over
                self._publish([Disconnected(reason=over.message)])
                socket = await self._reconnect()
        except SessionOver as over:
            self._end(over)
        except Exception as error:  # the server does not speak the dialect, or the player failed
            self._end(SessionOver(f"{type(error).__name__}: {error}"))
            await socket.close()

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for frame in socket:
                self._publish(self.protocol.receive(frame))
                await self._inbox.room()
        except ConnectionClosed:
            pass

    async def _reconnect(self) -> ClientConnection:
        """Resume the session and send what was kept. Raises `SessionOver` when it is gone."""
        session = self.session
        query = {**self._query, "resume": session.resume_token, "session_id": session.session_id}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + session.limits.get("resume_grace_s", 30.0)
        wait_s, longest_s = BACKOFF_S
        attempts = 1
        while True:
            try:
                socket, created = await self._connect(query)
                break
            except ConnectionLost as error:
                if loop.time() + wait_s > deadline:
                    raise ConnectionLost(f"the session could not be resumed: {error}") from None
            attempts += 1
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, longest_s)
        self._publish([created, Reconnected(attempts=attempts, kept=len(self._outbox))])
        try:
            for frame in self._outbox.drain():  # new input queues behind it, until all of it is sent
                await socket.send(frame)
        except ConnectionClosed:
            pass  # the reader will notice; the rest is kept
        self._socket = socket
        return socket

    async def _acknowledge(self, player: Player) -> None:
        """While there is audio, tell the server how far it was played."""
        told: tuple[int, float] | None = None
        while True:
            await self._audio_ready.wait()
            self._audio_ready.clear()
            while True:
                await asyncio.sleep(self._ack_interval_s)
                position = player.position()
                if position is not None and position != told:
                    told = position
                    await self.ack(position[1], position[0])
                elif not player.unplayed_ms():
                    break
