"""What `/metrics` shows of language engines, whatever kind they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from duplex.adapters.health import Figure

_GAUGES: Final = {
    "up": "1 while the engine is loaded and answers.",
    "active": "Answers that are being generated.",
    "running": "Requests in the engine's batch.",
    "waiting": "Requests that wait for a place in it.",
    "cache_usage_ratio": "Share of the key-value cache in use.",
    "parked_sessions": "Sessions that hold a place between turns.",
}
_COUNTERS: Final = {
    "requests": "Prompts that were answered or given up.",
    "prompt_tokens": "Tokens of all prompts.",
    "output_tokens": "Tokens of all answers.",
    "aborted": "Answers that nobody wanted any more.",
    "failed": "Answers that ended with an error.",
    "restarts": "Times that the engine was started again.",
    "cache_lookup_tokens": "Prompt tokens looked up in the prefix cache.",
    "cache_found_tokens": "Prompt tokens that the prefix cache had.",
}


class Totals(msgspec.Struct, kw_only=True):
    """What an engine has counted over all its lives. A request is over before it is counted."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    aborted: int = 0
    failed: int = 0
    restarts: int = 0
    cache_lookup_tokens: int = 0
    cache_found_tokens: int = 0

    def ended(self, *, prompt_tokens: int, failed: bool, aborted: bool) -> None:
        """A request is over."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.failed += failed
        self.aborted += aborted


def figures(gauges: Mapping[str, float], totals: Mapping[str, float]) -> list[Figure]:
    """One figure for each name: of `gauges` by the names above, of `totals` by those of `Totals`."""
    return [
        *(_figure(name, "gauge", _GAUGES[name], value) for name, value in gauges.items()),
        *(_figure(name, "counter", _COUNTERS[name], value) for name, value in totals.items()),
    ]


def _figure(name: str, kind: Literal["counter", "gauge"], words: str, value: float) -> Figure:
    return Figure(name=f"language_{name}", kind=kind, words=words, value=float(value))
