"""What happened, when: rows that become a JSON-lines file and a picture.

A row is a flat object: `t_ms` since the timeline began, `step`, `kind`, and the kind's own fields.

| kind | fields |
| --- | --- |
| `step` | `title` |
| `audio.sent` | `ms`, `level_dbfs`: microphone audio that left |
| `video.sent` | `pts_ms`, `duration_ms`, `bytes` |
| `text.sent` | `text` |
| `answer` | `response_index`, `text`, `status`: at its first audio; of one that was cut, what was heard |
| `comment` | `text`, `clip_ms`, `lag_ms`: said of the clip at `clip_ms`, so much later |
| `audio.received` | `response_index`, `ms`, `bytes`; `unplayed_ms` were then waiting to be played |
| `audio.heard` | `response_index`, `ms`, `level_dbfs`: it was played |
| `audio.cancelled` | `response_index`, `ms`, `levels_dbfs` (one each 20 ms): received, and never played |
| `audio.stale` | `response_index`, `bytes`: arrived after its response had ended. There must be none |
| `event` | `type` and fields: a message of the gateway, audio apart |
| `mark` | `name` and fields: something that the command did or noticed |
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.cli.errors import CommandError

LEVEL_MS: Final = 20
SILENCE_DBFS: Final = -90.0


class Timeline:
    """Collects rows; none with `keep` False, for a session without end. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, keep: bool = True) -> None:
        self.keep = keep
        self.rows: list[dict[str, Any]] = []
        self.step = ""
        self._clock = clock
        self._start = clock()

    @property
    def now_ms(self) -> float:
        return (self._clock() - self._start) * 1000

    def begin(self, step: str, title: str) -> None:
        """All rows from here on belong to `step`."""
        self.step = step
        self.record("step", title=title)

    def record(self, kind: str, *, t_ms: float | None = None, **fields: Any) -> dict[str, Any]:
        """Add a row; `t_ms` places it at another time than now."""
        at = self.now_ms if t_ms is None else t_ms
        row = {"t_ms": round(at, 3), "step": self.step, "kind": kind, **fields}
        if self.keep:
            self.rows.append(row)
        return row

    def of(self, kind: str, step: str | None = None) -> Iterator[dict[str, Any]]:
        """Rows of a kind, in the order in which they were recorded."""
        return (
            row
            for row in self.rows
            if row["kind"] == kind and row["step"] == (self.step if step is None else step)
        )

    def save(self, path: Path) -> None:
        """One JSON object a line, by time.

        Raises:
            CommandError: the file cannot be written.
        """
        rows = sorted(self.rows, key=lambda row: float(row["t_ms"]))
        try:
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
        except OSError as error:
            raise CommandError(f"{path}: cannot be written ({error.strerror})") from error


def level_dbfs(samples: NDArray[Any]) -> float:
    """RMS level of int16 or float samples, from `SILENCE_DBFS` to 0."""
    if not len(samples):
        return SILENCE_DBFS
    scale = 32768.0 if samples.dtype == np.int16 else 1.0
    rms = float(np.sqrt(np.mean(np.square(samples.astype(np.float32) / scale))))
    return round(max(SILENCE_DBFS, 20 * math.log10(max(rms, 1e-9))), 1)


def levels_dbfs(samples: NDArray[Any], sample_rate: int) -> list[float]:
    """The level of each `LEVEL_MS` of the samples."""
    step = sample_rate * LEVEL_MS // 1000
    return [level_dbfs(samples[at : at + step]) for at in range(0, len(samples), step)]
