"""Triton kernels that move the codec's state: codes in, contexts back, counters on.

Names are those of `codec_kernels`.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def keep(state, slots, fresh, source, target, count, stride, BLOCK: tl.constexpr):
    """Move what stays in contexts longer than the pass: `fresh[target]` = the slot's `state[source]`, `count`
    numbers. Grid (count / BLOCK, slots of the pass)."""
    batch = tl.program_id(1)
    cells = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cells < count
    slot = tl.load(slots + batch)
    value = tl.load(state + slot * stride + tl.load(source + cells, mask=inside, other=0), mask=inside)
    to = fresh + batch * stride + tl.load(target + cells, mask=inside, other=0)
    tl.store(to, value, mask=inside)


@triton.jit(do_not_specialize=["frames"])
def gather(ring, slots, frame, out, kept, frames, GROUPS: tl.constexpr):
    """out (m, GROUPS): the slots' next codes, frame f being at f % kept of ring (slots, kept, GROUPS). Grid
    (frames, slots of the pass)."""
    batch, index = tl.program_id(1), tl.program_id(0)
    groups = tl.arange(0, GROUPS)
    slot = tl.load(slots + batch)
    cell = slot * kept + (tl.load(frame + slot) + index) % kept
    tl.store(out + (batch * frames + index) * GROUPS + groups, tl.load(ring + cell * GROUPS + groups))


@triton.jit(do_not_specialize=["frames"])
def commit(fresh, state, slots, position, frame, frames, stride, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """The slots' contexts are what the pass made, and their counters move on. Grid (stride / BLOCK, slots of
    the pass)."""
    batch = tl.program_id(1)
    cells = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cells < stride
    slot = tl.load(slots + batch)
    tl.store(state + slot * stride + cells, tl.load(fresh + batch * stride + cells, mask=inside), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(position + slot, tl.load(position + slot) + frames)
        if COUNTED:
            tl.store(frame + slot, tl.load(frame + slot) + frames)
