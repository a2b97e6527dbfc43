"""The codec beside the talker: codes into audio on a stream of its own, on the same or another device."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen3_tts.codec import CodecDecoder
from duplex.adapters.qwen3_tts.codec_state import CodecState
from duplex.adapters.qwen3_tts.device import new_stream, on_device, on_stream, send, upload
from duplex.adapters.qwen3_tts.memo import Memo


class After(Protocol):
    """Something on the device that a stream can wait for."""

    def wait_on(self, stream: object) -> None: ...


class Sound:
    """The codec's slots. All methods but `remember` are called from the step thread.

    `ring` is the talker's ring of codes. Where it is on another device, the frames that a decode needs are
    copied over first, into a ring of the same shape.
    """

    def __init__(self, codec: CodecDecoder, ring: Tensor, memo: Memo[Any]) -> None:
        self._codec = codec
        self._memo = memo
        self._ring = ring
        self._mirror = None if ring.device == codec.device else torch.zeros_like(ring, device=codec.device)
        self._stream = new_stream(codec.device)
        self._hearing = new_stream(codec.device)
        self._copies = new_stream(ring.device) if self._mirror is not None else None

    def rehearse(self) -> None:
        """Make every launch that `warm_up` will capture, for `compiling.compile_ahead`."""
        with on_device(self._codec.device):
            self._codec.rehearse(self._ring if self._mirror is None else self._mirror)

    def warm_up(self) -> None:
        """Compile and capture every shape."""
        with on_device(self._codec.device):
            self._codec.capture(self._ring if self._mirror is None else self._mirror)

    def begin(self, slot: int, codes: NDArray[np.int64] | None = None, key: Hashable = None) -> None:
        """A new stream in the slot; with reference codes (frames, 16), one that goes on after them. `key` is
        the same for the same codes."""
        with on_stream(self._stream):
            if codes is None:
                self._codec.reset(slot)
                return
            state = self._heard(codes, key)
            if self._stream is not None:  # it may have been made on another thread's stream
                for tensor in (state.context, state.ring, state.position, state.frame):
                    tensor.record_stream(self._stream)
            self._codec.load(slot, state)

    def remember(self, codes: NDArray[np.int64], key: Hashable) -> None:
        """Let the codec hear reference codes before a stream asks. For threads that can wait: it does."""
        with on_stream(self._hearing):
            self._heard(codes, key, wait=self._hearing)

    def _heard(
        self, codes: NDArray[np.int64], key: Hashable, wait: torch.cuda.Stream | None = None
    ) -> CodecState:
        found = self._memo.get(("codec", key))
        if isinstance(found, CodecState):
            return found
        state = self._codec.snapshot(send(torch.from_numpy(codes), self._codec.device))
        if wait is not None:
            wait.synchronize()
        self._memo.put(("codec", key), state, state.bytes)
        return state

    def launch(self, slots: Sequence[int], firsts: Sequence[int], frames: int, after: After) -> Any:
        """Launch the decode of so many frames of the slots, from `firsts` on, which are there when `after` is
        over. A `Pending` of the samples, (slots, frames · frame_samples)."""
        if self._mirror is not None:
            self._copy(slots, firsts, frames, after)
        with on_stream(self._stream):
            if self._stream is not None:
                after.wait_on(self._stream)
            return self._codec.launch(slots, frames)

    def _copy(self, slots: Sequence[int], firsts: Sequence[int], frames: int, after: After) -> None:
        """Bring codes over into the mirror of the ring."""
        assert self._mirror is not None
        kept = self._ring.shape[1]
        cells = [
            slot * kept + frame % kept
            for slot, first in zip(slots, firsts, strict=True)
            for frame in range(first, first + frames)
        ]
        with contextlib.ExitStack() as streams:
            # a copy between two devices is in the order of the current streams of both
            if self._copies is not None:
                after.wait_on(self._copies)
            streams.enter_context(on_stream(self._copies))
            codes = self._ring.flatten(0, 1).index_select(0, upload(cells, self._ring.device))
            streams.enter_context(on_stream(self._stream))
            codes = codes.to(self._mirror.device, non_blocking=self._stream is not None)
            self._mirror.flatten(0, 1).index_copy_(0, upload(cells, self._mirror.device), codes)
