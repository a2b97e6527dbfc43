"""Windows that a test holds back, or that break or kill the preparer that has them. They are told by their
segment id: `hold…` waits until it is let go or closed, `break…` raises, `die…` kills the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duplex.adapters.mage_vl.windows.backends import WindowOptions, open_windows
from duplex.adapters.mage_vl.windows.preparer_process import Make
from duplex.adapters.mage_vl.windows.source import Place
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, ImageWindow, VideoWindow

FOLDER = "DUPLEX_TEST_HELD"
"""The environment's name of the folder with the `journal`, and with an empty file for each window that is let
go; while there is a file `broken` no process can start."""


class HeldWindows:
    def __init__(self, folder: Path, place: Place) -> None:
        self._folder = folder
        self._inner = open_windows(WindowOptions(backend="frames"), place=place)
        self._closed = threading.Event()

    def see(self, window: VideoWindow | ImageWindow, codec: CodecWindow | None = None) -> VisualInput | None:
        name = window.segment_id if isinstance(window, VideoWindow) else ""
        with (self._folder / "journal").open("a") as journal:
            journal.write(f"{name}\n")
        if name.startswith("hold"):
            while not (self._folder / name).exists():
                if self._closed.wait(0.005):
                    raise DuplexError(ErrorCode.SESSION_CLOSING, "the session was closed")
        if name.startswith("break"):
            raise RuntimeError("a fault")
        if name.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.see(window, codec)

    def finish(self) -> VisualInput | None:
        return self._inner.finish()

    def reset(self) -> None:
        self._inner.reset()

    def close(self) -> None:
        self._closed.set()
        self._inner.close()

    @property
    def place(self) -> Place:
        return self._inner.place


def streams(options: Mapping[str, Any]) -> Make:
    folder = Path(os.environ[FOLDER])
    if (folder / "broken").exists():
        raise DuplexError(ErrorCode.BAD_CONFIG, "it is broken")
    return lambda place: HeldWindows(folder, place)
