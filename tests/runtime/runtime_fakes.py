"""A clock that a test moves, and a socket without a network."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from duplex.core.events import Event, ResponseAudio, ResponseText
from duplex.core.types import AudioFormat
from duplex.dialects.base import Frame, OpenRequest


class ManualCall:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Time stands still until `advance`; calls come due in their order."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._calls: list[tuple[float, int, ManualCall]] = []
        self._number = itertools.count()

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], object]) -> ManualCall:
        call = ManualCall(callback)
        heapq.heappush(self._calls, (when, next(self._number), call))
        return call

    @property
    def pending(self) -> int:
        """Calls that are to come."""
        return sum(1 for _, _, call in self._calls if call.callback is not None)

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while self._calls and self._calls[0][0] <= end:
            when, _, call = heapq.heappop(self._calls)
            self.time = max(self.time, when)
            if call.callback is not None:
                callback, call.callback = call.callback, None
                callback()
        self.time = end


class FakeSocket:
    """Takes frames while it is open; the test blocks it."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.closed: tuple[int, str] | None = None
        self.blocked = False
        self.takes: int | None = None
        """Frames after which it blocks by itself."""
        self._on_blocked: Callable[[], None] = lambda: None
        self._on_writable: Callable[[], None] = lambda: None

    @property
    def can_write(self) -> bool:
        return not self.blocked and self.closed is None

    def watch(self, on_blocked: Callable[[], None], on_writable: Callable[[], None]) -> None:
        self._on_blocked, self._on_writable = on_blocked, on_writable

    def write(self, frame: Frame) -> None:
        assert self.closed is None
        self.frames.append(frame)
        if self.takes is not None:
            self.takes -= 1
            if self.takes == 0:
                self.block()

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = (code, reason)

    def block(self) -> None:
        self.blocked = True
        self._on_blocked()

    def unblock(self) -> None:
        self.blocked = False
        self.takes = None
        self._on_writable()


class PlainDialect:
    """Frames that a test can read: the event's class, its response's index, its payload's size or text."""

    resumable = False

    def open(self, query: object, headers: object) -> OpenRequest:
        return OpenRequest()

    def decode(self, frame: Frame) -> list[object]:
        return []

    def encode(self, event: Event) -> list[Frame]:
        match event:
            case ResponseAudio():
                return [f"audio {event.index} {event.pts}"]
            case ResponseText():
                return [f"text {event.index} {event.text}"]
            case _:
                return [type(event).__name__]


def audio(index: int, pts: int, ms: float = 20, size: int = 960) -> ResponseAudio:
    return ResponseAudio(
        response_id=f"r{index}",
        index=index,
        payload=bytes(size),
        format=AudioFormat(),
        pts=pts,
        duration_ms=ms,
    )


def text(index: int, words: str) -> ResponseText:
    return ResponseText(response_id=f"r{index}", index=index, text=words)
