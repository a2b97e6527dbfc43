"""The codec's operations on CUDA: Triton kernels, each a product with all that is done to its result.

A convolution reads its taps where they are, in its input and in the slot's context, so that nothing is
copied; the activation, the residual sum and the context that the next layer keeps are written from the
product's registers. One frame is about 100 kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from duplex.adapters.qwen3_tts import codec_kernels as kernels
from duplex.adapters.qwen3_tts import codec_state_kernels as state_kernels
from duplex.adapters.qwen3_tts.codec_state import CodecState
from duplex.adapters.qwen3_tts.codec_weights import CodecWeights, Context, Conv, Upsample
from duplex.adapters.qwen3_tts.config import CodecDecoderConfig

_LAYER_NORM_EPS: Final = 1e-6  # ConvNeXt's
_SMS: Final = 132  # multiprocessors of an H100 or H200
_KEEP_BLOCK: Final = 1024
_TIMES: Final = 32


class Tile(NamedTuple):
    """How a product is cut: rows, outputs and depth a block, warps a block, stages of its pipeline."""

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int


# from large to small; a block's depth is cut to what divides the layer's channels
TILES: Final = (
    Tile(128, 128, 64, 8, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 32, 128, 4, 4),
)
NORM_TILE: Final = Tile(64, 64, 64, 4, 4)


def tile(rows: int, outputs: int, channels: int, *, norm: bool = False) -> Tile:
    """The largest tile that gives every multiprocessor a block and wastes less than half of its outputs, else
    the smallest.

    All tiles have 64 rows or more to four warps, padding included: with fewer Triton takes an older matrix
    instruction (HMMA in place of HGMMA), which rounds its sums otherwise, and a row would not be the same in
    a large batch as alone. A product that also sums the squares of its input (`norm`) has one tile for all
    batches, because the order of that sum follows the tile's layout.
    """
    chosen = TILES[-1]
    for option in TILES:
        blocks = -(-rows // option.rows) * -(-outputs // option.outputs)
        if blocks >= _SMS and option.rows < 2 * max(rows, 64) and option.outputs < 2 * outputs:
            chosen = option
            break
    if norm:
        chosen = NORM_TILE
    depth = min(chosen.depth, channels & -channels)
    return chosen._replace(depth=depth)


class KeepTables:
    """Which numbers of the contexts a pass leaves in place, only further back: those of contexts longer than
    the pass. A pair of index tensors for a number of frames, and None where there are none."""

    def __init__(self, weights: CodecWeights, device: torch.device) -> None:
        self._contexts = weights.contexts
        self._device = device
        self._made: dict[int, tuple[Tensor, Tensor] | None] = {}

    def get(self, frames: int) -> tuple[Tensor, Tensor] | None:
        """Source and target cells, int32."""
        if frames not in self._made:
            moved = list(self._moves(frames))
            pair = None
            if moved:
                source, target = (torch.cat(side).to(self._device) for side in zip(*moved, strict=True))
                pair = source, target
            self._made[frames] = pair
        return self._made[frames]

    def _moves(self, frames: int) -> Iterator[tuple[Tensor, Tensor]]:
        for context in self._contexts:
            added = frames * context.rate
            if added < context.rows:
                cells = torch.arange((context.rows - added) * context.channels, dtype=torch.int32)
                yield context.start + added * context.channels + cells, context.start + cells


class TritonPass:
    """One pass of `frames` frames over the slots `slots` (b,) int64 of a state; see `Pass`."""

    def __init__(
        self,
        config: CodecDecoderConfig,
        weights: CodecWeights,
        state: CodecState,
        slots: Tensor,
        frames: int,
        keep: KeepTables,
    ) -> None:
        self._config = config
        self._weights = weights
        self._state = state
        self._slots = slots
        self._stride = state.context.shape[1]
        self._fresh = state.context.new_empty(len(slots), self._stride)
        self._frames = frames
        moved = keep.get(frames)
        if moved is not None:
            source, target = moved
            grid = (-(-len(source) // _KEEP_BLOCK), len(slots))
            state_kernels.keep[grid](
                state.context, slots, self._fresh, source, target, len(source), self._stride, _KEEP_BLOCK
            )

    @staticmethod
    def fits(config: CodecDecoderConfig, weights: CodecWeights) -> bool:
        """Whether the kernels can do these widths: heads with keys of their own, head sizes and code groups
        that are a power of two, channels in sixteens."""
        half = config.head_dim // 2
        channels = [context.channels for context in weights.contexts]
        channels += [config.hidden_size, config.intermediate_size, 4 * config.latent_dim]
        channels.append(config.num_attention_heads * config.head_dim)
        return (
            config.num_key_value_heads == config.num_attention_heads
            and config.num_quantizers & (config.num_quantizers - 1) == 0
            and config.head_dim % 2 == 0
            and half & (half - 1) == 0
            and all(count % 16 == 0 for count in channels)
        )

    def finish(self, *, counted: bool) -> None:
        """See `Pass.finish`."""
        state, stride = self._state, self._stride
        state_kernels.commit[(-(-stride // _KEEP_BLOCK), len(self._slots))](
            self._fresh,
            state.context,
            self._slots,
            state.position,
            state.frame,
            self._frames,
            stride,
            COUNTED=counted,
            BLOCK=_KEEP_BLOCK,
        )

    # operations

    def gather(self, ring: Tensor) -> Tensor:
        batch, frames, groups = len(self._slots), self._frames, ring.shape[2]
        out = ring.new_empty(batch, frames, groups)
        state_kernels.gather[(frames, batch)](
            ring, self._slots, self._state.frame, out, ring.shape[1], frames, GROUPS=groups
        )
        return out

    def embed(self, codes: Tensor) -> Tensor:
        config, into = self._config, self._weights.embedded
        batch, frames, groups = codes.shape
        out = self._new(codes, into.channels)
        kernels.embed[(batch * frames,)](
            codes.contiguous(),
            self._weights.table,
            self._fresh,
            out,
            frames,
            into.channels,
            config.codebook_size,
            self._stride,
            into.start,
            into.size,
            GROUPS=groups,
            BLOCK=next_power_of_2(into.channels),
        )
        return out

    def conv(self, x: Tensor, layer: Conv, residual: Tensor | None = None) -> Tensor:
        return self._product(x, layer, residual)

    def branch(self, x: Tensor, layer: Conv, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        plain = self._new(x, layer.outputs)
        return plain, self._product(x, layer, residual, plain=plain)

    def norm_linear(self, x: Tensor, layer: Conv) -> Tensor:
        return self._product(x, layer, norm=True)

    def norm_gated(self, x: Tensor, layer: Conv) -> Tensor:
        rows, outputs = x.shape[0] * x.shape[1], layer.outputs // 2
        cut = tile(rows, outputs, layer.inputs, norm=True)
        out = self._new(x, outputs)
        kernels.gated[(-(-rows // cut.rows) * -(-outputs // cut.outputs),)](
            x,
            layer.weight,
            out,
            rows,
            outputs,
            self._config.rms_norm_eps,
            CHANNELS=layer.inputs,
            BM=cut.rows,
            BN=cut.outputs,
            BK=cut.depth,
            STAGES=cut.stages,
            num_warps=cut.warps,
        )
        return out

    def attend(self, index: int, qkv: Tensor) -> Tensor:
        config, ring = self._config, self._state.ring
        batch, frames, _ = qkv.shape
        heads, size = config.num_attention_heads, config.head_dim
        out = self._new(qkv, heads * size)
        kernels.attend[(batch, heads)](
            qkv,
            ring,
            self._slots,
            self._state.position,
            self._weights.frequencies,
            out,
            frames,
            ring.stride(0),
            ring.stride(1),
            index * ring.stride(2),
            HEADS=heads,
            SIZE=size,
            WINDOW=config.sliding_window,
            CELLS=next_power_of_2(config.sliding_window),
            num_warps=4,
        )
        return out

    def depthwise(self, x: Tensor, layer: Upsample) -> Tensor:
        batch, length, channels = x.shape
        out = torch.empty_like(x)
        kernels.depthwise[(batch * length,)](
            x,
            self._state.context,
            self._slots,
            layer.depthwise,
            layer.depthwise_bias,
            out,
            length,
            channels,
            self._stride,
            layer.context.start,
            _LAYER_NORM_EPS,
            TAPS=layer.depthwise.shape[0],
            BLOCK=next_power_of_2(channels),
        )
        return out

    def gelu_linear(self, x: Tensor, layer: Conv) -> Tensor:
        return self._product(x, layer, gelu=True)

    def sound(self, x: Tensor, layer: Conv) -> Tensor:
        assert layer.context is not None
        batch, length, channels = x.shape
        out = torch.empty(batch, length, device=x.device, dtype=torch.float32)
        kernels.sound[(-(-length // _TIMES), batch)](
            x,
            self._state.context,
            self._slots,
            layer.weight,
            layer.bias,
            out,
            length,
            channels,
            self._stride,
            layer.context.start,
            TAPS=layer.taps,
            BLOCK=next_power_of_2(channels),
            TIMES=_TIMES,
        )
        return out

    # pieces

    def _new(self, like: Tensor, channels: int) -> Tensor:
        shape = like.shape[0], like.shape[1], channels
        return torch.empty(shape, device=like.device, dtype=self._state.context.dtype)

    def _product(
        self,
        x: Tensor,
        layer: Conv,
        residual: Tensor | None = None,
        *,
        norm: bool = False,
        gelu: bool = False,
        plain: Tensor | None = None,
        cut: Tile | None = None,
    ) -> Tensor:
        length = x.shape[1]
        rows, outputs = x.shape[0] * length, layer.outputs
        cut = cut or tile(rows, outputs, layer.inputs, norm=norm)
        out = self._new(x, outputs)
        act = kernels.GELU if gelu else kernels.NONE if layer.act is None else kernels.SNAKE
        context, feeds = layer.context or _NOTHING, layer.feeds or _NOTHING
        blank: Any = out  # stands for a tensor that the kernel does not touch
        kernels.product[(-(-rows // cut.rows) * -(-outputs // cut.outputs),)](
            x,
            self._state.context,
            self._slots,
            self._fresh,
            layer.weight,
            blank if layer.bias is None else layer.bias,
            blank if residual is None else residual,
            blank if layer.act is None else layer.act.alpha,
            blank if layer.act is None else layer.act.gain,
            blank if plain is None else plain,
            out,
            rows,
            length,
            outputs,
            self._stride,
            context.start,
            feeds.start,
            feeds.size,
            layer.dilation,
            self._config.rms_norm_eps,
            CHANNELS=layer.inputs,
            TAPS=layer.taps,
            BIAS=layer.bias is not None,
            RESIDUAL=residual is not None,
            NORM=norm,
            ACT=act,
            PLAIN=plain is not None,
            TAIL=layer.feeds is not None,
            BM=cut.rows,
            BN=cut.outputs,
            BK=cut.depth,
            STAGES=cut.stages,
            num_warps=cut.warps,
        )
        return out


_NOTHING: Final = Context(0, 0, 0, 0)
