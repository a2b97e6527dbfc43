"""Who prepares windows: threads of this process, or (see `preparers`) processes of their own.

The event loop never waits for either: `see` and `finish` of a stream are awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from time import monotonic

from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.ports import Stream
from duplex.adapters.mage_vl.windows.backends import Backend, WindowOptions, check, open_windows
from duplex.adapters.mage_vl.windows.source import Visible
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow


@dataclass(slots=True, kw_only=True)
class Counts:
    """Windows that were prepared, that were refused, that wait or are prepared now; what they took, ms."""

    prepared: int = 0
    refused: int = 0
    open: int = 0
    took_ms: float = 0.0

    def ended(self, error: BaseException | None) -> None:
        """A window is done, or could not be."""
        if error is None:
            self.prepared += 1
        elif not isinstance(error, DuplexError) or error.code is not ErrorCode.SESSION_CLOSING:
            self.refused += 1

    def figures(self, *, up: int, restarts: int) -> list[Figure]:
        """All of it, with what is true of processes."""
        gauges = (
            ("windows_preparing", self.open, "Windows that wait to be prepared or are being prepared."),
            ("windows_preparers", up, "Processes that prepare windows and are up."),
        )
        counters = (
            ("windows_prepared", self.prepared, "Windows that were prepared to be looked at."),
            ("windows_refused", self.refused, "Windows that could not be prepared."),
            ("windows_preparing_seconds", self.took_ms / 1e3, "Time that preparing windows took."),
            ("windows_preparer_restarts", restarts, "Times that a process was started again."),
        )
        return [
            *(Figure(name=n, kind="gauge", words=w, value=float(v)) for n, v, w in gauges),
            *(Figure(name=n, kind="counter", words=w, value=float(v)) for n, v, w in counters),
        ]


class Threads:
    """Windows are prepared in threads of this process.

    Args:
        make: makes a session's windows.
        pool: the threads, which are the caller's.
        check: makes sure that windows can be prepared; it may take a second.
    """

    healthy = True
    fault: str | None = None

    def __init__(
        self, make: Callable[[], Backend], pool: Executor, check: Callable[[], None] | None = None
    ) -> None:
        self.counts = Counts()
        self._make, self._pool, self._check = make, pool, check

    @classmethod
    def of(cls, options: WindowOptions, pool: Executor) -> Threads:
        """Windows as the options have them."""
        return cls(lambda: open_windows(options), pool, lambda: check(options))

    async def start(self) -> None:
        """Raise `DuplexError(BAD_CONFIG)` with what to install where a piece is missing."""
        if self._check is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._check)

    async def stop(self) -> None:
        """Nothing of it is left behind."""

    def open(self) -> Stream:
        """For one session."""
        return _ThreadedStream(self._make(), self._pool, self.counts)

    def figures(self) -> list[Figure]:
        return self.counts.figures(up=0, restarts=0)


class _ThreadedStream:
    def __init__(self, windows: Backend, pool: Executor, counts: Counts) -> None:
        self._windows, self._pool, self._counts = windows, pool, counts
        self._gap = False
        self.close = windows.close

    async def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        return await self._run(lambda: self._windows.see(window, codec))

    async def finish(self) -> VisualInput | None:
        return await self._run(self._windows.finish)

    def reset(self) -> None:
        self._gap = True

    async def _run(self, work: Callable[[], VisualInput | None]) -> VisualInput | None:
        gap, self._gap = self._gap, False

        def run() -> tuple[VisualInput | None, float]:
            began = monotonic()
            if gap:
                self._windows.reset()
            return work(), (monotonic() - began) * 1e3

        counts = self._counts
        counts.open += 1
        try:
            made, took_ms = await asyncio.get_running_loop().run_in_executor(self._pool, run)
        except Exception as error:
            counts.ended(error)
            raise
        finally:
            counts.open -= 1
        counts.took_ms += took_ms
        counts.ended(None)
        return made
