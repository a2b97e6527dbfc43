"""What a frame model offers to the worker that drives it.

A frame model makes audio in frames of fixed length (Qwen3-TTS: 80 ms). It has a fixed number of slots; a slot
is one request's place: its key-value cache, sampling state and codec state on the device. One thread, the
step thread, calls every method but `call`; nothing here is asynchronous in Python's sense. Work is launched
on the device and collected later, so that the next frame is queued before the last one is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Finish: TypeAlias = Literal["stop", "length"]
T_co = TypeVar("T_co", covariant=True)


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model is.

    `sample_rate` in Hz, `frame_samples` samples a frame; `slots` requests at once; `max_batch` slots that one
    frame can advance; `prefill_rows` prompt positions that one prefill can take; `decode_frames` the chunk
    sizes, in frames, that one codec decode can make of each of its slots, ascending, the first one 1;
    `frames_kept` frames of a slot whose codes are kept: at most so many are launched and not yet decoded;
    `first_audible`: a request's first frame is always audio, so that it is given to the codec before its
    result was read;
    `detail` is what `/metrics` and the log tell of it (device, dtype, parameters …).
    """

    name: str
    sample_rate: int
    frame_samples: int
    slots: int
    max_batch: int
    prefill_rows: int
    decode_frames: tuple[int, ...]
    frames_kept: int = 64
    first_audible: bool = False
    detail: dict[str, str] = {}


class SlotView(Protocol):
    """What the scheduler may know of a slot: host-side bookkeeping only, never a wait for the device."""

    @property
    def prompt_rows(self) -> int:
        """Prompt positions that are ready and not yet in the cache. They come first."""
        ...

    @property
    def steppable(self) -> bool:
        """The whole prompt is in and the text for the next frame is there, or has ended."""
        ...


class FrameResult(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of each slot of a launch, in the launch's order.

    `audible[i]` False: the model ended instead of making a frame (its end code is no audio). `finish[i]` is
    set when the slot makes no frame after this one.
    """

    audible: tuple[bool, ...]
    finish: tuple[Finish | None, ...]


class Pending(Protocol[T_co]):
    """Work on the device."""

    def done(self) -> bool:
        """True when `result` would not wait."""
        ...

    def result(self) -> T_co:
        """Wait (the GIL is released) and give the result. Any thread, once."""
        ...


class FrameModel(Protocol):
    """A loaded model.

    It may also have `memory_bytes() -> int`, the device memory that it holds; without it the worker tells its
    resident memory. Called about once a second on the step thread.
    """

    info: ModelInfo

    def warm_up(self) -> None:
        """Compile, capture, run every shape once. After it no launch compiles anything."""
        ...

    def begin(self, slot: int, job: bytes) -> SlotView:
        """Give a free slot to a request: `job` is the model's own message.

        Raises:
            DuplexError: what is wrong with the job; the slot stays free.
        """
        ...

    def add_text(self, slot: int, text: str, *, ended: bool) -> None:
        """More of the request's text; `ended`: no more comes."""
        ...

    def prefill(self, work: Sequence[tuple[int, int]]) -> None:
        """Launch prompt positions: (slot, rows) pairs, together at most `prefill_rows` rows."""
        ...

    def launch_frame(self, slots: Sequence[int]) -> Pending[FrameResult]:
        """Launch one frame of steppable slots, at most `max_batch`. Frames run in the order of their launch.

        A slot may be launched again before its last frame was collected. Frames launched after the one whose
        result has `finish` set are void: their results are to be ignored.
        """
        ...

    def launch_decode(self, slots: Sequence[int], frames: int) -> Pending[NDArray[np.float32]]:
        """Launch the codec: the next `frames` frames (one of `decode_frames`) of each slot into audio.

        Each slot has at least so many frames launched and not yet decoded. The result has shape
        (len(slots), frames * frame_samples), mono, full scale ±1.
        """
        ...

    def free(self, slot: int) -> None:
        """Take the slot back, whatever it is in the middle of. It may be given away at once.

        What is still in flight of it is void: results are collected and dropped.
        """
        ...

    def call(self, name: str, payload: bytes) -> bytes:
        """A job that is no stream, such as a voice's embedding. Runs on a thread of its own.

        Raises:
            DuplexError: an unknown name, a bad payload.
        """
        ...


class ModelFactory(Protocol):
    """What a worker's `--factory module:function` names: loads a model from the options of its replica.

    Raises:
        DuplexError: `BAD_CONFIG`: an unknown option, a checkpoint that is not there …
    """

    def __call__(self, options: Mapping[str, Any]) -> FrameModel: ...
