"""How many frames go into one decode.

The first chunk is small, so that audio starts at once. Later ones double: a chunk may have as many frames as
the client has in its buffer, because even if the frames came only as fast as they are played, the buffer
would last until the chunk is there. Whatever is there is decoded when the buffer falls to the reserve, and
when no further frame can come.
"""

from __future__ import annotations

from collections.abc import Sequence


def largest(sizes: Sequence[int], frames: int) -> int:
    """The largest decode size that so many frames fill. `sizes` ascend from 1; at least 1 frame.

    A rest is decoded by repeating this: largest sizes first, down to 1.
    """
    best = sizes[0]
    for size in sizes:
        if size > frames:
            break
        best = size
    return best


def chunk(
    ready: int,
    sizes: Sequence[int],
    *,
    wanted: int,
    buffer_ms: float,
    reserve_ms: float,
    no_more: bool,
) -> int:
    """Frames to decode now, 0: wait for more.

    Args:
        ready: frames that are there.
        sizes: what one decode can take, ascending from 1.
        wanted: frames to gather.
        buffer_ms: what the client has to play.
        reserve_ms: a buffer that gathers no longer.
        no_more: no further frame comes soon: the stream is finished, or waits for text or credit.
    """
    if not ready:
        return 0
    if no_more or buffer_ms <= reserve_ms or ready >= wanted:
        return largest(sizes, ready)
    return 0


def affordable(buffer_ms: float, frame_ms: float, sizes: Sequence[int]) -> int:
    """The largest decode size that can be gathered while the client plays what it has; at least 1 frame."""
    return largest(sizes, int(buffer_ms / frame_ms))
