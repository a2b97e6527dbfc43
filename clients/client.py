"""The asynchronous client: one session, over as many connections as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Literal, Self

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from duplex.clients.address import NATIVE_PATH, websocket_url
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
    PlaybackDuck,
    PlaybackUnduck,
    Reconnected,
    ResponseCancelled,
    ResponseDone,
    SessionCreated,
    SessionResumed,
)
from duplex.clients.handshake import open_session, split_options
from duplex.clients.playback import Player
from duplex.clients.protocol import EXTENSIONS, ClientProtocol, Frame
from duplex.clients.reconnect import Sent, connect_again, send_kept
from duplex.clients.requests import Requests
from duplex.clients.response import Response, ResponseGatherer
from duplex.core.errors import ErrorCode

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

    When the connection breaks, the client resumes the session by itself: `Disconnected`, then `Reconnected`
    are told. What was missed follows, and what ran goes on. Input is kept up to `max_kept_bytes` and sent
    when the session is back, with what had not arrived before the break; beyond that it is refused with
    `ReconnectBufferFull`. Without the extension `resume` in `ext`, what ran is told as cancelled (reason
    `connection_lost`), and input that was written just before the break may or may not have arrived.

    Args:
        url: `ws://host:port/v1/duplex`, or `wss`; `http` and `https` are taken for these, and an address
            without a path (`ws://host:port`) for the one with it. More query parameters may be in it.
        model, session_id: None lets the server choose.
        token: the server's bearer token.
        frames: how media travel.
        ext: private events to ask for (`signals`, `playback`, `lifecycle`, `resume`).
        options: settings of the new session: all that `update` takes, and `codec` and `sample_rate` for the
            two fields of `output_format`. They are in force when `open` returns; one that the server or the
            model refuses is a `BadConfig` there. A session that is resumed keeps its settings.
        reconnect: take the session up again after a break.
        max_kept_bytes: input that is kept meanwhile, and of the input before that.
        player: gets the audio as it arrives; what it says was played is acknowledged to the server every
            `ack_interval_ms`.
        open_timeout_s, close_timeout_s: for the handshake with the settings, and for a graceful end.

    Raises:
        BadConfig: the address is none, or options are no text that can be sent.
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
        options: Mapping[str, Any] | None = None,
        reconnect: bool = True,
        max_kept_bytes: int = 1024 * 1024,
        player: Player | None = None,
        ack_interval_ms: float = 200.0,
        open_timeout_s: float = 10.0,
        close_timeout_s: float = 15.0,
    ) -> None:
        in_query, self._settings = split_options(options or {})
        wanted = [
            name for name in ext if reconnect or name != "resume"
        ]  # nobody waits for who does not come back
        query = {"model": model, "session_id": session_id, "frames": frames, "ext": ",".join(wanted)}
        self._url = websocket_url(url, NATIVE_PATH)
        self._query: dict[str, Any] = {k: v for k, v in query.items() if v is not None} | in_query
        self._token = token
        self._reconnects = reconnect
        self._player = player
        self._ack_interval_s = ack_interval_ms / 1000
        self._open_timeout_s = open_timeout_s
        self._close_timeout_s = close_timeout_s
        rate = str(in_query.get("sample_rate", 24000))
        self.protocol = ClientProtocol(
            binary=frames == "binary",
            codec=str(in_query.get("codec", "pcm_s16le")),
            sample_rate=int(rate) if rate.isdecimal() else 0,  # which the server refuses
        )
        self._socket: ClientConnection | None = None
        """None while the connection is down."""
        self._inbox = Inbox(MAX_EVENTS, self.protocol.stale)
        self._outbox = Outbox(max_kept_bytes)
        self._sent = Sent(max_kept_bytes)
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
        self._sent.reset()
        self._socket, events = await open_session(
            self._url,
            self._query,
            self._settings,
            protocol=self.protocol,
            send=self._transmit,
            token=self._token,
            timeout_s=self._open_timeout_s,
        )
        self._publish(events)
        self._tasks.append(asyncio.create_task(self._run(self._socket), name="duplex client"))
        if self._player is not None:
            acks = self._acknowledge(self._player)
            self._tasks.append(asyncio.create_task(acks, name="duplex client acks"))
        return self.session

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

    @property
    def _counting(self) -> bool:
        """The server numbers messages, and can be asked for what was missed."""
        return self.protocol.last_seq is not None

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
                await self._transmit(self._socket, frame)
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
                await self._transmit(self._socket, frame)
                return
            except ConnectionClosed:
                if self._reconnects and self._counting:
                    return  # the server will say that it has not got it
        if self._over is not None and not urgent:
            raise self._over
        if not self._reconnects and not urgent:
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
                _duck(player, False)
            case PlaybackDuck() | PlaybackUnduck() | Disconnected():
                _duck(player, isinstance(event, PlaybackDuck))
            case _:
                pass

    def _end(self, over: SessionOver) -> None:
        if self._over is None:
            over.unsent = len(self._outbox)
            self._over = over
            self._inbox.end(over)

    # --- the connection -----------------------------------------------------------------------------

    async def _connect(
        self, query: Mapping[str, Any], url: str
    ) -> tuple[ClientConnection, SessionCreated | SessionResumed]:
        return await open_connection(
            url, query, protocol=self.protocol, token=self._token, timeout_s=self._open_timeout_s
        )

    async def _run(self, socket: ClientConnection) -> None:
        """Read, and reconnect, until the session is over."""
        try:
            while True:
                await self._read(socket)
                over = why_closed(socket, self.protocol)
                self._socket = None
                again = isinstance(over, ConnectionLost) and self._reconnects and self.session.resume_token
                if not again or not self._counting:
                    self._publish(self.protocol.disconnected())
                if not again:
                    raise over
                self._publish([Disconnected(reason=over.message)])
                socket = await self._reconnect()
        except SessionOver as over:
            self._publish(self.protocol.disconnected())
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
        if self._counting:
            query["last_seq"] = self.protocol.last_seq
        (socket, begun), attempts = await connect_again(
            lambda url: self._connect(query, url),
            self._url,
            within_s=session.limits.get("resume_grace_s", 30.0),
        )
        again: list[Frame] = []
        if isinstance(begun, SessionResumed):
            again, forgotten = self._sent.after(begun.received)
            back = Reconnected(
                attempts=attempts,
                kept=len(self._outbox) + len(again),
                replayed=begun.replayed,
                lost=begun.lost + forgotten,
            )
            self._publish([back])
        else:
            self._sent.reset()
            ended = self.protocol.disconnected()
            self._publish([*ended, begun, Reconnected(attempts=attempts, kept=len(self._outbox))])
        await send_kept(socket, again, self._outbox, self._sent, keep=self._counting)
        self._socket = socket
        return socket

    async def _transmit(self, socket: ClientConnection, frame: Frame) -> None:
        """Send, and where the server counts, remember it until it must have arrived."""
        self._sent.add(frame, keep=self._counting)
        await socket.send(frame)

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


def _duck(player: Player, on: bool) -> None:
    """Lower the voice, if that player can."""
    duck = getattr(player, "duck", None)
    if duck is not None:
        duck(on)
