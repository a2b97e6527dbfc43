"""Brings a client's side information together with the window that it is about.

Both carry the same `segment_id` and may come in either order. Sans I/O: the caller gives the time and asks
when to come back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from duplex.adapters.mage_vl.windows.source import Visible
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, VideoWindow

WAIT_S: Final = 0.25
"""How long a window waits for its side information, where the session sends such."""
KEEP_S: Final = 5.0
"""How long side information waits for its window."""
MOST_WAITING: Final = 8
"""Windows, and pieces of side information, that wait; the oldest goes on its way beyond that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A window that is ready, in the order in which they came. `codec` None: nothing was said of it."""

    window: Visible
    codec: CodecWindow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Side information without a window: it is not used, and why."""

    codec: CodecWindow
    error: DuplexError


Ready: TypeAlias = Paired | Alone


@dataclass(frozen=True, slots=True)
class _Waiting:
    pair: Paired
    until: float


class Pairing:
    """Pairs the windows of one session. Times are seconds of a monotonic clock.

    A window waits only where side information is likely: it has a `segment_id`, and the session's last such
    window had side information, or it is the first.

    Args:
        wait_s: How long a window waits; 0: side information has to come before its window.
        keep_s: How long side information waits.
    """

    def __init__(self, *, wait_s: float = WAIT_S, keep_s: float = KEEP_S) -> None:
        self._wait_s, self._keep_s = wait_s, keep_s
        self._windows: deque[_Waiting] = deque()
        self._codecs: dict[str, tuple[CodecWindow, float]] = {}
        self._gone: deque[str] = deque(maxlen=2 * MOST_WAITING)  # segments that went on their way alone
        self._expects = True

    @property
    def deadline(self) -> float | None:
        """When `due` has something to give if nothing comes before; None: never."""
        times = [waiting.until for waiting in self._windows]
        times += [until for _, until in self._codecs.values()]
        return min(times, default=None)

    def put(self, window: Visible | CodecWindow, now: float) -> list[Ready]:
        """Take a window, or side information; what is ready by that."""
        if isinstance(window, CodecWindow):
            return [*self.due(now), *self._put_codec(window, now)]
        return [*self.due(now), *self._put_window(window, now)]

    def due(self, now: float) -> list[Ready]:
        """What has waited long enough. At infinity, when the input ends, that is all."""
        ready: list[Ready] = []
        if any(waiting.until <= now and waiting.pair.codec is None for waiting in self._windows):
            self._expects = False
            ready += self._release(now)
        for segment in [s for s, (_, until) in self._codecs.items() if until <= now]:
            codec, _ = self._codecs.pop(segment)
            ready.append(_alone(codec, f"no window of the segment {segment!r} came"))
        return ready

    def _put_codec(self, codec: CodecWindow, now: float) -> list[Ready]:
        segment = codec.segment_id
        if not segment:
            return [_alone(codec, "it needs the segment_id of a video window")]
        self._expects = True
        for at, waiting in enumerate(self._windows):
            if _segment(waiting.pair.window) == segment and waiting.pair.codec is None:
                self._windows[at] = replace(waiting, pair=Paired(window=waiting.pair.window, codec=codec))
                return self._release(now)
        if segment in self._gone:
            self._gone.remove(segment)
            return [_alone(codec, f"the window of the segment {segment!r} did not wait so long for it")]
        ready: list[Ready] = []
        if segment in self._codecs:
            ready.append(_alone(self._codecs.pop(segment)[0], f"another came for the segment {segment!r}"))
        self._codecs[segment] = (codec, now + self._keep_s)
        if len(self._codecs) > MOST_WAITING:
            oldest = next(iter(self._codecs))
            ready.append(_alone(self._codecs.pop(oldest)[0], f"no window of the segment {oldest!r} came"))
        return ready

    def _put_window(self, window: Visible, now: float) -> list[Ready]:
        segment = _segment(window)
        codec, _ = self._codecs.pop(segment, (None, 0.0)) if segment else (None, 0.0)
        waits = bool(segment) and codec is None and self._expects
        until = now + self._wait_s if waits else now
        self._windows.append(_Waiting(Paired(window=window, codec=codec), until))
        return self._release(now)

    def _release(self, now: float) -> list[Ready]:
        """Windows from the front that have what they wait for, or have waited."""
        ready: list[Ready] = []
        while self._windows:
            first = self._windows[0]
            full = len(self._windows) > MOST_WAITING
            if first.pair.codec is None and first.until > now and self._expects and not full:
                break
            pair = self._windows.popleft().pair
            if pair.codec is None and (segment := _segment(pair.window)):
                self._gone.append(segment)
            ready.append(pair)
        return ready


def _segment(window: Visible) -> str:
    return window.segment_id if isinstance(window, VideoWindow) else ""


def _alone(codec: CodecWindow, why: str) -> Alone:
    words = f"the codec window was not used: {why}"
    return Alone(codec=codec, error=DuplexError(ErrorCode.INVALID_VALUE, words, param="data.segment_id"))
