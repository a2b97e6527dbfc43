"""One session's input: windows are prepared in a pool, looked at one at a time, and the newest one wins.

Nothing here waits for the model but its own two tasks. While a segment is being looked at, at most the newest
window's segments wait; those of older windows are given up for them, and told as coalesced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from duplex.adapters.mage_vl.ports import Eye, Glance, Media, Stream
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, ImageWindow, InputLag, InputRejected, Signal, VideoWindow

log = logging.getLogger("duplex.adapters.mage_vl")

MOST_WAITING: Final = 64
"""Windows that may wait to be prepared."""
MOST_WAITING_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Window:
    media: Media | None  # None: the input ends, give out what is held back
    arrived: float
    size: int
    serial: int


@dataclass(slots=True)
class _Ready:
    """Segments that wait to be looked at. `first`: serial of the oldest window that they stand for."""

    segments: deque[VisualInput]
    arrived: float
    first: int
    merged: int = 0


class Watching:
    """The input side of a session.

    Args:
        stream, eye: its own.
        pool: where windows are prepared, shared with other sessions.
        seen: called on the loop with each segment that was looked at.
        tell: called on the loop with lag and refused windows.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: Stream,
        eye: Eye,
        pool: Executor,
        *,
        seen: Callable[[Glance], None],
        tell: Callable[[Signal], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._eye, self._pool = stream, eye, pool
        self._seen, self._tell, self._clock = seen, tell, clock
        self._waiting: deque[_Window] = deque()
        self._bytes = 0
        self._ready: _Ready | None = None
        self._looking: int | None = None  # serial of the oldest window that is being looked at
        self._preparing: int | None = None
        self._coalesced = 0
        self.submitted = 0
        """Serial of the last window that was taken."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._more, self._look_more = asyncio.Event(), asyncio.Event()
        self._job: Future[Sequence[VisualInput]] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    # --- the session's side: never waits -----------------------------------------------------------

    def submit(self, media: Media | None) -> int:
        """Queue a window; returns its serial. None: the input ends, for now."""
        self.submitted += 1
        if self._closed:
            return self.submitted
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._prepare_all(), name="preparing windows"),
                asyncio.create_task(self._look_at_all(), name="looking at windows"),
            ]
        size = size_of(media)
        self._waiting.append(_Window(media, self._clock(), size, self.submitted))
        self._bytes += size
        while len(self._waiting) > MOST_WAITING or (
            self._bytes > MOST_WAITING_BYTES and len(self._waiting) > 1
        ):
            self._bytes -= self._waiting.popleft().size
            self._coalesced += 1
        self._more.set()
        return self.submitted

    @property
    def done(self) -> int:
        """Serial of the last window that is finished with, as are all before it."""
        open_ = [serial for serial in (self._looking, self._preparing) if serial is not None]
        if self._ready is not None:
            open_.append(self._ready.first)
        if self._waiting:
            open_.append(self._waiting[0].serial)
        return min(open_) - 1 if open_ else self.submitted

    async def settled(self, serial: int) -> None:
        """Wait until that window is finished with; at once when this is closed."""
        if self._closed or self.done >= serial:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((serial, waiter))
        try:
            await waiter
        finally:
            self._waiters = [(s, w) for s, w in self._waiters if w is not waiter]

    async def close(self) -> None:
        """Stop and forget everything. Does not wait for what the eye or a thread is doing."""
        self._closed = True
        self._eye.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._waiting.clear()
        self._bytes = 0
        self._ready = self._looking = self._preparing = None
        self._release_waiters()
        # a thread may still have the stream: it is closed behind it
        if self._job is not None and not self._job.done():
            self._job.add_done_callback(lambda _: self._stream.close())
        else:
            self._stream.close()

    # --- its tasks ----------------------------------------------------------------------------------

    async def _prepare_all(self) -> None:
        while True:
            while self._waiting:
                await self._prepare(self._waiting.popleft())
            self._more.clear()
            await self._more.wait()

    async def _prepare(self, window: _Window) -> None:
        self._bytes -= window.size
        self._preparing = window.serial
        try:
            media = window.media
            if media is None:
                self._job = self._pool.submit(self._stream.finish)
            else:
                self._job = self._pool.submit(self._stream.prepare, media)
            segments = await asyncio.wrap_future(self._job)
        except DuplexError as error:
            self._tell(InputRejected(code=error.code, message=error.message))
        except Exception:
            log.exception("a window broke its preparation")
            words = "the window broke its preparation"
            self._tell(InputRejected(code=ErrorCode.INVALID_MEDIA, message=words))
        else:
            if segments:
                self._offer(segments, window)
        self._preparing = None
        self._release_waiters()

    def _offer(self, segments: Sequence[VisualInput], window: _Window) -> None:
        """The newest window's segments take the place of what waits, but for the end of the input: what was
        held back till then is no newer window."""
        waits = self._ready
        if waits is None:
            self._ready = _Ready(deque(segments), window.arrived, window.serial)
        elif window.media is None:
            waits.segments.extend(segments)
        else:
            merged = waits.merged + 1
            self._ready = _Ready(deque(segments), window.arrived, waits.first, merged)
        self._look_more.set()

    async def _look_at_all(self) -> None:
        while True:
            while (ready := self._ready) is not None:
                await self._look(ready)
            self._look_more.clear()
            await self._look_more.wait()

    async def _look(self, ready: _Ready) -> None:
        self._looking = ready.first
        segment = ready.segments.popleft()
        if not ready.segments:
            self._ready = None
        self._coalesced += ready.merged
        ready.merged = 0
        try:
            glance = await self._eye.look(segment)
        except DuplexError as error:
            words = f"a window was lost: {error.message}"
            self._tell(InputRejected(code=error.code, message=words))
        except Exception:
            log.exception("a window broke the eye")
            words = "a window was lost: it broke the eye"
            self._tell(InputRejected(code=ErrorCode.ADAPTER_FAILED, message=words))
        else:
            lag_ms = (self._clock() - ready.arrived) * 1000
            if glance is None:
                self._coalesced += 1
            else:
                self._seen(glance)
            self._tell(InputLag(lag_ms=max(0.0, lag_ms), coalesced=self._coalesced))
            self._coalesced = 0
        self._looking = None
        self._release_waiters()

    def _release_waiters(self) -> None:
        done = self.submitted if self._closed else self.done
        for serial, waiter in self._waiters:
            if serial <= done and not waiter.done():
                waiter.set_result(None)


def size_of(media: Media | None) -> int:
    """Bytes of a window's media, about."""
    if isinstance(media, VideoWindow):
        return len(media.data) + sum(map(len, media.frames))
    if isinstance(media, ImageWindow):
        return len(media.data)
    return 4096 if isinstance(media, CodecWindow) else 0
