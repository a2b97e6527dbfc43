"""How long launches take, from those that were."""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest in the running means


class LaunchTimes:
    """Running means of what a launch takes, ms, by the power of two that its batch fits in; and the sums of
    all launches since the last `take`."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._sum = 0.0
        self._count = 0

    def add(self, batch: int, took_ms: float, *, learn: bool = True) -> None:
        """A launch has ended. Without `learn` it is only counted: it waited for something else."""
        self._sum += took_ms
        self._count += 1
        if learn:
            bucket = _bucket(batch)
            mean = self._means.get(bucket, took_ms)
            self._means[bucket] = mean + _WEIGHT * (took_ms - mean)

    def expect(self, batch: int) -> float | None:
        """What such a launch is likely to take; None: nothing like it was seen."""
        return self._means.get(_bucket(batch))

    def longest(self) -> float:
        """The longest mean, 0 before any launch."""
        return max(self._means.values(), default=0.0)

    def take(self) -> tuple[int, float]:
        """Launches since the last call and what one took in the mean, ms."""
        count, total = self._count, self._sum
        self._count, self._sum = 0, 0.0
        return count, total / count if count else 0.0


def _bucket(batch: int) -> int:
    return (batch - 1).bit_length()
