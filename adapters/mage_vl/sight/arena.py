"""The memory that gateway and worker share: an anonymous file, mapped by both.

It is divided into slots, one a batch; a slot has a region for pixels, one for positions and one for tokens.
In each region the windows of the batch follow one another, so their number and shapes say where they are.
The file has no name: it is gone with the last process that has it, however that ends.

The file is made by the gateway and inherited by each of the worker's lives; the worker, which knows the
model's sizes, makes it as large as needed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

PATCH_PIXELS: Final = 16 * 16 * 3
"""Bytes of a patch's pixels, uint8 RGB."""
PATCH_POSITION: Final = 3 * 4
"""Bytes of a patch's position, int32 (frame, row, column)."""
_ALIGN: Final = 4096


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """Size of a window: `images` of `rows` × `columns` patches, both even. Four patches are one token."""

    images: int
    rows: int
    columns: int

    @property
    def patches(self) -> int:
        return self.images * self.rows * self.columns

    @property
    def tokens_per_image(self) -> int:
        return self.rows * self.columns // 4


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How an arena is divided.

    `slots` batches; `patches` a batch at most; `token_bytes`: bytes of one visual token.
    """

    slots: int
    patches: int
    token_bytes: int

    @property
    def regions(self) -> tuple[int, int, int]:
        """Bytes of a slot's pixels, positions and tokens."""
        return (
            _aligned(self.patches * PATCH_PIXELS),
            _aligned(self.patches * PATCH_POSITION),
            _aligned(self.patches // 4 * self.token_bytes),
        )

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.slots * sum(self.regions)


class Arena:
    """One process's mapping of the file. Arrays of it stay valid as long as anyone holds them.

    Raises:
        OSError: there is not enough address space, or the file is smaller than the layout.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout = layout
        self._map = mmap.mmap(fd, layout.size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        """All of it, shape (`layout.size`,)."""

    def pixels(self, slot: int, shapes: Sequence[Shape]) -> list[NDArray[np.uint8]]:
        """Images of each window, shape (n, H, W, 3)."""
        parts = self._parts(slot, 0, [shape.patches * PATCH_PIXELS for shape in shapes])
        return [
            part.reshape(shape.images, shape.rows * 16, shape.columns * 16, 3)
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def positions(self, slot: int, shapes: Sequence[Shape]) -> list[NDArray[np.int32]]:
        """Positions of each window's patches, shape (n, H // 16, W // 16, 3)."""
        parts = self._parts(slot, 1, [shape.patches * PATCH_POSITION for shape in shapes])
        return [
            part.view(np.int32).reshape(shape.images, shape.rows, shape.columns, 3)
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def tokens(self, slot: int, shapes: Sequence[Shape]) -> list[NDArray[np.uint8]]:
        """Bytes of each window's visual tokens, shape (n, P, `token_bytes`)."""
        width = self.layout.token_bytes
        parts = self._parts(slot, 2, [shape.patches // 4 * width for shape in shapes])
        return [
            part.reshape(shape.images, shape.tokens_per_image, width)
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def _parts(self, slot: int, region: int, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        regions = self.layout.regions
        if not 0 <= slot < self.layout.slots or sum(sizes) > regions[region]:
            raise ValueError(f"{sum(sizes)} bytes in slot {slot} of {self.layout}")
        begin = slot * sum(regions) + sum(regions[:region])
        parts: list[NDArray[np.uint8]] = []
        for size in sizes:
            parts.append(self.bytes[begin : begin + size])
            begin += size
        return parts


def make_file(label: str = "duplex-sight") -> int:
    """An empty file without a name, in memory where the platform can; `label` is shown in the maps of those
    that have it.

    Returns:
        Its descriptor, the caller's to close.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def grow_file(fd: int, layout: Layout) -> None:
    """Make it large enough. It never shrinks: the other side may still read."""
    if os.fstat(fd).st_size < layout.size:
        os.ftruncate(fd, layout.size)


def token_array(part: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Tokens' bytes as numbers, shape (n, P, hidden): float32, or the bits of bfloat16 as uint16."""
    return part.view(np.float32 if dtype == "float32" else np.uint16)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
