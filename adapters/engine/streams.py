"""One request as the scheduler sees it: how far it is, and how long its client can play on.

All times are ms of one monotonic clock; all amounts are frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from duplex.adapters.engine.model import Finish, SlotView

NO_SLOT = -1


class State(StrEnum):
    """What a request is doing."""

    WAITING = "waiting"
    """It has no slot."""
    PREFILLING = "prefilling"
    """It has a slot and has made no frame."""
    RUNNING = "running"
    """It makes frames."""
    DRAINING = "draining"
    """It makes no more frames; what it made is being decoded."""
    OVER = "over"
    """Nothing of it is left."""


@dataclass(slots=True, eq=False, kw_only=True)
class Stream:
    """A request. Each of its frames moves on: launched, flying (result not read), ready (to be decoded),
    decoding, sent. `ahead` of those that are decoding have results that were not read. `credit` frames may be
    launched in all, None: any number. `text` is what came before it had a slot.
    """

    id: int
    arrived: float
    frame_ms: float
    job: bytes = b""
    credit: int | None = None
    first_frames: int = 1
    text: list[tuple[str, bool]] = field(default_factory=list)
    slot: int = NO_SLOT
    view: SlotView | None = None
    launched: int = 0
    flying: int = 0
    ready: int = 0
    decoding: int = 0
    ahead: int = 0
    sent: int = 0
    finish: Finish | None = None
    over: bool = False
    play_end: float | None = None
    """When the client will have played all that was sent. None before the first audio."""

    @property
    def state(self) -> State:
        if self.over:
            return State.OVER
        if self.finish is not None:
            return State.DRAINING
        if self.slot == NO_SLOT:
            return State.WAITING
        return State.RUNNING if self.launched else State.PREFILLING

    @property
    def undecoded(self) -> int:
        """Frames whose codes the model still has to keep."""
        return self.flying + self.ready + self.decoding

    @property
    def steppable(self) -> bool:
        """It may make a frame: prompt and text are there, and credit."""
        view = self.view
        return (
            view is not None
            and self.finish is None
            and (self.credit is None or self.launched < self.credit)
            and view.steppable
        )

    def deadline(self, first_audio: float) -> float:
        """When the client runs dry if no further frame is made. A client that has had no audio counts as one
        that plays from `first_audio` on."""
        return (first_audio if self.play_end is None else self.play_end) + self.undecoded * self.frame_ms

    def buffer_ms(self, now: float) -> float:
        """What the client has to play, with what is being decoded for it. It begins to play when the first
        audio goes out, and waits for more when it has run dry."""
        end = self.play_end
        played = end - now if end is not None and end > now else 0.0
        return played + self.decoding * self.frame_ms

    def deliver(self, frames: int, now: float) -> bool:
        """Decoded frames go out. True when they are late: the client had run dry."""
        self.decoding -= frames
        self.sent += frames
        end = self.play_end
        late = end is not None and now > end
        self.play_end = (now if end is None or late else end) + frames * self.frame_ms
        return late
