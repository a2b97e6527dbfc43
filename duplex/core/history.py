"""What a session remembers: the conversation as it was heard, and the last media windows."""

from __future__ import annotations

from collections import deque

import msgspec

from duplex.core.types import CodecWindow, HistoryItem, ImageWindow, VideoWindow, Window

MAX_ITEMS = 64
MAX_CHARACTERS = 64 * 1024
"""Of the whole conversation kept; the oldest items go first. A longer item keeps its beginning."""


class Conversation:
    """Bounded list of who said what. The assistant's items hold only what was heard."""

    def __init__(self) -> None:
        self._items: list[tuple[str, HistoryItem]] = []  # with their ids; an answer has none
        self._spoken = 0

    @property
    def items(self) -> tuple[HistoryItem, ...]:
        """Oldest first."""
        return tuple([item for _, item in self._items])

    def user_said(self, text: str) -> str:
        """Write down what the user said; returns the item's id."""
        self._spoken += 1
        item_id = f"said_{self._spoken}"
        item = HistoryItem(role="user", text=text[:MAX_CHARACTERS])
        self._insert(len(self._items), item_id, item)
        return item_id

    def assistant_said(self, response_index: int, text: str, *, interrupted: bool = False) -> None:
        """Write the item of a response, or replace it by what was heard; nothing heard leaves no item."""
        place = len(self._items)
        for position, (_, old) in enumerate(self._items):
            if old.response_index is None or old.response_index < response_index:
                continue
            place = position
            if old.response_index == response_index:
                del self._items[position]
            break
        if text:
            item = HistoryItem(
                role="assistant",
                text=text[:MAX_CHARACTERS],
                response_index=response_index,
                interrupted=interrupted,
            )
            self._insert(place, "", item)

    def add(self, item_id: str, item: HistoryItem, *, after: str | None = None) -> None:
        """Write any item: at the end, behind the item with the id `after`, or in front when that is ""."""
        place = len(self._items)
        if after is not None:
            ids = [known for known, _ in self._items]
            place = ids.index(after) + 1 if after in ids and after else 0 if not after else place
        if len(item.text) > MAX_CHARACTERS:
            item = msgspec.structs.replace(item, text=item.text[:MAX_CHARACTERS])
        self._insert(place, item_id, item)

    def remove(self, item_id: str) -> None:
        """Strike out the item with that id, if it is still remembered."""
        self._items = [(known, item) for known, item in self._items if not item_id or known != item_id]

    def _insert(self, place: int, item_id: str, item: HistoryItem) -> None:
        items = self._items
        items.insert(place, (item_id, item))
        total = sum(len(i.text) for _, i in items)
        while len(items) > 1 and (len(items) > MAX_ITEMS or total > MAX_CHARACTERS):
            total -= len(items.pop(0)[1].text)


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
        return tuple([window for window, _ in self._windows])

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
        return _weight(window.codec) + _weight(window.metadata)
    return 0


def _weight(value: object, depth: int = 8) -> int:
    """About the bytes of a decoded message. Rows of a list are alike: a few stand for all."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict) and depth:
        return sum(_weight(k, 0) + _weight(v, depth - 1) for k, v in value.items())
    if isinstance(value, list | tuple) and value and depth:
        sample = value[:: len(value) // 16 + 1]
        return 8 * len(value) + len(value) * sum(_weight(v, depth - 1) for v in sample) // len(sample)
    return 8
