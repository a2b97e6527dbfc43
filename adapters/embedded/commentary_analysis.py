"""One session's windows, analysed in worker threads, one at a time and in order.

Input that comes faster than the analysis is coalesced: while newer windows wait, one is looked at only as
long as it takes to describe a new shot, and one that has waited for `SKIM_AFTER_S` is merely skimmed (decoded
for cuts and motion). The newest window always gets the full look. Beyond the bounds of the queue the oldest
windows are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from duplex.adapters.embedded.codec_windows import KEYS, mean_speed
from duplex.adapters.embedded.events import Event
from duplex.adapters.embedded.objects import ObjectDetector
from duplex.adapters.embedded.onscreen_text import MOST_PIXELS, TextReader
from duplex.adapters.embedded.scene import Care, Scene, View
from duplex.adapters.embedded.tags import Tagger
from duplex.adapters.waiting import needed, window_size
from duplex.codecs.video import VideoFrame, VideoLimits, VideoStream
from duplex.codecs.video_frame import Pixels
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, GateScore, ImageWindow, InputLag, InputRejected, VideoWindow

log = logging.getLogger("duplex.adapters.commentary")

Media: TypeAlias = VideoWindow | ImageWindow | CodecWindow

MAX_WINDOWS: Final = 64
MAX_BYTES: Final = 64 * 1024 * 1024
BRIEF_AFTER_S: Final = 0.8
BRIEF_BEHIND: Final = 2  # newer windows that wait
SKIM_AFTER_S: Final = 1.5
_REPORT_EVERY_S: Final = 1.0
_MOVES_ALONE: Final = 0.45  # the gate's score of motion without an event
_BUSY: Final = 0.3  # share of the picture that moves, from which that is reached
_STRONG_MOTION: Final = 8.0  # pixels a frame, in a codec window: the gate is then at 0.63
_CODEC_REST_MS: Final = 3000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What the sessions share; None where a part is not installed or not wanted."""

    detector: ObjectDetector | None = None
    tagger: Tagger | None = None
    reader: TextReader | None = None


Notice: TypeAlias = Event | GateScore | InputLag | InputRejected


@dataclass(frozen=True, slots=True)
class _Waiting:
    window: Media | None  # None: the input ends, give out what the decoder holds back
    arrived: float
    size: int
    serial: int


class Analysis:
    """The analysis of one session.

    Args:
        models: The detectors.
        workers: Where windows are analysed.
        readers: Where words on the screen are read: slower, so apart.
        notify: Called from a worker with what was noticed, and after each window with nothing.
        limits: Bounds of each window.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        models: Models,
        workers: Executor,
        readers: Executor,
        notify: Callable[[list[Notice]], None],
        *,
        limits: VideoLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models, self._workers, self._readers, self._notify = models, workers, readers, notify
        self._clock = clock
        self._stream = VideoStream(limits)
        self._scene = Scene(
            models.detector, models.tagger, self._ask_text if models.reader is not None else None
        )
        self._view = self._scene.view()
        self._lock = threading.Lock()
        # under the lock
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._running = False
        self._closed = False
        self._dropped = False
        self._submitted = 0
        self._done = 0
        self._coalesced = 0
        self._lines: deque[tuple[tuple[str, ...], int, float]] = deque(maxlen=4)
        self._unread: tuple[Pixels, int, float] | None = None
        # the worker's own
        self._awaits_key = False
        self._reported = -np.inf
        self._first_arrival: float | None = None
        self._codec_quiet_ms = -np.inf

    # --- the session's side: never waits -----------------------------------------------------------

    @property
    def view(self) -> View:
        """What is known now."""
        return self._view

    @property
    def submitted(self) -> int:
        """Number of the last window that was taken."""
        return self._submitted

    @property
    def done(self) -> int:
        """Number of the last window that is finished with."""
        return self._done

    def submit(self, window: Media | None) -> int:
        """Queue a window; returns its number. None: the input ends."""
        window = None if window is None else needed(window, KEYS)
        size = window_size(window)
        with self._lock:
            self._submitted += 1
            if self._closed:
                return self._submitted
            self._queue.append(_Waiting(window, self._clock(), size, self._submitted))
            self._bytes += size
            while len(self._queue) > MAX_WINDOWS or (self._bytes > MAX_BYTES and len(self._queue) > 1):
                self._bytes -= self._queue.popleft().size
                self._dropped = True
                self._coalesced += 1
            self._wake()
            return self._submitted

    def close(self) -> None:
        """Stop at the next frame and forget everything."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._bytes = 0
            self._unread = None

    def _wake(self) -> None:
        if not self._running:
            self._running = True
            self._workers.submit(self._work)

    # --- the worker's side --------------------------------------------------------------------------

    def _work(self) -> None:
        """Analyse one window, then queue up again behind the other sessions."""
        with self._lock:
            lines, dropped = list(self._lines), self._dropped
            self._lines.clear()
            self._dropped = False
            waiting = self._queue.popleft() if self._queue else None
            if waiting is not None:
                self._bytes -= waiting.size
        try:
            self._tell([e for found in lines for e in self._scene.text_found(*found)])
            if waiting is not None:
                if dropped:
                    self._stream.reset()
                    self._scene.gap()
                    self._awaits_key = True
                self._analyse(waiting)
        except Exception:
            log.exception("a window broke the analysis")
            self._stream.reset()
            self._tell([InputRejected(code=ErrorCode.INVALID_MEDIA, message="the window broke the analysis")])
        finally:
            self._view = self._scene.view()
            with self._lock:
                if waiting is not None:
                    self._done = waiting.serial
                self._running = bool((self._queue or self._lines) and not self._closed)
                if self._running:
                    self._workers.submit(self._work)
            self._notify([])

    def _analyse(self, waiting: _Waiting) -> None:
        window = waiting.window
        if isinstance(window, CodecWindow):
            self._gate_codec(window)
            return
        skimmed = False
        busiest = salience = 0.0
        last: VideoFrame | None = None
        frames = 0
        try:
            for frame in self._frames(window, waiting.arrived):
                if self._closed:
                    return
                care = self._care(waiting)
                skimmed = skimmed or care is not Care.FULL
                events = self._scene.watch(frame, care=care)
                self._awaits_key = False
                busiest = max(busiest, self._scene.activity)
                salience = max([salience, *(e.salience for e in events)])
                self._tell(events)
                last, frames = frame, frames + 1
            if last is not None and frames == 1:
                events = self._scene.settle(last)
                salience = max([salience, *(e.salience for e in events)])
                self._tell(events)
        except DuplexError as error:
            if self._awaits_key:  # our own doing: windows were dropped to keep up
                skimmed = True
            else:
                self._tell([InputRejected.of(error)])
        if window is not None:
            gate = max(salience, _MOVES_ALONE * min(1.0, busiest / _BUSY))
            segment = window.segment_id if isinstance(window, VideoWindow) else ""
            self._tell([GateScore(score=round(gate, 3), pts_ms=window.pts_ms, segment_id=segment)])
        self._report_lag(waiting.arrived, skimmed)

    def _care(self, waiting: _Waiting) -> Care:
        behind = len(self._queue)
        if not behind:
            return Care.FULL
        waited = self._clock() - waiting.arrived
        if waited > SKIM_AFTER_S:
            return Care.SKIM
        return Care.BRIEF if waited > BRIEF_AFTER_S or behind >= BRIEF_BEHIND else Care.FULL

    def _frames(self, window: VideoWindow | ImageWindow | None, arrived: float) -> Iterator[VideoFrame]:
        if window is None:
            return self._stream.finish()
        if self._first_arrival is None:
            self._first_arrival = arrived
        if isinstance(window, ImageWindow):
            # pictures without a time were taken when they came
            came = (arrived - self._first_arrival) * 1000
            return self._stream.decode_stills(
                [window.data], pts_ms=came if window.pts_ms is None else window.pts_ms
            )
        at, lasts = window.pts_ms, window.duration_ms
        if window.frames:
            return self._stream.decode_stills(window.frames, pts_ms=at, duration_ms=lasts)
        return self._stream.decode(window.data, window.kind, pts_ms=at, duration_ms=lasts)

    def _tell(self, notices: list[Any]) -> None:
        if notices and not self._closed:
            if any(isinstance(n, Event) for n in notices):
                self._view = self._scene.view()
            self._notify(notices)

    def _report_lag(self, arrived: float, skimmed: bool) -> None:
        now = self._clock()
        with self._lock:
            self._coalesced += skimmed
            if not self._coalesced and now - self._reported < _REPORT_EVERY_S:
                return
            coalesced, self._coalesced = self._coalesced, 0
        self._reported = now
        self._tell([InputLag(lag_ms=round((now - arrived) * 1000, 1), coalesced=coalesced)])

    # --- side information without pixels ------------------------------------------------------------

    def _gate_codec(self, window: CodecWindow) -> None:
        try:
            speed = mean_speed(window.codec)
        except DuplexError as error:
            self._tell([InputRejected.of(error)])
            return
        gate = 1 - float(np.exp(-speed / _STRONG_MOTION))
        at = window.pts_ms if window.pts_ms is not None else self._stream.end_ms
        if window.duration_ms is not None:
            self._stream.end_ms = at + window.duration_ms
        notices: list[Notice] = []
        if gate >= 0.5 and at >= self._codec_quiet_ms:
            notices += self._scene.codec_noticed(at, speed)
        if gate >= 0.5:
            self._codec_quiet_ms = at + _CODEC_REST_MS
        self._tell(
            [*notices, GateScore(score=round(gate, 3), pts_ms=window.pts_ms, segment_id=window.segment_id)]
        )

    # --- words on the screen ------------------------------------------------------------------------

    def _ask_text(self, frame: VideoFrame, shot: int) -> None:
        """Read later, and only the newest picture: a shot that has passed need not be read."""
        pixels = frame.rgb(MOST_PIXELS)
        with self._lock:
            idle = self._unread is None
            self._unread = (pixels, shot, frame.pts_ms)
        if idle:
            self._readers.submit(self._read)

    def _read(self) -> None:
        with self._lock:
            unread, self._unread = self._unread, None
        reader = self._models.reader
        if unread is None or self._closed or reader is None:
            return
        pixels, shot, pts_ms = unread
        try:
            lines = reader.read(pixels)
        except Exception:
            log.exception("words on the screen could not be read")
            return
        with self._lock:
            if not self._closed:
                self._lines.append((lines, shot, pts_ms))
                self._wake()
