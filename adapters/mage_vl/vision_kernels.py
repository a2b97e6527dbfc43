"""The vision encoder's rotation as one Triton kernel. See `vision_rotation`."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(qkv, cos, sin, stride, ROWS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr):
    """A program a patch: ROWS rows (query heads, then key heads) of HALF pairs; PADDED is ROWS, rounded up to
    a power of two. HALF is one."""
    patch = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, PADDED)[:, None, None]
    pair = tl.arange(0, HALF)[None, :, None]
    side = tl.arange(0, 2)[None, None, :]
    lane = pair * 2 + side
    at = qkv + patch * stride + row * (2 * HALF) + lane
    there = (row < ROWS) & (lane >= 0)
    first, second = tl.split(tl.load(at, there, 0.0).to(tl.float32))
    angle = patch * (2 * HALF) + lane
    cos0, cos1 = tl.split(tl.load(cos + angle))
    sin0, sin1 = tl.split(tl.load(sin + angle))
    turned = tl.join(first * cos0 - second * sin0, second * cos1 + first * sin1)
    tl.store(at, turned.to(qkv.dtype.element_ty), there)


def rotate_fused(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `vision_rotation.rotate`; d / 2 must be a power of two and `qkv` contiguous."""
    patches, _, heads, width = qkv.shape
    rows = 2 * heads
    _rotate[(patches,)](
        qkv, cos, sin, qkv.stride(0), ROWS=rows, HALF=width // 2, PADDED=triton.next_power_of_2(rows)
    )
    return qkv
