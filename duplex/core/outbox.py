"""What a client is told while it is away: nothing, but what it must not miss is kept for its return."""

from __future__ import annotations

from collections.abc import Iterable

from duplex.core.effects import Effect, Send
from duplex.core.errors import DuplexError
from duplex.core.events import (
    ErrorEvent,
    Event,
    PlaybackCleared,
    ResponseCancelled,
    ResponseDone,
    ResponseFailed,
)
from duplex.core.text import well_formed

MAX_KEPT = 64
"""Events kept for one absence."""


class Outbox:
    """Holds back `Send` effects between `leave` and `come_back`."""

    def __init__(self) -> None:
        self.away = False
        self._kept: list[Event] = []

    def leave(self, unsent: Iterable[Event] = ()) -> None:
        """The client is away. `unsent`: what was on its way to it, and what it missed already."""
        self.away = True
        self._keep(unsent)

    def come_back(self) -> list[Effect]:
        """What the client missed, oldest first."""
        self.away = False
        kept, self._kept = self._kept, []
        return [Send(event=event) for event in kept]

    def post(self, effects: list[Effect]) -> list[Effect]:
        """The effects that are to be carried out now."""
        if not self.away:
            return effects
        self._keep(effect.event for effect in effects if isinstance(effect, Send))
        return [effect for effect in effects if not isinstance(effect, Send)]

    def _keep(self, events: Iterable[Event]) -> None:
        for event in events:
            if _must_not_miss(event) and len(self._kept) < MAX_KEPT:
                self._kept.append(event)


def _must_not_miss(event: Event) -> bool:
    """How responses ended, what of them was cut, and input that was refused. All else is stale on return."""
    if isinstance(event, ResponseCancelled):
        return event.response_id != ""  # the answer to a cancel while idle
    return isinstance(event, ResponseDone | ResponseFailed | PlaybackCleared | ErrorEvent)


def error_event(error: DuplexError, *, fatal: bool = False) -> ErrorEvent:
    """The error as the client is told of it."""
    return ErrorEvent(
        code=error.code,
        message=well_formed(error.message),
        event_id=error.event_id,
        param=error.param,
        fatal=fatal or error.fatal,
        owner=error.owner,
    )
