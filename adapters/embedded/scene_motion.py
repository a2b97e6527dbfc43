"""When motion is worth a word: the view begins to turn, something starts to move, all goes still."""

from __future__ import annotations

import math
from typing import Final

from duplex.adapters.embedded.events import Kind
from duplex.adapters.embedded.vision_motion import Motion

_STILL: Final = 0.01  # share of the picture that changes
_MOVING: Final = 0.03
_STILL_MS: Final = 2000.0
_MOVING_MS: Final = 400.0
_REST_MS: Final = 3000.0  # between two words about motion
_SIDE: Final = 0.03  # widths a second, from which a direction is given


class MotionEvents:
    """Feed the motion of every frame of a shot; get (kind, direction, place) when something begins."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A new shot: nothing is known of what moved before."""
        self._state: Kind | None = None
        self._since: float | None = None
        self._candidate: Kind | None = None
        self._quiet_until = -math.inf
        self._flows: list[tuple[float, float]] = []

    def feed(self, motion: Motion) -> list[tuple[Kind, str | None, str | None]]:
        """Take the next frame's motion."""
        now = self._class_of(motion)
        if now is not self._candidate:
            self._candidate, self._since, self._flows = now, motion.pts_ms, []
        if now is Kind.MOVEMENT and motion.flow is not None:
            self._flows.append(motion.flow)
        lasted = motion.pts_ms - (self._since if self._since is not None else motion.pts_ms)
        needed = {Kind.STILLNESS: _STILL_MS, Kind.MOVEMENT: _MOVING_MS, Kind.PAN: 0.0}
        if now is None or now is self._state or lasted < needed[now]:
            return []
        before, self._state = self._state, now
        if motion.pts_ms < self._quiet_until:
            return []
        # movement is news only after a calm, a calm only after movement; the first state of a shot is neither
        if now is not Kind.PAN and (before is None or before is Kind.PAN):
            return []
        self._quiet_until = motion.pts_ms + _REST_MS
        if now is Kind.PAN:
            assert motion.pan is not None
            # the camera turns against the content
            return [(now, _direction(-motion.pan[0], -motion.pan[1]), None)]
        if now is Kind.MOVEMENT:
            return [(now, self._common_direction(), _place(motion.place[0]))]
        return [(now, None, None)]

    def _class_of(self, motion: Motion) -> Kind | None:
        if motion.pan is not None:
            return Kind.PAN
        if motion.active >= _MOVING:
            return Kind.MOVEMENT
        return Kind.STILLNESS if motion.active <= _STILL else None

    def _common_direction(self) -> str | None:
        """The direction of the moving part, when it keeps one."""
        if len(self._flows) < 3:
            return None
        right = sum(f[0] for f in self._flows) / len(self._flows)
        down = sum(f[1] for f in self._flows) / len(self._flows)
        agree = sum(f[0] * right + f[1] * down > 0 for f in self._flows)
        return _direction(right, down) if agree >= 0.8 * len(self._flows) else None


def _direction(right: float, down: float) -> str | None:
    if math.hypot(right, down) < _SIDE:
        return None
    if abs(right) > 2 * abs(down):
        return "right" if right > 0 else "left"
    if abs(down) > 2 * abs(right):
        return "down" if down > 0 else "up"
    return None


def _place(x: float) -> str:
    return "left" if x < 0.38 else "right" if x > 0.62 else "middle"
