"""A frame of one row on CUDA: layers in fewer and longer launches, with the numbers of `TritonMath`'s."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from duplex.adapters.qwen3_tts import single_kernels as kernels
from duplex.adapters.qwen3_tts.packing import Layer, Stack
from duplex.adapters.qwen3_tts.tiles import Tile, slice_of, tile_of

_ROWS: Final = 16
"""Rows that the matrix unit takes at least; all but the first are zeros."""
_PIECES: Final = 4
"""Depths that a block of `normed_product` has at most."""


class OneRow:
    """What replaces two launches each in the layers of one stack, for a row in slot 0 of its buffers.

    The residual is in `given` or `other` and goes to the one where it is not, because the blocks that add to
    it read all of it. `partial` are the sums that a layer's products leave, as in `TritonMath`; those of
    queries, keys and values go to `qkv`, since they are written while the ones before them are read.
    """

    def __init__(self, stack: Stack, given: Tensor, partial: Tensor, *, pdl: bool) -> None:
        layer = stack.layers[0]
        self._stack = stack
        self._pdl = pdl
        self._launch: dict[str, Any] = {"launch_pdl": True} if pdl else {}
        self.given = given[:1]
        self.other = torch.zeros_like(self.given)
        self.partial = partial
        split = layer.qkv.shape[1] // slice_of(*layer.qkv.shape)
        self.qkv = partial.new_zeros(split * layer.qkv.shape[0])
        config = stack.config
        self._gate_tile = self._tile_of(layer.gate_up)
        blocks = layer.gate_up.shape[0] // self._gate_tile.outputs
        self._own = layer.o.new_zeros(blocks * config.hidden_size)

    @staticmethod
    def _tile_of(weight: Tensor) -> Tile:
        n, k = weight.shape
        return tile_of(n, k, 1)

    def normed(
        self, split: int, residual: Tensor, into: Tensor, norm: Tensor, weight: Tensor, out: Tensor
    ) -> int:
        """The residual and the partial sums, normed, times a weight; returns how many partial sums of it."""
        n, k = weight.shape
        cut, tile = slice_of(n, k), self._tile_of(weight)
        depth = max(min(tile.depth, cut), cut // _PIECES)
        kernels.normed_product[(n // tile.outputs, k // cut)](
            self.partial, residual, into, norm, self._own, weight, out, n, self._stack.config.rms_norm_eps,
            H=k, SPLIT=split, BN=tile.outputs, BM=_ROWS, BK=depth, SLICE=cut, AHEAD=cut // depth,
            PDL=self._pdl, num_warps=4, **self._launch,
        )  # fmt: skip
        return int(k // cut)

    def spare(self, residual: Tensor) -> Tensor:
        """The buffer that is not this one."""
        return self.given if residual is self.other else self.other

    def gated(self, split: int, residual: Tensor, into: Tensor, layer: Layer, out: Tensor) -> None:
        """The MLP's first half of the normed residual and partial sums."""
        n, k = layer.gate_up.shape
        tile = self._gate_tile
        kernels.normed_gated[(n // tile.outputs,)](
            self.partial, residual, into, layer.post_norm, layer.gate_up, out, self._own, n,
            self._stack.config.rms_norm_eps,
            H=k, SPLIT=split, BN=tile.outputs, BM=_ROWS, BK=tile.depth, AHEAD=tile.ahead, STAGES=tile.stages,
            PDL=self._pdl, num_warps=4, **self._launch,
        )  # fmt: skip
