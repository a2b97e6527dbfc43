"""What a session remembers: the conversation as it was heard, and the last media windows."""

from __future__ import annotations

from collections import deque

from duplex.core.types import CodecWindow, HistoryItem, ImageWindow, VideoWindow, Window

MAX_ITEMS = 64
MAX_CHARACTERS = 64 * 1024
"""Of the whole conversation kept; the oldest items go first."""


class Conversation:
    """Bounded list of who said what. The assistant's items hold only what was heard."""

    def __init__(self) -> None:
        self._items: deque[HistoryItem] = deque()

    @property
    def items(self) -> tuple[HistoryItem, ...]:
        return tuple(self._items)

    def user_said(self, text: str) -> None:
        self._add(HistoryItem(role="user", text=text))

    def assistant_said(self, response_index: int, text: str, *, interrupted: bool = False) -> None:
        """Add the item of a response, or replace it by what was heard; nothing heard leaves no item."""
        item = HistoryItem(
            role="assistant", text=text, response_index=response_index, interrupted=interrupted
        )
        for position, old in enumerate(self._items):
            if old.response_index == response_index:
                if text:
                    self._items[position] = item
                else:
                    del self._items[position]
                return
        if text:
            self._add(item)

    def _add(self, item: HistoryItem) -> None:
        self._items.append(item)
        total = sum(len(i.text) for i in self._items)
        while len(self._items) > 1 and (len(self._items) > MAX_ITEMS or total > MAX_CHARACTERS):
            total -= len(self._items.popleft().text)


class RollingWindows:
    """The last media windows, bounded in number and in bytes; the newest is always kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._windows: deque[tuple[Window, int]] = deque()
        self._bytes = 0

    @property
    def items(self) -> tuple[Window, ...]:
        """Oldest first."""
        return tuple(window for window, _ in self._windows)

    def add(self, window: Window) -> None:
        size = _size(window)
        self._windows.append((window, size))
        self._bytes += size
        while len(self._windows) > 1 and (len(self._windows) > self._most or self._bytes > self._most_bytes):
            self._bytes -= self._windows.popleft()[1]

    def clear(self) -> None:
        self._windows.clear()
        self._bytes = 0


def _size(window: Window) -> int:
    if isinstance(window, VideoWindow):
        return len(window.data) + sum(map(len, window.frames))
    if isinstance(window, ImageWindow):
        return len(window.data)
    if isinstance(window, CodecWindow):
        return sum(len(v) if isinstance(v, bytes | str | list) else 8 for v in window.codec.values())
    return 0
