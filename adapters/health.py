"""What an adapter may tell operators, beside the `Adapter` contract.

All of it is optional; the gateway looks for the attributes:

* `healthy: bool`: while it is False the model's engine counts as down: `/ready` answers 503 and new sessions
  are refused with `engine_down`.
* `fault: str | None`: why, in words that `/ready` shows.
* `figures() -> Iterable[Figure]`: what `/metrics` shows of it. Called for each scrape, on the event loop.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a metric. `/metrics` calls it `duplex_` and `name`, a counter with `_total` behind, and
    adds a label `model`. All samples of one name have the same kind, words and labels. Seconds and bytes,
    never ms."""

    name: str
    kind: Literal["counter", "gauge"]
    words: str
    value: float
    labels: dict[str, str] = {}
