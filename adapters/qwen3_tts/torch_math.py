"""The frame loop in plain torch: the CPU's arithmetic, and what the kernels are compared with."""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen3_tts.config import DecoderConfig
from duplex.adapters.qwen3_tts.packing import Layer, Stack
from duplex.adapters.qwen3_tts.sampling import draw, first_code_logits

if TYPE_CHECKING:
    from duplex.adapters.qwen3_tts.core import Core

_ROWS = 8
"""Rows of one matrix product, always: a library chooses its method, and so its rounding, by the shape."""
_SPAN = 64
"""Attention reads a cache in whole spans of positions, for the same reason."""


class DoneTicket:
    """A frame that is already there."""

    __slots__ = ("_codes", "_frames")

    def __init__(self, codes: NDArray[np.int32], frames: NDArray[np.int32]) -> None:
        self._codes = codes
        self._frames = frames

    def done(self) -> bool:
        """See `FrameTicket.done`."""
        return True

    def result(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """See `FrameTicket.result`."""
        return self._codes, self._frames

    def wait_on(self, stream: object) -> None:
        """See `FrameTicket.wait_on`."""


class TorchMath:
    """See `Math`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        predictor = core.config.talker_config.code_predictor_config
        groups = core.config.talker_config.num_code_groups
        shape = (
            predictor.num_hidden_layers,
            core.max_batch,
            predictor.num_key_value_heads,
            groups,
            predictor.head_dim,
        )
        self._keys = torch.zeros(shape, device=core.device, dtype=core.dtype)
        self._values = torch.zeros_like(self._keys)

    def rehearse(self) -> None:
        """Nothing is compiled."""

    def warm_up(self) -> None:
        """Nothing is compiled."""

    @torch.inference_mode()
    def prefill(self, rows: Tensor, slots: Tensor, positions: Tensor, last: Tensor) -> None:
        """See `Core.prefill`."""
        device, state = self._core.device, self._core.state
        slots, positions, last = (t.to(device) for t in (slots.long(), positions.long(), last))
        hidden = self._talker(rows.to(device).float(), slots, positions)
        state.hidden[slots[last]] = hidden[last]
        state.position[slots[last]] = (positions[last] + 1).int()

    @torch.inference_mode()
    def frame(self, slots: Sequence[int]) -> DoneTicket:
        """See `Core.launch_frame`."""
        core, state, weights = self._core, self._core.state, self._core.weights
        at = torch.tensor(slots, device=core.device)
        frame = state.frame[at]
        temperature, top_k, penalty, predictor_temperature, predictor_top_k = state.sampling[at].unbind(1)
        talker = core.config.talker_config
        logits = first_code_logits(
            _product(state.hidden[at], weights.codec_head),
            seen=state.seen[at],
            frame=frame,
            penalty=penalty,
            end=talker.codec_eos_token_id,
            codes=talker.vocab_size - 1024,
        )
        seed = state.seed[at]
        code = draw(logits, temperature=temperature, top_k=top_k, seed=seed, frame=frame, group=0)
        state.seen[at, code] = 1
        codes = [code]
        total = weights.embeddings[0][code].float()
        self._predict(self._predictor_input(state.hidden[at]), 0)
        for group, head in enumerate(weights.heads, start=1):
            hidden = self._predict(weights.predictor_rows[group - 1][code].float(), group)
            code = draw(
                _product(hidden, head),
                temperature=predictor_temperature,
                top_k=predictor_top_k,
                seed=seed,
                frame=frame,
                group=group,
            )
            codes.append(code)
            total = total + weights.embeddings[group][code].float()
        text = state.text[at, frame.long() % core.text_kept]
        text = torch.where((frame < state.text_count[at])[:, None], text, core.pad_row)
        state.codes[at, frame.long() % core.frames_kept] = torch.stack(codes, dim=1).int()
        position = state.position[at].long()
        state.hidden[at] = self._talker(total + text.float(), at, position)
        state.position[at] += 1
        state.frame[at] += 1
        return DoneTicket(codes[0].int().cpu().numpy(), frame.cpu().numpy())

    def _predictor_input(self, hidden: Tensor) -> Tensor:
        projection = self._core.weights.predictor_input
        if projection is None:
            return hidden
        weight, bias = projection
        return _product(hidden, weight) + bias

    def _talker(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        state = self._core.state

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = state.keys[index], state.values[index]
            keys[slots, :, positions] = k.to(keys.dtype)
            values[slots, :, positions] = v.to(values.dtype)
            return _attend(q, keys, values, slots, positions)

        return _run(self._core.weights.talker, x, positions, attend)

    def _predict(self, x: Tensor, step: int) -> Tensor:
        rows = torch.arange(x.shape[0], device=x.device)
        positions = torch.full_like(rows, step)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[index], self._values[index]
            keys[rows, :, step] = k.to(keys.dtype)
            values[rows, :, step] = v.to(values.dtype)
            return _attend(q, keys, values, rows, positions)

        return _run(self._core.weights.predictor, x, positions, attend)


_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def _run(stack: Stack, x: Tensor, positions: Tensor, attend: _Attend) -> Tensor:
    """Rows (n, h) float32 through all layers and the last norm. `attend` takes layer, q, k, v, each
    (n, heads, d), keeps k and v and returns (n, heads, d)."""
    config = stack.config
    cos, sin = rotations(positions, config)
    turned = cos[:, None], sin[:, None]
    for index, layer in enumerate(stack.layers):
        x = _layer(stack, layer, index, x, turned, attend)
    return _norm(x, stack.norm, config.rms_norm_eps)


def _layer(
    stack: Stack, layer: Layer, index: int, x: Tensor, rotation: tuple[Tensor, Tensor], attend: _Attend
) -> Tensor:
    config = stack.config
    heads, kv, d, eps = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.rms_norm_eps,
    )
    qkv = torch.unflatten(_product(_norm(x, layer.input_norm, eps), layer.qkv), 1, (heads + 2 * kv, d))
    q, k, v = torch.split(qkv, [heads, kv, kv], dim=1)
    q = _rotate(_norm(q, layer.q_norm, eps), rotation)
    k = _rotate(_norm(k, layer.k_norm, eps), rotation)
    x = x + _product(attend(index, q, k, v).flatten(1), layer.o)
    gate_up = torch.unflatten(_product(_norm(x, layer.post_norm, eps), layer.gate_up), 1, (-1, 2))
    return x + _product(F.silu(gate_up[..., 0]) * gate_up[..., 1], layer.down)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, k) float32 by weight (m, k): (n, m) float32. Operands have the weight's dtype."""
    count = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -count % _ROWS)).to(weight.dtype)
    return torch.cat([F.linear(part, weight) for part in torch.split(padded, _ROWS)])[:count].float()


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotations(positions: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions (n,): (n, d / 2) float32 each."""
    d = config.head_dim
    inverse = 1.0 / config.rope_theta ** (torch.arange(0, d, 2, device=positions.device).float() / d)
    angles = positions.float()[:, None] * inverse
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _attend(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    """q (n, heads, d) over the caches (slots, kv, positions, d) up to each row's own position."""
    out = torch.empty_like(q)
    spans = positions // _SPAN + 1
    groups = q.shape[1] // keys.shape[1]
    for span in sorted(set(spans.tolist())):
        rows = (spans == span).nonzero()[:, 0]
        length = min(span * _SPAN, keys.shape[2])
        k = keys[slots[rows], :, :length].float()
        v = values[slots[rows], :, :length].float()
        part = torch.unflatten(q[rows], 1, (-1, groups))
        # products and sums instead of matrix products: a row's sums then have one order in any batch
        scores = (part[:, :, :, None] * k[:, :, None]).sum(-1) * q.shape[2] ** -0.5
        hidden = torch.arange(length, device=q.device) > positions[rows, None]
        weights = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1)
        out[rows] = (weights[..., None] * v[:, :, None]).sum(-2).flatten(1, 2)
    return out
