"""Mage-ViT and the merger after it, in plain torch: patches in, visual tokens out.

Confirmed by public sources (ports that were held against the published code in float32): a patch embedding
without bias, a norm before the first layer and none after the last, pre-norm layers with one qkv matrix,
exact GELU, and the merger's norm, two matrices and GELU. Three things look like slips and are not; the
checkpoint was trained so. The rotation's frequencies are base^(-i/size) with i from 0 to size, where time,
row and column have 4, 6 and 6 sixteenths of half a head. The angles are that half twice over, one after the
other. And the rotation pairs neighbours, (x0, x1) to (-x1, x0), so that the two of a pair turn by different
angles.

Attention stays in a window: up to 4 steps of time of one grid row. The published processor makes a row of
each frame and of each canvas, so that there it stays in one image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from duplex.adapters.mage_vl import vision_rotation
from duplex.adapters.mage_vl.config import VisionConfig
from duplex.adapters.mage_vl.layout import VISION
from duplex.core.errors import DuplexError, ErrorCode

PASS_PATCHES = 65536
"""Patches that go through the layers at once at most: 2 GiB of activations in bfloat16 at the published size.
More take several passes."""

_AXES = (4, 6, 6)  # sixteenths of half a head for time, row and column


class Matrix(NamedTuple):
    """(out, in) and (out,)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight, self.bias)


class Norm(NamedTuple):
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs, self.weight.shape, self.weight, self.bias, self.eps)


class Layer(NamedTuple):
    norm1: Norm
    qkv: Matrix
    proj: Matrix
    norm2: Norm
    fc1: Matrix
    fc2: Matrix


class Vision:
    """The encoder and merger of one checkpoint, on one device, in one dtype: those of its weights.

    Not changed by use: threads may share it.
    """

    def __init__(
        self,
        config: VisionConfig,
        weights: Mapping[str, Tensor],
        *,
        pass_patches: int = PASS_PATCHES,
    ) -> None:
        """`weights`: by the checkpoint's names (`layout.model_layout`), on one device and of one dtype."""
        self.config = config
        self._pass_patches = pass_patches
        self._embedding = weights[f"{VISION}embeddings.patch_embedding.weight"].flatten(1)
        self.dtype, self.device = self._embedding.dtype, self._embedding.device

        def matrix(name: str) -> Matrix:
            return Matrix(weights[f"{VISION}{name}.weight"], weights[f"{VISION}{name}.bias"])

        def norm(name: str) -> Norm:
            return Norm(*matrix(name), config.layer_norm_eps)

        self._pre = norm("layernorm_pre")
        self._layers = tuple(
            Layer(
                norm(f"{at}.layer_norm1"),
                matrix(f"{at}.self_attn.qkv"),
                matrix(f"{at}.self_attn.proj"),
                norm(f"{at}.layer_norm2"),
                matrix(f"{at}.mlp.fc1"),
                matrix(f"{at}.mlp.fc2"),
            )
            for at in (f"encoder.layers.{layer}" for layer in range(config.num_hidden_layers))
        )
        self._last = norm("merger.ln_q")
        self._merge1, self._merge2 = matrix("merger.mlp.0"), matrix("merger.mlp.2")
        axes, frequencies = _frequencies(config)
        self._axes, self._frequencies = axes.to(self.device), frequencies.to(self.device)

    def __call__(self, pixels: Tensor, grid: Sequence[Sequence[int]] | Tensor, positions: Tensor) -> Tensor:
        """Visual tokens of images, in the order of their patches: (N / 4, out_hidden_size).

        `pixels` (N, 768): normalised, in block order (see `image`), of any float dtype. `grid` (n, 3): of
        each row its steps of time, rows and columns of patches; on the host, so that nothing waits for the
        device.
        `positions` (N, 3) integers in the same order: source frame index, row, column.

        Raises:
            DuplexError: `INVALID_MEDIA`: shapes that do not fit each other.
        """
        with torch.inference_mode():
            return self._encode(pixels, self._windows(grid, pixels, positions), positions)

    def _encode(self, pixels: Tensor, lengths: list[int], positions: Tensor) -> Tensor:
        # windows of one length side by side, so that each length is one attention
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        moved = order != list(range(len(lengths)))
        if moved:
            parts = torch.split(pixels, lengths), torch.split(positions, lengths)
            pixels, positions = (torch.cat([part[index] for index in order]) for part in parts)
        done = [
            self._pass(pixels[start:end], positions[start:end], runs)
            for start, end, runs in _passes([lengths[index] for index in order], self._pass_patches)
        ]
        tokens = torch.cat(done) if len(done) > 1 else done[0]
        if moved:
            merged = self.config.merged
            sizes = [lengths[index] // merged for index in order]
            pieces = dict(zip(order, torch.split(tokens, sizes), strict=True))
            tokens = torch.cat([pieces[index] for index in range(len(lengths))])
        return tokens

    def _windows(
        self, grid: Sequence[Sequence[int]] | Tensor, pixels: Tensor, positions: Tensor
    ) -> list[int]:
        """Patches of each window."""
        config = self.config
        rows = grid.tolist() if isinstance(grid, Tensor) else grid
        lengths: list[int] = []
        for time, height, width in rows:
            side = config.spatial_merge_size
            if min(time, height, width) < 1 or height % side or width % side:
                raise _odd(f"a grid row of {time}x{height}x{width} patches has no whole {side}x{side} blocks")
            full, rest = divmod(time, config.frame_windows_size)
            steps = [config.frame_windows_size] * full + [rest] * (rest > 0)
            lengths += [step * height * width for step in steps]
        total = sum(lengths)
        if pixels.shape != (total, config.patch_width) or positions.shape != (total, 3) or not lengths:
            raise _odd(
                f"the grid has {total} patches of {config.patch_width} numbers, pixels the shape"
                f" {tuple(pixels.shape)} and positions {tuple(positions.shape)}"
            )
        return lengths

    def _pass(self, pixels: Tensor, positions: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        """Tokens of windows that are side by side: `runs` of (how many, patches of each)."""
        config = self.config
        cos, sin = self._angles(positions)
        hidden = self._pre(F.linear(pixels.to(self.dtype), self._embedding))
        for layer in self._layers:
            hidden += layer.proj(self._attend(layer.qkv(layer.norm1(hidden)), cos, sin, runs))
            hidden += layer.fc2(F.gelu(layer.fc1(layer.norm2(hidden))))
        merged = self._last(hidden).view(-1, config.merged * config.hidden_size)
        return self._merge2(F.gelu(self._merge1(merged)))

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        heads, width = self.config.num_attention_heads, self.config.head_dim
        qkv = vision_rotation.rotate(qkv.view(len(qkv), 3, heads, width), cos, sin)
        done, start = [], 0
        for count, length in runs:
            part = qkv[start : start + count * length].view(count, length, 3, heads, width)
            q, k, v = part.permute(2, 0, 3, 1, 4).unbind(0)  # each (count, heads, length, width)
            done.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1).flatten(1))
            start += count * length
        return torch.cat(done) if len(done) > 1 else done[0]

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each patch, float32 (N, head_dim)."""
        place = positions.to(device=self.device, dtype=torch.float32)
        turn = place.index_select(1, self._axes) * self._frequencies
        turn = torch.cat([turn, turn], dim=1)
        return turn.cos(), turn.sin()


def _frequencies(config: VisionConfig) -> tuple[Tensor, Tensor]:
    """Of half a head's lanes: which part of the position turns each (0 to 2), and how fast (float32)."""
    sizes = [config.head_dim // 2 * share // 16 for share in _AXES]
    axes = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    exponents = torch.cat([torch.arange(size, dtype=torch.float32) / size for size in sizes])
    return axes, 1.0 / config.rope_theta**exponents


def _passes(lengths: Sequence[int], most: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Windows in passes of at most `most` patches, but of one window at least: (start, end, runs of equal
    length)."""
    passes: list[tuple[int, int, list[tuple[int, int]]]] = []
    start = end = 0
    runs: list[tuple[int, int]] = []
    for length in lengths:
        if runs and end + length - start > most:
            passes.append((start, end, runs))
            start, runs = end, []
        if runs and runs[-1][1] == length:
            runs[-1] = (runs[-1][0] + 1, length)
        else:
            runs.append((1, length))
        end += length
    return [*passes, (start, end, runs)]


def _odd(message: str) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_MEDIA, message, param="images")
