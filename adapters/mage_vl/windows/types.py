"""What a window becomes: images, where each patch of them came from, and when.

Sizes are in pixels, times on the client's clock in the unit that the name says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

PATCH: Final = 16
"""Side of a patch of the vision encoder, in pixels."""
MERGE: Final = 2
"""Patches that the merger joins, along a side: `MERGE` × `MERGE` patches are one visual token."""
BLOCK: Final = PATCH * MERGE
"""Side of the square of one visual token, in pixels: images are multiples of it."""
MOST_PATCHES: Final = 65_536
"""Patches of one segment: of a window that would have more, less is shown."""

Images: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int32]
Times: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class VisualInput:
    """One segment as the vision encoder takes it: n frames or canvases of one size.

    Attributes:
        images: uint8 (n, H, W, 3), RGB; H and W are multiples of 32, n is at least 1.
        positions: int32 (n, H // 16, W // 16, 3): for each 16 × 16 patch, in raster order, the (source frame
            index, row, column) that it was cut from. Frame indices count in the segment's stream, from 0;
            row and column count patches of the resized source frame. All are at least 0.
        times_s: float64 (n,), time of each image, in seconds from the start of the session's video, for the
            prompt's `<X.X seconds>`. Of a canvas: of its earliest patch.
        frame_times_s: float64, time of each source frame, by the index that `positions` have; empty where
            each image is one frame.
        segment_id: The window's id.
        pts_ms: Start of the segment on the client's clock.
        duration_ms: Its length.

    Raises:
        ValueError: The shapes or types do not fit together: a fault of the code that made it.
    """

    images: Images
    positions: Positions
    times_s: Times
    frame_times_s: Times = field(default_factory=lambda: np.zeros(0))
    segment_id: str
    pts_ms: float
    duration_ms: float

    def __post_init__(self) -> None:
        shape = self.images.shape
        if len(shape) != 4 or shape[3] != 3 or self.images.dtype != np.uint8:
            raise ValueError(f"images of shape {shape} and type {self.images.dtype}")
        n, height, width, _ = shape
        if n < 1 or height < BLOCK or width < BLOCK or height % BLOCK or width % BLOCK:
            raise ValueError(f"{n} images of {width}x{height}: no multiple of {BLOCK}")
        if self.positions.shape != (n, height // PATCH, width // PATCH, 3):
            raise ValueError(f"positions of shape {self.positions.shape} for images of {shape}")
        if self.positions.dtype != np.int32 or self.positions.min() < 0:
            raise ValueError("positions must be int32 and not negative")
        if self.times_s.shape != (n,) or self.times_s.dtype != np.float64:
            raise ValueError(f"times of shape {self.times_s.shape} for {n} images")
        if len(self.frame_times_s) and self.positions[..., 0].max() >= len(self.frame_times_s):
            raise ValueError(f"times of only {len(self.frame_times_s)} source frames")

    def __repr__(self) -> str:
        n, height, width, _ = self.images.shape
        return f"VisualInput({self.segment_id!r}, {n} images of {width}x{height}, at {self.pts_ms:g} ms)"

    @property
    def grid(self) -> tuple[int, int]:
        """Patches of an image: rows, columns."""
        return self.images.shape[1] // PATCH, self.images.shape[2] // PATCH

    @property
    def tokens_per_image(self) -> int:
        """Visual tokens of one image."""
        return int(self.images.shape[1] // BLOCK * (self.images.shape[2] // BLOCK))

    @property
    def visual_tokens(self) -> int:
        """Visual tokens of the segment: n × (H // 32) × (W // 32)."""
        return len(self.images) * self.tokens_per_image
