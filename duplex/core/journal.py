"""What was sent to a client that may come back for it: numbered messages, for a while.

A message gets its number when it is written, and is kept until it is too old or too much is kept. Sound that
was cut is taken out at once: whatever a client missed of it, it never gets. Pure: the clock is told.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from duplex.core.commands import TruncateResponse
from duplex.core.events import Acknowledged, Event, PlaybackCleared, ResponseCancelled


class Entry:
    """One message that was written. `sound_of`: the response whose sound it is, 0 for all else."""

    __slots__ = ("at", "duration_ms", "frame", "seq", "sound_of", "void")

    def __init__(self, seq: int, frame: str | bytes, at: float, sound_of: int, duration_ms: float) -> None:
        self.seq = seq
        self.frame = frame
        self.at = at
        self.sound_of = sound_of
        self.duration_ms = duration_ms
        self.void = False
        """It was cut, and is not to be written any more."""


class Missed(NamedTuple):
    """What a client has not got. `lost`: messages that are not kept any more; `since`: when the first of the
    sound in `entries` was written (seconds), None without any; `sound_ms`: how much that is."""

    entries: list[Entry]
    lost: int
    since: float | None
    sound_ms: float


class Journal:
    """The last messages of one session, over all its connections.

    Args:
        max_bytes: of the messages that are kept.
        max_s: age at which a message is dropped (seconds).
    """

    def __init__(self, *, max_bytes: int, max_s: float) -> None:
        self.bytes = 0
        """Of the messages that are kept."""
        self.last = 0
        """Number of the newest message; 0 before the first."""
        self._max_bytes = max_bytes
        self._max_s = max_s
        self._entries: deque[Entry] = deque()
        self._dropped = 0
        """Number of the newest message that was dropped for its age or its size."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, frame: str | bytes, now: float, *, sound_of: int = 0, duration_ms: float = 0.0
    ) -> str | bytes:
        """Number a message that is written now, and keep it. Returns it as it goes out: a JSON object gets
        the key `seq`, a binary message has no place for one and counts all the same."""
        self.last += 1
        if isinstance(frame, str):
            frame = f'{frame[:-1]},"seq":{self.last}}}'
        self._entries.append(Entry(self.last, frame, now, sound_of, duration_ms))
        self.bytes += len(frame)
        self._trim(now)
        return frame

    def note(self, event: Event) -> None:
        """The client is to be told this: sound that it cuts is out from now on."""
        match event:
            case ResponseCancelled() | PlaybackCleared():
                self.void(event.index)
            case Acknowledged(command=TruncateResponse(response_index=index)):
                self.void(index)
            case _:
                pass

    def void(self, index: int | None = None) -> None:
        """Take out the sound of a response, or of all."""
        kept: deque[Entry] = deque()
        for entry in self._entries:
            if entry.sound_of and index in (None, entry.sound_of):
                entry.void = True
                self.bytes -= len(entry.frame)
            else:
                kept.append(entry)
        self._entries = kept

    def missed(self, last_seq: int, now: float) -> Missed:
        """What came after the message of that number."""
        self._trim(now)
        entries = [entry for entry in self._entries if entry.seq > last_seq]
        sound = [entry for entry in entries if entry.sound_of]
        return Missed(
            entries=entries,
            lost=max(0, self._dropped - last_seq),
            since=sound[0].at if sound else None,
            sound_ms=sum(entry.duration_ms for entry in sound),
        )

    def _trim(self, now: float) -> None:
        entries = self._entries
        oldest = now - self._max_s
        while entries and (entries[0].at < oldest or self.bytes > self._max_bytes):
            entry = entries.popleft()
            self.bytes -= len(entry.frame)
            self._dropped = entry.seq
