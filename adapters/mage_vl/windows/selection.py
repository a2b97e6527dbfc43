"""Which blocks of a group of frames go on its canvases.

As the published selector does it: a group's first frame is shown whole, the anchor; the blocks of the other
frames that cost the most bits fill the further canvases, in order of time. A block is 2 × 2 patches, the
square of one visual token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.windows.types import BLOCK, MERGE, Images, Positions

GROUP_FRAMES: Final = 32
"""Frames of a group, at most."""
GROUP_IMAGES: Final = 4
"""Canvases of a group, at most: one anchor, the rest chosen blocks."""

CELL: Final = 8
"""Side of the squares in which costs are estimated, in pixels of the image."""

_FLAT: Final = 4.0  # standard deviation of a channel below which a frame shows nothing
_PERCENTILE: Final = 99.0
_LEAST_COST: Final = float(np.log1p(8.0))  # of 8 bits: mere noise is not stretched to a full scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A frame of a group.

    Attributes:
        index: Its index in the segment.
        pts_ms: Its time on the client's clock.
        key: A key frame: its bits tell of its detail, not of what changed.
        image: uint8 (H, W, 3).
        scores: float32 (H // 32, W // 32), by `block_scores`.
    """

    index: int
    pts_ms: float
    key: bool
    image: Images
    scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Canvases:
    """n canvases: `images` and `positions` as in `VisualInput`, and each one's earliest time in ms."""

    images: Images
    positions: Positions
    pts_ms: NDArray[np.float64]


def block_scores(costs: NDArray[Any]) -> NDArray[np.float32]:
    """Scores of a frame's blocks from what its cells cost.

    The published measure: the logarithm of the bits, as a share of the frame's own 99th percentile, summed
    over the block. So a frame competes by where its bits are, not by how many they are.

    Args:
        costs: (H // 8, W // 8) of one frame, bits, at least 0.

    Returns:
        float32 (H // 32, W // 32), each from 0 to 16.
    """
    logs = np.log1p(costs, dtype=np.float32)
    place = round((logs.size - 1) * _PERCENTILE / 100)
    # sorted, not partitioned: that is slow where many are equal, as of a still scene
    full = max(float(np.sort(logs, axis=None)[place]), _LEAST_COST)
    shares = np.minimum(logs / np.float32(full), np.float32(1))
    per = BLOCK // CELL
    rows, columns = shares.shape[0] // per, shares.shape[1] // per
    scores: NDArray[np.float32] = shares.reshape(rows, per, columns, per).sum((1, 3))
    return scores


def canvases(group: list[Candidate]) -> Canvases:
    """Anchor and chosen blocks of a group of 1 to `GROUP_FRAMES` frames of one size.

    Key frames and frames that show nothing (one colour) are left out while others are there. A group of few
    frames gives as many canvases as it has frames: none is padded.
    """
    frames = _usable(group)
    images = np.stack([frame.image for frame in frames])
    indices = np.array([frame.index for frame in frames], np.int32)
    times = np.array([frame.pts_ms for frame in frames])
    count, height, width, _ = images.shape
    rows, columns = height // BLOCK, width // BLOCK
    blocks = images.reshape(count, rows, BLOCK, columns, BLOCK, 3).transpose(0, 1, 3, 2, 4, 5)

    anchor = np.arange(rows * columns)
    scores = np.stack([frame.scores for frame in frames])[1:].ravel()
    budget = min(GROUP_IMAGES - 1, count - 1) * rows * columns
    best = np.argsort(-scores, kind="stable")[:budget] + rows * columns
    chosen = np.concatenate((anchor, np.sort(best)))  # by frame, then by place
    frame, place = np.divmod(chosen, rows * columns)
    row, column = np.divmod(place, columns)

    shape = (len(chosen) // (rows * columns), rows, columns)
    pixels = blocks[frame, row, column].reshape(*shape, BLOCK, BLOCK, 3)
    positions = np.empty((*shape, MERGE, MERGE, 3), np.int32)
    positions[..., 0] = indices[frame].reshape(*shape, 1, 1)
    positions[..., 1] = (row * MERGE).reshape(*shape, 1, 1) + np.arange(MERGE)[:, None]
    positions[..., 2] = (column * MERGE).reshape(*shape, 1, 1) + np.arange(MERGE)
    return Canvases(
        images=pixels.transpose(0, 1, 3, 2, 4, 5).reshape(shape[0], height, width, 3),
        positions=positions.transpose(0, 1, 3, 2, 4, 5).reshape(shape[0], rows * MERGE, columns * MERGE, 3),
        pts_ms=times[frame.reshape(shape[0], -1).min(1)],
    )


def _usable(group: list[Candidate]) -> list[Candidate]:
    predicted = [frame for frame in group if not frame.key] or group
    shown = [frame for frame in predicted if _shows_something(frame.image)]
    return shown or predicted[:1]


def _shows_something(image: Images) -> bool:
    levels = image[::CELL, ::CELL].transpose(2, 0, 1).reshape(3, -1).astype(np.float64)
    count = levels.shape[1]
    # exact: sums of whole numbers
    spreads = count * np.einsum("ij,ij->i", levels, levels) - levels.sum(1) ** 2
    return bool(spreads.max() > (_FLAT * count) ** 2)
