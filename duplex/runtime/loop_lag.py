"""How late the event loop is."""

from __future__ import annotations

from collections.abc import Callable

from duplex.runtime.clock import Clock, Handle

INTERVAL_S = 0.1


class LoopLagMonitor:
    """Asks the loop for a call every 100 ms and reports how much later than asked it came, in seconds."""

    def __init__(self, clock: Clock, report: Callable[[float], None]) -> None:
        self._clock = clock
        self._report = report
        self._handle: Handle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._due = self._clock.now() + INTERVAL_S
        self._handle = self._clock.call_at(self._due, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        self._report(max(0.0, self._clock.now() - self._due))
        self.start()
