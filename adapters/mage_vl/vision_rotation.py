"""The rotation of queries and keys: in plain torch, and on CUDA in one kernel where Triton is there.

Eager torch would read and write a layer's queries and keys five times over in float32; at the published size
that is a quarter of the encoder's time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

Rotate: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the queries and keys of `qkv` (N, 3, heads, d), in place, and return it. `cos` and `sin` are
    float32 (N, d). Neighbours (x0, x1) become (x0 cos0 - x1 sin0, x1 cos1 + x0 sin1), in float32."""
    return (_best() if qkv.is_cuda else rotate_plain)(qkv, cos, sin)


def rotate_plain(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In plain torch."""
    qk = qkv[:, :2].float()
    crossed = torch.stack((-qk[..., 1::2], qk[..., ::2]), dim=-1).flatten(-2)
    qkv[:, :2] = qk * cos[:, None, None] + crossed * sin[:, None, None]
    return qkv


@cache
def _best() -> Rotate:
    try:
        from duplex.adapters.mage_vl.vision_kernels import rotate_fused
    except ImportError:  # torch for CUDA without Triton
        return rotate_plain
    return rotate_fused
