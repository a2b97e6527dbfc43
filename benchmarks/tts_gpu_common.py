"""What the parts of the Qwen3-TTS benchmark share: results as lines, budgets, quantiles.

Only the standard library is imported here: processes with other packages use it too.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

_RESULTS: Final[TextIO] = sys.stdout


def tell(kind: str, **measured: Any) -> None:
    """One result, at once, as a line of JSON: what is measured is not lost when a later part fails."""
    print(json.dumps({"kind": kind, **measured}), file=_RESULTS, flush=True)


def as_part() -> dict[str, Any]:
    """Become a part: what is printed from now on goes to stderr, a polite kill ends what this process has
    started. Returns its orders, from the JSON file that the last argument names."""
    sys.stdout = sys.stderr
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with open(sys.argv[-1]) as file:
        orders: dict[str, Any] = json.load(file)
    return orders


def time_left(budget_s: float) -> Callable[[], float]:
    """Seconds that are left of the budget from now on; negative when it is spent."""
    end = time.monotonic() + budget_s
    return lambda: end - time.monotonic()


def quantile(values: Sequence[float], q: float) -> float | None:
    """The value at that share of the sorted values; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else None


def spread(values: Sequence[float], digits: int = 3) -> dict[str, Any]:
    """Count, median, 95th and 99th percentile and maximum."""
    found: dict[str, Any] = {"n": len(values)}
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        value = quantile(values, q)
        found[name] = None if value is None else round(value, digits)
    return found
