"""Shot cuts, from the picture and from what the codec paid for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_LEAST: Final = 24.0
"""Mean change of a cell's brightness from one frame to the next. The cuts of the test clips measure 42 to 81,
their fastest motion 19."""
_AGAINST_MOTION: Final = 2.5
_AGAINST_MOTION_CODED: Final = 1.6
_FAR_APART_MS: Final = 200.0
_OTHER_VIEW: Final = 0.35
_CODED_AFRESH: Final = 0.35  # bits a pixel that motion does not explain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameLook:
    """What the cut detector needs of a frame.

    Attributes:
        pts_ms: Its time.
        luma: float32 (18, 32), mean brightness of each cell.
        coded_afresh: True when the codec itself treated it as a new picture: a key frame, or one that
            motion from earlier frames does not explain.
    """

    pts_ms: float
    luma: NDArray[np.float32]
    coded_afresh: bool = False


def coded_afresh(key: bool, residual: float) -> bool:
    """The codec's vote: it paid for a whole new picture."""
    return key or residual >= _CODED_AFRESH


class CutDetector:
    """Feed every frame in order; a cut is reported one frame late, so that a flash is not taken for one.

    Pictures that are taken far apart (stills) are compared as views, and a cut is reported at once.
    """

    def __init__(self) -> None:
        self._before: NDArray[np.float32] | None = None
        self._last: FrameLook | None = None
        self._candidate = False
        self._changes: deque[float] = deque(maxlen=4)
        self.change = 0.0
        """Mean change of a cell's brightness between the last two frames, 0 to 255."""

    def feed(self, frame: FrameLook) -> float | None:
        """The time of a cut that this frame confirms, else None."""
        last, self._last = self._last, frame
        if last is None:
            return None
        self.change = float(np.abs(frame.luma - last.luma).mean())
        if frame.pts_ms - last.pts_ms >= _FAR_APART_MS:
            self._candidate = False
            self._changes.clear()
            other = self.change >= _LEAST and _correlation(frame.luma, last.luma) < _OTHER_VIEW
            return frame.pts_ms if other else None
        cut, flash = None, False
        if self._candidate and self._before is not None:
            back = float(np.abs(frame.luma - self._before).mean())
            flash = back < 0.5 * _LEAST and back < self.change  # it returns to what was there before
            cut = None if flash else last.pts_ms
        recent = max(self._changes, default=0.0)
        factor = _AGAINST_MOTION_CODED if frame.coded_afresh else _AGAINST_MOTION
        self._candidate = cut is None and not flash and self.change >= max(_LEAST, factor * recent)
        if self._candidate:
            self._before = last.luma
            self._changes.clear()
        else:
            self._changes.append(self.change)
        return cut

    def reset(self) -> None:
        """Forget the stream: the next frame does not follow the last."""
        self._before, self._last, self._candidate = None, None, False
        self._changes.clear()
        self.change = 0.0


def _correlation(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    one, two = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((one * one).sum() * (two * two).sum()))
    return float((one * two).sum()) / scale if scale > 1.0 else 0.0
