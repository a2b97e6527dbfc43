"""What vLLM tells of its scheduler, kept for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duplex.adapters.engine.language_figures import Totals


class Stats:
    """Of one life, over all its engines (data parallel ranks): requests that run and that wait, the share of
    the cache in use (0 to 1, of the fullest). Lookups in the prefix cache are added to `totals`."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._engines: dict[int, tuple[int, int, float]] = {}

    @property
    def running(self) -> int:
        return sum(running for running, _, _ in self._engines.values())

    @property
    def waiting(self) -> int:
        return sum(waiting for _, waiting, _ in self._engines.values())

    @property
    def cache_usage(self) -> float:
        return max((usage for _, _, usage in self._engines.values()), default=0.0)

    def take(self, engine: int, told: Any) -> None:
        """What a step of one engine came with: vLLM's `SchedulerStats`."""
        self._engines[engine] = (told.num_running_reqs, told.num_waiting_reqs, told.kv_cache_usage)
        if (prefix := told.prefix_cache_stats) is not None:
            self._totals.cache_lookup_tokens += prefix.queries
            self._totals.cache_found_tokens += prefix.hits


class _Logger:
    """What vLLM makes for each of its engines and gives the figures of each step."""

    def __init__(self, stats: Stats, engine: int) -> None:
        self._stats = stats
        self._engine = engine

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """A step is over."""
        if scheduler_stats is not None:
            self._stats.take(self._engine, scheduler_stats)

    def log_engine_initialized(self) -> None:
        """Nothing is told of it."""


def logger_of(stats: Stats) -> Callable[..., Any]:
    """What vLLM calls to make the logger of one of its engines."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    # made here: its base is only there with vLLM
    logger = type("DuplexLogger", (_Logger, StatLoggerBase), {})

    def make(vllm_config: Any, engine_index: int = 0) -> Any:
        return logger(stats, engine_index)

    return make
