"""The outbound queue: what waits for one socket.

Two lanes. Audio keeps its order and waits while it would run too far ahead of playback; everything else
overtakes it. An event is written at once when nothing is in its way, without waking a task; it is encoded
when it is written, so that a dialect sees just what its client gets, in that order.

For a dialect whose client can take the session up again, what is written is kept in a journal; the queue
outlives its socket then (`park`), and goes on over another one (`rejoin`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from duplex.core.events import (
    Event,
    ResponseAudio,
    ResponseText,
    ResponseToolCall,
    SessionResumed,
    UserTranscript,
)
from duplex.core.journal import Entry, Journal, Missed
from duplex.dialects.base import Dialect, Frame
from duplex.runtime.clock import Clock, Handle
from duplex.runtime.socket import Socket

log = logging.getLogger("duplex.outbound")

FLUSH_S = 5.0
"""Seconds that a closing connection may take to write what is queued."""
EVENT_COST = 256
"""Bytes that an event without media counts for."""
MAX_HYSTERESIS_MS = 100.0
"""Held audio is let go in steps of this much, so that a full client buffer does not cost a timer a frame."""


class OutboundLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one connection's queue. Responses stop at half of `max_bytes`: the rest is for what cannot
    wait for them, the answers to the client's own messages."""

    max_bytes: int = 4 * 1024 * 1024
    max_audio_s: float = 8.0
    slow_reader_timeout_s: float = 10.0
    journal_bytes: int = 2 * 1024 * 1024
    journal_s: float = 30.0


class Traffic(Protocol):
    """Where written bytes are counted."""

    bytes_out: int


class Listener(Protocol):
    """Who is told what became of the queue."""

    def run_ahead_ms(self) -> tuple[float, float]:
        """Audio that the client holds and has not played, and how much it may hold; 0: any amount."""
        ...

    def audio_written(self, event: ResponseAudio) -> None: ...

    def too_slow(self, words: str) -> None:
        """The peer does not read."""
        ...

    def cannot_encode(self, event: Event) -> None:
        """The dialect raised: a fault of ours. Its traceback has been logged."""
        ...


class Nowhere:
    """The socket of a queue that has none."""

    can_write = False

    def watch(self, on_blocked: Callable[[], None], on_writable: Callable[[], None]) -> None: ...

    def write(self, frame: Frame) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class OutboundQueue:
    """Events on their way to one socket. Calls come from the loop's thread; none of them waits but `room`
    and `drained`, and only one task waits in them at a time."""

    def __init__(
        self,
        socket: Socket,
        dialect: Dialect,
        listener: Listener,
        *,
        limits: OutboundLimits,
        clock: Clock,
        traffic: Traffic,
    ) -> None:
        self._socket: Socket = socket
        self._dialect = dialect
        self._listener = listener
        self._limits = limits
        self._clock = clock
        self._traffic = traffic
        self.journal: Journal | None = None
        """What was written, while the client wants to be able to come back for it."""
        self._replaying: deque[Entry] = deque()
        """What is to be written again, before all else."""
        self._urgent: deque[Event] = deque()
        self._audio: deque[ResponseAudio] = deque()
        self._urgent_bytes = 0
        self._audio_bytes = 0
        self._audio_ms = 0.0
        self._holding = False
        """Audio waits for playback to catch up."""
        self._hold_timer: Handle | None = None
        self._blocked_timer: Handle | None = None
        self._close_timer: Handle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_empty = False
        self._closing: tuple[int, str] | None = None
        self._closed = False
        socket.watch(self._on_blocked, self._on_writable)

    # --- state --------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Payload bytes that wait here."""
        return self._urgent_bytes + self._audio_bytes

    @property
    def audio_s(self) -> float:
        """Seconds of audio that wait here."""
        return self._audio_ms / 1000

    @property
    def full(self) -> bool:
        """True while a response should yield nothing more."""
        # the commonest case by far: nothing is queued at all
        return (self._audio_bytes or self._urgent_bytes) > 0 and self._over(1.0)

    def _over(self, fraction: float) -> bool:
        limits = self._limits
        return (
            self._audio_ms >= limits.max_audio_s * 1000 * fraction
            or self._urgent_bytes + self._audio_bytes >= limits.max_bytes * fraction / 2
        )

    # --- putting and purging ------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Write the event now if nothing is in its way, else queue it."""
        if self._closing is not None:
            return
        socket = self._socket
        if self.journal is not None:
            self.journal.note(event)
        if type(event) is ResponseAudio:
            free = not (self._audio or self._urgent or self._replaying)
            if free and socket.can_write and not self._must_hold(event):
                self._write_audio(event)
                return
            self._audio.append(event)
            self._audio_bytes += len(event.payload)
            self._audio_ms += event.duration_ms
            if self._holding:
                self._arm_hold()
            return
        if not self._urgent and not self._replaying and socket.can_write:
            self._write(event)
            return
        self._urgent.append(event)
        self._urgent_bytes += _cost(event)
        if self._urgent_bytes > self._limits.max_bytes and not isinstance(event, _GENERATED):
            self._listener.too_slow(f"more than {self._limits.max_bytes} bytes of events are unread")

    def purge(self, response_id: str) -> None:
        """Drop all that is queued of a response: its audio and its text."""
        if self._audio:
            kept = [event for event in self._audio if event.response_id != response_id]
            if len(kept) != len(self._audio):
                self._audio = deque(kept)
                self._audio_bytes = sum(len(event.payload) for event in kept)
                self._audio_ms = sum(event.duration_ms for event in kept) if kept else 0.0
                if not kept:
                    self._holding = False
        if self._urgent:
            self._urgent = deque(
                event
                for event in self._urgent
                if not isinstance(event, _GENERATED) or event.response_id != response_id
            )
            self._urgent_bytes = sum(_cost(event) for event in self._urgent)
        self._wake()

    def release_held(self) -> None:
        """Look again at audio that waits for playback: the limit or the client's position has changed."""
        if self._audio:
            self._flush()

    # --- waiting ------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait until the queue is well below its bounds."""
        await self._wait(empty=False)

    async def drained(self) -> None:
        """Wait until no audio is queued."""
        if self._audio:
            await self._wait(empty=True)

    async def _wait(self, *, empty: bool) -> None:
        self._waits_for_empty = empty
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if not self._audio if self._waits_for_empty else not self._over(0.75):
            waiter.set_result(None)

    # --- writing ------------------------------------------------------------------------------------

    def _write(self, event: Event) -> None:
        try:
            frames = self._dialect.encode(event)
            if self._dialect.resumable:
                frames = self._journaled(event, frames)
            elif self.journal is not None:
                self.journal = None
            for frame in frames:
                self._traffic.bytes_out += len(frame)
                self._socket.write(frame)
        except Exception:
            log.exception("cannot encode %s", type(event).__name__)
            self._listener.cannot_encode(event)

    def _journaled(self, event: Event, frames: list[Frame]) -> list[Frame]:
        journal = self.journal
        if journal is None:
            limits = self._limits
            journal = self.journal = Journal(max_bytes=limits.journal_bytes, max_s=limits.journal_s)
        now = self._clock.now()
        if not isinstance(event, ResponseAudio) or not frames:
            return [journal.add(frame, now) for frame in frames]
        # those before the last open what the sound belongs to
        numbered = [journal.add(frame, now) for frame in frames[:-1]]
        numbered.append(journal.add(frames[-1], now, sound_of=event.index, duration_ms=event.duration_ms))
        return numbered

    def _write_audio(self, event: ResponseAudio) -> None:
        # an encoder that is still filling its frame gives no bytes, but its samples count as sent
        if event.payload:
            self._write(event)
        self._listener.audio_written(event)

    def _must_hold(self, event: ResponseAudio) -> bool:
        ahead, most = self._listener.run_ahead_ms()
        if most <= 0:
            self._holding = False
            return False
        if self._holding:
            most -= min(MAX_HYSTERESIS_MS, most / 4)
        # a chunk that is longer than the whole limit still has to go out some time
        self._holding = ahead > 0 and ahead + event.duration_ms > most
        return self._holding

    def _arm_hold(self) -> None:
        if self._hold_timer is not None or not self._audio:
            return
        ahead, most = self._listener.run_ahead_ms()
        most -= min(MAX_HYSTERESIS_MS, most / 4)
        excess_ms = min(ahead, ahead + self._audio[0].duration_ms - most)
        # the millisecond is the resolution of some loops' timers
        self._hold_timer = self._clock.call_at(
            self._clock.now() + max(excess_ms, 0.0) / 1000 + 0.001, self._on_hold
        )

    def _on_hold(self) -> None:
        self._hold_timer = None
        self._flush()

    def _flush(self) -> None:
        """Write what may be written."""
        socket = self._socket
        urgent = self._urgent
        while self._replaying and socket.can_write:
            self._write_again(self._replaying.popleft())
        while urgent and socket.can_write:
            event = urgent.popleft()
            self._urgent_bytes -= _cost(event)
            self._write(event)
        while self._audio and socket.can_write and not self._urgent:
            audio = self._audio[0]
            if self._must_hold(audio):
                self._arm_hold()
                break
            self._audio.popleft()
            self._audio_bytes -= len(audio.payload)
            self._audio_ms = self._audio_ms - audio.duration_ms if self._audio else 0.0
            self._write_audio(audio)
        self._wake()
        if self._closing is not None and not self._urgent and not self._replaying:
            self._finish_closing()

    def _write_again(self, entry: Entry) -> None:
        if not entry.void:
            self._traffic.bytes_out += len(entry.frame)
            self._socket.write(entry.frame)

    # --- another socket -----------------------------------------------------------------------------

    def park(self) -> None:
        """The socket is gone, and the client may come back for what is queued and what was written."""
        self._socket = Nowhere()
        self._replaying.clear()
        self._holding = False
        for timer in (self._hold_timer, self._blocked_timer):
            self._cancel(timer)
        self._hold_timer = self._blocked_timer = None

    def rejoin(self, socket: Socket, resumed: SessionResumed, missed: Missed) -> None:
        """Go on over another socket: first with what the client missed, as it was written."""
        self._socket = socket
        socket.watch(self._on_blocked, self._on_writable)
        for frame in self._dialect.encode(resumed):
            self._traffic.bytes_out += len(frame)
            socket.write(frame)
        self._replaying.extend(missed.entries)
        self._flush()

    def unwritten(self) -> list[Event]:
        """What is queued, sound last."""
        return [*self._urgent, *self._audio]

    # --- the socket ---------------------------------------------------------------------------------

    def _on_blocked(self) -> None:
        if self._blocked_timer is None and self._closing is None:
            self._blocked_timer = self._clock.call_at(
                self._clock.now() + self._limits.slow_reader_timeout_s, self._on_stuck
            )

    def _on_writable(self) -> None:
        self._cancel(self._blocked_timer)
        self._blocked_timer = None
        self._flush()

    def _on_stuck(self) -> None:
        self._blocked_timer = None
        self._listener.too_slow(f"nothing was read for {self._limits.slow_reader_timeout_s:g} s")

    # --- the end ------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop all that is queued."""
        self._replaying.clear()
        self._urgent.clear()
        self._audio.clear()
        self._urgent_bytes = self._audio_bytes = 0
        self._audio_ms = 0.0
        self._holding = False
        self._wake()

    def close(self, code: int, reason: str, *, flush: bool = True) -> None:
        """Close the socket, after what is queued of urgent events if `flush`. Queued audio is dropped."""
        if self._closing is not None:
            return
        self._closing = (code, reason)
        if flush:
            self._audio.clear()
            self._audio_bytes = 0
            self._audio_ms = 0.0
        else:
            self.clear()
        if not self._urgent and not self._replaying:
            self._finish_closing()
            return
        self._close_timer = self._clock.call_at(self._clock.now() + FLUSH_S, self._finish_closing)

    def _finish_closing(self) -> None:
        if self._closed or self._closing is None:
            return
        # a peer that still does not read gets the last events only if the transport's own buffer drains
        while self._replaying:
            self._write_again(self._replaying.popleft())
        while self._urgent:
            self._write(self._urgent.popleft())
        self._urgent_bytes = 0
        code, reason = self._closing
        self._socket.close(code, reason)
        self.detach()

    def detach(self) -> None:
        """The socket is gone: forget what is queued and stop all timers."""
        self._closed = True
        self._closing = self._closing or (1006, "")
        self.clear()
        for timer in (self._hold_timer, self._blocked_timer, self._close_timer):
            self._cancel(timer)
        self._hold_timer = self._blocked_timer = self._close_timer = None

    @staticmethod
    def _cancel(timer: Handle | None) -> None:
        if timer is not None:
            timer.cancel()


_GENERATED = (ResponseText, ResponseToolCall)
"""What a response yields beside audio."""


def _cost(event: Event) -> int:
    if isinstance(event, ResponseText | UserTranscript):
        return EVENT_COST + len(event.text)
    if isinstance(event, ResponseToolCall):
        return EVENT_COST + len(event.arguments)
    return EVENT_COST
