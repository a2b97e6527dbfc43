"""What the engine's tests share: engines on fake models in real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from fake_frames import FakeJob
from numpy.typing import NDArray

from duplex.adapters.engine.client import Engine, EngineRequest, EngineSettings, WorkerSpec
from duplex.adapters.engine.settings import WorkerSettings

HERE = str(Path(__file__).parent)
ENDLESS = 1_000_000


def spec(*, stats_s: float = 0.05, **options: Any) -> WorkerSpec:
    """A worker of the fake model."""
    return WorkerSpec(
        factory="fake_frames:load",
        options=options,
        # no empty entry: it would be the current folder
        env={"PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))},
        settings=WorkerSettings(stats_s=stats_s),
    )


SETTINGS = EngineSettings(
    start_timeout_s=60, hang_s=20, stop_timeout_s=20, backoff_s=0.05, backoff_most_s=0.2, stable_s=60
)


@contextlib.asynccontextmanager
async def running(*specs: WorkerSpec, **settings: Any) -> AsyncIterator[Engine]:
    engine = Engine("fake", specs or [spec()], msgspec.structs.replace(SETTINGS, **settings))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def job(tone: int, **fields: Any) -> bytes:
    return msgspec.json.encode(FakeJob(tone=tone, **fields))


async def whole(request: EngineRequest) -> NDArray[np.float32]:
    """All audio of a request, to its end."""
    return np.concatenate([np.zeros(0, np.float32), *[chunk.samples async for chunk in request]])


def workers() -> list[int]:
    """Worker processes that this process has started and that are left."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "duplex.adapters.engine.worker" in child.cmdline():
                found.append(child.pid)
    return found


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
