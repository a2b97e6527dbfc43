"""What sight counts, over all lives of its worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.sight.messages import SightStats
from duplex.adapters.mage_vl.sight.queue import Work


@dataclass(slots=True, kw_only=True)
class Counts:
    """Batches that are done, windows in them, their patches; windows that nobody wanted any more (`dropped`);
    what batches took in the worker, and the windows' lag, ms."""

    batches: int = 0
    windows: int = 0
    patches: int = 0
    gated: int = 0
    dropped: int = 0
    took_ms: float = 0.0
    lag_ms: float = 0.0

    def batch(self, works: Sequence[Work[Any]], took_ms: float, now: float) -> None:
        """One more, at `now`, ms."""
        self.batches += 1
        self.windows += len(works)
        self.patches += sum(work.patches for work in works)
        self.gated += sum(work.gate for work in works)
        self.took_ms += took_ms
        self.lag_ms += sum(now - work.arrived for work in works)

    def figures(
        self,
        *,
        up: bool,
        sessions: int,
        waiting: int,
        flying: int,
        wait_ms: float,
        merged: int,
        restarts: int,
        stats: SightStats | None,
    ) -> list[Figure]:
        """All of it, with what is true at the moment."""
        gauges = (
            ("up", up, "1 while the worker that looks is loaded and answers."),
            ("sessions", sessions, "Sessions that are open."),
            ("waiting", waiting, "Windows that wait to be looked at."),
            ("flying", flying, "Windows that are being looked at."),
            ("wait_seconds", wait_ms / 1e3, "For how long the oldest that waits has waited."),
            ("gate_states", stats.states if stats else 0, "Sessions whose gate has a state."),
            ("memory_bytes", stats.memory_bytes if stats else 0, "Memory that the model holds."),
        )
        counters = (
            ("batches", self.batches, "Batches of windows, of different sessions, looked at."),
            ("windows", self.windows, "Windows looked at."),
            ("patches", self.patches, "Patches of 16 × 16 pixels looked at."),
            ("gated", self.gated, "Windows for which the gate was asked."),
            ("merged", merged, "Windows that were not looked at: a newer one took their place."),
            ("dropped", self.dropped, "Windows that nobody wanted any more."),
            ("busy_seconds", self.took_ms / 1e3, "Time that batches took."),
            ("lag_seconds", self.lag_ms / 1e3, "Lag of all windows looked at, from arrival to result."),
            ("restarts", restarts, "Times that the worker was started again."),
        )
        return [
            *(Figure(name=f"sight_{n}", kind="gauge", words=w, value=float(v)) for n, v, w in gauges),
            *(Figure(name=f"sight_{n}", kind="counter", words=w, value=float(v)) for n, v, w in counters),
        ]
