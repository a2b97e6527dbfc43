"""Sizes of images, and the raster of patches."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from duplex.adapters.mage_vl.windows.types import BLOCK, PATCH, Images, Positions
from duplex.codecs.video import VideoFrame
from duplex.core.errors import DuplexError, ErrorCode

MIN_PIXELS: Final = 56 * 56
"""Smaller pictures are enlarged to this many pixels, as the published processor does."""
MOST_STRETCHED: Final = 200
"""Ratio of the sides from which a picture is refused, as by the published processor."""


def image_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Width and height, multiples of 32, for a picture: about its shape, at most `max_pixels`.

    Within the bounds each side is rounded to the nearest multiple; a larger picture shrinks and its sides are
    rounded down, a tiny one grows.

    Args:
        width: Pixels.
        height: Pixels.
        max_pixels: At least 32 × 32.

    Raises:
        DuplexError: `invalid_media` for a picture that is `MOST_STRETCHED` times longer than wide, or more.
    """
    if max(width, height) >= MOST_STRETCHED * min(width, height):
        raise DuplexError(ErrorCode.INVALID_MEDIA, f"a picture of {width}×{height} pixels is too stretched")
    pixels = width * height
    columns, rows = round(width / BLOCK), round(height / BLOCK)
    if pixels < min(MIN_PIXELS, max_pixels):
        scale = math.sqrt(min(MIN_PIXELS, max_pixels) / pixels) / BLOCK
        columns, rows = math.ceil(width * scale), math.ceil(height * scale)
    columns, rows = max(1, columns), max(1, rows)
    most = max(1, max_pixels // (BLOCK * BLOCK))
    if pixels > max_pixels or columns * rows > most:
        scale = math.sqrt(min(1.0, max_pixels / pixels)) / BLOCK
        columns, rows = max(1, math.floor(width * scale)), max(1, math.floor(height * scale))
        if columns * rows > most:  # one block is as narrow as it gets: the longer side gives way
            columns, rows = (most // rows, rows) if columns > rows else (columns, most // columns)
    return columns * BLOCK, rows * BLOCK


def fitted(frame: VideoFrame, width: int, height: int, max_pixels: int) -> Images:
    """The frame as an image of exactly this size, uint8 (height, width, 3).

    A frame of the shape that the size was made for fills it; another, after a change of resolution in
    mid-window, keeps its own shape on black.
    """
    own_width, own_height = image_size(frame.width, frame.height, max_pixels)
    if (own_width, own_height) == (width, height):
        return frame.scaled_rgb(width, height)
    scale = min(width / own_width, height / own_height)
    inner_width, inner_height = max(2, int(own_width * scale)), max(2, int(own_height * scale))
    image = np.zeros((height, width, 3), np.uint8)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    image[top : top + inner_height, left : left + inner_width] = frame.scaled_rgb(inner_width, inner_height)
    return image


def raster(frames: list[int], width: int, height: int) -> Positions:
    """Positions of whole frames: int32 (n, height // 16, width // 16, 3)."""
    rows, columns = height // PATCH, width // PATCH
    positions = np.empty((len(frames), rows, columns, 3), np.int32)
    positions[..., 0] = np.array(frames, np.int32)[:, None, None]
    positions[..., 1] = np.arange(rows)[:, None]
    positions[..., 2] = np.arange(columns)
    return positions
