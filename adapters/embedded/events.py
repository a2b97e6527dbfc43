"""What can be noticed in a video: events, each with its evidence, and nothing that no detector gave."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """Kinds of events."""

    OPENING = "opening"  # the first picture
    CUT = "cut"  # a shot cut
    CHANGE = "change"  # a gradual change to another view
    APPEARED = "appeared"  # objects that were not there before
    NOTICED = "noticed"  # objects that may have been there before
    LEFT = "left"  # objects gone
    TAG = "tag"  # what the picture as a whole looks like
    PAN = "pan"  # the view moves as a whole
    MOVEMENT = "movement"  # a part of the picture moves after a calm
    STILLNESS = "stillness"  # nothing moves any more
    TEXT = "text"  # words on the screen
    CODEC = "codec"  # side information from the client, without pixels


SALIENCE: Final = {
    Kind.OPENING: 0.9,
    Kind.CUT: 0.9,
    Kind.CHANGE: 0.85,
    Kind.APPEARED: 0.75,
    Kind.TEXT: 0.7,
    Kind.LEFT: 0.65,
    Kind.TAG: 0.6,
    Kind.PAN: 0.6,
    Kind.NOTICED: 0.55,
    Kind.CODEC: 0.55,
    Kind.MOVEMENT: 0.5,
    Kind.STILLNESS: 0.5,
}
"""How much an event is worth saying, as a probability against the session's `gate_threshold`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """At least `count` objects of one class were seen at once."""

    label: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        number: 1, 2, … in the session.
        kind: What sort of thing.
        at_ms: When, on the client's clock.
        objects: Objects that the event is about, with the least number seen.
        tag: What the picture looks like, with its article.
        colours: `mostly green`, `almost black`, …
        returns_to_ms: For a cut: when this view was left before.
        direction: `left`, `right`, `up`, `down`: where the view turns, or where the moving part goes.
        place: `left`, `right`, `middle`: where in the picture.
        lines: Words on the screen.
        looked: False when there was no time for the detectors.
        scores: The detectors' confidence by name, for clients and logs.
    """

    number: int
    kind: Kind
    at_ms: float
    objects: tuple[Counted, ...] = ()
    tag: str | None = None
    colours: str | None = None
    returns_to_ms: float | None = None
    direction: str | None = None
    place: str | None = None
    lines: tuple[str, ...] = ()
    looked: bool = True
    scores: tuple[tuple[str, float], ...] = ()

    @property
    def id(self) -> str:
        """Name of the event within its session."""
        return f"{self.kind}-{self.number}"

    @property
    def salience(self) -> float:
        """How much it is worth saying, 0 to 1."""
        return SALIENCE[self.kind]
