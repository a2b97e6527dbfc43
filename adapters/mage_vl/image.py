"""Pixels as the vision encoder takes them: normalised patches in the order of 2x2 blocks, grid and positions.

An image of (H, W), both multiples of 32, has (H/16) x (W/16) patches of 16x16 pixels. Four neighbours become
one token, so patches come block by block: blocks in raster order, and in a block (0, 0), (0, 1), (1, 0),
(1, 1). A patch's 768 numbers are channel by channel, row by row.

The arithmetic is that of the checkpoint's own image processor (Qwen2-VL's, which works with numpy): a byte
times `rescale_factor` in float64, rounded to float32, less the mean, over the deviation. It has 3 x 256
results, which a table holds, so that any device gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.config import ImageConfig
from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    import torch

_LONGEST = 200  # times the short side; the published processor takes no longer images


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patches:
    """Images, ready for the vision encoder.

    Attributes:
        pixels: float32 (N, 768), N patches of all images, in block order.
        grid: int64 (n, 3): of each image 1, rows and columns of patches.
        positions: int64 (N, 3): of each patch (source frame index, row, column).
    """

    pixels: NDArray[np.float32]
    grid: NDArray[np.int64]
    positions: NDArray[np.int64]


class ImageProcessor:
    """Of one checkpoint."""

    def __init__(self, config: ImageConfig) -> None:
        self._config = config
        self._table = pixel_table(config)

    def __call__(self, images: NDArray[np.uint8], positions: NDArray[np.int32] | None = None) -> Patches:
        """`images`: (n, H, W, 3), RGB. `positions`: (n, H/16, W/16, 3) in raster order; None: single images,
        each frame 0 of its own, as the published processor has it.

        Raises:
            DuplexError: `INVALID_MEDIA`: a size that has no whole blocks, or positions of another shape.
        """
        grid = self.grid(images.shape)
        if positions is None:
            positions = np.stack([raster_positions(0, rows, columns) for _, rows, columns in grid])
        elif positions.shape != (len(grid), grid[0][1], grid[0][2], 3):
            raise DuplexError(
                ErrorCode.INVALID_MEDIA,
                f"positions of shape {positions.shape} do not fit images of shape {images.shape}",
                param="positions",
            )
        size, merge = self._config.patch_size, self._config.merge_size
        packed: NDArray[np.uint8] = pack(images, size, merge)
        channels = packed.reshape(len(packed), 3, -1)
        return Patches(
            pixels=self._table[np.arange(3)[:, None], channels].reshape(packed.shape),
            grid=np.asarray(grid, np.int64),
            positions=block_order(positions, merge).astype(np.int64),
        )

    def grid(self, shape: Sequence[int]) -> list[tuple[int, int, int]]:
        """The grid of images of this shape (n, H, W, 3): (1, rows, columns) of patches for each.

        Raises:
            DuplexError: `INVALID_MEDIA`: as above.
        """
        n, height, width, channels = shape
        size, side = self._config.patch_size, self._config.patch_size * self._config.merge_size
        if n < 1 or channels != 3 or min(height, width) < side or height % side or width % side:
            raise DuplexError(
                ErrorCode.INVALID_MEDIA,
                f"{n} images of {width}x{height} pixels and {channels} channels: sides must be multiples of"
                f" {side} pixels, of 3 channels",
                param="images",
            )
        return [(1, height // size, width // size)] * n

    def fit(self, height: int, width: int, *, max_pixels: int | None = None) -> tuple[int, int]:
        """The size, as (height, width) in pixels, that an image is to be resized to (bicubic, as published):
        multiples of 32 with an area from the checkpoint's `min_pixels` to its `max_pixels`, or to the one
        given, with about the same ratio of the sides.

        Raises:
            DuplexError: `INVALID_MEDIA`: empty, or one side over 200 times the other.
        """
        if min(height, width) < 1 or max(height, width) > _LONGEST * min(height, width):
            raise DuplexError(
                ErrorCode.INVALID_MEDIA,
                f"an image of {width}x{height} pixels: one side must be at most {_LONGEST} times the other",
                param="image",
            )
        side = self._config.patch_size * self._config.merge_size
        least, most = self._config.min_pixels, max_pixels or self._config.max_pixels
        fitted = round(height / side) * side, round(width / side) * side
        if fitted[0] * fitted[1] > most:
            shrink = math.sqrt(height * width / most)
            return _pair(max(side, math.floor(edge / shrink / side) * side) for edge in (height, width))
        if fitted[0] * fitted[1] < least:
            grow = math.sqrt(least / (height * width))
            return _pair(math.ceil(edge * grow / side) * side for edge in (height, width))
        return fitted


class DevicePixels:
    """The same on a torch device, without a host's wait: for windows whose bytes lie there already."""

    def __init__(self, config: ImageConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        import torch

        table = torch.from_numpy(pixel_table(config)).to(device=device, dtype=dtype)
        self._config = config
        self._table = table.flatten()
        self._channel = torch.arange(3, device=device).view(1, 3, 1) * 256

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (n, H, W, 3) to pixels (N, 768) of the dtype, in block order; H and W multiples of 32."""
        packed = pack(images, self._config.patch_size, self._config.merge_size)
        channels = packed.view(len(packed), 3, -1).long()
        return self._table.take(channels + self._channel).view(packed.shape)

    def positions(self, positions: torch.Tensor) -> torch.Tensor:
        """(n, H/16, W/16, 3) in raster order to (N, 3) in block order."""
        ordered: torch.Tensor = block_order(positions, self._config.merge_size)
        return ordered


def pixel_table(config: ImageConfig) -> NDArray[np.float32]:
    """(3, 256): what each byte of each channel becomes."""
    rescaled = (np.arange(256, dtype=np.float64) * config.rescale_factor).astype(np.float32)
    mean, deviation = (np.array(each, np.float32) for each in (config.image_mean, config.image_std))
    table: NDArray[np.float32] = (rescaled[None] - mean[:, None]) / deviation[:, None]
    return table


def pack(images: Any, size: int, merge: int) -> Any:
    """(n, H, W, 3) to (N, 3 * size * size) in block order, of a numpy array or a torch tensor."""
    n, height, width, channels = images.shape
    rows, columns = height // (size * merge), width // (size * merge)
    parts = images.reshape(n, rows, merge, size, columns, merge, size, channels)
    order = (0, 1, 4, 2, 5, 7, 3, 6)
    moved = parts.transpose(order) if isinstance(images, np.ndarray) else parts.permute(order)
    return moved.reshape(n * rows * columns * merge * merge, channels * size * size)


def block_order(positions: Any, merge: int) -> Any:
    """(n, rows, columns, 3) in raster order to (N, 3) in block order, of a numpy array or a torch tensor."""
    n, rows, columns, _ = positions.shape
    parts = positions.reshape(n, rows // merge, merge, columns // merge, merge, 3)
    order = (0, 1, 3, 2, 4, 5)
    moved = parts.transpose(order) if isinstance(positions, np.ndarray) else parts.permute(order)
    return moved.reshape(-1, 3)


def raster_positions(frame: int, rows: int, columns: int) -> NDArray[np.int32]:
    """(rows, columns, 3): the positions of a whole frame's patches."""
    return np.stack(
        np.broadcast_arrays(np.int32(frame), *np.indices((rows, columns), dtype=np.int32)), axis=-1
    ).astype(np.int32)


def _pair(edges: Any) -> tuple[int, int]:
    first, second = edges
    return int(first), int(second)
