"""The codec's kernels in Triton's interpreter: whether samples depend on the chunks, the batch or the tiles.

    TRITON_INTERPRET=1 python codec_interpreted_cuts.py float32|bfloat16

Fails where a single bit differs. Runs in a process of its own, because Triton decides at import whether to
interpret.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import triton.language as tl
from codec_small import codes, decoder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from duplex.adapters.qwen3_tts import codec_triton

torch.set_num_threads(1)
SIZES = (1, 2, 3, 5)
FRAMES = 9  # more than the window of 8
SLOTS = 2
CHUNKS = st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)


def dot(_: object, a: Any, b: Any, d: Any, *__: object) -> TensorHandle:
    """a b + d, one channel after the other: the order in which a matrix unit goes through a tile's depth is
    its own, but that of the tiles is the program's. Unlike the interpreter's it knows bfloat16."""
    sums = d.data.copy()
    left, right = wide(a), wide(b)
    for k in range(left.shape[1]):
        sums += left[:, k, None] * right[None, k]
    return TensorHandle(sums, d.dtype.scalar)


def wide(x: Any) -> NDArray[np.float32]:
    if x.dtype.scalar != tl.bfloat16:
        found: NDArray[np.float32] = x.data
        return found
    return (x.data.astype(np.uint32) << 16).view(np.float32)


InterpreterBuilder.create_dot = dot
KIND = getattr(torch, sys.argv[1])
CODEC = decoder("kernels", plain=False, slots=SLOTS, frames=SIZES, max_batch=SLOTS, dtype=KIND)
STREAMS = torch.stack([codes(slot, FRAMES) for slot in range(SLOTS)])
PER_FRAME = CODEC.frame_samples


def spoken(order: list[int], chunks: list[int]) -> Tensor:
    """The streams of these slots from their beginning, all in one batch."""
    for slot in order:
        CODEC.reset(slot)
    ids = torch.tensor(order)
    parts, at = [], 0
    while at < FRAMES:
        size = min(chunks[len(parts) % len(chunks)], FRAMES - at)
        size = max(possible for possible in SIZES if possible <= size)
        parts.append(CODEC.decode(ids, STREAMS[ids, at : at + size]))
        at += size
    return torch.cat(parts, dim=1)


ALONE = spoken([0], [1])[0]
assert float(ALONE.std()) > 0.01


@given(order=st.permutations(range(SLOTS)), chunks=CHUNKS, processors=st.sampled_from([1, 2, 4]))
@example(order=[1, 0], chunks=[5, 3], processors=1)
@settings(max_examples=1, deadline=None, database=None)
def check(order: list[int], chunks: list[int], processors: int) -> None:
    codec_triton._SMS = processors  # type: ignore[misc]  # fewer of them are kept busy by larger tiles
    together = spoken(order, chunks)
    assert torch.equal(together[order.index(0)], ALONE)


if __name__ == "__main__":
    check()
