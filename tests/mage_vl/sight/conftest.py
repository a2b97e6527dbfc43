"""Nothing may be left of a worker: no process, no open file, no file in shared memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sight_bench import workers

_FDS = Path("/proc/self/fd")
_SHARED = Path("/dev/shm")


def _held() -> tuple[int, list[str], list[int]]:
    shared = sorted(os.listdir(_SHARED)) if _SHARED.is_dir() else []
    return len(os.listdir(_FDS)) if _FDS.is_dir() else 0, shared, workers()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = _held()
    yield
    gc.collect()
    fds, shared, processes = _held()
    assert processes == []
    assert shared == before[1]
    assert fds <= before[0]
