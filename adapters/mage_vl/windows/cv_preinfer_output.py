"""What cv-preinfer leaves in its folder, read with care: it was made from a stranger's video."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from duplex.adapters.mage_vl.windows.types import BLOCK, PATCH, Images, Positions
from duplex.codecs.video import VideoLimits, decode_images
from duplex.core.errors import DuplexError, ErrorCode

MOST_CANVASES: Final = 128
"""Of a window: a group of 8 frames, the least that the program makes, gives 4 canvases of 256 frames."""

_MOST_BYTES: Final = 64 * 1024 * 1024  # of one file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """n canvases without padding: `images` and `positions` as in `VisualInput`; ms from frame to frame."""

    images: Images
    positions: Positions
    frame_ms: float


def read_output(folder: Path, limits: VideoLimits | None = None) -> Output:
    """Canvases (`canvas_000.jpg` …) with `src_patch_position.npy`, `frame_ids.npy` and `meta.json`.

    Canvases of padding (t < 0) are dropped.

    Raises:
        DuplexError: `adapter_failed` when something is missing or does not fit together.
    """
    try:
        meta = json.loads(_bytes(folder / "meta.json"))
        positions = _array(folder / "src_patch_position.npy")
        frame_ids = _array(folder / "frame_ids.npy")
        names = sorted(path.name for path in folder.glob("canvas_*.jpg"))
        if not names or len(names) > MOST_CANVASES:
            raise ValueError(f"{len(names)} canvases")
        pictures = decode_images([_bytes(folder / name) for name in names], limits=limits).frames
        return _output(meta, np.stack(pictures), positions, frame_ids)
    except DuplexError as error:
        raise _failed(error.message) from error
    except (OSError, ValueError, TypeError, KeyError, EOFError) as error:
        raise _failed(str(error) or type(error).__name__) from error


def _output(meta: Any, images: Images, flat: Any, frame_ids: Any) -> Output:
    count, height, width, _ = images.shape
    rows, columns = height // PATCH, width // PATCH
    if height % BLOCK or width % BLOCK or flat.shape != (count * rows * columns, 3):
        raise ValueError(f"{len(flat)} patches for {count} canvases of {width}×{height}")
    fps = float(meta["fps"])
    if not math.isfinite(fps) or fps <= 0:
        raise ValueError(f"{fps} frames a second")
    positions = flat.reshape(count, rows, columns, 3)
    padding = positions[..., 0] < 0
    kept = ~padding.all((1, 2))
    if (padding.any((1, 2)) & kept).any() or not kept.any():
        raise ValueError("canvases that are part padding")
    positions = positions[kept]
    if positions.min() < 0 or (positions >= (frame_ids.max() + 1, rows, columns)).any():
        raise ValueError("patches from outside the video")
    return Output(images=images[kept], positions=positions.astype(np.int32), frame_ms=1000 / fps)


def _bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes")
    return path.read_bytes()


def _array(path: Path) -> Any:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} is too large")
    array = np.load(path, allow_pickle=False)
    if not np.issubdtype(array.dtype, np.integer) or not array.size:
        raise ValueError(f"{path.name} holds {array.dtype} of shape {array.shape}")
    return array


def _failed(why: str) -> DuplexError:
    return DuplexError(ErrorCode.ADAPTER_FAILED, f"what cv-preinfer made cannot be used: {why}")
