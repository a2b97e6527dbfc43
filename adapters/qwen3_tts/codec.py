"""The codec decoder: 16 codes a frame in, 1,920 samples at 24 kHz out, frame by frame.

The network is causal, so everything it needs of the past fits in a state of fixed size a slot: the last
inputs of every convolution and the pre-transformer's keys and values of the last 72 frames. Frames decoded in
any chunks, in whatever company, sound as if all had been decoded at once (within 1e-4 in float32), and
nothing is decoded twice.

A slot's samples are the same bit for bit alone and in a batch, in chunks of any sizes: with the kernels
because they are made so (see `codec_kernels`), in plain torch on the CPU because every frame of every slot is
decoded by itself. In plain torch on CUDA libraries choose their method by the number of rows, and samples may
differ in the last bits. Reference frames (`prime`, `snapshot`) are heard in plain torch in pieces of their
own: the same recording gives the same state, but not bit for bit that of the same frames decoded.

Positions are absolute and have no end: rotary angles are computed from them. Past `max_position_embeddings`
(8,000 frames, 640 s) nothing changes, as in the reference, whose rope type does not rescale; beyond 2^24
frames (15 days) float32 no longer tells frames apart. The reference's own `chunked_decode` forgets what is
more than 25 frames before each 300th frame, and so differs from its own whole decode there; this decoder
equals the whole decode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen3_tts.codec_net import Pass, frames_of_history, trunk, vocoder
from duplex.adapters.qwen3_tts.codec_state import CodecState
from duplex.adapters.qwen3_tts.codec_torch import TorchPass, next_codes
from duplex.adapters.qwen3_tts.codec_weights import fold
from duplex.adapters.qwen3_tts.config import CodecDecoderConfig

_BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LOCKED: Final = tuple(1 << bits for bits in range(9, 23) for _ in range(4))
"""Bytes of host memory for the samples of the decodes in flight: 0.5 KB to 4 MB, 544 frames."""


class DecodeTicket:
    """A launched decode."""

    __slots__ = ("_event", "_samples")

    def __init__(self, samples: Tensor, event: Any) -> None:
        self._samples = samples
        self._event = event

    def done(self) -> bool:
        """True when `result` would not wait."""
        return self._event is None or bool(self._event.query())

    def result(self) -> NDArray[np.float32]:
        """Samples ±1 of each launched slot, shape (slots, frames · frame_samples). Waits without the GIL."""
        if self._event is not None:
            self._event.synchronize()
        samples: NDArray[np.float32] = self._samples.numpy()
        return samples


class CodecDecoder:
    """The decoder over slots.

    Args:
        weights: by their published names with or without "decoder." in front, any dtype and device.
        dtype: of weights and state; float32 tables, activations' phases and samples either way.
        slots: streams at once; numbers 0 … slots - 1. One more, `scratch`, takes what padding rows do.
        frames: the chunk sizes that one decode can make, in frames; at most the attention window.
        max_batch: slots that one decode can advance.
        plain: the plain torch operations instead of the kernels; None: on the CPU, in float32, and for widths
            that the kernels do not take.

    On CUDA everything runs on the current stream, and calls that touch the same slot must be made on the same
    stream or in the order that events give. All methods but `snapshot` are called from one thread.

    Raises:
        DuplexError: `BAD_CONFIG`: a tensor is missing.
        ValueError: an impossible `frames`.
    """

    def __init__(
        self,
        config: CodecDecoderConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        slots: int,
        frames: tuple[int, ...],
        max_batch: int,
        plain: bool | None = None,
    ) -> None:
        if not frames or min(frames) < 1 or max(frames) > config.sliding_window:
            raise ValueError(f"frames must be 1 … {config.sliding_window} each, not {frames}")
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        self.slots = slots
        self.scratch = slots
        self.frames = tuple(sorted(frames))
        self.max_batch = min(max_batch, slots)
        self.frame_samples = math.prod(config.upsample_rates) * math.prod(config.upsampling_ratios)
        self.weights = fold(config, weights, device=self.device, dtype=dtype)
        self.state = self._zeros(slots + 1)
        self.parts = (*trunk(self.weights), *vocoder(self.weights))
        self._trunk_parts = len(trunk(self.weights))
        self._history = frames_of_history(self.weights)
        self._pass = self._choose(plain)
        self._codes: Tensor | None = None
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._ids = torch.full((self.max_batch,), self.scratch, device=self.device, dtype=torch.int64)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that graphs are captured for; a launch takes the next one and pads."""
        return (*(size for size in _BUCKETS if size < self.max_batch), self.max_batch)

    # slots

    def reset(self, slot: int) -> None:
        """A new stream in the slot: nothing heard yet."""
        self.state.row(slot).zero_()

    def save(self, slot: int) -> CodecState:
        """A copy of the slot's state."""
        return self.state.row(slot).clone()

    def load(self, slot: int, state: CodecState) -> None:
        """Go on in the slot from a saved state."""
        self.state.row(slot).copy_(state)

    def prime(self, slot: int, codes: Tensor) -> None:
        """Let the slot hear reference frames (n, 16), any n, without sound. They do not count as frames of
        the ring of codes."""
        self._hear(self.state.row(slot), codes)

    def snapshot(self, codes: Tensor) -> CodecState:
        """The state after reference frames (n, 16), to `load` for every stream of a cloned voice. Touches no
        slot, so any thread may ask."""
        state = self._zeros(1)
        self._hear(state, codes)
        return state

    def _zeros(self, slots: int) -> CodecState:
        return CodecState.zeros(
            self.config, self.weights.context, slots=slots, device=self.device, dtype=self.dtype
        )

    def _hear(self, state: CodecState, codes: Tensor) -> None:
        codes = codes.to(self.device)
        total, piece = codes.shape[0], self.config.sliding_window
        slots = torch.zeros(1, device=self.device, dtype=torch.int64)
        for start in range(0, total, piece):
            x = codes[start : start + piece][None]
            step = TorchPass(self.config, self.weights, state, slots, x.shape[1])
            for _, run in self.parts[: self._trunk_parts]:
                x = run(step, x)
            # the vocoder's state is made by the last few frames alone
            heard = x[:, max(0, total - self._history - start) :]
            if heard.shape[1]:
                for _, run in self.parts[self._trunk_parts :]:
                    heard = run(step, heard)
            step.finish(counted=False)

    # decoding

    def decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        """The next frames of distinct slots, at once: `slots` (b,) int64 on the device, `codes` (b, n, 16) of
        any integer kind, n one of `frames`; out of range codes are clamped. Gives samples ±1, (b, n ·
        frame_samples) float32 on the device."""
        frames = codes.shape[1]
        if frames not in self.frames:
            raise ValueError(f"a decode makes one of {self.frames} frames, not {frames}")
        if self.device.type != "cpu" or self.kernels:
            return self._decode(slots, codes)
        rows = zip(torch.split(slots, 1), torch.split(codes, 1), strict=True)
        return torch.cat([self._frames(slot, row) for slot, row in rows])

    def gather(self, slots: Tensor, ring: Tensor, frames: int) -> Tensor:
        """The slots' next codes (b, frames, 16) out of a ring (slots + 1, kept, 16): frame f of a slot is at
        f % kept."""
        return next_codes(self.state, slots, ring, frames)

    def open_pass(self, slots: Tensor, frames: int) -> Pass:
        """The operations of one pass over the slots' state."""
        return self._pass(self.config, self.weights, self.state, slots, frames)

    @property
    def kernels(self) -> bool:
        """Whether the kernels do the work."""
        return self._pass is not TorchPass

    def _choose(self, plain: bool | None) -> Callable[..., Pass]:
        if plain or (plain is None and (self.device.type != "cuda" or self.dtype == torch.float32)):
            return TorchPass
        from duplex.adapters.qwen3_tts.codec_triton import KeepTables, TritonPass

        if plain is None and not TritonPass.fits(self.config, self.weights):
            return TorchPass
        return partial(TritonPass, keep=KeepTables(self.weights, self.device))

    def _decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        step = self.open_pass(slots, codes.shape[1])
        return self._run(step, codes)

    def _frames(self, slot: Tensor, codes: Tensor) -> Tensor:
        return torch.cat([self._decode(slot, frame) for frame in torch.split(codes, 1, dim=1)], dim=1)

    def _run(self, step: Pass, codes: Tensor) -> Tensor:
        x = codes
        for _, run in self.parts:
            x = run(step, x)
        step.finish(counted=True)
        return x

    def _decode_next(self, slots: Tensor, frames: int, ring: Tensor) -> Tensor:
        step = self.open_pass(slots, frames)
        samples = self._run(step, step.gather(ring))
        # rows of padding count too: theirs would pass 2^31, where the kernels' places end
        for count in (self.state.position, self.state.frame):
            count[self.scratch].zero_()
        return samples

    # launching

    def rehearse(self, codes: Tensor) -> None:
        """Make every launch that `capture` will, for `compiling.compile_ahead`."""
        if self.kernels:
            for frames in self.frames:
                for bucket in self.buckets:
                    self._decode_next(self._ids[:bucket], frames, codes)

    def capture(self, codes: Tensor) -> None:
        """Take codes from now on out of the talker's ring `codes` (slots + 1, kept, 16), which never moves,
        and on CUDA capture a graph of every batch bucket and chunk size. Only the scratch slot changes.

        Graphs share one pool of memory: one runs at a time.
        """
        self._codes = codes
        if self.device.type != "cuda":
            return
        pool = torch.cuda.graph_pool_handle()
        cuda: Any = torch.cuda  # partly without types
        stream = cuda.Stream()
        self._ids.fill_(self.scratch)
        torch.cuda.synchronize()
        # the largest first: the others then fit in the memory that it took
        for frames in reversed(self.frames):
            for bucket in reversed(self.buckets):
                ids = self._ids[:bucket]
                with torch.cuda.stream(stream):
                    self._decode_next(ids, frames, codes)  # compiles, and lets libraries set up
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    samples = self._decode_next(ids, frames, codes)
                self._graphs[bucket, frames] = graph, samples
        self.state.row(self.scratch).zero_()
        # torch keeps locked host memory by powers of two: a block that it had to get from the system later
        # would hold up the thread that launches
        blocks = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in _LOCKED]
        del blocks
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # of the runs before the captures, which have a pool of their own

    def replay(self, slots: Sequence[int], frames: int) -> Tensor:
        """The next `frames` frames of distinct slots out of the captured ring: (slots, samples) on the
        device, to be read before the next replay. Waits for nothing.

        The frames' codes must be in the ring, or be put there by work that this stream waits for.
        """
        if self._codes is None:
            raise RuntimeError("capture comes before launch")
        if not 1 <= len(slots) <= self.max_batch:
            raise ValueError(f"a launch takes 1 … {self.max_batch} slots, not {len(slots)}")
        if self.device.type != "cuda":
            ids = torch.tensor(slots, dtype=torch.int64)
            return self.decode(ids, self.gather(ids, self._codes, frames))
        bucket = next(size for size in self.buckets if size >= len(slots))
        padded = [*slots, *[self.scratch] * (bucket - len(slots))]
        # a pinned block of its own: torch keeps it until the copy is done
        self._ids[:bucket].copy_(torch.tensor(padded, dtype=torch.int64).pin_memory(), non_blocking=True)
        graph, samples = self._graphs[bucket, frames]
        graph.replay()
        return samples[: len(slots)]

    def launch(self, slots: Sequence[int], frames: int) -> DecodeTicket:
        """`replay`, and the samples on their way to the host."""
        samples = self.replay(slots, frames)
        if self.device.type != "cuda":
            return DecodeTicket(samples, None)
        host = torch.empty(samples.shape, dtype=samples.dtype, pin_memory=True)
        host.copy_(samples, non_blocking=True)
        cuda: Any = torch.cuda
        event = cuda.Event(blocking=True)
        event.record()
        return DecodeTicket(host, event)
