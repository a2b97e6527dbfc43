"""The model's wishes to speak: the newest waits for its chance, none is answered twice."""

from __future__ import annotations

from duplex.core.types import WantsToSpeak

MAX_ANSWERED = 1024
"""Event ids of answered wishes that are remembered."""


class Wishes:
    """At most one wish waits; a newer one takes its place."""

    def __init__(self) -> None:
        self._waiting: WantsToSpeak | None = None
        self._answered: dict[str, None] = {}  # in the order of their answers

    @property
    def waiting(self) -> bool:
        return self._waiting is not None

    def ask(self, wish: WantsToSpeak) -> None:
        """A wish whose event was answered already is dropped."""
        if wish.event_id not in self._answered:
            self._waiting = wish

    def answer(self) -> str:
        """The event id of the wish that waits; it counts as answered from now on."""
        if self._waiting is None:
            raise LookupError("no wish waits")
        event_id = self._waiting.event_id
        self._waiting = None
        self._answered[event_id] = None
        if len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]
        return event_id
