"""What a session has noticed and its reader has not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from duplex.core.types import Signal, Transcript


class SignalBox:
    """Signals in order, for one reader. A partial transcript replaces one that nobody has read."""

    def __init__(self) -> None:
        self._signals: deque[Signal] = deque()
        self._failure: Exception | None = None
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()
        self._read = False
        self._closed = False

    def put(self, signal: Signal) -> None:
        last = self._signals[-1] if self._signals else None
        if isinstance(signal, Transcript) and isinstance(last, Transcript) and not last.final:
            self._signals.pop()
        self._signals.append(signal)
        self._taken.clear()
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """The reader gets this exception after the signals before it."""
        self._failure = self._failure or error
        self._wake.set()

    def close(self) -> None:
        """The reader's iteration ends."""
        self._closed = True
        self._taken.set()
        self._wake.set()

    async def taken(self) -> None:
        """Wait until the reader has dealt with every signal; at once if nobody reads."""
        if self._read and not self._closed and self._failure is None:
            await self._taken.wait()

    async def stream(self) -> AsyncGenerator[Signal, None]:
        """The reader's end."""
        self._read = True
        try:
            while True:
                while self._signals:
                    yield self._signals.popleft()
                self._taken.set()
                if self._failure is not None:
                    raise self._failure
                if self._closed:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._read = False
            self._taken.set()
