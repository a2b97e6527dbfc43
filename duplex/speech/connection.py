"""The speech socket's runtime: carries out the state machine's effects on a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
import pybase64

from duplex.adapters.speech import WordTime
from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.base import Frame
from duplex.runtime.clock import Clock, Handle
from duplex.runtime.faults import named
from duplex.runtime.socket import Socket
from duplex.runtime.tasks import Tasks
from duplex.speech.fields import SocketConfig
from duplex.speech.socket import (
    AbortUnit,
    Audio,
    CheckConfig,
    Close,
    Effect,
    EndUnit,
    FeedUnit,
    SetTimer,
    SpeechSocket,
    StartUnit,
    Tell,
)
from duplex.speech.synthesis import Job, Synthesis

MAX_QUEUED_BYTES: Final = 1024 * 1024
"""Audio that waits for the socket; a unit whose audio would go over it is synthesised no further."""
STOP_S: Final = 5.0
"""Seconds that a model has to stop when its client is gone."""
_MAX_JOBS: Final = 64


class SpeechConnection:
    """One client. The server calls `receive` for each frame and `close` when the socket is gone."""

    def __init__(
        self,
        socket: Socket,
        synthesis: Synthesis,
        clock: Clock,
        *,
        slow_reader_timeout_s: float,
        count: Callable[[ErrorCode], None],
    ) -> None:
        self._socket = socket
        self._synthesis = synthesis
        self._clock = clock
        self._slow_s = slow_reader_timeout_s
        self._count = count
        self._core = SpeechSocket(None, clock.now(), rate_of=self._rate_of)
        self._jobs: dict[int, tuple[SocketConfig, Job]] = {}
        self._stray: set[asyncio.Task[Any]] = set()
        self._tasks = Tasks(self._stray)
        self._units: dict[int, _Unit] = {}
        self._urgent: deque[Frame] = deque()
        self._audio: deque[tuple[int, Frame]] = deque()
        self._audio_bytes = 0
        self._moved = asyncio.Event()
        self._timer: Handle | None = None
        self._slow_timer: Handle | None = None
        self._closing: Close | None = None
        self.closed = False
        socket.watch(self._on_blocked, self._on_writable)

    def open(self, preset: SocketConfig | None) -> None:
        """The handshake is done; `preset` is what its query asked for."""
        self._apply(self._core.opened(preset))

    def receive(self, frame: Frame) -> None:
        """One message from the client."""
        self._apply(self._core.feed(frame, self._clock.now()))

    def fail(self, error: DuplexError) -> None:
        """Tell the client of a fault; end the connection if it is fatal."""
        self._apply(self._core.fail(error))

    def refuse(self, error: DuplexError) -> None:
        """The client may not come in: say why and close."""
        self._apply(self._core.refuse(error))

    async def drain(self, grace_s: float) -> None:
        """The server goes away: tell the client, let what is being said end, close."""
        timer = self._clock.call_at(self._clock.now() + grace_s, self._on_grace)
        self._apply(self._core.drain(grace_s))
        await self._wait(lambda: self.closed)
        timer.cancel()

    def _on_grace(self) -> None:
        self._apply(self._core.end(1012, "server draining"))

    async def close(self) -> None:
        """The socket is gone: stop all work."""
        self.closed = True
        self._core.closed = True
        for timer in (self._timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        self._moved.set()
        await self._tasks.stop(STOP_S)

    # --- effects ------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    if effect.message["type"] == "error":
                        self._count(ErrorCode(effect.message["code"]))
                    self._urgent.append(_text(effect.message))
                case Audio():
                    self._queue_audio(effect)
                case StartUnit():
                    self._start(effect)
                case FeedUnit():
                    self._units[effect.unit].feed(effect.text)
                case EndUnit():
                    self._units[effect.unit].end()
                case AbortUnit():
                    self._abort(effect.unit)
                case CheckConfig():
                    self._tasks.start(self._check(effect), "speech-config")
                case SetTimer():
                    self._timer = self._clock.call_at(effect.at, self._on_timer)
                case Close():
                    self._closing = effect
        self._flush()

    def _queue_audio(self, effect: Audio) -> None:
        frame: Frame = effect.payload
        if effect.json is not None:
            encoded = pybase64.b64encode(effect.payload).decode("ascii")
            frame = _text({**effect.json, "audio_b64": encoded})
        self._audio.append((effect.unit, frame))
        self._audio_bytes += len(frame)

    def _start(self, effect: StartUnit) -> None:
        unit = _Unit(effect.text, open=effect.open)
        self._units[effect.unit] = unit
        unit.task = self._tasks.start(self._speak(effect, unit), f"speech-unit-{effect.unit}")

    def _abort(self, serial: int) -> None:
        unit = self._units.pop(serial)
        if unit.task is not None:
            unit.task.cancel()
        kept = [entry for entry in self._audio if entry[0] != serial]
        self._audio = deque(kept)
        self._audio_bytes = sum(len(frame) for _, frame in kept)
        self._moved.set()

    async def _check(self, effect: CheckConfig) -> None:
        try:
            job = await self._synthesis.prepare(effect.config)
        except DuplexError as error:
            self._apply(self._core.config_refused(error, effect.context))
        except Exception as error:
            self._apply(self._core.config_refused(named(error, "checking the options"), effect.context))
        else:
            self._jobs[id(effect.config)] = (effect.config, job)
            while len(self._jobs) > _MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]
            self._apply(self._core.config_accepted(effect.config, effect.context))

    def _rate_of(self, config: SocketConfig) -> int:
        cached = self._jobs.get(id(config))
        return cached[1].format.sample_rate if cached is not None else 24000

    # --- units --------------------------------------------------------------------------------------

    async def _speak(self, effect: StartUnit, unit: _Unit) -> None:
        total = 0
        finish_reason: str | None = None
        fault: DuplexError | None = None
        try:
            cached = self._jobs.get(id(effect.config))
            job = cached[1] if cached is not None else await self._synthesis.prepare(effect.config)
            config = effect.config
            words: tuple[WordTime, ...] | None = ()
            held: list[bytes] = []
            async with contextlib.aclosing(self._synthesis.speak(job, unit.pieces())) as audio:
                async for piece in audio:
                    finish_reason = piece.finish_reason or finish_reason
                    words = None if words is None or piece.words is None else words + piece.words
                    total += len(piece.payload)
                    if not config.stream_audio:
                        held.append(piece.payload)
                    elif piece.payload:
                        self._send(effect.unit, piece.payload, words, config)
                        words = ()
                        await self._wait(lambda: self._audio_bytes < MAX_QUEUED_BYTES)
            if held:
                self._send(effect.unit, b"".join(held), words, config)
            # the unit is over when its audio has left: until then a cancel finds it running
            await self._wait(lambda: all(serial != effect.unit for serial, _ in self._audio))
        except DuplexError as error:
            fault = error
        except Exception as error:
            fault = named(error, "speaking")
        self._units.pop(effect.unit, None)
        self._apply(self._core.unit_ended(effect.unit, total, error=fault, finish_reason=finish_reason))

    def _send(
        self, serial: int, payload: bytes, words: tuple[WordTime, ...] | None, config: SocketConfig
    ) -> None:
        self._apply(self._core.audio(serial, payload, words, aligned=config.word_timestamps))

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready() and not self.closed:
            self._moved.clear()
            await self._moved.wait()

    # --- the socket ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        socket = self._socket
        while self._urgent and socket.can_write:
            socket.write(self._urgent.popleft())
        moved = False
        while self._audio and not self._urgent and socket.can_write:
            _, frame = self._audio.popleft()
            self._audio_bytes -= len(frame)
            socket.write(frame)
            moved = True
        if moved:
            self._moved.set()
        if self._closing is not None and not self._urgent and not self.closed:
            self.closed = True
            self._moved.set()
            socket.close(self._closing.code, self._closing.reason)

    def _on_blocked(self) -> None:
        if self._slow_timer is None and not self.closed:
            self._slow_timer = self._clock.call_at(self._clock.now() + self._slow_s, self._on_slow)

    def _on_writable(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self._flush()

    def _on_slow(self) -> None:
        """The peer does not read: nothing more can be told, so the close reason carries the name."""
        self._core.closed = True
        self.closed = True
        self._socket.close(4408, "slow_reader")

    def _on_timer(self) -> None:
        self._timer = None
        self._apply(self._core.timer(self._clock.now()))


class _Unit:
    """The text of one running unit, as it comes."""

    __slots__ = ("_queue", "task")

    def __init__(self, text: str, *, open: bool) -> None:
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._queue.put_nowait(text)
        self.task: asyncio.Task[None] | None = None
        if not open:
            self.end()

    def feed(self, text: str) -> None:
        self._queue.put_nowait(text)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def pieces(self) -> AsyncIterator[str]:
        while (text := await self._queue.get()) is not None:
            yield text


def _text(message: dict[str, object]) -> str:
    return msgspec.json.encode(message).decode()
