"""The speech socket's runtime: carries out the state machine's effects on a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

import msgspec
import pybase64

from duplex.adapters.speech import WordTime
from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.base import Frame
from duplex.runtime.clock import Clock, Handle
from duplex.runtime.faults import named
from duplex.runtime.socket import Socket
from duplex.runtime.tasks import Tasks
from duplex.speech.effects import (
    AbortUnit,
    Accepted,
    Audio,
    CheckConfig,
    Close,
    Effect,
    EndUnit,
    FeedUnit,
    SetTimer,
    StartUnit,
    Tell,
)
from duplex.speech.fields import SocketConfig
from duplex.speech.places import Place
from duplex.speech.socket import SpeechSocket
from duplex.speech.synthesis import Job, Synthesis, check_whole, whole

MAX_QUEUED_BYTES: Final = 1024 * 1024
"""Audio that waits for the socket; a unit whose audio would go over it is synthesised no further."""
MAX_URGENT: Final = 1024
"""Messages but audio that wait for the socket: a client that asks on and reads nothing is cut off."""
SLACK_S: Final = 1.0
"""What the clean-up of a unit may take beyond the time that its model has to stop."""


class SpeechConnection:
    """One client. The server calls `receive` for each frame and `close` when the socket is gone."""

    def __init__(
        self,
        socket: Socket,
        synthesis: Synthesis,
        clock: Clock,
        *,
        slow_reader_timeout_s: float,
        config_timeout_s: float,
        count: Callable[[ErrorCode], None],
    ) -> None:
        self._socket = socket
        self._synthesis = synthesis
        self._clock = clock
        self._slow_s = slow_reader_timeout_s
        self._count = count
        self._place: Place | None = None
        self._core = SpeechSocket(None, clock.now(), config_timeout_s=config_timeout_s)
        self._tasks = Tasks(synthesis.patience.stray)
        self._units: dict[int, _Unit] = {}
        self._urgent: deque[Frame] = deque()
        self._audio: deque[tuple[int, Frame]] = deque()
        self._audio_bytes = 0
        self._whole_bytes = 0
        """Of units that go out in one piece, from their first audio until they have left."""
        self._moved = asyncio.Event()
        self._timer: Handle | None = None
        self._slow_timer: Handle | None = None
        self._closing: Close | None = None
        self.closed = False
        socket.watch(self._on_blocked, self._on_writable)

    def open(self, preset: SocketConfig | None, place: Place) -> None:
        """The handshake is done; `preset` is what its query asked for. The place is given back before the
        client is told that the connection is over."""
        self._place = place
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
        self._cut_off(1012, "server draining")

    async def close(self) -> None:
        """The socket is gone: stop all work."""
        self.closed = True
        self._core.closed = True
        for timer in (self._timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        self._moved.set()
        await self._tasks.stop(self._synthesis.patience.stop_s + SLACK_S)

    # --- effects ------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    if effect.message["type"] == "error":
                        self._count(ErrorCode(effect.message["code"]))
                    self._urgent.append(_text(effect.message))
                    if len(self._urgent) > MAX_URGENT:
                        self._on_slow()
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
        serial = effect.unit
        taken = partial(self._core.taken, serial) if effect.open else None
        unit = _Unit(effect.text, open=effect.open, taken=taken)
        self._units[serial] = unit
        unit.task = self._tasks.start(self._speak(effect, unit), f"speech-unit-{serial}")

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
        except Exception as error:
            fault = named(error, "checking the options")
            self._apply(self._core.config_refused(fault, effect.context))
        else:
            terms = Accepted(config=effect.config, sample_rate=job.format.sample_rate, job=job)
            self._apply(self._core.config_accepted(terms, effect.context))

    # --- units --------------------------------------------------------------------------------------

    async def _speak(self, effect: StartUnit, unit: _Unit) -> None:
        spoken = _Spoken()
        fault: DuplexError | None = None
        try:
            await self._speak_unit(effect, unit, spoken)
            # the unit is over when its audio has left: until then a cancel finds it running
            await self._wait(lambda: all(serial != effect.unit for serial, _ in self._audio))
        except Exception as error:
            fault = named(error, "speaking")
        finally:
            if not effect.terms.config.stream_audio:
                self._whole_bytes -= spoken.bytes
        self._units.pop(effect.unit, None)
        now = self._clock.now()
        self._apply(
            self._core.unit_ended(
                effect.unit, spoken.bytes, now, error=fault, finish_reason=spoken.finish_reason
            )
        )

    async def _speak_unit(self, effect: StartUnit, unit: _Unit, spoken: _Spoken) -> None:
        job: Job = effect.terms.job
        config = effect.terms.config
        words: tuple[WordTime, ...] | None = ()
        held: list[bytes] = []
        async with contextlib.aclosing(self._synthesis.speak(job, unit.pieces())) as audio:
            async for piece in audio:
                spoken.finish_reason = piece.finish_reason or spoken.finish_reason
                if config.stream_audio:
                    spoken.bytes += len(piece.payload)
                    self._send(effect.unit, piece.payload, piece.words, config)
                    await self._wait(lambda: self._audio_bytes < MAX_QUEUED_BYTES)
                else:
                    words = None if words is None or piece.words is None else words + piece.words
                    held.append(piece.payload)
                    spoken.bytes += len(piece.payload)
                    self._whole_bytes += len(piece.payload)
                    check_whole(self._whole_bytes)
        if any(held):
            self._send(effect.unit, whole(job.format, held), words, config)

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
        if self._closing is not None and not self._urgent:
            self._cut_off(self._closing.code, self._closing.reason)

    def _cut_off(self, code: int, reason: str) -> None:
        """Close now. The place is free before the client can know, so that it may come back at once."""
        if self.closed:
            return
        self._core.closed = True
        self.closed = True
        self._moved.set()
        if self._place is not None:
            self._place.release()
        self._socket.close(code, reason)

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
        if not self.closed:
            self._count(ErrorCode.SLOW_READER)
        self._cut_off(4408, "slow_reader")

    def _on_timer(self) -> None:
        self._timer = None
        self._apply(self._core.timer(self._clock.now()))


class _Unit:
    """The text of one running unit, as it comes."""

    __slots__ = ("_queue", "_taken", "task")

    def __init__(self, text: str, *, open: bool, taken: Callable[[int], None] | None) -> None:
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._queue.put_nowait(text)
        self._taken = taken
        self.task: asyncio.Task[None] | None = None
        if not open:
            self.end()

    def feed(self, text: str) -> None:
        self._queue.put_nowait(text)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def pieces(self) -> AsyncIterator[str]:
        while (text := await self._queue.get()) is not None:
            if self._taken is not None:
                self._taken(len(text))
            yield text


class _Spoken:
    """What came of a unit so far."""

    __slots__ = ("bytes", "finish_reason")

    def __init__(self) -> None:
        self.bytes = 0
        self.finish_reason: str | None = None


def _text(message: dict[str, object]) -> str:
    return msgspec.json.encode(message).decode()
