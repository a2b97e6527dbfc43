"""What the tests of preparers share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import psutil
from held_windows import FOLDER
from video_clips import moving_square, still, texture
from window_pieces import live

from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.mage_vl.windows.backends import WindowOptions, open_windows
from duplex.adapters.mage_vl.windows.preparer import Preparer
from duplex.adapters.mage_vl.windows.preparers import Preparers
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.types import VideoWindow

HERE = str(Path(__file__).parent)
CODECS = str(Path(__file__).parents[2] / "codecs")
SETTINGS = EngineSettings(
    start_timeout_s=60, hang_s=20, stop_timeout_s=20, backoff_s=0.05, backoff_most_s=0.2, stable_s=60
)
CODEC = WindowOptions(backend="codec")


@contextlib.asynccontextmanager
async def preparing(
    options: WindowOptions = CODEC, processes: int = 1, *, held: Path | None = None, **settings: float
) -> AsyncIterator[Preparers]:
    """Running preparers, of which nothing may be left in the end: no process, no open file, no shared memory.

    `held`: with `held_windows`, in that folder.
    """
    made = Preparers(
        options,
        processes,
        settings=msgspec.structs.replace(SETTINGS, **settings),
        **({} if held is None else {"factory": "held_windows:streams"}),
        env={
            "PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])),
            FOLDER: str(held),
        },
    )
    files, shared, others = open_files(), _shared(), processes_here()
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
        assert processes_here() == others
        assert _shared() == shared
        gc.collect()
        await until(lambda: open_files() <= files, 10)  # transports close in the loop's next turns


class Held:
    """The test's end of `held_windows`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "journal").touch()

    def let_go(self, name: str) -> None:
        (self.folder / name).touch()

    def begun(self) -> list[str]:
        return (self.folder / "journal").read_text().split()

    async def begins(self, *names: str) -> None:
        await until(lambda: set(names) <= set(self.begun()))


@cache
def pieces() -> list[VideoWindow]:
    """Windows of one live stream, of which only the first begins with a key frame."""
    return live(moving_square(30, height=96, width=128), seconds=0.4)


@cache
def picture() -> bytes:
    return still(texture(64, 96), "mjpeg")


def stills(name: str = "", pts_ms: float | None = None) -> VideoWindow:
    return VideoWindow(kind="", frames=(picture(),), segment_id=name, pts_ms=pts_ms)


def expected(windows: list[VideoWindow], options: WindowOptions = CODEC) -> list[VisualInput | None]:
    """What one process makes of them, and of their end."""
    here = open_windows(options)
    return [*(here.see(window) for window in windows), here.finish()]


def same(made: VisualInput | None, wanted: VisualInput | None) -> None:
    if made is None or wanted is None:
        assert made is wanted
        return
    for name in ("images", "positions", "times_s", "frame_times_s"):
        one, other = getattr(made, name), getattr(wanted, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    for name in ("segment_id", "pts_ms", "duration_ms"):
        assert getattr(made, name) == getattr(wanted, name)


def pid_of(preparer: Preparer) -> int:
    assert preparer.ready is not None
    return preparer.ready.pid


def kill(preparer: Preparer) -> int:
    """Its process id."""
    pid = pid_of(preparer)
    os.kill(pid, signal.SIGKILL)
    return pid


def figures(made: Preparers) -> dict[str, float]:
    return {figure.name.removeprefix("windows_"): figure.value for figure in made.figures()}


def open_files() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def processes_here() -> list[int]:
    """Preparers that this process has started and that are left."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "duplex.adapters.mage_vl.windows.preparer_process" in child.cmdline():
                found.append(child.pid)
    return found


def _shared() -> list[str]:
    """Shared memory that has one of our names."""
    folder = "/dev/shm"
    return sorted(n for n in os.listdir(folder) if "duplex" in n) if os.path.isdir(folder) else []


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
