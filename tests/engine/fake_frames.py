"""A frame model without arithmetic: its audio says which request, which frame and which sample it is, so that
a lost, doubled or foreign frame shows. It refuses whatever the contract of `FrameModel` forbids.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.model import Finish, FrameResult, ModelInfo
from duplex.core.errors import DuplexError, ErrorCode

T = TypeVar("T")
SCALE = 2**20


class FakeJob(msgspec.Struct, frozen=True, kw_only=True):
    """`tone` 0-15 marks the request. A frame is made for each character of the text and `tail` more after its
    end. `most`: frames at which it is cut. `rows` of its prompt, `late_rows` of them there only with the
    first text.
    """

    tone: int
    text: str = ""
    ended: bool = True
    tail: int = 0
    rows: int = 1
    late_rows: int = 0
    most: int | None = None
    fault: str = ""


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model is; `frame_s`, `decode_s`: how long its device takes, seconds. `fault`: how it fails to
    load."""

    slots: int = 4
    max_batch: int = 4
    prefill_rows: int = 8
    decode_frames: tuple[int, ...] = (1, 2, 4, 8)
    frames_kept: int = 32
    first_audible: bool = False
    frame_samples: int = 16
    frame_ms: float = 80.0
    frame_s: float = 0.0
    decode_s: float = 0.0
    fault: str = ""


def expected(job: FakeJob, text: str | None = None, *, frame_samples: int = 16) -> NDArray[np.float32]:
    """The whole audio of a job, with all the text that it got."""
    text = job.text if text is None else text
    frames = len(text) + job.tail
    frames = frames if job.most is None else min(frames, job.most)
    parts = [frame_of(job.tone, text, index, frame_samples) for index in range(frames)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def finish_of(job: FakeJob, text: str | None = None) -> Finish:
    frames = len(job.text if text is None else text) + job.tail
    return "length" if job.most is not None and job.most <= frames else "stop"


def frame_of(tone: int, text: str, index: int, frame_samples: int) -> NDArray[np.float32]:
    """Exact in float32: 4 bits of tone, 20 of position. The first sample of a frame with text is its
    character."""
    samples = (tone + (index * frame_samples + np.arange(frame_samples)) / SCALE).astype(np.float32)
    if index < len(text):
        samples[0] = ord(text[index])
    return samples


class Done(Generic[T]):
    """A `Pending` of a device that is done at a time of `time.monotonic`."""

    def __init__(self, value: T, ends: float) -> None:
        self._value = value
        self._ends = ends
        self._taken = False

    def done(self) -> bool:
        return monotonic() >= self._ends

    def result(self) -> T:
        assert not self._taken, "collected twice"
        self._taken = True
        if (left := self._ends - monotonic()) > 0:
            sleep(left)
        return self._value


class FakeSlot:
    """A `SlotView` and what the model keeps beside it."""

    def __init__(self, job: FakeJob) -> None:
        self.job = job
        self.text = ""
        self.ended = False
        self.in_cache = 0
        self.launched = 0
        self.decoded = 0
        self.ends: list[float] = []  # when the device has made its frames
        self.over = False
        self.add(job.text, job.ended)

    def add(self, text: str, ended: bool) -> None:
        assert not self.ended, "text after its end"
        self.text += text
        self.ended = ended

    @property
    def prompt_rows(self) -> int:
        there = self.job.rows - (self.job.late_rows if not self.text and not self.ended else 0)
        return there - self.in_cache

    @property
    def steppable(self) -> bool:
        return self.in_cache == self.job.rows and (self.ended or self.launched < len(self.text))

    def step(self) -> tuple[bool, Finish | None]:
        """One frame: whether it is audible, and how the request is finished with it."""
        index = self.launched
        self.launched += 1
        if self.over:
            return True, None  # void
        if self.ended and index >= len(self.text) + self.job.tail:
            self.over = True
            return False, "stop"
        if self.job.most is not None and index + 1 >= self.job.most:
            self.over = True
            return True, "length"
        return True, None


class FakeModel:
    """The model. Everything is worked out when it is launched; results only wait for their time."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        self.options = o = options or FakeOptions()
        self.info = ModelInfo(
            name="fake",
            sample_rate=round(o.frame_samples * 1000 / o.frame_ms),
            frame_samples=o.frame_samples,
            slots=o.slots,
            max_batch=o.max_batch,
            prefill_rows=o.prefill_rows,
            decode_frames=o.decode_frames,
            frames_kept=o.frames_kept,
            first_audible=o.first_audible,
        )
        self.slots: dict[int, FakeSlot] = {}
        self.warm = False
        self._frame_free = self._decode_free = 0.0

    def warm_up(self) -> None:
        self.warm = True

    def begin(self, slot: int, job: bytes) -> FakeSlot:
        assert slot not in self.slots, f"slot {slot} is taken"
        assert 0 <= slot < self.info.slots
        try:
            fake = msgspec.json.decode(job, type=FakeJob)
        except msgspec.MsgspecError as error:
            raise DuplexError(ErrorCode.INVALID_VALUE, f"no job: {error}", param="job") from error
        if fake.fault == "refused":
            raise DuplexError(ErrorCode.VOICE_NOT_FOUND, "there is no such tone", param="tone")
        if fake.fault == "crash":
            raise RuntimeError("the device is on fire")
        self.slots[slot] = FakeSlot(fake)
        return self.slots[slot]

    def add_text(self, slot: int, text: str, *, ended: bool) -> None:
        if "\0" in text:
            raise DuplexError(ErrorCode.INVALID_VALUE, "a NUL", param="text")
        self.slots[slot].add(text, ended)

    def prefill(self, work: Sequence[tuple[int, int]]) -> None:
        assert 0 < sum(rows for _, rows in work) <= self.info.prefill_rows
        assert len({slot for slot, _ in work}) == len(work)
        for slot, rows in work:
            assert 0 < rows <= self.slots[slot].prompt_rows
            self.slots[slot].in_cache += rows

    def launch_frame(self, slots: Sequence[int]) -> Done[FrameResult]:
        result = self.frame(slots)
        self._frame_free = max(self._frame_free, monotonic()) + self.options.frame_s
        self.made(slots, self._frame_free)
        return Done(result, self._frame_free)

    def frame(self, slots: Sequence[int]) -> FrameResult:
        assert 0 < len(slots) <= self.info.max_batch
        assert len(set(slots)) == len(slots)
        steps = []
        for slot in slots:
            state = self.slots[slot]
            assert state.steppable
            steps.append(state.step())
            assert state.launched - state.decoded <= self.info.frames_kept + 1
        return FrameResult(audible=tuple(a for a, _ in steps), finish=tuple(f for _, f in steps))

    def launch_decode(self, slots: Sequence[int], frames: int) -> Done[NDArray[np.float32]]:
        begin = max(self._decode_free, monotonic(), self.there(slots, frames))
        audio = self.decode(slots, frames)
        self._decode_free = begin + self.options.decode_s
        return Done(audio, self._decode_free)

    def made(self, slots: Sequence[int], ends: float) -> None:
        """The device has made the frame that was launched last at this time."""
        for slot in slots:
            self.slots[slot].ends.append(ends)

    def there(self, slots: Sequence[int], frames: int) -> float:
        """When the device has made the next frames to be decoded."""
        states = [self.slots[slot] for slot in slots]
        return max(state.ends[state.decoded + frames - 1] for state in states)

    def decode(self, slots: Sequence[int], frames: int) -> NDArray[np.float32]:
        assert frames in self.info.decode_frames
        assert 0 < len(slots) <= self.info.max_batch
        assert len(set(slots)) == len(slots)
        rows = []
        for slot in slots:
            state = self.slots[slot]
            assert state.decoded + frames <= state.launched
            parts = [
                frame_of(state.job.tone, state.text, state.decoded + index, self.info.frame_samples)
                for index in range(frames)
            ]
            state.decoded += frames
            rows.append(np.concatenate(parts))
        return np.stack(rows)

    def free(self, slot: int) -> None:
        del self.slots[slot]

    def call(self, name: str, payload: bytes) -> bytes:
        match name:
            case "echo":
                return payload
            case "slots":
                # frames launched, by tone
                return msgspec.json.encode({str(s.job.tone): s.launched for s in self.slots.values()})
            case "switch":
                return msgspec.json.encode(sys.getswitchinterval())
            case "refuse":
                raise DuplexError(ErrorCode.VOICE_NOT_FOUND, "no such voice", param="voice")
            case "hang":
                sleep(600)
                return b""
            case _:
                raise ValueError(f"no call {name!r}")

    def memory_bytes(self) -> int:
        return 12345


def load(options: Mapping[str, Any]) -> FakeModel:
    """The worker's factory."""
    given = msgspec.convert(options, FakeOptions)
    match given.fault:
        case "refused":
            raise DuplexError(ErrorCode.BAD_CONFIG, "there is no such checkpoint", param="model")
        case "crash":
            print("the last words of a worker")
            raise RuntimeError("no weights")
        case "exit":
            os.write(2, b"a library that gives up\n")
            os._exit(7)
        case "slow":
            sleep(600)
    return FakeModel(given)
