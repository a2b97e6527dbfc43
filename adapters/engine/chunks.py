"""How many frames go into one decode.

The first chunk is small, so that audio starts at once. Later ones double: a chunk may have as many frames as
the client has in its buffer, because even if the frames came only as fast as they are played, the buffer
would last until the chunk is there. Whatever is there is decoded when the buffer falls to the reserve, and
when no further frame can come.
"""

from __future__ import annotations

from collections.abc import Sequence


class Chunks:
    """The rule for a model's decode sizes, in frames, which ascend from 1."""

    def __init__(self, sizes: Sequence[int], frame_ms: float) -> None:
        self._frame_ms = frame_ms
        self._most = sizes[-1]
        self._fits = [
            max((size for size in sizes if size <= n), default=sizes[0]) for n in range(self._most + 1)
        ]

    def largest(self, frames: int) -> int:
        """The largest decode that so many frames fill, at least 1. A rest is decoded by repeating this."""
        return self._fits[min(frames, self._most)]

    def wanted(self, buffer_ms: float) -> int:
        """The largest decode that can be gathered while the client plays what it has, at least 1 frame."""
        return self.largest(int(buffer_ms / self._frame_ms))
