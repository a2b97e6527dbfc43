"""Calls to an adapter session, one after the other, in the order of the client's messages.

The reader never waits for a model: it queues a call and goes on. The queue is bounded, so a model that
hangs gets its input refused by name, and a call that takes too long costs its session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime.clock import Clock, Handle

Call: TypeAlias = Callable[[], Awaitable[None]]

MAX_CALLS = 1024
"""Calls that may wait: 20 s of audio in 20 ms windows."""
MAX_CALL_BYTES = 32 * 1024 * 1024
"""Media that may wait."""


class AdapterCalls:
    """The queue, and the task's body that works it off."""

    def __init__(self, clock: Clock, stall_s: float, on_stuck: Callable[[], None]) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._on_stuck = on_stuck
        self._waiting: deque[tuple[Call, int]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._busy = False
        self._started = 0.0
        self._timer: Handle | None = None

    @property
    def idle(self) -> bool:
        """True when nothing waits or runs."""
        return not self._busy and not self._waiting

    def put(self, call: Call, size: int = 0) -> None:
        """Queue a call that holds `size` bytes of media.

        Raises:
            DuplexError: `INPUT_OVERFLOW` when the adapter has left too much undone.
        """
        if size and (len(self._waiting) >= MAX_CALLS or self._bytes + size > MAX_CALL_BYTES):
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW, "the model is not taking input: this window was dropped"
            )
        self._waiting.append((call, size))
        self._bytes += size
        self._wake.set()

    async def run(self) -> None:
        """Work the queue off, for as long as the session lives."""
        while True:
            while self._waiting:
                call, size = self._waiting.popleft()
                self._bytes -= size
                self._busy = True
                self._started = self._clock.now()
                if self._timer is None:
                    self._arm(self._started)
                await call()
                self._busy = False
            self._wake.clear()
            await self._wake.wait()

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, since: float) -> None:
        self._timer = self._clock.call_at(since + self._stall_s, self._check)

    def _check(self) -> None:
        # one timer for many calls: it looks when the one that runs began, and goes when none does
        self._timer = None
        if not self._busy:
            return
        if self._clock.now() - self._started >= self._stall_s:
            self._on_stuck()
        else:
            self._arm(self._started)
