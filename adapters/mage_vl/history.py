"""What a session has seen, and how much of it a prompt has room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duplex.adapters.mage_vl.ports import Draft, Glance, Picture
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import HistoryItem


class History:
    """The last windows, oldest first, bounded in number and in bytes; the newest is always kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._glances: deque[Glance] = deque()
        self.size = 0
        """Bytes that are held."""
        self.count = 0
        """Windows that were ever added."""

    def __len__(self) -> int:
        return len(self._glances)

    def add(self, glance: Glance) -> None:
        """A window was seen."""
        self._glances.append(glance)
        self.count += 1
        self.size += glance.size
        while len(self._glances) > 1 and (len(self._glances) > self._most or self.size > self._most_bytes):
            self.size -= self._glances.popleft().size

    def last(self, count: int) -> tuple[Glance, ...]:
        """At most `count` windows."""
        return tuple(self._glances)[-count:] if count > 0 else ()

    def clear(self) -> None:
        self._glances.clear()
        self.size = 0


class Slide:
    """Which windows a kind of prompt shows: at most `most`. When there would be more, the oldest half goes at
    once, so that the next prompts begin alike and the engine need not read their beginning again."""

    def __init__(self, history: History, most: int) -> None:
        self._history = history
        self._most = most
        self._start = 0

    def windows(self) -> tuple[Glance, ...]:
        """The windows of the next prompt, oldest first."""
        count = self._history.count
        if count - self._start > self._most:
            self._start = count - (self._most + 2) // 2
        return self._history.last(count - self._start)

    def leave(self, windows: int) -> None:
        """So many of the last prompt's windows had no room in it: they are left behind for good."""
        if windows:
            shown = min(self._history.count - self._start, len(self._history))
            self._start = self._history.count - shown + windows


class Fitted(NamedTuple):
    """A prompt that fits. `left_out`: windows that had to go for it."""

    draft: Draft
    left_out: int


def fit(
    draft: Callable[[Sequence[Picture], Sequence[HistoryItem]], Draft],
    glances: Sequence[Glance],
    said: Sequence[HistoryItem],
    room: int | None,
) -> Fitted:
    """The longest prompt of at most `room` tokens (None: any length): the window slides.

    The oldest windows go first, then what was said, oldest first, then the oldest images of the last window;
    one image stays.

    Raises:
        DuplexError: `INPUT_OVERFLOW`: not even that fits.
    """
    windows = [glance.pictures for glance in glances]
    words = list(said)
    left_out = 0
    while True:
        made = draft([picture for pictures in windows for picture in pictures], words)
        over = 0 if room is None else made.tokens - room
        if over <= 0:
            return Fitted(made, left_out)
        if len(windows) > 1:
            windows.pop(0)
            left_out += 1
        elif words:
            del words[: (len(words) + 1) // 2]
        elif windows and len(windows[0]) > 1:
            windows[0] = windows[0][_spare(windows[0], over) :]
        else:
            what = "the question" if not windows else "the question and one image"
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW,
                f"{what} take {made.tokens} tokens, {room} is all that the model has room for",
            )


def _spare(pictures: Sequence[Picture], over: int) -> int:
    """How many of the first pictures make up for `over` tokens, leaving one."""
    spared = 0
    for count, picture in enumerate(pictures[:-1], 1):
        spared += picture.tokens
        if spared >= over:
            return count
    return len(pictures) - 1
