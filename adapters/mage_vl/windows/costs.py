"""What each part of a frame cost to code, estimated from what libav tells of it.

libav has the size of a frame's packet and the motion vectors of its blocks; the bits of a macroblock it
keeps to itself. They are estimated by sharing the packet's bits out over the frame: more to where the encoder
split blocks or used none of its vectors, more to where the picture changed, more to where it has detail.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.windows.selection import CELL
from duplex.adapters.mage_vl.windows.types import Images
from duplex.codecs.video import VideoFrame

Costs = NDArray[np.float32]
_Plane = NDArray[np.uint8]  # (H, W), multiples of 8, in one piece

_MACROBLOCK: Final = 16  # pixels of the source
_MOST_MACROBLOCKS: Final = 256  # a side; beyond that vectors are counted in larger squares
_WHOLE: Final = 0.1  # weight of a block with one vector, which the encoder mostly skips
_INTRA: Final = 2.0  # and of a block in a predicted frame that no vector covers
_EVEN: Final = np.uint64(0x00FF00FF00FF00FF)
_LANES: Final = np.uint64(0x0001000100010001)
_NO_PACKET_BITS: Final = 16.0  # a cell's bits, per unit of weight, where the packet's size says nothing


class CostEstimator:
    """Costs of the frames of one session, in order: it compares each with the one before.

    The weights were chosen by comparing selections with those that the true bit costs give; see the page on
    windows.
    """

    def __init__(self) -> None:
        self._predicted: _Plane | None = None
        self._key: _Plane | None = None  # the frame before, where it was a key frame

    def reset(self) -> None:
        """What comes is not compared with what was."""
        self._predicted = self._key = None

    def costs(self, frame: VideoFrame, image: Images) -> Costs:
        """Estimated bits of each cell, float32 (H // 8, W // 8), of a frame shown as `image` (H, W, 3)."""
        green = np.ascontiguousarray(image[..., 1])  # near enough to luma, and at hand
        key = is_key(frame)
        weights: Costs = np.sqrt(self._change(green, key) * _detail(green))
        if key or not frame.packet_bytes:
            weights *= np.float32(_NO_PACKET_BITS)
            return weights
        weights *= _coding_effort(frame, weights.shape)
        total = float(weights.sum())
        weights *= np.float32(frame.packet_bytes * 8 / total if total else 0)
        return weights

    def _change(self, green: _Plane, key: bool) -> Costs:
        """Mean difference of each cell to the frame before, in levels.

        A frame after a key frame is compared with the one before that: key frames are not shown, so what
        changed with them is seen in the next.
        """
        if key and self._key is not None:  # stills, or a codec without prediction
            self._predicted = None
        before = self._key if self._predicted is None else self._predicted
        if key:
            self._key = green
        else:
            self._key, self._predicted = None, green
        if before is None or before.shape != green.shape:
            return np.ones((green.shape[0] // CELL, green.shape[1] // CELL), np.float32)
        changes = np.empty_like(green)
        _differences(green, before, changes)
        return _means(_sums(changes))


def is_key(frame: VideoFrame) -> bool:
    """Whether a frame is coded without prediction, so that its bits do not tell what changed."""
    return frame.key or frame.type == "I"


def _detail(green: _Plane) -> Costs:
    """Mean difference of the pixels of each cell to their neighbours on the left and above, in levels."""
    flat, width = green.ravel(), green.shape[1]
    steps = np.zeros_like(green)
    along = steps.ravel()  # the same memory
    _differences(flat[1:], flat[:-1], along[1:])
    steps[:, 0] = 0  # the pixel before is in the row above
    sums = _sums(steps)
    _differences(flat[width:], flat[:-width], along[width:])
    steps[0] = 0
    sums += _sums(steps)
    return _means(sums)


def _differences(a: NDArray[np.uint8], b: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    np.minimum(a, b, out=out)
    np.subtract(np.maximum(a, b), out, out=out)


def _sums(pixels: _Plane) -> NDArray[np.uint64]:
    """Sums of cells, (H // 8, W // 8). Eight pixels are read as one number, in which sums of four pairs of
    columns have 16 bits each: they are at most 8 × 8 × 255."""
    eights = pixels.view(np.uint64)
    pairs = eights >> np.uint64(8)
    pairs &= _EVEN
    pairs += eights & _EVEN
    sums: NDArray[np.uint64] = pairs.reshape(-1, CELL, pairs.shape[1]).sum(1)
    sums *= _LANES  # the highest 16 bits are the sum of all four
    sums >>= np.uint64(48)
    return sums


def _means(sums: NDArray[np.uint64]) -> Costs:
    means: Costs = sums.astype(np.float32)
    means /= np.float32(CELL * CELL)
    return means


def _coding_effort(frame: VideoFrame, shape: tuple[int, ...]) -> Costs:
    """How much the encoder had to say of each cell, apart from its residual: splits and intra blocks."""
    vectors = frame.motion()
    if not len(vectors):  # not exported for this codec
        return np.ones(shape, np.float32)
    side = _MACROBLOCK
    while max(frame.width, frame.height) > side * _MOST_MACROBLOCKS:
        side *= 2
    rows, columns = -(-frame.height // side), -(-frame.width // side)
    row = np.clip(vectors["y"] / side, 0, rows - 1).astype(np.intp)
    column = np.clip(vectors["x"] / side, 0, columns - 1).astype(np.intp)
    # blocks predicted from before and from after are counted apart: both are of one split
    place = (row * columns + column) * 2 + (vectors["source"] > 0)
    size = 2 * rows * columns
    area = vectors["w"].astype(np.float32) * vectors["h"]
    vectors_of = np.bincount(place, minlength=size)
    area_of = np.bincount(place, area, size)
    split = np.maximum(vectors_of[::2], vectors_of[1::2]) / (side / _MACROBLOCK) ** 2
    covered = np.maximum(area_of[::2], area_of[1::2]) / side**2
    effort = np.maximum(split - 1, 0) + _WHOLE + _INTRA * np.maximum(1 - covered, 0)
    return spread(effort.reshape(rows, columns), shape)


def spread(grid: NDArray[Any], shape: tuple[int, ...]) -> Costs:
    """A coarse or fine grid over the same picture, taken at the centres of `shape` cells."""
    rows = ((np.arange(shape[0]) + 0.5) * grid.shape[0] / shape[0]).astype(np.intp)
    columns = ((np.arange(shape[1]) + 0.5) * grid.shape[1] / shape[1]).astype(np.intp)
    cells: Costs = grid[rows[:, None], columns].astype(np.float32)
    return cells
