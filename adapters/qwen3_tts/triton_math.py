"""The frame loop on CUDA: Triton kernels, the frame of each batch size captured in one CUDA graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import next_power_of_2

from duplex.adapters.qwen3_tts import kernels
from duplex.adapters.qwen3_tts.device import is_over, new_event
from duplex.adapters.qwen3_tts.one_row import OneRow
from duplex.adapters.qwen3_tts.packing import Layer, Stack
from duplex.adapters.qwen3_tts.sampling import MIN_FRAMES
from duplex.adapters.qwen3_tts.tiles import slice_of, tile_of
from duplex.adapters.qwen3_tts.torch_math import DoneTicket, rotations

if TYPE_CHECKING:
    from duplex.adapters.qwen3_tts.core import Core, FrameTicket

BUCKETS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
"""Row counts that graphs are captured for; a launch takes the next one and pads."""
PROMPT_BUCKETS: Final = (16, 32, 64, 128, 256)
_PENDING: Final = 8
"""Launches whose results may be unread."""
_PARTS: Final = 8
"""Shares of the talker's positions. Never by the rows: it decides the rounding."""
_BLOCKS: Final = ((16, 8), (32, 4), (64, 2))
"""Blocks that have a row's shares, up to so many rows."""
_LEAST_BLOCKS: Final = 1
"""The same with more rows."""
_NORM_WARPS: Final = 16
"""Warps that norm a row of the talker's. The predictor's has four, as in `single_kernels`: they decide the
order of the sum."""
_SPAN: Final = 32
"""Positions that attention takes at a time."""
_STEP_WARPS: Final = 1
"""Warps of the predictor's attention, which has 16 positions at most and is one share."""


def split_of(weight: Tensor) -> int:
    """Partial sums of each output of a product with a weight (n, k)."""
    n, k = weight.shape
    return int(k // slice_of(n, k))


@dataclass(slots=True)
class _Work:
    """Buffers of one stack's rows (r): `x` (r, h) float32, `normed` (r, h), `partial` float32 for the largest
    product, `q` and `attended` (r, heads * d), `gated` (r, f)."""

    x: Tensor
    normed: Tensor
    partial: Tensor
    q: Tensor
    attended: Tensor
    gated: Tensor

    def from_row(self, row: int) -> _Work:
        """The same without the first rows."""
        return _Work(
            x=self.x[row:],
            normed=self.normed[row:],
            partial=self.partial,
            q=self.q[row:],
            attended=self.attended[row:],
            gated=self.gated[row:],
        )


class CudaTicket:
    """A frame on the device."""

    __slots__ = ("_buffer", "_count", "_event")

    def __init__(self, event: torch.cuda.Event, buffer: Tensor, count: int) -> None:
        self._event = event
        self._buffer = buffer
        self._count = count

    def done(self) -> bool:
        """See `FrameTicket.done`."""
        return is_over(self._event)

    def result(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """See `FrameTicket.result`. To be called before `_PENDING` more frames are launched."""
        self._event.synchronize()
        rows = self._buffer.numpy()[:, : self._count].copy()
        return rows[0], rows[1]

    def wait_on(self, stream: object) -> None:
        """See `FrameTicket.wait_on`."""
        assert isinstance(stream, torch.cuda.Stream)
        stream.wait_event(self._event)


class TritonMath:
    """See `Math`. `pdl`: programmatic dependent launch, compute capability 9.0 and later."""

    def __init__(self, core: Core, *, pdl: bool | None = None) -> None:
        self._core = core
        capability = torch.cuda.get_device_capability(core.device) if core.device.type == "cuda" else (0, 0)
        self._pdl = capability >= (9, 0) if pdl is None else pdl
        config = core.config.talker_config
        predictor = config.code_predictor_config
        self._buckets = (*(b for b in BUCKETS if b < core.max_batch), core.max_batch)
        self._prompt_buckets = (
            *(b for b in PROMPT_BUCKETS if b < core.prefill_rows),
            core.prefill_rows,
        )
        rows = max(core.max_batch, core.prefill_rows)
        device, dtype = core.device, core.dtype

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=dtype)

        self._talker = self._work(core.weights.talker, rows)
        self._predictor = self._work(core.weights.predictor, 2 * core.max_batch)
        self._one = OneRow(core.weights.predictor, self._predictor.x, self._predictor.partial, pdl=self._pdl)
        heads = rows * config.num_key_value_heads
        self._shares = zeros(heads * _PARTS * 16 * (config.head_dim + 2), dtype=torch.float32)
        self._arrived = zeros(heads, dtype=torch.int32)
        self._total = zeros(core.max_batch, config.hidden_size, dtype=torch.float32)
        self._start = zeros(core.max_batch, config.hidden_size)
        largest = max(
            split_of(weight) * weight.shape[0]
            for weight in (core.weights.codec_head, *core.weights.heads[:1])
        )
        self._logits = zeros(largest * core.max_batch, dtype=torch.float32)
        shape = (
            predictor.num_hidden_layers,
            core.max_batch,
            predictor.num_key_value_heads,
            config.num_code_groups,
            predictor.head_dim,
        )
        self._keys, self._values = zeros(*shape), zeros(*shape)
        self._rotations = {
            id(stack): rotations(torch.arange(count, device=device), stack.config)
            for stack, count in (
                (core.weights.talker, core.positions),
                (core.weights.predictor, config.num_code_groups),
            )
        }
        batch = torch.arange(core.max_batch, device=device, dtype=torch.int32)
        self._batch = batch
        self._steps = torch.arange(config.num_code_groups, device=device, dtype=torch.int32)[:, None].repeat(
            1, core.max_batch
        )
        self._slots = torch.full((core.max_batch,), core.slots, device=device, dtype=torch.int32)
        self._positions = zeros(core.max_batch, dtype=torch.int32)
        self._report = zeros(2 * core.max_batch, dtype=torch.int32)
        self._twice = {
            rows: (batch[:rows].repeat(2), self._steps[:2, :rows].flatten().contiguous())
            for rows in self._buckets
        }
        self._prompt = zeros(rows, config.hidden_size)
        self._prompt_index = zeros(3 * rows, dtype=torch.int32)
        self._there: tuple[int, ...] = ()  # bucket and slots that `_slots` holds
        self._graphs: dict[int, Callable[[], None]] = {}
        self._prompt_graphs: dict[int, Callable[[], None]] = {}
        self._pool: Any = None
        pinned = device.type == "cuda"
        self._results = deque(
            torch.zeros(2 * core.max_batch, dtype=torch.int32, pin_memory=pinned) for _ in range(_PENDING)
        )
        self._inputs = deque(
            torch.zeros(3 * rows, dtype=torch.int32, pin_memory=pinned) for _ in range(_PENDING)
        )
        self._read: deque[torch.cuda.Event | None] = deque([None] * _PENDING)

    def _work(self, stack: Stack, rows: int) -> _Work:
        core, config = self._core, stack.config
        layer = stack.layers[0]
        partial = max(split_of(weight) * weight.shape[0] for weight in (layer.qkv, layer.o, layer.down))
        heads = config.num_attention_heads * config.head_dim

        def empty(*shape: int, dtype: torch.dtype = core.dtype) -> Tensor:
            return torch.zeros(shape, device=core.device, dtype=dtype)

        return _Work(
            x=empty(rows, config.hidden_size, dtype=torch.float32),
            normed=empty(rows, config.hidden_size),
            partial=empty(partial * rows, dtype=torch.float32),
            q=empty(rows, heads),
            attended=empty(rows, heads),
            gated=empty(rows, config.intermediate_size),
        )

    # launches

    def _product(self, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> int:
        """Partial sums of x weight into `out`; returns how many there are of each."""
        n, k = weight.shape
        cut, tile = slice_of(n, k), tile_of(n, k, rows)
        block = min(tile.rows, _block(rows))
        kernels.product[(n // tile.outputs, k // cut, -(-rows // block))](
            x, weight, out, rows, n, k, BN=tile.outputs, BM=block, BK=min(tile.depth, cut), SLICE=cut,
            AHEAD=tile.ahead, STAGES=tile.stages, PDL=self._pdl, num_warps=tile.warps, **self._launch,
        )  # fmt: skip
        return int(k // cut)

    @property
    def _launch(self) -> dict[str, Any]:
        return {"launch_pdl": True} if self._pdl else {}

    def _gated(self, x: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        n, k = weight.shape
        tile = tile_of(n, k, rows)
        block = min(tile.rows, _block(rows))
        kernels.gated[(n // tile.outputs, -(-rows // block))](
            x, weight, out, rows, n, k, BN=tile.outputs, BM=block, BK=tile.depth, AHEAD=tile.ahead,
            STAGES=tile.stages, PDL=self._pdl, num_warps=tile.warps, **self._launch,
        )  # fmt: skip

    def _add_norm(
        self, work: _Work, norm: Tensor, rows: int, split: int, eps: float, bias: Tensor | None = None
    ) -> None:
        kernels.add_norm[(rows,)](
            work.partial, work.x, norm, work.normed, norm if bias is None else bias, rows, eps,
            H=work.x.shape[1], SPLIT=split, BIAS=bias is not None, PDL=self._pdl,
            num_warps=_NORM_WARPS if work is self._talker else 4, **self._launch,
        )  # fmt: skip

    def _attention(
        self, stack: Stack, layer: Layer, work: _Work, partial: Tensor, cache: tuple[Tensor, Tensor],
        slots: Tensor, positions: Tensor, rows: int, split: int, *, apart: bool,
    ) -> None:  # fmt: skip
        config = stack.config
        keys, values = cache
        cos, sin = self._rotations[id(stack)]
        length = keys.shape[2]
        group = config.num_attention_heads // config.num_key_value_heads
        parts = _PARTS if length > _SPAN else 1
        blocks = min(parts, next((count for most, count in _BLOCKS if rows <= most), _LEAST_BLOCKS))
        for keep, read in ((True, False), (False, True)) if apart else ((True, True),):
            grid = (rows, config.num_key_value_heads, blocks if read else 1)
            kernels.attention[grid](
                partial, work.q, work.attended, keys, values, slots, positions, layer.q_norm,
                layer.k_norm, cos, sin, self._shares, self._arrived, rows, length, config.rms_norm_eps,
                config.head_dim**-0.5,
                SPLIT=split, KV=config.num_key_value_heads,
                GROUP=group, LANES=next_power_of_2(group) if parts > 1 else 16, D=config.head_dim,
                BT=min(_SPAN, length), PARTS=parts, BLOCKS=blocks if read else 1,
                STAGES=2 if length > _SPAN else 1, KEEP=keep, READ=read,
                FETCH=rows == 1 and parts > 1, PDL=self._pdl,
                num_warps=1 if length > _SPAN else _STEP_WARPS, **self._launch,
            )  # fmt: skip

    def _layers(
        self, stack: Stack, work: _Work, cache: tuple[Tensor, Tensor], slots: Tensor, positions: Tensor,
        rows: int, *, apart: bool, first: int = 0,
    ) -> tuple[int, Tensor]:  # fmt: skip
        """All layers of rows whose `x` and `normed` are there; the last product's sums are still to be added:
        returns how many there are, and what to. Only rows from `first` on have an outcome."""
        if rows == 1 and stack is self._core.weights.predictor:
            return self._layers_of_one(cache, positions)
        eps = stack.config.rms_norm_eps
        split = 0
        for index, layer in enumerate(stack.layers):
            if index:
                self._add_norm(work, layer.input_norm, rows, split, eps)
            split = self._product(work.normed, layer.qkv, work.partial, rows)
            at = (cache[0][index], cache[1][index])
            self._attention(stack, layer, work, work.partial, at, slots, positions, rows, split, apart=apart)
            if first and index == len(stack.layers) - 1:
                rows -= first
                work = work.from_row(first)
            split = self._product(work.attended, layer.o, work.partial, rows)
            self._add_norm(work, layer.post_norm, rows, split, eps)
            self._gated(work.normed, layer.gate_up, work.gated, rows)
            split = self._product(work.gated, layer.down, work.partial, rows)
        return split, work.x

    def _layers_of_one(self, cache: tuple[Tensor, Tensor], positions: Tensor) -> tuple[int, Tensor]:
        """`_layers` of the predictor for one row, in slot 0."""
        stack, work, one = self._core.weights.predictor, self._predictor, self._one
        x, spare = one.given, one.other
        split = 0
        for index, layer in enumerate(stack.layers):
            if index:
                split = one.normed(split, x, spare, layer.input_norm, layer.qkv, one.qkv)
                x, spare = spare, x
            else:
                split = self._product(work.normed, layer.qkv, one.qkv, 1)
            at = (cache[0][index], cache[1][index])
            self._attention(stack, layer, work, one.qkv, at, self._batch, positions, 1, split, apart=False)
            split = self._product(work.attended, layer.o, work.partial, 1)
            one.gated(split, x, spare, layer, work.gated)
            x, spare = spare, x
            split = self._product(work.gated, layer.down, work.partial, 1)
        return split, x

    def _draw(self, group: int, split: int, rows: int, out: _Work, norm: Tensor, out_row: int) -> None:
        core, state, weights = self._core, self._core.state, self._core.weights
        config = core.config.talker_config
        groups = config.num_code_groups
        vocabulary = config.vocab_size if group == 0 else config.code_predictor_config.vocab_size
        last = group == groups - 1
        table = weights.embeddings[group]
        kernels.draw[(rows,)](
            self._logits, self._slots, state.frame, state.seed, state.sampling, state.seen, state.codes,
            self._report, self._total, table, table if last else weights.predictor_rows[group], norm, out.x,
            out.normed, state.text, state.text_count, core.pad_row, group, out_row, rows,
            config.rms_norm_eps, config.codec_eos_token_id, config.vocab_size - 1024,
            FIRST=group == 0, LAST=last, V=vocabulary, BV=next_power_of_2(vocabulary),
            H=config.hidden_size, N=out.x.shape[1], KEPT=core.frames_kept, TEXT_KEPT=core.text_kept,
            GROUPS=groups, SPLIT=split,
            MIN_FRAMES=MIN_FRAMES, PDL=self._pdl, num_warps=8 if group == 0 else 4, **self._launch,
        )  # fmt: skip

    def _frame(self, rows: int) -> None:
        core, state, weights = self._core, self._core.state, self._core.weights
        talker, predictor = self._talker, self._predictor
        hidden = state.hidden.shape[1]
        eps = core.config.talker_config.rms_norm_eps
        first_norm = weights.predictor.layers[0].input_norm
        kernels.gather_hidden[(rows,)](
            state.hidden, state.position, self._slots, self._start, self._positions,
            H=hidden, PDL=self._pdl, num_warps=4, **self._launch,
        )  # fmt: skip
        split = self._product(self._start, weights.codec_head, self._logits, rows)
        self._draw(0, split, rows, predictor, first_norm, out_row=rows)
        if weights.predictor_input is None:
            kernels.enter[(rows,)](
                self._start, first_norm, predictor.x, predictor.normed, eps,
                H=hidden, PDL=self._pdl, num_warps=4, **self._launch,
            )  # fmt: skip
        else:
            weight, bias = weights.predictor_input
            split = self._product(self._start, weight, predictor.partial, rows)
            self._add_norm(predictor, first_norm, rows, split, eps, bias)
        self._predict(rows, first_norm)
        split, x = self._layers(
            weights.talker,
            talker,
            (state.keys, state.values),
            self._slots,
            self._positions,
            rows,
            apart=False,
        )
        self._finish(x, rows, split, self._slots, self._slots, self._positions, frame=True)

    def _predict(self, rows: int, first_norm: Tensor) -> None:
        """The predictor's steps; `predictor.x` and `normed` hold the hidden states' rows, then code 0's."""
        core, weights, predictor, talker = self._core, self._core.weights, self._predictor, self._talker
        eps = core.config.talker_config.rms_norm_eps
        # the hidden state and code 0 go in together: twice the rows, one pass over the weights
        slots, steps = self._twice[rows]
        cache = (self._keys, self._values)
        split, _ = self._layers(
            weights.predictor, predictor, cache, slots, steps, 2 * rows, apart=True, first=rows
        )
        second = predictor.from_row(rows)
        self._add_norm(second, weights.predictor.norm, rows, split, eps)
        normed = second.normed
        groups = core.config.talker_config.num_code_groups
        for group in range(1, groups):
            head = weights.heads[group - 1]
            if group > 1:
                split, x = self._layers(
                    weights.predictor, predictor, cache, self._batch, self._steps[group], rows, apart=False
                )
                if rows > 1:
                    self._add_norm(predictor, weights.predictor.norm, rows, split, eps)
                normed = predictor.normed
            if group > 1 and rows == 1:
                spare = self._one.spare(x)
                split = self._one.normed(split, x, spare, weights.predictor.norm, head, self._logits)
            else:
                split = self._product(normed, head, self._logits, rows)
            if group < groups - 1:
                self._draw(group, split, rows, predictor, first_norm, out_row=0)
            else:
                self._draw(group, split, rows, talker, weights.talker.layers[0].input_norm, out_row=0)

    def _prompt_rows(self, rows: int) -> None:
        talker, weights = self._talker, self._core.weights.talker
        state = self._core.state
        slots, positions, last = _rows_of(self._prompt_index, 3, rows)
        kernels.enter[(rows,)](
            self._prompt, weights.layers[0].input_norm, talker.x, talker.normed, weights.config.rms_norm_eps,
            H=talker.x.shape[1], PDL=self._pdl, num_warps=4, **self._launch,
        )  # fmt: skip
        split, x = self._layers(
            weights, talker, (state.keys, state.values), slots, positions, rows, apart=True
        )
        self._finish(x, rows, split, slots, last, positions, frame=False)

    def _finish(
        self, x: Tensor, rows: int, split: int, slots: Tensor, last: Tensor, positions: Tensor, *, frame: bool
    ) -> None:
        state, weights = self._core.state, self._core.weights.talker
        kernels.finish[(rows,)](
            self._talker.partial, x, weights.norm, slots, last, state.hidden, state.position,
            state.frame, positions, rows, self._core.slots, weights.config.rms_norm_eps,
            H=state.hidden.shape[1], SPLIT=split, FRAME=frame, PDL=self._pdl,
            num_warps=_NORM_WARPS, **self._launch,
        )  # fmt: skip

    # graphs

    def rehearse(self) -> None:
        """See `Math.rehearse`."""
        for bucket in self._buckets:
            self._frame(bucket)
        for bucket in self._prompt_buckets:
            self._prompt_rows(bucket)

    def warm_up(self) -> None:
        """See `Math.warm_up`."""
        self._there = ()
        for bucket in reversed(self._buckets):
            self._slots.fill_(self._core.slots)
            self._graphs[bucket] = self._captured(self._frame, bucket)
        for bucket in reversed(self._prompt_buckets):
            self._prompt_index.zero_()
            _rows_of(self._prompt_index, 3, bucket)[0].fill_(self._core.slots)
            self._prompt_graphs[bucket] = self._captured(self._prompt_rows, bucket)

    def _captured(self, work: Callable[[int], None], bucket: int) -> Callable[[], None]:
        """A launch of `work` for so many rows: a graph's replay, or the work itself where there are none."""
        work(bucket)
        if self._core.device.type != "cuda":
            return lambda: work(bucket)
        torch.cuda.synchronize(self._core.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work(bucket)
        self._pool = self._pool or graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay

    def replay(self, rows: int) -> None:
        """The last frame's launch once more, and no more than that: for measuring it alone."""
        self._graphs[next(bucket for bucket in self._buckets if bucket >= rows)]()

    def _staging(self) -> Tensor:
        """A host buffer (3 · rows,) for the next launch's numbers, when the device has read its last ones."""
        if self._read[0] is not None:
            self._read[0].synchronize()
        return self._inputs[0]

    def _staged(self) -> None:
        """The copy out of the buffer has been launched."""
        if self._core.device.type == "cuda":
            self._read[0] = new_event()
        self._inputs.rotate(-1)
        self._read.rotate(-1)

    def frame(self, slots: Sequence[int]) -> FrameTicket:
        """See `Core.launch_frame`."""
        count = len(slots)
        bucket = next(b for b in self._buckets if b >= count)
        if (wanted := (bucket, *slots)) != self._there:
            self._there = wanted
            staged = self._staging()
            numbers = staged.numpy()
            numbers[:count] = slots
            numbers[count:bucket] = self._core.slots
            self._slots[:bucket].copy_(staged[:bucket], non_blocking=True)
            self._staged()
        self._graphs[bucket]()
        buffer = _rows_of(self._results[0], 2, bucket)
        self._results.rotate(-1)
        buffer.copy_(_rows_of(self._report, 2, bucket), non_blocking=True)
        if self._core.device.type != "cuda":
            return DoneTicket(*buffer.numpy()[:, :count].copy())
        return CudaTicket(new_event(), buffer, count)

    def prefill(self, rows: Tensor, slots: Tensor, positions: Tensor, last: Tensor) -> None:
        """See `Core.prefill`."""
        count = rows.shape[0]
        bucket = next(b for b in self._prompt_buckets if b >= count)
        self._prompt[:count].copy_(rows)
        staged = _rows_of(self._staging(), 3, bucket)
        numbers = staged.numpy()
        numbers[0, :count], numbers[0, count:] = slots.numpy(), self._core.slots
        numbers[1, :count], numbers[1, count:] = positions.numpy(), 0
        numbers[2, :count], numbers[2, count:] = last.numpy(), 0
        _rows_of(self._prompt_index, 3, bucket).copy_(staged, non_blocking=True)
        self._staged()
        self._prompt_graphs[bucket]()


def _rows_of(buffer: Tensor, count: int, length: int) -> Tensor:
    """The beginning of a flat buffer as (count, length), without gaps.

    Torch copies what has gaps by way of memory that is not locked, for which the host waits until the stream
    is through.
    """
    return buffer[: count * length].view(count, length)


def _block(rows: int) -> int:
    """Rows a block: a power of two that the matrix unit takes."""
    return min(128, max(16, int(next_power_of_2(rows))))
