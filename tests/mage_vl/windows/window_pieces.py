"""Windows of synthetic clips."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from video_clips import encode, moving_square, texture

from duplex.adapters.mage_vl.windows.types import PATCH, VisualInput
from duplex.codecs.video_split import split_clip
from duplex.core.types import VideoWindow

H264 = {"g": "250", "bf": "2", "preset": "veryfast"}


def whole(pictures: Iterable[NDArray[np.uint8]], *, fps: int = 25, segment_id: str = "", **place: float):
    """One MP4 window."""
    data = encode(pictures, fps=fps, options=H264)
    return VideoWindow(kind="video/mp4", data=data, segment_id=segment_id, **place)


def live(pictures: Iterable[NDArray[np.uint8]], *, seconds: float, fps: int = 25) -> list[VideoWindow]:
    """MPEG-TS windows of one stream, of which only the first is sure to begin with a key frame."""
    clip = encode(pictures, fps=fps, options=H264)
    return [
        VideoWindow(kind=w.kind, data=w.data, segment_id=f"s{i}", pts_ms=w.pts_ms, duration_ms=w.duration_ms)
        for i, w in enumerate(split_clip(clip, window_ms=seconds * 1000))
    ]


def busy_square(frames: int, height: int = 128, width: int = 192) -> list[NDArray[np.uint8]]:
    """A square of 32 × 32 pixels, from row 32 and column 64, that changes all the time; the rest is still."""
    background = texture(height, width)
    out = []
    for number in range(frames):
        picture = background.copy()
        picture[32:64, 64:96] = texture(32, 32, seed=number + 1)
        out.append(picture)
    return out


def patches(seen: VisualInput) -> NDArray[np.uint8]:
    """Pixels by patch: (n, rows, columns, 16, 16, 3)."""
    n, height, width, _ = seen.images.shape
    grid = seen.images.reshape(n, height // PATCH, PATCH, width // PATCH, PATCH, 3)
    return grid.transpose(0, 1, 3, 2, 4, 5)


def cut_from(seen: VisualInput, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What the patches are if they were cut from `frames` (by index, H, W, 3) where `seen` says."""
    count, height, width, _ = frames.shape
    grid = frames.reshape(count, height // PATCH, PATCH, width // PATCH, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    t, row, column = np.moveaxis(seen.positions, -1, 0)
    return grid[t, row, column]


__all__ = ["busy_square", "cut_from", "live", "moving_square", "patches", "texture", "whole"]
