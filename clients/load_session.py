"""One client of the load generator: it takes turns, and notes what it sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Sequence
from time import monotonic_ns
from typing import Any, Final, Literal

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from duplex.clients.address import NATIVE_PATH, websocket_url
from duplex.clients.connection import open_connection, why_closed
from duplex.clients.errors import SessionOver
from duplex.clients.events import (
    AudioDelta,
    ClientEvent,
    ErrorMessage,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    TextDelta,
)
from duplex.clients.protocol import ClientProtocol
from duplex.dialects.native_frames import HEADER, FrameKind

UPLINK_MS: Final = 20
"""Length of a window of microphone audio."""
OPEN_TIMEOUT_S: Final = 60.0


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do.

    `turn`: `speak` has `text` said, `text` asks it as a question, `respond` asks for a response to nothing.
    Sessions are opened over `ramp_s`; `duration_s` counts from when all are open. `cancel_after_ms` counts
    from a response's first delta; None lets responses finish. `uplink`: silence is sent as microphone audio
    all the while. `stamped`: PCM carries its time, as the scripted model's option of that name makes it;
    the model must be on the same host.
    """

    url: str
    sessions: int = 1
    duration_s: float = 10.0
    ramp_s: float = 1.0
    turn: Literal["speak", "text", "respond"] = "speak"
    text: str = "The quick brown fox jumps over the lazy dog."
    pause_ms: float = 0.0
    cancel_after_ms: float | None = None
    uplink: bool = False
    stamped: bool = False
    frames: Literal["binary", "json"] = "binary"
    model: str | None = None
    token: str | None = None


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of `count` values in ms; all 0 when there were none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        if not values:
            return cls()
        p50, p99 = np.percentile(values, [50, 99])
        return cls(
            count=len(values),
            mean=float(np.mean(values)),
            p50=float(p50),
            p99=float(p99),
            max=float(max(values)),
        )


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. Times in ms.

    `refused` and `ended` count sessions that did not begin, or ended before their time, by error code;
    `errors` counts the other error messages. `ttfd_ms`: request to first delta, `ttfa_ms`: to first audio.
    `latency_ms`: an audio chunk's stamp to its arrival. `cancel_ms`: cancel to its answer;
    `cancel_to_silence_ms`: cancel to the last audio of that response, 0 when none came after it.
    `stale_bytes` came after a response had ended. `underruns`: how often a player without a cushion would
    have run dry.
    """

    options: LoadOptions
    opened: int
    refused: dict[str, int]
    ended: dict[str, int]
    errors: dict[str, int]
    responses: dict[str, int]
    frames: int
    audio_bytes: int
    audio_s: float
    stale_bytes: int
    underruns: int
    open_ms: Distribution
    ttfd_ms: Distribution
    ttfa_ms: Distribution
    latency_ms: Distribution
    cancel_ms: Distribution
    cancel_to_silence_ms: Distribution


class Tally:
    """What all sessions together have seen so far."""

    def __init__(self) -> None:
        self.opened = 0
        self.refused: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.responses: Counter[str] = Counter(started=0, done=0, cancelled=0)
        self.frames = 0
        self.audio_bytes = 0
        self.audio_s = 0.0
        self.stale_bytes = 0
        self.underruns = 0
        self.open_ms: list[float] = []
        self.ttfd_ms: list[float] = []
        self.ttfa_ms: list[float] = []
        self.latency_ms: list[float] = []
        self.cancel_ms: list[float] = []
        self.cancel_to_silence_ms: list[float] = []

    def report(self, options: LoadOptions) -> LoadReport:
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            match value:
                case Counter():
                    values[name] = dict(value)
                case list():
                    values[name] = Distribution.of(value)
                case _:
                    values[name] = value
        shown = msgspec.structs.replace(options, token=None)  # a report is kept, a token is not
        return LoadReport(options=shown, **values)


class _Turn:
    """One request and its response. Times in ns of the monotonic clock; 0: not yet."""

    __slots__ = ("asked", "cancelled", "dry_at", "first", "heard", "index", "last_audio", "over")

    def __init__(self) -> None:
        self.asked = monotonic_ns()
        self.index = 0
        self.first = 0
        self.heard = 0
        self.cancelled = 0
        self.last_audio = 0
        self.dry_at = 0
        self.over = False


class LoadSession:
    """A client that takes turns until it is stopped."""

    def __init__(self, options: LoadOptions, tally: Tally) -> None:
        self._options = options
        self._tally = tally
        self._protocol = ClientProtocol(binary=options.frames == "binary")
        self._turn = _Turn()
        self._stopping = False
        self._socket: ClientConnection | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> bool:
        """Connect. False when the session was refused."""
        options = self._options
        query = {"model": options.model, "frames": options.frames}
        began = monotonic_ns()
        try:
            self._socket, _ = await open_connection(
                websocket_url(options.url, NATIVE_PATH),
                {name: value for name, value in query.items() if value is not None},
                protocol=self._protocol,
                token=options.token,
                timeout_s=OPEN_TIMEOUT_S,
            )
        except SessionOver as over:
            self._tally.refused[_name(over)] += 1
            return False
        self._tally.opened += 1
        self._tally.open_ms.append((monotonic_ns() - began) / 1e6)
        return True

    async def run(self) -> None:
        """Take turns until `stop`, then close gracefully."""
        socket = self._socket
        assert socket is not None
        try:
            if self._options.uplink:
                self._start(self._uplink(socket))
            await self._converse(socket)
        except ConnectionClosed:
            over = why_closed(socket, self._protocol)
            if not self._stopping or over.close_code != 1000:
                self._tally.ended[_name(over)] += 1
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await socket.close()

    def stop(self) -> None:
        """Cut the running response off, and take no further turn."""
        self._stopping = True
        self._start(self._cancel(self._turn))

    async def _converse(self, socket: ClientConnection) -> None:
        while not self._stopping:
            self._turn = turn = await self._ask(socket)
            while not turn.over:
                self._received(await socket.recv(), turn)
            if self._options.pause_ms and not self._stopping:
                await asyncio.sleep(self._options.pause_ms / 1000)
        await socket.send(self._protocol.request("close"))
        while True:  # until the server closes: what comes now is stale
            self._received(await socket.recv(), self._turn)

    async def _ask(self, socket: ClientConnection) -> _Turn:
        options = self._options
        self._tally.responses["started"] += 1
        turn = _Turn()
        if options.turn == "text":
            await socket.send(self._protocol.append_text(options.text))
        response = {"speak": options.text} if options.turn == "speak" else None
        await socket.send(self._protocol.request("response.create", response=response))
        return turn

    # --- what comes ---------------------------------------------------------------------------------

    def _received(self, frame: str | bytes, turn: _Turn) -> None:
        now = monotonic_ns()
        self._tally.frames += 1
        if isinstance(frame, bytes):  # by far the most: looked at without decoding
            _, kind, rate, index, _ = HEADER.unpack_from(frame)
            if kind == FrameKind.AUDIO_OUT:
                self._audio(turn, index, frame, HEADER.size, rate, now)
            return
        dropped = self._protocol.dropped_deltas
        for event in self._protocol.receive(frame):
            self._event(turn, event, now)
        if self._protocol.dropped_deltas != dropped:
            self._tally.stale_bytes += len(frame)

    def _event(self, turn: _Turn, event: ClientEvent, now: int) -> None:
        match event:
            case ResponseCreated() if not turn.index:
                turn.index = event.response_index
                if self._stopping:
                    self._start(self._cancel(turn))
            case TextDelta():
                self._first(turn, now)
            case AudioDelta():
                self._audio(turn, event.response_index, event.data, 0, event.sample_rate, now)
            case ResponseDone() | ResponseCancelled() if event.response_index == turn.index and not turn.over:
                self._ended(turn, isinstance(event, ResponseCancelled), now)
            case ErrorMessage():
                self._tally.errors[event.code] += 1
                turn.over = turn.over or not turn.index  # the request was refused
            case _:
                pass

    def _audio(self, turn: _Turn, index: int, data: bytes, at: int, rate: int, now: int) -> None:
        """Audio in `data` from `at` on."""
        tally = self._tally
        size = len(data) - at
        if index != turn.index or turn.over:
            tally.stale_bytes += size
            return
        seconds = size / 2 / rate
        tally.audio_bytes += size
        tally.audio_s += seconds
        if not turn.heard:
            turn.heard = turn.dry_at = now
            tally.ttfa_ms.append((now - turn.asked) / 1e6)
        self._first(turn, now)
        if self._options.stamped:
            stamp = int.from_bytes(data[at : at + 8], "little")
            tally.latency_ms.append((now - stamp) / 1e6)
        if now > turn.dry_at:
            tally.underruns += 1
        turn.dry_at = max(now, turn.dry_at) + int(seconds * 1e9)
        turn.last_audio = now

    def _first(self, turn: _Turn, now: int) -> None:
        """Note the first delta of a response, and when to cancel it."""
        if turn.first:
            return
        turn.first = now
        self._tally.ttfd_ms.append((now - turn.asked) / 1e6)
        if self._options.cancel_after_ms is not None:
            self._start(self._cancel(turn, self._options.cancel_after_ms / 1000))

    def _ended(self, turn: _Turn, cancelled: bool, now: int) -> None:
        turn.over = True
        self._tally.responses["cancelled" if cancelled else "done"] += 1
        if cancelled and turn.cancelled and not self._stopping:  # at the end all cancel at once
            self._tally.cancel_ms.append((now - turn.cancelled) / 1e6)
            self._tally.cancel_to_silence_ms.append(max(0, turn.last_audio - turn.cancelled) / 1e6)

    # --- what goes ----------------------------------------------------------------------------------

    async def _cancel(self, turn: _Turn, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        if self._socket is None or not turn.index or turn.cancelled or turn.over:
            return
        turn.cancelled = monotonic_ns()
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(self._protocol.request("response.cancel", response_index=turn.index))

    async def _uplink(self, socket: ClientConnection) -> None:
        """Silence at the pace of a microphone."""
        loop = asyncio.get_running_loop()
        silence = bytes(16000 * UPLINK_MS // 1000 * 2)
        due = loop.time()
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.send(self._protocol.append_audio(silence))
                due += UPLINK_MS / 1000
                await asyncio.sleep(max(0.0, due - loop.time()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _name(over: SessionOver) -> str:
    return over.code.value if over.code is not None else type(over).__name__
