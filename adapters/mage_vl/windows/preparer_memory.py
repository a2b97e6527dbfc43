"""The memory that the gateway and a preparer share: an anonymous file, mapped by both, divided into slots.

A window's bytes are put into a slot by the gateway; the preparer copies them out before it begins, and puts
the segment's arrays into the same slot, from which the gateway copies them. Pages are there from their first
use; those of a large window are given back after it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.sight.arena import make_file
from duplex.adapters.mage_vl.windows.preparer_messages import Segment
from duplex.adapters.mage_vl.windows.types import PATCH, VisualInput

SLOT_BYTES: Final = 128 * 1024 * 1024
"""Of address space: a window of 64 MiB with its side information, or a segment (52 MB at most)."""
KEPT_BYTES: Final = 8 * 1024 * 1024
"""Of a slot's memory that stays in use between windows."""


def make_slots(count: int) -> int:
    """A file with so many slots. Returns its descriptor, the caller's to close."""
    fd = make_file("duplex-windows")
    try:
        os.ftruncate(fd, count * SLOT_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Slots:
    """One process's mapping of the file. Its methods copy, and leave the interpreter to others meanwhile.

    Raises:
        OSError: there is not enough address space.
    """

    def __init__(self, fd: int, count: int) -> None:
        self._map = mmap.mmap(fd, count * SLOT_BYTES)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Nobody uses it any more."""
        self._bytes = np.zeros(0, np.uint8)
        self._map.close()

    def put(self, slot: int, parts: Sequence[bytes]) -> None:
        """Copy bytes in, one after the other.

        Raises:
            ValueError: they are more than `SLOT_BYTES`.
        """
        if sum(map(len, parts)) > SLOT_BYTES:
            raise ValueError("more than a slot has room for")
        begin = slot * SLOT_BYTES
        for part in filter(None, parts):
            np.copyto(self._bytes[begin : begin + len(part)], np.frombuffer(part, np.uint8))
            begin += len(part)

    def take(self, slot: int, sizes: Sequence[int]) -> list[bytes]:
        """Copy bytes out."""
        begin = slot * SLOT_BYTES
        parts = []
        for size in sizes:
            parts.append(self._bytes[begin : begin + size].tobytes())
            begin += size
        return parts

    def put_segment(self, slot: int, made: VisualInput) -> Segment:
        """Copy a segment's arrays in."""
        n, height, width, _ = made.images.shape
        segment = Segment(
            images=n,
            height=height,
            width=width,
            frame_times=len(made.frame_times_s),
            segment_id=made.segment_id,
            pts_ms=float(made.pts_ms),
            duration_ms=float(made.duration_ms),
        )
        arrays: tuple[NDArray[Any], ...] = (made.times_s, made.frame_times_s, made.positions, made.images)
        for there, array in zip(self._views(slot, segment), arrays, strict=True):
            np.copyto(there, array)
        return segment

    def take_segment(self, slot: int, segment: Segment) -> VisualInput:
        """Copy a segment out."""
        times, frame_times, positions, images = (view.copy() for view in self._views(slot, segment))
        return VisualInput(
            images=images,
            positions=positions,
            times_s=times,
            frame_times_s=frame_times,
            segment_id=segment.segment_id,
            pts_ms=segment.pts_ms,
            duration_ms=segment.duration_ms,
        )

    def shrink(self, slot: int) -> None:
        """Give back the slot's memory but for the first `KEPT_BYTES`."""
        if hasattr(mmap, "MADV_REMOVE"):  # Linux
            begin = slot * SLOT_BYTES + KEPT_BYTES
            self._map.madvise(mmap.MADV_REMOVE, begin, SLOT_BYTES - KEPT_BYTES)

    def _views(self, slot: int, segment: Segment) -> list[NDArray[Any]]:
        n, height, width = segment.images, segment.height, segment.width
        shapes: tuple[tuple[Any, tuple[int, ...]], ...] = (
            (np.float64, (n,)),
            (np.float64, (segment.frame_times,)),
            (np.int32, (n, height // PATCH, width // PATCH, 3)),
            (np.uint8, (n, height, width, 3)),
        )
        begin, end = slot * SLOT_BYTES, (slot + 1) * SLOT_BYTES
        views = []
        for dtype, shape in shapes:  # the widest first: each begins at a multiple of its own width
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            if begin + size > end:
                raise ValueError("a segment larger than a slot")
            views.append(self._bytes[begin : begin + size].view(dtype).reshape(shape))
            begin += size
        return views


def segment_bytes(segment: Segment) -> int:
    """Bytes of a segment in its slot."""
    patches = segment.images * (segment.height // PATCH) * (segment.width // PATCH)
    return 8 * (segment.images + segment.frame_times) + patches * (3 * 4 + PATCH * PATCH * 3)
