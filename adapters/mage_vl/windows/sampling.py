"""Which of a window's frames are looked at."""

from __future__ import annotations

from typing import Final

import numpy as np

_GRACE_MS: Final = 1.0  # time stamps are rounded
_LOST_STEPS: Final = 2  # so many steps off, the clock has jumped


class Beat:
    """Frames at a rate, on one beat across the windows of a session."""

    def __init__(self, fps: float) -> None:
        self.step_ms = 1000 / fps
        self._due_ms: float | None = None

    def takes(self, pts_ms: float) -> bool:
        """Whether the frame at this time is on the beat; call it once for each frame, in order."""
        if self._due_ms is None or abs(self._due_ms - pts_ms) > _LOST_STEPS * self.step_ms:
            self._due_ms = pts_ms
        if pts_ms < self._due_ms - _GRACE_MS:
            return False
        self._due_ms += self.step_ms
        return True


def evenly(count: int, most: int) -> frozenset[int]:
    """Numbers from 0 to `count` - 1, the first and the last among them, at most `most`, evenly spread."""
    picked = np.linspace(0, max(count, 1) - 1, min(most, max(count, 1)))
    return frozenset(picked.round().astype(int).tolist())
