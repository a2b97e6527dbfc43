"""Processes that prepare windows, and which session has which.

    windows = Preparers(WindowOptions())
    await windows.start()
    stream = windows.open()
    segment = await stream.see(window)

Decoding and selecting hold the interpreter so long that many sessions' windows in threads of one process are
prepared on one core, and hold up its event loop. A process of its own has its own interpreter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import msgspec

from duplex.adapters.engine.settings import EngineSettings, WorkerSettings, WorkerSpec
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.windows.backends import Backend, WindowOptions, check, open_windows
from duplex.adapters.mage_vl.windows.preparer import PreparedStream, Preparer
from duplex.adapters.mage_vl.windows.preparer_process import Make
from duplex.adapters.mage_vl.windows.preparing import Counts
from duplex.adapters.mage_vl.windows.source import Place

MOST_PREPARERS: Final = 8
"""More only when asked for: eight kept up with 64 live sessions (`benchmarks/vision_gpu.py`)."""
SETTINGS: Final = EngineSettings(
    start_timeout_s=60, hang_s=30, stop_timeout_s=2, backoff_s=0.05, backoff_most_s=5, stable_s=10
)
_WORKER: Final = WorkerSettings(stats_s=1, stuck_s=180)  # above what decoding one window may take
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def usual_count() -> int:
    """Half of the cores that this process may use, from 1 to `MOST_PREPARERS`."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_PREPARERS, max(1, here // 2))


def streams(options: Mapping[str, Any]) -> Make:
    """The factory of the processes: makes streams, of `WindowOptions`."""
    read = msgspec.convert(dict(options), WindowOptions)

    def make(place: Place) -> Backend:
        return open_windows(read, place=place)

    return make


class Preparers:
    """Processes that prepare windows. A session stays with the one that had the fewest when it came.

    One that dies is started again. Its sessions lose the windows that it had, and their streams begin
    afresh; others are not touched. `healthy`: any of them is up.

    Args:
        options: How windows become images.
        processes: How many; None: `usual_count()`.
        factory: `module:function` that takes the options, as a mapping, and gives what makes streams.
        env: Added to the processes' environment.
    """

    def __init__(
        self,
        options: WindowOptions,
        processes: int | None = None,
        *,
        settings: EngineSettings = SETTINGS,
        factory: str = f"{__name__}:streams",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.counts = Counts()
        self._options = options
        self._spec = WorkerSpec(
            factory=factory,
            options=msgspec.to_builtins(options),
            env={**_ONE_THREAD, **(env or {})},
            settings=_WORKER,
        )
        self._settings = settings
        self._processes = processes or usual_count()
        self._ids = count(1)
        self.preparers: tuple[Preparer, ...] = ()

    async def start(self) -> None:
        """Start them all.

        Raises:
            DuplexError: a piece is missing, or one cannot start. None is left running.
        """
        await asyncio.get_running_loop().run_in_executor(None, check, self._options)
        self.preparers = tuple(
            Preparer(f"windows preparer {number + 1}", self._spec, self._settings, self.counts)
            for number in range(self._processes)
        )
        try:
            async with asyncio.TaskGroup() as group:
                for preparer in self.preparers:
                    group.create_task(preparer.start())
        except BaseExceptionGroup as failed:
            await self.stop()
            raise failed.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End them all."""
        await asyncio.gather(*(preparer.stop() for preparer in self.preparers))

    def open(self) -> PreparedStream:
        """For one session. Close it."""
        chosen = min(self.preparers, key=lambda preparer: (preparer.ready is None, preparer.sessions))
        return PreparedStream(chosen, next(self._ids))

    @property
    def healthy(self) -> bool:
        return any(preparer.ready is not None for preparer in self.preparers)

    @property
    def fault(self) -> str | None:
        """What is wrong with those that are down."""
        faults = [f"{p.name} {p.fault}" for p in self.preparers if p.ready is None]
        return "; ".join(faults) or (None if self.preparers else "no windows are prepared: not started")

    def figures(self) -> list[Figure]:
        return self.counts.figures(
            up=sum(preparer.ready is not None for preparer in self.preparers),
            restarts=sum(preparer.restarts for preparer in self.preparers),
        )
