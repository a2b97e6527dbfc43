"""Server-sent events, as servers of language models write them. Sans I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

DONE: Final = b"[DONE]"
"""The event that says that no more come."""
MOST: Final = 1024 * 1024
"""Bytes of a line at most."""


class TooLong(Exception):
    """A line of more than `MOST` bytes."""


class Events:
    """Bytes in, the data of each event out.

    Each `data:` line is one event: these servers write one JSON object a line, and not all of them the empty
    line behind it. Lines end with LF or CR LF only; other line separators of Unicode are text of the model.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events that are complete now.

        Raises:
            TooLong: behind them the server writes no events.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        if len(self._rest) > MOST:
            raise TooLong

    def end(self) -> list[bytes]:
        """The event whose line was not ended, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest[5:].strip()] if rest.startswith(b"data:") else []
