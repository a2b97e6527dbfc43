"""From a gate's probabilities to wishes to speak: what is news, what was said already."""

from __future__ import annotations

from typing import Final

from duplex.adapters.mage_vl.ports import Glance
from duplex.core.types import GateScore, Signal, WantsToSpeak

MOST_REMEMBERED: Final = 1024
"""Events that are known to have been decided."""


class Decisions:
    """The gate's word on each window of one session, as signals. An event that once asked to be spoken of
    does not ask again: a client may send a window twice, after a broken line, say."""

    def __init__(self) -> None:
        self._asked: dict[str, None] = {}  # in the order of their asking
        self._count = 0

    def decide(self, glance: Glance, threshold: float) -> list[Signal]:
        """What to tell of a window. Without a score: nothing."""
        self._count += 1
        if glance.score is None:
            return []
        told: list[Signal] = [
            GateScore(score=glance.score, pts_ms=glance.pts_ms, segment_id=glance.segment_id)
        ]
        event_id = self._event_id(glance)
        if glance.score >= threshold and event_id not in self._asked:
            self._asked[event_id] = None
            if len(self._asked) > MOST_REMEMBERED:
                del self._asked[next(iter(self._asked))]
            told.append(WantsToSpeak(event_id=event_id, score=glance.score))
        return told

    def _event_id(self, glance: Glance) -> str:
        """A client's own name for a window tells it from all others, with its time: some name all alike."""
        if glance.segment_id:
            return f"{glance.segment_id}@{glance.pts_ms:.0f}"
        return f"window-{self._count}"
