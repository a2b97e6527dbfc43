"""What the tests of sight share: a gateway's end on fake models in real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.mage_vl.sight.client import Sight, SightOptions

HERE = str(Path(__file__).parent)
SETTINGS = EngineSettings(
    start_timeout_s=60, hang_s=20, stop_timeout_s=20, backoff_s=0.05, backoff_most_s=0.2, stable_s=60
)


def fake(**fields: Any) -> SightOptions:
    """The fake model; fields that are not `SightOptions`' are the model's own."""
    own = {name: fields.pop(name) for name in list(fields) if name in SightOptions.__struct_fields__}
    return SightOptions(
        factory="fake_sight:load",
        options=fields,
        # no empty entry: it would be the current folder
        env={"PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))},
        **{"stats_s": 0.05, "max_patches": 512, **own},
    )


@contextlib.asynccontextmanager
async def seeing(options: SightOptions | None = None, **settings: Any) -> AsyncIterator[Sight]:
    """A running sight, of which nothing may be left in the end: no process, no open file, no shared memory.

    Not even when it cannot start, or was killed.
    """
    sight = Sight(options or fake(), msgspec.structs.replace(SETTINGS, **settings))
    files, shared, others = open_files(), _shared(), workers()
    try:
        await sight.start()
        yield sight
    finally:
        await sight.stop()
        assert workers() == others
        assert _shared() == shared
        gc.collect()
        await until(lambda: open_files() <= files, 10)  # transports close in the loop's next turns


def open_files() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def _shared() -> list[str]:
    """Shared memory that has one of our names."""
    return (
        sorted(name for name in os.listdir("/dev/shm") if "duplex" in name)
        if os.path.isdir("/dev/shm")
        else []
    )


class Hold:
    """Keeps batches back until they are let go, by a FIFO: `options` are the fake model's."""

    def __init__(self, folder: Path) -> None:
        self._path, self._journal = folder / "hold", folder / "journal"
        os.mkfifo(self._path)
        self._journal.touch()
        self._fd = os.open(self._path, os.O_RDWR)
        self.options = {"hold": str(self._path), "journal": str(self._journal)}

    def let_go(self, batches: int = 1) -> None:
        os.write(self._fd, b"." * batches)

    def launched(self) -> list[list[int]]:
        """Images of each window, of each batch that was launched."""
        return [[int(images) for images in line.split()] for line in self._journal.read_text().splitlines()]

    async def launches(self, batches: int) -> None:
        """Wait until so many were launched."""
        await until(lambda: len(self.launched()) >= batches)

    def close(self) -> None:
        os.close(self._fd)


def kill(sight: Sight, number: int = signal.SIGKILL) -> int:
    """Kill the worker; its process id."""
    assert sight.ready is not None
    os.kill(sight.ready.pid, number)
    return sight.ready.pid


def workers() -> list[int]:
    """Worker processes that this process has started and that are left."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "duplex.adapters.mage_vl.sight.worker" in child.cmdline():
                found.append(child.pid)
    return found


def figures(sight: Sight) -> dict[str, float]:
    return {figure.name.removeprefix("sight_"): figure.value for figure in sight.figures()}


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
