"""What a picture looks like in the large: a thumbnail, how alike two views are, and its colours in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duplex.codecs.video_frame import VideoFrame

THUMB: Final = (128, 72)
"""Width and height of the luma thumbnail, whatever the picture's shape."""

CELLS: Final = (32, 18)
"""Width and height of the grid on which views are compared: 4 × 4 thumbnail pixels a cell."""

SAME_VIEW: Final = 0.55
"""Likeness from which two pictures are taken for the same camera view: on the test clips views of one camera
scored 0.50 to 0.83 minutes apart, different ones at most 0.35."""

OTHER_VIEW: Final = 0.35

_COVERS: Final = 0.55  # share of a picture from which it is "mostly" of a colour
_HUES: Final = (
    (15, "red"),
    (40, "orange"),
    (70, "yellow"),
    (165, "green"),
    (195, "turquoise"),
    (260, "blue"),
    (330, "purple"),
    (361, "red"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """A picture in the large.

    Attributes:
        pts_ms: Its time.
        luma: float32 (18, 32), mean brightness of each cell, 0 to 255.
        rgb: float32 (18, 32, 3), or None where the colours were not needed.
    """

    pts_ms: float
    luma: NDArray[np.float32]
    rgb: NDArray[np.float32] | None = None


def cells(thumb: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Mean brightness of each cell of a thumbnail."""
    columns, rows = CELLS
    means: NDArray[np.float32] = thumb.reshape(rows, 4, columns, 4).mean((1, 3), dtype=np.float32)
    return means


def look_of(frame: VideoFrame) -> Look:
    """A look with colours."""
    rgb = frame.scaled_rgb(*CELLS).astype(np.float32)
    return Look(pts_ms=frame.pts_ms, luma=rgb @ np.array([0.299, 0.587, 0.114], np.float32), rgb=rgb)


def likeness(a: Look, b: Look) -> float:
    """Correlation of two looks, -1 to 1: of their colours when both have them, else of their brightness."""
    one, two = (a.rgb, b.rgb) if a.rgb is not None and b.rgb is not None else (a.luma, b.luma)
    one, two = one - one.mean((0, 1)), two - two.mean((0, 1))
    scale = float(np.sqrt((one * one).sum() * (two * two).sum()))
    # two flat pictures are alike when their brightness is
    return float((one * two).sum()) / scale if scale > 1.0 else float(abs(a.luma.mean() - b.luma.mean()) < 8)


def colour_words(look: Look) -> str | None:
    """`mostly green`, `almost black`, … or None when nothing stands out."""
    if look.rgb is None:
        return None
    high, low = look.rgb.max(-1), look.rgb.min(-1)
    if np.quantile(high, 0.95) < 40:
        return "almost black"
    if np.quantile(low, 0.05) > 215:
        return "almost white"
    chroma = high - low
    coloured = (chroma > 0.25 * high) & (high > 40)
    if coloured.mean() < 0.02 and chroma.mean() < 6:
        return "black and white"
    hue = _hue(look.rgb, high, chroma)
    edges = np.array([edge for edge, _ in _HUES])
    names = np.array([name for _, name in _HUES])[np.searchsorted(edges, hue, side="right")]
    for name in dict.fromkeys(n for _, n in _HUES):
        if (coloured & (names == name)).mean() >= _COVERS:
            return f"mostly {name}"
    return None


def _hue(
    rgb: NDArray[np.float32], high: NDArray[np.float32], chroma: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Hue in degrees, 0 to 360."""
    red, green, blue = (rgb[..., i] for i in range(3))
    safe = np.maximum(chroma, 1e-6)
    hue = np.where(
        high == red,
        ((green - blue) / safe) % 6,
        np.where(high == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    degrees: NDArray[np.float32] = (hue * 60 % 360).astype(np.float32)
    return degrees
