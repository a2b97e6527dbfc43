"""Time as the runtime sees it, injected so that tests need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol


class Handle(Protocol):
    """A call that is to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds of a monotonic clock, and calls at a time of it."""

    def now(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle: ...


class LoopClock:
    """The real one: `time.monotonic` and the running loop's timers.

    Not `loop.time`, which some loops round to a millisecond and read once an iteration.
    """

    now = staticmethod(monotonic)

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        return asyncio.get_running_loop().call_later(max(0.0, when - monotonic()), callback)
