"""What an adapter may tell operators, beside the `Adapter` contract.

All of it is optional; the gateway looks for the attributes:

* `healthy: bool`: while it is False the model's engine counts as down: `/ready` answers 503, and what is
  asked of this model is refused with `engine_down`.
* `fault: str | None`: why, in words that `/ready` shows.
* `figures() -> Iterable[Figure]`: what `/metrics` shows of it. Called for each scrape, on the event loop.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from duplex.core.errors import DuplexError, ErrorCode


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a metric. `/metrics` calls it `duplex_` and `name`, a counter with `_total` behind, and
    adds a label `model`. All samples of one name have the same kind, words and labels. Seconds and bytes,
    never ms."""

    name: str
    kind: Literal["counter", "gauge"]
    words: str
    value: float
    labels: dict[str, str] = {}


def is_healthy(adapter: Any) -> bool:
    """What the adapter says, if it says anything."""
    return bool(getattr(adapter, "healthy", True))


def fault_of(adapter: Any) -> str:
    """Which model is down, and why if it says so."""
    why = getattr(adapter, "fault", None)
    return f"{adapter.info.id}: {why}" if why else str(adapter.info.id)


def check_health(adapter: Any) -> None:
    """Raise `DuplexError(ENGINE_DOWN)` while the model's engine is down."""
    if not is_healthy(adapter):
        raise DuplexError(ErrorCode.ENGINE_DOWN, f"the engine is down: {fault_of(adapter)}")
