"""From detections to statements: what is surely in a shot, what came and what went.

A detector flickers. Here a class counts only when it is seen with confidence in two pictures in a row, a rise
says "at least", and an object is gone only when two pictures in a row lack it and the place where it was
looks different.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.events import Counted
from duplex.adapters.embedded.objects import Detection, overlap

SURE: Final = 0.6
"""Score from which a class is believed. Lower for the classes that the detector knows well: on the test clips
every person and vehicle over 0.5 was one, while a toy bird reached 0.52 and a banana 0.60 that were none."""

_SURE_OF: Final = dict.fromkeys(
    ("person", "bicycle", "car", "motorcycle", "bus", "train", "truck", "airplane", "boat"), 0.5
)
FAINT: Final = 0.3
"""Score from which a detection keeps a class alive that was sure before, and casts doubt on its arrival."""

_EITHER: Final = (("bicycle", "motorcycle"), ("car", "truck"), ("bus", "train"), ("bus", "truck"))
_SAME_PLACE: Final = 0.5
_INSIDE: Final = 0.6
_CHANGED: Final = 10.0  # mean brightness steps, in the box


def sure_score(label: str) -> float:
    """The score from which a class is believed."""
    return _SURE_OF.get(label, SURE)


@dataclass(slots=True)
class _Class:
    count: int = 0  # said or sayable: at least this many
    strong: list[Detection] = field(default_factory=list)  # of the last picture
    misses: int = 0
    places: list[Detection] = field(default_factory=list)  # where it was when last seen
    luma: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one picture taught, besides what `ObjectTracks.present` says.

    Attributes:
        appeared: Classes that were surely not there before.
        left: Classes that are gone.
        unsure: True when another picture soon would settle something.
    """

    appeared: tuple[Counted, ...] = ()
    left: tuple[Counted, ...] = ()
    unsure: bool = False


class ObjectTracks:
    """Objects of one shot."""

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._pictures: deque[list[Detection]] = deque(maxlen=3)

    @property
    def present(self) -> tuple[Counted, ...]:
        """What is surely in the shot now, the most numerous first."""
        found = [
            Counted(label=n, count=c.count) for n, c in self._classes.items() if c.count and not c.misses
        ]
        return tuple(sorted(found, key=lambda c: -c.count))

    def feed(self, detections: list[Detection], luma: NDArray[np.float32]) -> Changes:
        """Take one picture's detections (all over `FAINT`) and its brightness cells, float32 (18, 32)."""
        merged = _merge(detections)
        appeared, left = [], []
        unsure = False
        for label in {d.label for d in merged} | set(self._classes):
            ours = [d for d in merged if d.label == label]
            strong = _apart([d for d in ours if d.score >= sure_score(label)])
            known = self._classes.setdefault(label, _Class())
            both = min(len(strong), len(known.strong))
            if both > known.count:
                counted = Counted(label=label, count=both)
                fresh = known.count == 0 and not self._may_have_been_there(strong)
                if fresh:
                    appeared.append(counted)
                known.count = both
            elif len(strong) > max(known.count, len(known.strong)):
                unsure = True
            known.strong = strong
            if known.count:
                if ours:
                    known.misses, known.places, known.luma = 0, ours, luma
                else:
                    known.misses += 1
                    unsure = unsure or known.misses == 1
                    if known.misses >= 2 and _changed(known, luma) and not _hidden(known, merged):
                        left.append(Counted(label=label, count=known.count))
                        self._classes[label] = _Class()
            elif not strong:
                del self._classes[label]
        self._pictures.append(merged)
        return Changes(appeared=tuple(appeared), left=tuple(left), unsure=unsure)

    def _may_have_been_there(self, strong: list[Detection]) -> bool:
        """True unless the pictures before the first sure one, which is the last, show that it was not."""
        earlier = list(self._pictures)[:-1]
        return not earlier or any(
            old.label == new.label and overlap(old, new) > 0.2
            for picture in earlier
            for old in picture
            for new in strong
        )


def _merge(detections: list[Detection]) -> list[Detection]:
    """Two classes on one box are one object: of either class when they are easily confused, else doubtful."""
    kept: list[Detection] = []
    for found in sorted(detections, key=lambda d: -d.score):
        twin = next((k for k in kept if overlap(k, found) > _SAME_PLACE), None)
        if twin is None or twin.label == found.label:
            kept.append(found)
            continue
        pair = next((p for p in _EITHER if {twin.label, found.label} == set(p)), None)
        if pair and found.score > 0.6 * twin.score and twin.score < 0.7:
            kept[kept.index(twin)] = Detection(
                label=f"{pair[0]} or {pair[1]}",
                score=1 - (1 - twin.score) * (1 - found.score),
                x0=twin.x0,
                y0=twin.y0,
                x1=twin.x1,
                y1=twin.y1,
            )
    return kept


def _apart(strong: list[Detection]) -> list[Detection]:
    """Without boxes that lie mostly inside another: two boxes may be one object."""
    kept: list[Detection] = []
    for found in strong:
        if all(_shared(found, k) < _INSIDE for k in kept):
            kept.append(found)
    return kept


def _shared(a: Detection, b: Detection) -> float:
    """Intersection over the smaller box."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    smaller = min(a.area, b.area)
    return width * height / smaller if width > 0 and height > 0 and smaller > 0 else 0.0


def _hidden(known: _Class, picture: list[Detection]) -> bool:
    """True when something else is where the class was last seen: it may be behind it."""
    return any(_shared(box, other) > 0.3 for box in known.places for other in picture)


def _changed(known: _Class, luma: NDArray[np.float32]) -> bool:
    """True when the places where the class was last seen look different now."""
    if known.luma is None:
        return False
    rows, columns = luma.shape
    for box in known.places:
        y0, x0 = int(box.y0 * rows), int(box.x0 * columns)
        y1, x1 = max(y0 + 1, round(box.y1 * rows)), max(x0 + 1, round(box.x1 * columns))
        if np.abs(luma[y0:y1, x0:x1] - known.luma[y0:y1, x0:x1]).mean() < _CHANGED:
            return False
    return True
