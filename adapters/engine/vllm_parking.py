"""Which sessions may keep their place in the engine while they rest."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Parked(Protocol):
    """A session that holds a slot and a part of the cache."""

    @property
    def tokens(self) -> int: ...

    @property
    def resting(self) -> bool: ...

    def leave(self) -> None:
        """Give both back; it comes again with its whole past."""
        ...


class Parking:
    """A share of an engine's slots and of its cache, for sessions between their turns.

    A session that rests takes from others what it does not use: where it gets too tight, the one that rested
    longest has to leave. It loses nothing but time, since the engine's prefix cache may still have its past.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._slots = 0
        self._tokens = 0
        self._parked: OrderedDict[Parked, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def opened(self, *, slots: int, tokens: int) -> None:
        """An engine is up that runs `slots` requests at a time and caches `tokens`. Nobody is in it yet."""
        self._slots = int(slots * self._share)
        self._tokens = int(tokens * self._share)
        self._parked.clear()

    def enter(self, session: Parked, tokens: int) -> bool:
        """A session begins a turn that may grow it to `tokens`. False: it cannot hold a place."""
        if self._slots < 1 or tokens > self._tokens:
            self.left(session)
            return False
        self._parked[session] = None
        self._parked.move_to_end(session)
        while len(self._parked) > self._slots or self._held(session, tokens) > self._tokens:
            longest = next((one for one in self._parked if one is not session and one.resting), None)
            if longest is None:
                self.left(session)
                return False
            self.left(longest)
            longest.leave()
        return True

    def left(self, session: Parked) -> None:
        """It holds nothing any more."""
        self._parked.pop(session, None)

    def _held(self, grows: Parked, tokens: int) -> int:
        return tokens + sum(one.tokens for one in self._parked if one is not grows)
