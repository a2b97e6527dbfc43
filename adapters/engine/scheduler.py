"""What one step of a worker does: who gets a slot, who is prefilled, who makes a frame, what is decoded.

Pure: no I/O, no clock, no model. The caller tells what came and what ended, asks for plans and carries them
out (`steps.Stepper`). Times are ms of one monotonic clock. See docs/frame-engine.md for the rules and why
they are so.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from duplex.adapters.engine.chunks import Chunks
from duplex.adapters.engine.flights import Counts, DecodeFlight, FrameFlight
from duplex.adapters.engine.model import Finish, FrameResult, ModelInfo, SlotView
from duplex.adapters.engine.settings import Policy
from duplex.adapters.engine.streams import NO_SLOT, Stream
from duplex.adapters.engine.timing import LaunchTimes

NEVER: Final = float("inf")


class Scheduler:
    """All requests of a worker.

    A step is: `released` (free these in the model), `admit` until None (begin these), `plan_prefill`,
    `plan_frame`, `plan_decodes` until None, `overdue` (refuse these). Plans count as launched when they are
    given out. `wake` says when the next step is due even if nothing happens.
    """

    def __init__(self, info: ModelInfo, policy: Policy | None = None) -> None:
        self._info = info
        self._policy = policy or Policy()
        self._frame_ms = info.frame_samples * 1e3 / info.sample_rate
        self._chunks = Chunks(info.decode_frames, self._frame_ms)
        self._streams: dict[int, Stream] = {}
        self._waiting: deque[Stream] = deque()
        self._waiting_on: deque[Stream] = deque()  # those that go on: they come first
        self._unmade: dict[int, Stream] = {}  # has a slot, has made no frame
        self._making: dict[int, Stream] = {}  # has made a frame and may make more
        self._spent: dict[int, Stream] = {}  # the same, but it has no credit
        self._silent: dict[int, Stream] = {}  # has a slot, and no audio of it went out
        self._holding: dict[int, Stream] = {}  # has frames to be decoded
        self._first: dict[int, Stream] = {}  # its first frame flies, and the codec does not have it
        self._where = (
            *(self._streams, self._unmade, self._making, self._spent),
            *(self._silent, self._holding, self._first),
        )
        self._free = list(range(info.slots))
        self._released: list[int] = []
        self._frames: deque[FrameFlight] = deque()
        self._decodes: deque[DecodeFlight] = deque()
        self._frame_times = LaunchTimes()
        self._decode_times = LaunchTimes()
        self._frame_end = self._decode_end = 0.0
        self._next_chunk = NEVER  # no chunk is due before
        self._prefilled = False  # since the last frame was launched
        self._frame_count = self._late = 0
        self.wake: float | None = None

    # --- what came ----------------------------------------------------------------------------------

    def start(
        self,
        id: int,
        job: bytes,
        now: float,
        *,
        credit: int | None = None,
        first_frames: int = 1,
        goes_on: bool = False,
    ) -> None:
        """A new request. It waits for a slot, first come first served; one that goes on with what its client
        hears comes before all that do not."""
        if id in self._streams:
            raise ValueError(f"request {id} is there already")
        first = max(1, min(first_frames, self._info.decode_frames[-1]))
        stream = Stream(
            id=id, arrived=now, frame_ms=self._frame_ms, job=job, credit=credit, first_frames=first
        )
        self._streams[id] = stream
        (self._waiting_on if goes_on else self._waiting).append(stream)

    def text(self, id: int, text: str, *, ended: bool) -> int | None:
        """More text. The slot whose model it is for now; None: it is kept until there is one, or void."""
        stream = self._streams.get(id)
        if stream is None or stream.finish is not None:
            return None
        if stream.slot == NO_SLOT:
            stream.text.append((text, ended))
            return None
        return stream.slot

    def grant(self, id: int, frames: int) -> None:
        """The request may make so many frames in all. Credit never shrinks."""
        stream = self._streams.get(id)
        if stream is not None and stream.credit is not None and frames > stream.credit:
            stream.credit = frames
            if self._spent.pop(id, None) is not None:
                self._making[id] = stream

    def abort(self, id: int) -> bool:
        """Forget a request, wherever it is. False: it is not there."""
        stream = self._streams.get(id)
        if stream is None:
            return False
        self._end(stream)
        return True

    # --- slots --------------------------------------------------------------------------------------

    def released(self) -> list[int]:
        """Slots to take back from the model; they can be given away from now on."""
        slots, self._released = self._released, []
        self._free += slots
        return slots

    def admit(self) -> Stream | None:
        """The next request that has a slot now, to be begun: answer with `begun` or `refused` before anything
        else is asked."""
        waiting = self._waiting_on or self._waiting
        if not self._free or not waiting:
            return None
        stream = waiting.popleft()
        stream.slot = self._free.pop()
        return stream

    def overdue(self, now: float) -> list[Stream]:
        """Requests that have waited too long for a slot: they are over. To be asked for after the plans."""
        most = self._policy.wait_ms
        late = []
        for waiting in (self._waiting_on, self._waiting):
            while waiting and waiting[0].arrived + most <= now:
                late.append(waiting[0])
                self._end(waiting[0])
            if waiting:
                self._wake_at(waiting[0].arrived + most)
        return late

    def begun(self, stream: Stream, view: SlotView) -> None:
        """The model has taken the request."""
        stream.view = view
        stream.job = b""
        stream.text.clear()
        self._unmade[stream.id] = self._silent[stream.id] = stream

    def refused(self, stream: Stream) -> None:
        """The model has not taken the request: its slot is free at once."""
        self._free.append(stream.slot)
        stream.slot = NO_SLOT
        self._end(stream)

    # --- plans --------------------------------------------------------------------------------------

    def plan_prefill(self, now: float) -> list[tuple[int, int]]:
        """(slot, rows) pairs. At most one prefill goes before a frame, so that running streams wait for one;
        prompts that are nearly in come first, long ones fall behind by their length and no further."""
        self.wake = None
        prompts = [(s, rows) for s in self._unmade.values() if s.view and (rows := s.view.prompt_rows)]
        if not prompts or (self._prefilled and self._candidates()):
            return []
        prompts.sort(key=lambda prompt: prompt[0].arrived + prompt[1] * self._policy.row_ms)
        work = []
        room = self._info.prefill_rows
        for stream, rows in prompts:
            if not room:
                break
            taken = min(rows, room)
            work.append((stream.slot, taken))
            room -= taken
        self._prefilled = True
        return work

    def plan_frame(self, now: float) -> FrameFlight | None:
        """The next frame. It is queued shortly before the one ahead of it ends: late enough that a request
        that comes meanwhile is prefilled first, early enough that the device has no gap."""
        if len(self._frames) >= self._policy.frame_depth:
            return None
        if self._frames and (due := self._queue_time(self._frames[-1])) > now:
            self._wake_at(due)
            return None
        streams = self._candidates()
        if not streams or self._can_wait(streams, now):
            return None
        streams = self._most_urgent(streams, now)
        flight = FrameFlight(
            streams=tuple(streams),
            launched=now,
            prefill=self._prefilled,
            expected_ms=None if self._prefilled else self._frame_times.expect(len(streams)),
        )
        for stream in streams:
            if not stream.launched:
                del self._unmade[stream.id]
                self._making[stream.id] = stream
                if self._info.first_audible and stream.first_frames == 1:
                    self._first[stream.id] = stream
            stream.launched += 1
            stream.flying += 1
            if stream.launched == stream.credit:
                self._spent[stream.id] = self._making.pop(stream.id)
        self._prefilled = False
        self._frames.append(flight)
        return flight

    def plan_decodes(self, now: float) -> DecodeFlight | None:
        """The next decode: first frames that were just launched; else the most urgent chunk, and all chunks
        of its size that are due."""
        if len(self._decodes) >= self._policy.decode_depth:
            return None
        if self._first:
            flight = DecodeFlight.of_first_frames(list(self._first.values())[: self._most(1)], now)
            for stream in flight.streams:
                del self._first[stream.id]
            self._decodes.append(flight)
            return flight
        due = self._due_chunks(now) if self._next_chunk <= now else []
        if not due:
            self._wake_at(self._next_chunk)
            return None
        due.sort(key=lambda entry: entry[:2])
        frames = due[0][2]
        streams = tuple([stream for _, _, size, stream in due if size == frames][: self._most(frames)])
        finish = []
        for stream in streams:
            stream.ready -= frames
            stream.decoding += frames
            if not stream.ready:
                del self._holding[stream.id]
            finish.append(None if stream.ready else stream.finish)
        flight = DecodeFlight(streams=streams, frames=frames, finish=tuple(finish), launched=now)
        self._decodes.append(flight)
        return flight

    def _most(self, frames: int) -> int:
        """Streams that one decode of so many frames takes."""
        return max(1, min(self._info.max_batch, self._policy.decode_work // frames))

    # --- what ended ---------------------------------------------------------------------------------

    def frame_done(self, result: FrameResult, now: float) -> list[tuple[int, Finish]]:
        """The oldest frame in flight has ended. Requests that are finished with nothing left to decode: their
        last message goes behind what is being decoded."""
        flight = self._frames.popleft()
        took = now - max(flight.launched, self._frame_end)
        self._frame_times.add(len(flight.streams), took, learn=not flight.prefill)
        self._frame_end = now
        self._next_chunk = 0.0
        finished: list[tuple[int, Finish]] = []
        for stream, audible, finish in zip(flight.streams, result.audible, result.finish, strict=True):
            decoded = stream.ahead > 0
            if decoded:
                stream.ahead -= 1
            else:
                stream.flying -= 1
            if stream.over or stream.finish is not None:
                continue  # void
            self._first.pop(stream.id, None)
            self._frame_count += audible
            if audible and not decoded:
                stream.ready += 1
                self._holding[stream.id] = stream
            if finish is not None:
                stream.finish = finish
                self._making.pop(stream.id, None)
                self._spent.pop(stream.id, None)
                if not stream.ready:
                    finished.append((stream.id, finish))
                    if not stream.decoding:
                        self._end(stream)
        return finished

    def decode_done(self, ended: float, now: float) -> None:
        """The oldest decode in flight has ended, and its audio goes out now."""
        flight = self._decodes.popleft()
        work = len(flight.streams) * flight.frames
        took = ended - max(flight.launched, self._decode_end)
        self._decode_times.add(work, took, learn=not flight.ahead)
        self._decode_end = ended
        self._next_chunk = 0.0
        for stream in flight.streams:
            if stream.over:
                continue
            self._late += stream.deliver(flight.frames, now)
            self._silent.pop(stream.id, None)
            if stream.finish is not None and not stream.ready and not stream.decoding:
                self._end(stream)

    # --- what is counted ----------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Slots that are taken."""
        return self._info.slots - len(self._free) - len(self._released)

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting) + len(self._waiting_on)

    def take_counts(self) -> Counts:
        """Counts since the last call."""
        launches, frame_ms = self._frame_times.take()
        _, decode_ms = self._decode_times.take()
        counts = Counts(
            frames=self._frame_count,
            launches=launches,
            frame_ms=frame_ms,
            decode_ms=decode_ms,
            late=self._late,
        )
        self._frame_count = self._late = 0
        return counts

    # --- rules --------------------------------------------------------------------------------------

    def _candidates(self) -> list[Stream]:
        """Streams that could make a frame."""
        kept = self._info.frames_kept
        return [
            stream
            for streams in (self._unmade, self._making)
            for stream in streams.values()
            if stream.flying + stream.ready + stream.decoding < kept and stream.steppable
        ]

    def _most_urgent(self, streams: list[Stream], now: float) -> list[Stream]:
        """Who makes the frame: all, unless there are more than fit, or one of them has no audio yet. Then its
        frame is kept short: those whose clients have plenty sit out."""
        policy, most = self._policy, self._info.max_batch
        if any(not stream.sent for stream in streams):
            plenty = now + policy.comfort_ms
            streams = [s for s in streams if not s.sent or s.deadline(now) <= plenty]
        if len(streams) > most:
            # nobody who plays is made to run dry for somebody's first audio
            soonest = now + policy.reserve_ms + 2 * self._frame_times.longest()
            start_ms = policy.start_ms
            urgent = [(s.deadline(max(soonest, s.arrived + start_ms)), s.id, s) for s in streams]
            urgent.sort()
            streams = [stream for _, _, stream in urgent[:most]]
        return streams

    def _can_wait(self, streams: list[Stream], now: float) -> bool:
        """A first chunk is on its way through frame and codec, and nobody needs another frame meanwhile: the
        device is left to it. Streams that wait for their own first audio, or could run dry, need one."""
        hurried = {s.id for flight in self._decodes if flight.ahead for s in flight.streams if not s.over}
        if not hurried:
            return False
        margin = self._policy.reserve_ms + 4 * self._frame_times.longest()
        last = min((s.deadline(now) for s in streams if s.id not in hurried), default=NEVER) - margin
        if last <= now:
            return False
        self._wake_at(last)
        return True

    def _queue_time(self, ahead: FrameFlight) -> float:
        """When to queue a frame behind this one."""
        if ahead.expected_ms is None:
            return 0.0
        begin = max(ahead.launched, self._frame_end)
        return begin + 0.9 * ahead.expected_ms - self._policy.lead_ms

    def _due_chunks(self, now: float) -> list[tuple[float, int, int, Stream]]:
        """(buffer, id, frames, stream) of each chunk that is due."""
        policy, chunks = self._policy, self._chunks
        reserve = policy.reserve_ms + 2 * self._decode_times.longest()
        low = reserve + 0.01  # what rounding leaves of a time is not waited for
        comfort = policy.comfort_ms if any(map(_moving, self._silent.values())) else NEVER
        due = []
        self._next_chunk = NEVER
        for stream in self._holding.values():
            buffer = stream.buffer_ms(now)
            if buffer > comfort and not (stream.finish and self.waiting):
                continue
            if stream.sent or stream.decoding:
                is_due = buffer <= low or stream.ready >= chunks.wanted(buffer)
            else:
                is_due = stream.ready >= stream.first_frames
            if is_due or self._no_more(stream):
                due.append((buffer, stream.id, chunks.largest(stream.ready), stream))
            elif buffer and now + buffer - reserve < self._next_chunk:
                self._next_chunk = now + buffer - reserve
        if due:
            self._next_chunk = 0.0
        return due

    def _no_more(self, stream: Stream) -> bool:
        """No further frame comes soon: there is nothing to gather."""
        return (
            stream.finish is not None
            or (not stream.flying and not stream.steppable)
            or stream.undecoded >= self._info.frames_kept
        )

    def _wake_at(self, time: float) -> None:
        if time < (self.wake or NEVER):
            self.wake = time

    def _end(self, stream: Stream) -> None:
        stream.over = True
        self._next_chunk = 0.0
        for streams in self._where:
            streams.pop(stream.id, None)
        if stream.slot != NO_SLOT:
            self._released.append(stream.slot)
        else:
            for waiting in (self._waiting, self._waiting_on):
                if stream in waiting:
                    waiting.remove(stream)


def _moving(stream: Stream) -> bool:
    """A stream without audio is on its way to it: it waits neither for text nor for credit."""
    view = stream.view
    return bool(stream.undecoded or stream.steppable or (view is not None and view.prompt_rows))
