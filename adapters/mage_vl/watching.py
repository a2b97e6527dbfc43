"""One session's input: windows are prepared and looked at, one at a time, and the newest one wins.

Nothing here waits for the model but its own two tasks. While a segment is being looked at, at most the newest
one of the video waits; older ones are given up for it, and told as coalesced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import msgspec

from duplex.adapters.mage_vl.ports import Eye, Glance, Media, Stream
from duplex.adapters.mage_vl.windows.pairing import Alone, Paired, Pairing
from duplex.adapters.mage_vl.windows.side_information import KEYS
from duplex.adapters.mage_vl.windows.source import Visible
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.adapters.waiting import needed, window_size
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, ImageWindow, InputLag, InputRejected, Signal, VideoWindow

log = logging.getLogger("duplex.adapters.mage_vl")

MOST_WAITING: Final = 64
"""Windows that may wait to be prepared."""
MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
MOST_STILLS: Final = 8
"""Lone images that may wait to be looked at: a newer one is no substitute for an older."""


@dataclass(slots=True)
class _Window:
    media: Visible | None  # None: the input ends, give out what is held back
    arrived: float
    serial: int
    codec: CodecWindow | None = None
    may_go_on: bool = False  # the end was only taken for one: what comes next may need its key frame

    @property
    def size(self) -> int:
        return window_size(self.media) + window_size(self.codec)


@dataclass(slots=True)
class _Ready:
    """A segment that waits to be looked at. `first`: serial of the oldest window that it stands for;
    `merged`: windows that were given up for it; `image`: it is a lone image; `still`: one without a time."""

    segment: VisualInput
    arrived: float
    first: int
    image: bool
    still: bool
    merged: int = 0


class Watching:
    """The input side of a session.

    Args:
        stream, pairing, eye: its own.
        seen: called on the loop with each segment that was looked at.
        tell: called on the loop with lag and refused windows.
    """

    def __init__(
        self,
        stream: Stream,
        pairing: Pairing | None,
        eye: Eye,
        *,
        seen: Callable[[Glance], None],
        tell: Callable[[Signal], None],
    ) -> None:
        self._stream, self._pairing, self._eye = stream, pairing, eye
        self._seen, self._tell = seen, tell
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._unpaired: dict[int, _Window] = {}  # by the identity of their media
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[_Window] = deque()
        self._bytes = 0
        self._dropped = False
        self._cut = False  # a dropped window may have had the key frame that the next ones need
        self._ready: deque[_Ready] = deque()
        self._open: set[int] = set()  # serials of windows that are being prepared or looked at
        self._coalesced = 0
        self.submitted = 0
        """Serial of the last window that was taken."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.held = False
        """The last window showed nothing yet: its frames come with the next, or at the end of the input."""
        self._more, self._look_more, self._came = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    # --- the session's side: never waits ------------------------------------------------------------

    def submit(self, media: Media | None, *, may_go_on: bool = False) -> int:
        """Queue a window; returns its serial. None: the input ends, for now; `may_go_on`: as far as one can
        tell, and windows that go on with the stream nevertheless are no fault of the client."""
        self.submitted += 1
        self._came.set()
        if self._closed:
            return self.submitted
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._prepare_all(), name="preparing windows"),
                asyncio.create_task(self._look_at_all(), name="looking at windows"),
            ]
        now = self._clock()
        media = None if media is None else needed(media, KEYS)
        if media is None:
            self._take(self._pairing.due(inf) if self._pairing is not None else ())
            self._queue(_Window(None, now, self.submitted, may_go_on=may_go_on))
        elif self._pairing is None:
            assert not isinstance(media, CodecWindow)
            self._queue(_Window(media, now, self.submitted))
        else:
            if not isinstance(media, CodecWindow):
                self._unpaired[id(media)] = _Window(media, now, self.submitted)
            self._take(self._pairing.put(media, now))
        return self.submitted

    @property
    def done(self) -> int:
        """Serial of the last window that is finished with, as are all before it."""
        unfinished = {window.serial for window in self._unpaired.values()} | self._open
        unfinished |= {ready.first for ready in self._ready}
        unfinished |= {window.serial for window in self._waiting}
        return min(unfinished) - 1 if unfinished else self.submitted

    async def settled(self, serial: int) -> None:
        """Wait until that window is finished with; at once when this is closed."""
        if self._closed or self.done >= serial:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((serial, waiter))
        try:
            await waiter
        finally:
            self._waiters = [(s, w) for s, w in self._waiters if w is not waiter]

    async def rests(self, rest_s: float) -> bool:
        """Wait for the next window so long; whether none came."""
        self._came.clear()
        try:
            async with asyncio.timeout(rest_s):
                await self._came.wait()
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Stop and forget everything. Does not wait for what is being prepared or looked at."""
        self._closed, self.held = True, False
        self._eye.close()
        self._stream.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._waiting.clear()
        self._unpaired.clear()
        self._ready.clear()
        self._open.clear()
        self._bytes = 0
        self._release_waiters()

    # --- on the way ---------------------------------------------------------------------------------

    def _take(self, pairs: Sequence[Paired | Alone]) -> None:
        """What has found its side information, or waited long enough for it."""
        for pair in pairs:
            if isinstance(pair, Alone):
                self._tell(InputRejected.of(pair.error))
            elif (window := self._unpaired.pop(id(pair.window), None)) is not None:
                window.codec = pair.codec
                self._queue(window)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pairing is not None and (deadline := self._pairing.deadline) is not None:
            self._timer = self._loop.call_at(deadline, self._due)
        self._release_waiters()

    def _due(self) -> None:
        assert self._pairing is not None
        self._take(self._pairing.due(self._clock()))

    def _queue(self, window: _Window) -> None:
        self._waiting.append(window)
        self._bytes += window.size
        while window.media is not None and (
            len(self._waiting) > MOST_WAITING or (self._bytes > MOST_WAITING_BYTES and len(self._waiting) > 1)
        ):
            self._bytes -= self._waiting.popleft().size
            self._dropped = True
            self._coalesced += 1
        self._more.set()

    # --- its tasks ----------------------------------------------------------------------------------

    async def _prepare_all(self) -> None:
        while True:
            while self._waiting:
                window = self._waiting.popleft()
                self._bytes -= window.size
                self._open.add(window.serial)
                await self._prepare(window)
                self._open.discard(window.serial)
                self._release_waiters()
            self._more.clear()
            await self._more.wait()

    async def _prepare(self, window: _Window) -> None:
        stream, media = self._stream, window.media
        if self._dropped:
            self._dropped, self._cut = False, True
            stream.reset()
        self.held = False
        try:
            segment = await (stream.finish() if media is None else stream.see(media, window.codec))
        except DuplexError as error:
            if self._cut and error.code is ErrorCode.INVALID_MEDIA and _is_stream(media):
                self._coalesced += 1  # given up with the one before it, and no fault of the client
            else:
                self._tell(InputRejected.of(error))
        except Exception:
            log.exception("a window broke its preparation")
            words = "the window broke its preparation"
            self._tell(InputRejected(code=ErrorCode.INVALID_MEDIA, message=words))
        else:
            self._cut = (self._cut and not _is_stream(media)) or window.may_go_on
            self.held = segment is None and _is_stream(media)
            if segment is not None:
                self._offer(segment, window)

    def _offer(self, segment: VisualInput, window: _Window) -> None:
        """The newest segment of the video takes the place of one that waits; but what was held back until the
        end of the input is no newer window."""
        media = window.media
        image = isinstance(media, ImageWindow)
        still = isinstance(media, ImageWindow) and media.pts_ms is None
        ready = _Ready(segment, window.arrived, window.serial, image, still)
        old: _Ready | None = None
        if image:
            images = [waits for waits in self._ready if waits.image]
            old = images[0] if len(images) == MOST_STILLS else None
        elif media is not None:
            old = next((waits for waits in self._ready if not waits.image), None)
        if old is not None:
            self._ready.remove(old)
            ready.first, ready.merged = old.first, old.merged + 1
        self._ready.append(ready)
        self._look_more.set()

    async def _look_at_all(self) -> None:
        while True:
            while self._ready:
                ready = self._ready.popleft()
                self._coalesced += ready.merged
                self._open.add(ready.first)
                await self._look(ready)
                self._open.discard(ready.first)
                self._release_waiters()
            self._look_more.clear()
            await self._look_more.wait()

    async def _look(self, ready: _Ready) -> None:
        try:
            glance = await self._eye.look(ready.segment)
        except DuplexError as error:
            self._lost(error.code, error.message)
        except Exception:
            log.exception("a window broke the eye")
            self._lost(ErrorCode.ADAPTER_FAILED, "it broke the eye")
        else:
            if glance is None:
                self._coalesced += 1
            else:
                self._seen(timeless(glance) if ready.still else glance)
            lag_ms = max(0.0, (self._clock() - ready.arrived) * 1000)
            self._tell(InputLag(lag_ms=lag_ms, coalesced=self._coalesced))
            self._coalesced = 0

    def _lost(self, code: ErrorCode, words: str) -> None:
        self._tell(InputRejected(code=code, message=f"a window was lost: {words}"))

    def _release_waiters(self) -> None:
        if not self._waiters:
            return
        done = self.submitted if self._closed else self.done
        for serial, waiter in self._waiters:
            if serial <= done and not waiter.done():
                waiter.set_result(None)


def _is_stream(media: Media | None) -> bool:
    """It goes on with the stream of the window before it."""
    return isinstance(media, VideoWindow) and not media.frames


def timeless(glance: Glance) -> Glance:
    """A still, which was taken at no time that anybody knows."""
    pictures = tuple(msgspec.structs.replace(picture, time_s=None) for picture in glance.pictures)
    return msgspec.structs.replace(glance, pictures=pictures)
