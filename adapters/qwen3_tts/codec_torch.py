"""The codec's operations in plain torch: for the CPU, for float32, and to check the kernels against.

A convolution is one product over its taps laid side by side: (b · t, taps · c) × (taps · c, outputs). That
copies the input once a tap, but works for any length down to one position and any dilation, on the library's
best kernels (tensor cores in bfloat16), and needs no plan or search that a CUDA graph could not hold.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from duplex.adapters.qwen3_tts.codec_state import CodecState
from duplex.adapters.qwen3_tts.codec_weights import CodecWeights, Context, Conv, Snake, Upsample
from duplex.adapters.qwen3_tts.config import CodecDecoderConfig

_LAYER_NORM_EPS = 1e-6  # ConvNeXt's


class TorchPass:
    """One pass of `frames` frames over the slots `slots` (b,) int64 of a state; see `Pass`.

    The slots' contexts are gathered once, worked on in place and put back by `finish`; the ring is written by
    `finish` too.
    """

    def __init__(
        self,
        config: CodecDecoderConfig,
        weights: CodecWeights,
        state: CodecState,
        slots: Tensor,
        frames: int,
    ) -> None:
        self._config = config
        self._weights = weights
        self._state = state
        self._slots = slots
        self._context = state.context.index_select(0, slots)
        self._ring = state.ring.index_select(0, slots)
        self._position = state.position.index_select(0, slots)
        self._fresh: list[Tensor] = []
        places = self._position[:, None] + torch.arange(frames, device=slots.device)
        self._places = places
        angles = places[:, :, None].float() * weights.frequencies
        self._cos, self._sin = angles.cos()[:, :, None], angles.sin()[:, :, None]
        self._mask = self._window(places)

    def _window(self, places: Tensor) -> Tensor:
        """Which keys, the ring's and then the new ones, each new frame may see: (b, 1, n, window + n)."""
        window = self._config.sliding_window
        last = self._position[:, None] - 1
        cells = torch.arange(window, device=places.device)
        held = last - (last - cells).remainder(window)  # the frame that each cell of the ring holds
        keys = torch.cat((held, places), dim=1)[:, None, :]
        queries = places[:, :, None]
        return ((keys >= 0) & (keys <= queries) & (keys > queries - window))[:, None]

    def finish(self, *, counted: bool) -> None:
        """See `Pass.finish`."""
        state, window = self._state, self._config.sliding_window
        state.context.index_copy_(0, self._slots, self._context)
        frames = self._places.shape[1]
        cells = self._slots[:, None] * window + self._places % window
        fresh = torch.stack(self._fresh, dim=2)  # (b, n, layers, 2, heads, head_dim)
        state.ring.flatten(0, 1).index_copy_(0, cells.flatten(), fresh.flatten(0, 1))
        state.position.index_copy_(0, self._slots, self._position + frames)
        if counted:
            state.frame.index_copy_(0, self._slots, state.frame.index_select(0, self._slots) + frames)

    # operations

    def gather(self, ring: Tensor) -> Tensor:
        return next_codes(self._state, self._slots, ring, self._places.shape[1])

    def embed(self, codes: Tensor) -> Tensor:
        size, groups = self._config.codebook_size, self._config.num_quantizers
        first = torch.arange(groups, device=codes.device) * size
        rows = F.embedding(codes.long().clamp(0, size - 1) + first, self._weights.table)
        return rows.sum(dim=2).to(self._state.context.dtype)

    def conv(self, x: Tensor, layer: Conv, residual: Tensor | None = None) -> Tensor:
        x = self._product(x, layer, residual)
        return x if layer.act is None else _snake(x, layer.act)

    def branch(self, x: Tensor, layer: Conv, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self._product(x, layer, residual)
        return x, x if layer.act is None else _snake(x, layer.act)

    def norm_linear(self, x: Tensor, layer: Conv) -> Tensor:
        return F.linear(self._norm(x), layer.weight, layer.bias)

    def norm_gated(self, x: Tensor, layer: Conv) -> Tensor:
        gate, up = F.linear(self._norm(x), layer.weight, layer.bias).chunk(2, dim=-1)
        return F.silu(gate) * up

    def attend(self, index: int, qkv: Tensor) -> Tensor:
        config = self._config
        heads, kept, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        batch, frames, _ = qkv.shape
        queries, keys, values = torch.split(qkv.view(batch, frames, -1, size), [heads, kept, kept], dim=2)
        queries, keys = self._rotate(queries), self._rotate(keys)
        self._fresh.append(torch.stack((keys, values), dim=2))
        seen = torch.cat((self._ring[:, :, index], self._fresh[-1]), dim=1)  # (b, window + n, 2, heads, size)
        keys, values = seen.permute(2, 0, 3, 1, 4)
        if kept != heads:
            keys, values = (x.repeat_interleave(heads // kept, dim=1) for x in (keys, values))
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=self._mask, scale=1.0
        )
        return mixed.transpose(1, 2).reshape(batch, frames, heads * size)

    def depthwise(self, x: Tensor, layer: Upsample) -> Tensor:
        length = x.shape[1]
        taps = self._extend(x, layer.context).float()
        total = layer.depthwise_bias.expand_as(x)
        for tap, weight in enumerate(layer.depthwise):
            total = torch.addcmul(total, taps[:, tap : tap + length], weight)
        return F.layer_norm(total, total.shape[-1:], eps=_LAYER_NORM_EPS).to(x.dtype)

    def gelu_linear(self, x: Tensor, layer: Conv) -> Tensor:
        return F.gelu(F.linear(x, layer.weight, layer.bias))

    def sound(self, x: Tensor, layer: Conv) -> Tensor:
        assert layer.context is not None
        assert layer.bias is not None
        length = x.shape[1]
        # each tap's share of every position, then the shifted sum: the input is read once, all in float32
        taps = self._extend(x, layer.context).float() @ layer.weight.view(layer.taps, -1).T
        total = layer.bias + taps[:, :length, 0]
        for tap in range(1, layer.taps):
            total = total + taps[:, tap : tap + length, tap]
        return total.clamp(-1.0, 1.0)

    # pieces

    def _product(self, x: Tensor, layer: Conv, residual: Tensor | None) -> Tensor:
        if layer.context is not None:
            length = x.shape[1]
            full = self._extend(x, layer.context)
            starts = range(0, layer.taps * layer.dilation, layer.dilation)
            x = torch.cat([full[:, start : start + length] for start in starts], dim=2)
        out = F.linear(x, layer.weight, layer.bias)
        return out if residual is None else out.add_(residual)

    def _extend(self, x: Tensor, context: Context) -> Tensor:
        """x with what came before it in front; the context moves on."""
        kept = self._context[:, context.start : context.start + context.size]
        kept = kept.view(x.shape[0], context.rows, context.channels)
        full = torch.cat((kept, x), dim=1)
        kept.copy_(full[:, x.shape[1] :])
        return full

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self._config.rms_norm_eps)

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotary embedding of (b, n, heads, size) at the absolute place; angles are worked out, not tabled,
        so that a stream may be of any length."""
        low, high = x.float().chunk(2, dim=-1)
        turned = torch.cat((low * self._cos - high * self._sin, high * self._cos + low * self._sin), dim=-1)
        return turned.to(x.dtype)


def next_codes(state: CodecState, slots: Tensor, ring: Tensor, frames: int) -> Tensor:
    """See `Pass.gather`."""
    first = state.frame.index_select(0, slots)[:, None]
    cells = (first + torch.arange(frames, device=slots.device)) % ring.shape[1]
    cells = slots[:, None] * ring.shape[1] + cells
    return ring.flatten(0, 1).index_select(0, cells.flatten()).view(*cells.shape, -1)


def _snake(x: Tensor, act: Snake) -> Tensor:
    wave = torch.sin(x * act.alpha).square_()
    return torch.addcmul(x.float(), wave, act.gain).to(x.dtype)
