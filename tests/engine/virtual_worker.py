"""A worker in virtual time: the real stepper on a fake device with a cost model, and clients that play.

The device has two queues, as a GPU has streams: prefills and frames in one, decodes in the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
import numpy as np
from fake_frames import FakeJob, FakeModel, FakeOptions, FakeSlot
from numpy.typing import NDArray

from duplex.adapters.engine.messages import Abort, Credit, Ended, Failed, Start, Text
from duplex.adapters.engine.model import Finish, FrameResult
from duplex.adapters.engine.settings import Policy
from duplex.adapters.engine.steps import AudioWork, RequestMessage, Stepper


@dataclass(kw_only=True)
class Costs:
    """ms: of a frame and of each slot in it, of a prefill and each row, of a decode and each frame in it; of
    the step thread for each launch, `begin` included."""

    frame: float = 2.0
    frame_slot: float = 0.05
    prefill: float = 2.0
    prefill_row: float = 0.05
    decode: float = 1.0
    decode_frame: float = 0.02
    launch: float = 0.0


class Ends:
    """A `Pending` of virtual time."""

    def __init__(self, value: Any, ends: float) -> None:
        self.value = value
        self.ends = ends

    def done(self) -> bool:
        raise AssertionError("nobody asks")

    def result(self) -> Any:
        return self.value


class VirtualModel(FakeModel):
    """The fake model on a device that takes time."""

    def __init__(self, options: FakeOptions, costs: Costs, world: VirtualWorker) -> None:
        super().__init__(options)
        self.costs = costs
        self.world = world
        self.main_free = self.codec_free = 0.0
        self.prefills_in_row = self.worst_prefills = 0

    def begin(self, slot: int, job: bytes) -> FakeSlot:
        self.world.now += self.costs.launch
        return super().begin(slot, job)

    def prefill(self, work: Sequence[tuple[int, int]]) -> None:
        self.world.now += self.costs.launch
        runnable = any(state.launched and self.world.can_step(slot) for slot, state in self.slots.items())
        super().prefill(work)
        rows = sum(rows for _, rows in work)
        took = self.costs.prefill + rows * self.costs.prefill_row
        self.main_free = max(self.main_free, self.world.now) + took
        if runnable:
            self.prefills_in_row += 1
            self.worst_prefills = max(self.worst_prefills, self.prefills_in_row)

    def launch_frame(self, slots: Sequence[int]) -> Any:
        self.world.now += self.costs.launch
        self.world.on_frame(slots)
        self.prefills_in_row = 0
        result: FrameResult = self.frame(slots)
        took = self.costs.frame + len(slots) * self.costs.frame_slot
        self.main_free = max(self.main_free, self.world.now) + took
        self.made(slots, self.main_free)
        return Ends(result, self.main_free)

    def launch_decode(self, slots: Sequence[int], frames: int) -> Any:
        assert len(slots) == 1 or len(slots) * frames <= self.world.policy.decode_work
        self.world.now += self.costs.launch
        self.world.on_decode(slots)
        begin = max(self.codec_free, self.world.now, self.there(slots, frames))
        audio: NDArray[np.float32] = self.decode(slots, frames)
        took = self.costs.decode + len(slots) * frames * self.costs.decode_frame
        self.codec_free = begin + took
        return Ends(audio, self.codec_free)

    def free(self, slot: int) -> None:
        client = self.world.client_of(slot)
        if not client.aborting and client.failed is None:
            assert self.slots[slot].decoded == client.frames, "freed while its audio is being decoded"
        super().free(slot)


@dataclass(kw_only=True)
class Client:
    """Who asked: takes audio as it comes, plays it at once and without a break if it can."""

    id: int
    job: FakeJob
    arrived: float
    window: int | None = None
    text: str = ""
    chunks: list[NDArray[np.float32]] = field(default_factory=list)
    chunk_frames: list[int] = field(default_factory=list)
    first_audio: float | None = None
    play_end: float = 0.0
    underruns: int = 0
    finish: Finish | None = None
    aborting: bool = False
    aborted: float = 0.0
    ended: float | None = None
    failed: Failed | None = None
    frames: int = 0

    @property
    def audio(self) -> NDArray[np.float32]:
        return np.concatenate([np.zeros(0, np.float32), *self.chunks])


class VirtualWorker:
    """Runs messages at their times. `on_frame` (`on_decode`) is called with the slots of each frame before it
    is launched."""

    def __init__(
        self,
        options: FakeOptions | None = None,
        *,
        costs: Costs | None = None,
        policy: Policy | None = None,
        reader: Callable[[float], float] = lambda now: now,
    ) -> None:
        self.now = 0.0
        self.model = VirtualModel(options or FakeOptions(), costs or Costs(), self)
        self.policy = policy or Policy()
        self.stepper = Stepper(self.model, self.policy)
        self.clients: dict[int, Client] = {}
        self.on_frame: Callable[[Sequence[int]], None] = lambda slots: None
        self.on_decode: Callable[[Sequence[int]], None] = lambda slots: None
        self.frame_ms = self.model.info.frame_samples * 1e3 / self.model.info.sample_rate
        self.steps = 0
        self._reader = reader
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._messages: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ids = count(1)
        self._wake: float | None = None
        self._out_free = 0.0

    # --- what happens when --------------------------------------------------------------------------

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def say(self, time: float, action: Callable[[], None]) -> None:
        """The same for messages, which are also read between the launches of a step."""
        heapq.heappush(self._messages, (time, next(self._order), action))

    def ask(
        self,
        time: float,
        job: FakeJob,
        *,
        window: int | None = None,
        credit: int | None = None,
        first_frames: int = 1,
        goes_on: bool = False,
    ) -> Client:
        """A request. With a `window` its client gives credit as it takes frames; with `credit` it does
        not."""
        client = Client(id=next(self._ids), job=job, arrived=time, window=window, text=job.text)
        start = Start(
            id=client.id,
            job=msgspec.json.encode(job),
            credit=credit if window is None else window,
            first_frames=first_frames,
            goes_on=goes_on,
        )

        def send() -> None:
            self.clients[client.id] = client
            self._take(start)

        self.say(time, send)
        return client

    def grant(self, time: float, client: Client, frames: int) -> None:
        self.say(time, lambda: self._take(Credit(id=client.id, frames=frames)))

    def write(self, time: float, client: Client, text: str, *, ended: bool = False) -> None:
        def send() -> None:
            if client.ended is None and client.failed is None:
                client.text += text
                self._take(Text(id=client.id, text=text, ended=ended))

        self.say(time, send)

    def abort(self, time: float, client: Client) -> None:
        def send() -> None:
            client.aborting = True
            client.aborted = time
            self._take(Abort(id=client.id))

        self.say(time, send)

    def run(self, until: float = float("inf"), *, most_steps: int = 200_000) -> None:
        """Until nothing is left to happen."""
        while True:
            times = [queue[0][0] for queue in (self._events, self._messages) if queue]
            times += [self._wake] if self._wake is not None else []
            if not times or min(times) > until:
                return
            self.now = max(self.now, min(times))
            while due := [q for q in (self._events, self._messages) if q and q[0][0] <= self.now]:
                heapq.heappop(min(due, key=lambda queue: queue[0][:2]))[2]()
            self._step()
            self.steps += 1
            assert self.steps < most_steps, "it spins"

    # --- the worker ---------------------------------------------------------------------------------

    def can_step(self, slot: int) -> bool:
        """The slot's stream could make a frame: it has text, credit and room."""
        state = self.model.slots[slot]
        client = self.client_of(slot)
        credit = client.window is None or state.launched < client.frames + client.window
        room = state.launched < client.frames + self.model.info.frames_kept
        return state.steppable and not state.over and credit and room

    def client_of(self, slot: int) -> Client:
        tone = self.model.slots[slot].job.tone
        return next(client for client in self.clients.values() if client.job.tone == tone)

    def _take(self, message: RequestMessage) -> None:
        answer = self.stepper.take(message, self.now)
        if answer is not None:
            self._answer(answer)

    def _answer(self, answer: Ended | Failed) -> None:
        client = self.clients[answer.id]
        assert client.ended is None
        assert client.failed is None
        assert client.finish is None
        if isinstance(answer, Ended):
            client.ended = self.now
        else:
            client.failed = answer

    def _attend(self) -> None:
        while self._messages and self._messages[0][0] <= self.now:
            heapq.heappop(self._messages)[2]()

    def _step(self) -> None:
        launched = self.stepper.step(self.now, self._attend)
        for answer in launched.answers:
            self._answer(answer)
        for frame in launched.frames:
            assert isinstance(frame, Ends)
            self.at(frame.ends, lambda frame=frame: self.stepper.frame_done(frame.value, self.now))
        for output in launched.outputs:
            if isinstance(output, AudioWork):
                assert isinstance(output.pending, Ends)
                ended = max(output.pending.ends, self._out_free)
                self._out_free = self._reader(ended)
                self.at(self._out_free, lambda output=output, ended=ended: self._deliver(output, ended))
            else:
                word = output
                self._out_free = max(self._out_free, self.now)
                self.at(self._out_free, lambda word=word: self._hear(word.id, None, word.finish))
        self._wake = self.stepper.wake

    def _deliver(self, work: AudioWork, ended: float) -> None:
        rows = work.pending.result()
        for id, row, finish in zip(work.ids, rows, work.finish, strict=True):
            self._hear(id, row, finish)
        self.stepper.decode_done(ended, self.now)

    def _hear(self, id: int, samples: NDArray[np.float32] | None, finish: Finish | None) -> None:
        client = self.clients[id]
        if client.ended is not None or client.failed is not None:
            return  # what the outlet drops
        assert client.finish is None, "audio after the finish"
        client.finish = finish
        if samples is None:
            return
        frames = len(samples) // self.model.info.frame_samples
        client.chunks.append(samples)
        client.chunk_frames.append(frames)
        client.frames += frames
        if client.first_audio is None:
            client.first_audio = client.play_end = self.now
        if self.now > client.play_end + 1e-9:
            client.underruns += 1
            client.play_end = self.now
        client.play_end += frames * self.frame_ms
        if client.window is not None and finish is None:
            self._take(Credit(id=id, frames=client.frames + client.window))
