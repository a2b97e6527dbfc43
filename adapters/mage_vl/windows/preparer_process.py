"""A preparer: a process that makes segments of the windows of some sessions.

    python -m duplex.adapters.mage_vl.windows.preparer_process --factory module:function --fd N --options JSON

Without torch, so that it is there in no time. The reader reads; a few threads prepare, each one window at a
time, in the order in which windows come; the pulse says that the process lives, and ends it when a window
takes for ever. Exit codes are those of the frame engine's worker.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, NoReturn

import msgspec

from duplex.adapters.engine.hosting import (
    BROKEN,
    GONE,
    STOPPED,
    cannot_start,
    command,
    leave,
    load_model,
    messages,
    on_signals,
    resident_bytes,
    watched_thread,
)
from duplex.adapters.engine.messages import Failed, Stop
from duplex.adapters.engine.outlet import Outlet
from duplex.adapters.engine.settings import WorkerSettings
from duplex.adapters.mage_vl.windows.backends import Backend
from duplex.adapters.mage_vl.windows.preparer_memory import Slots
from duplex.adapters.mage_vl.windows.preparer_messages import (
    Forget,
    Prepare,
    Prepared,
    PreparerReady,
    PreparerStats,
    Task,
    ToPreparer,
)
from duplex.adapters.mage_vl.windows.source import Place
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import VideoWindow

log = logging.getLogger("duplex.windows.preparer")

MODULE: Final = "duplex.adapters.mage_vl.windows.preparer_process"
BROKE_IT: Final = "the window broke its preparation"
Make = Callable[[Place], Backend]


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a preparer is told: the descriptor of its memory and the slots in it, windows at a time
    (`threads`), and the options of its streams."""

    memory: int
    slots: int
    threads: int
    streams: dict[str, Any] = {}


class _Stream:
    """One session's. One window at a time."""

    def __init__(self, windows: Backend) -> None:
        self.windows = windows
        self.turn = threading.Lock()


class PreparerProcess:
    """The streams of some sessions behind one socket. `run` is the life of the process.

    Args:
        make: makes a session's stream, which goes on at a place.
        leave: ends the process at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        make: Make,
        options: HostOptions,
        settings: WorkerSettings,
        *,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._socket, self._make, self._leave = sock, make, leave
        self._options, self._settings = options, settings
        self._slots = Slots(options.memory, options.slots)
        self._outlet = Outlet(sock, lambda: self.stop("the gateway is gone"))
        self._streams: dict[int, _Stream] = {}  # the reader's alone
        self._tasks: SimpleQueue[tuple[Prepare, _Stream]] = SimpleQueue()
        self._since: dict[int, float] = {}  # when each window that is not done was begun, s

    def run(self) -> int:
        """Serve until the gateway wants no more, and return the exit code."""
        for number in range(self._options.threads):
            self._thread(f"preparing {number}", self._prepare_all)
        self._thread("pulse", self._pulse)
        gc.collect()
        gc.freeze()
        self._outlet.say(PreparerReady(pid=os.getpid()))
        log.info("ends: %s", self._read())
        return STOPPED

    def stop(self, why: str, code: int = STOPPED) -> None:
        """End the process at once, from any thread: nothing of it is to be saved."""
        log.log(logging.INFO if code == STOPPED else logging.ERROR, "ends: %s", why)
        self._leave(code)

    # --- threads ------------------------------------------------------------------------------------

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        watched_thread(f"windows {name}", body, self.stop, log)

    def _read(self) -> str:
        """Take what the gateway says, until it says no more; returns why."""
        for message in messages(self._socket, ToPreparer):
            match message:
                case Prepare():
                    self._tasks.put((message, self._stream(message)))
                case Forget():
                    stream = self._streams.pop(message.stream, None)
                    if stream is not None:
                        stream.windows.close()
                case Stop():
                    return "told to"
        return GONE

    def _stream(self, prepare: Prepare) -> _Stream:
        stream = self._streams.get(prepare.stream)
        if stream is None:
            stream = _Stream(self._make(Place(prepare.origin_ms, prepare.end_ms)))
            self._streams[prepare.stream] = stream
        return stream

    def _prepare_all(self) -> None:
        while True:
            prepare, stream = self._tasks.get()
            with stream.turn:
                self._since[prepare.id] = monotonic()
                try:
                    self._prepare(prepare, stream.windows)
                finally:
                    del self._since[prepare.id]
            del stream  # its decoder is not kept until the next window of another

    def _prepare(self, prepare: Prepare, windows: Backend) -> None:
        began = self._since[prepare.id]
        try:
            made = self._see(prepare, windows)
            segment = None if made is None else self._slots.put_segment(prepare.slot, made)
        except DuplexError as error:
            self._outlet.say(Failed.of(prepare.id, error))
        except Exception:
            log.exception("a window broke its preparation")
            self._outlet.say(Failed(id=prepare.id, code=ErrorCode.INVALID_MEDIA.value, message=BROKE_IT))
        else:
            place = windows.place
            self._outlet.say(
                Prepared(
                    id=prepare.id,
                    segment=segment,
                    origin_ms=place.origin_ms,
                    end_ms=place.end_ms,
                    took_ms=(monotonic() - began) * 1e3,
                )
            )

    def _see(self, prepare: Prepare, windows: Backend) -> VisualInput | None:
        head, *parts = self._slots.take(prepare.slot, prepare.sizes)
        task = msgspec.msgpack.decode(head, type=Task)
        if prepare.gap:
            windows.reset()
        window = task.window
        if window is None:
            return windows.finish()
        if isinstance(window, VideoWindow):
            window = msgspec.structs.replace(window, data=parts[0], frames=tuple(parts[1:]))
        else:
            window = msgspec.structs.replace(window, data=parts[0])
        return windows.see(window, task.codec)

    def _pulse(self) -> None:
        tick = threading.Event()
        while not tick.wait(self._settings.stats_s):
            self._outlet.say(PreparerStats(streams=len(self._streams), memory_bytes=resident_bytes()))
            oldest = min(list(self._since.values()), default=None)
            if oldest is not None and monotonic() - oldest > self._settings.stuck_s:
                self.stop(f"a window takes more than {self._settings.stuck_s:g} s", BROKEN)


def main(arguments: Sequence[str] | None = None) -> int:
    """The process, but for its end: returns the exit code."""
    told = command(MODULE, "Prepares windows of some sessions.", arguments)
    try:
        options = msgspec.convert(told.options, HostOptions)
        make: Make = load_model(told.factory, options.streams)
        process = PreparerProcess(told.sock, make, options, told.settings)
    except Exception as error:
        outlet = Outlet(told.sock, lambda: None)
        outlet.say(cannot_start(error, log))
        outlet.flush(1.0)
        return BROKEN
    on_signals(process.stop)
    return process.run()


if __name__ == "__main__":
    leave(main())
