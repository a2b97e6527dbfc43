"""What moves: the whole view, a part of it, or nothing; from the codec's motion vectors and from pixels.

Vectors say where content goes, and cost nothing; codecs that export none (VP8, VP9, AV1, HEVC, stills) are
measured by phase correlation. Whether anything changes at all is taken from pixels in every case, so that a
bad vector in a flat area is no motion.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.vision_look import THUMB

_SPAN_MS: Final = 160.0  # over which change is measured
_HISTORY_MS: Final = 700.0
_CELL_CHANGED: Final = 7.0  # brightness steps: coding noise stays below 4
_COHERENT: Final = 0.7  # share of the picture that must move as one for a pan
_PAN_SPEED: Final = 0.05  # widths a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """What moves at one time.

    Attributes:
        pts_ms: The time.
        active: Share of the picture that changes, 0 to 1.
        pan: How fast the whole view's content moves, (right, down) in picture widths a second; None when
            the picture does not move as one.
        flow: Mean velocity of the part that moves, in the same unit; None when not known.
        place: Middle of the part that changes, as fractions of width and height.
    """

    pts_ms: float
    active: float
    pan: tuple[float, float] | None
    flow: tuple[float, float] | None
    place: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Sample:
    pts_ms: float
    thumb: NDArray[np.uint8]
    luma: NDArray[np.float32]


class MotionMeter:
    """Feed every frame in order."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._pans: deque[tuple[float, tuple[float, float] | None]] = deque()
        self._anchor_ms: float | None = None
        self._flow: tuple[float, float] | None = None

    def reset(self) -> None:
        """Forget the stream: a cut, or a gap."""
        self._samples.clear()
        self._pans.clear()
        self._anchor_ms = None
        self._flow = None

    def feed(
        self,
        pts_ms: float,
        thumb: NDArray[np.uint8],
        luma: NDArray[np.float32],
        vectors: NDArray[Any],
        picture_type: str,
        size: tuple[int, int],
    ) -> Motion:
        """Measure one frame.

        Args:
            pts_ms: Its time.
            thumb: uint8 (72, 128), its luma thumbnail.
            luma: float32 (18, 32), its cells.
            vectors: Its motion vectors (`MOTION_DTYPE`), empty where the codec gives none.
            picture_type: `I`, `P`, `B` or `?`.
            size: Width and height that the vectors are measured in.
        """
        sample = _Sample(pts_ms, thumb, luma)
        self._samples.append(sample)
        while self._samples[0].pts_ms < pts_ms - _HISTORY_MS:
            self._samples.popleft()
        earlier = self._at(pts_ms - _SPAN_MS)
        changed = np.abs(luma - earlier.luma) > _CELL_CHANGED
        self._measure_vectors(pts_ms, vectors, picture_type, size, changed)
        pan = self._pan(pts_ms, len(vectors) > 0)
        return Motion(
            pts_ms=pts_ms,
            active=float(changed.mean()),
            pan=pan,
            flow=pan or self._flow,
            place=_middle(changed),
        )

    def _at(self, pts_ms: float) -> _Sample:
        """The newest sample that is at least as old as asked for, else the oldest."""
        found = self._samples[0]
        for sample in self._samples:
            if sample.pts_ms > pts_ms:
                break
            found = sample
        return found

    def _measure_vectors(
        self,
        pts_ms: float,
        vectors: NDArray[Any],
        picture_type: str,
        size: tuple[int, int],
        changed: NDArray[np.bool_],
    ) -> None:
        """Velocity from the vectors of frames that refer to the anchor before them.

        B frames are left out: how far their references lie is not in the stream's vectors.
        """
        if picture_type == "B" or (picture_type == "?" and not len(vectors)):
            return
        before, self._anchor_ms = self._anchor_ms, pts_ms
        if before is None or picture_type == "I" or not len(vectors) or pts_ms <= before:
            return
        field, known = _field(vectors[vectors["source"] < 0], size)
        if known.mean() < 0.5:
            self._pans.append((pts_ms, None))
            return
        velocity = field / np.float32(size[0] * (pts_ms - before) / 1000)
        self._pans.append((pts_ms, _as_one(velocity, known)))
        moving = known & _pooled(changed, known.shape) & (np.hypot(velocity[..., 0], velocity[..., 1]) > 0.02)
        self._flow = None
        if moving.sum() >= 4:
            right, down = velocity[moving].mean(0)
            self._flow = (float(right), float(down))

    def _pan(self, pts_ms: float, has_vectors: bool) -> tuple[float, float] | None:
        """A pan that has lasted: the vectors of the last half second agree, and so do the pixels."""
        old = self._at(pts_ms - 480.0)
        span = (pts_ms - old.pts_ms) / 1000
        if span < 0.35:
            return None
        while self._pans and self._pans[0][0] < pts_ms - 520.0:
            self._pans.popleft()
        if self._pans or has_vectors:
            velocities = [v for _, v in self._pans if v is not None]
            if len(velocities) < max(2, 0.75 * len(self._pans)):
                return None
            mean = np.mean(velocities, 0)
            speed = float(np.hypot(*mean))
            if speed < _PAN_SPEED or any(np.dot(v, mean) < 0.5 * speed**2 for v in velocities):
                return None
        else:
            mean = None
        shift, alike = _shift(old.thumb, self._samples[-1].thumb)
        pixels = np.array(shift) / THUMB[0] / span
        if alike < 0.5 or float(np.hypot(*pixels)) < _PAN_SPEED:
            return None
        if mean is None:
            return float(pixels[0]), float(pixels[1])
        if np.dot(pixels, mean) < 0.6 * float(np.hypot(*pixels)) * float(np.hypot(*mean)):
            return None
        return float(mean[0]), float(mean[1])


def _field(vectors: NDArray[Any], size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Mean displacement in each cell of a grid, (rows, columns, 2) pixels, and which cells have any.

    The grid is 16 × 9 cells, fewer for small pictures: each must be able to hold a macroblock's centre.
    """
    columns, rows = max(1, min(16, size[0] // 16)), max(1, min(9, size[1] // 16))
    x = np.clip((vectors["x"] * columns / size[0]).astype(int), 0, columns - 1)
    y = np.clip((vectors["y"] * rows / size[1]).astype(int), 0, rows - 1)
    cell = y * columns + x
    area = vectors["w"].astype(np.float32) * vectors["h"]
    total = np.bincount(cell, area, rows * columns)
    sums = np.stack([np.bincount(cell, area * vectors[d], rows * columns) for d in ("dx", "dy")], -1)
    field = sums / np.maximum(total, 1e-9)[:, None]
    return field.reshape(rows, columns, 2).astype(np.float32), (total > 0).reshape(rows, columns)


def _pooled(changed: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Where at least a quarter of a coarser grid's cell has changed."""
    share = changed.astype(np.float32)
    for axis, (fine, coarse) in enumerate(zip(changed.shape, shape, strict=True)):
        starts = np.arange(coarse) * fine // coarse
        share = np.add.reduceat(share, starts, axis)
        counts = np.diff(np.append(starts, fine)).astype(np.float32)
        share /= counts[:, None] if axis == 0 else counts[None, :]
    pooled: NDArray[np.bool_] = share >= 0.25
    return pooled


def _as_one(velocity: NDArray[np.float32], known: NDArray[np.bool_]) -> tuple[float, float] | None:
    """The common velocity when nearly all of the picture has it."""
    common = np.median(velocity[known], 0)
    speed = float(np.hypot(*common))
    if speed < _PAN_SPEED / 2:
        return None
    near = np.hypot(*(velocity - common).transpose(2, 0, 1)) < 0.35 * speed + 0.01
    if (near & known).sum() < _COHERENT * known.sum():
        return None
    return float(common[0]), float(common[1])


def _shift(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> tuple[tuple[float, float], float]:
    """How far the content moved, (right, down) in thumbnail pixels, and how alike the overlap then is."""
    height, width = before.shape
    window = np.outer(np.hanning(height), np.hanning(width))
    one, two = ((p - p.mean()) * window for p in (before.astype(np.float32), after.astype(np.float32)))
    cross = np.fft.rfft2(two) * np.conj(np.fft.rfft2(one))
    peak = np.fft.irfft2(cross / np.maximum(np.abs(cross), 1e-6), (height, width))
    down, right = np.unravel_index(int(peak.argmax()), peak.shape)
    dy = int(down) - height if down > height // 2 else int(down)
    dx = int(right) - width if right > width // 2 else int(right)
    if abs(dx) > width // 2 or abs(dy) > height // 2:
        return (0.0, 0.0), 0.0
    here = after[max(0, dy) : height + min(0, dy), max(0, dx) : width + min(0, dx)].astype(np.float32)
    there = before[max(0, -dy) : height + min(0, -dy), max(0, -dx) : width + min(0, -dx)].astype(np.float32)
    if here.std() < 1 or there.std() < 1:
        return (0.0, 0.0), 0.0
    return (float(dx), float(dy)), float(np.corrcoef(here.ravel(), there.ravel())[0, 1])


def _middle(changed: NDArray[np.bool_]) -> tuple[float, float]:
    rows, columns = np.nonzero(changed)
    if not len(rows):
        return 0.5, 0.5
    return float((columns.mean() + 0.5) / changed.shape[1]), float((rows.mean() + 0.5) / changed.shape[0])
