"""Small synthetic clips, made with PyAV."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

SHARED = Path(os.environ.get("DUPLEX_SHARED", Path(__file__).parents[2].parent / "shared"))


def texture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """A smooth random picture, (height, width, 3), in which every place looks different."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    frame = av.VideoFrame.from_ndarray(small, format="rgb24").reformat(width, height, "rgb24")
    return frame.to_ndarray()


def moving_square(frames: int, height: int = 96, width: int = 160, step: int = 3) -> list[NDArray[np.uint8]]:
    """A bright square that moves to the right over a still background."""
    background, square = texture(height, width), texture(32, 32, seed=5) // 2 + 127
    out = []
    for number in range(frames):
        picture = background.copy()
        x = 8 + number * step
        picture[32:64, x : x + 32] = square[:, : max(0, min(32, width - x))]
        out.append(picture)
    return out


def encode(
    pictures: Iterable[NDArray[np.uint8]],
    *,
    container: str = "mp4",
    codec: str = "libx264",
    fps: int = 25,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> bytes:
    """Encode RGB pictures into a file in memory."""
    out = io.BytesIO()
    with av.open(out, "w", format=container, options=container_options or {}) as muxer:
        track = None
        for picture in pictures:
            if track is None:
                track = muxer.add_stream(codec, rate=fps)
                track.height, track.width = picture.shape[:2]
                track.pix_fmt = "yuv420p"
                track.time_base = Fraction(1, fps)
                track.options = options or {}
            muxer.mux(track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        assert track is not None
        muxer.mux(track.encode(None))
    return out.getvalue()


def still(picture: NDArray[np.uint8], codec: str = "png") -> bytes:
    """Encode one picture as png, mjpeg (JPEG) or libwebp."""
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = picture.shape[:2]
    context.pix_fmt = {"png": "rgb24", "mjpeg": "yuvj420p", "libwebp": "yuv420p"}[codec]
    context.time_base = Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=context.pix_fmt)
    frame.pts = 0
    return b"".join(bytes(p) for p in [*context.encode(frame), *context.encode(None)])


def box(name: bytes, payload: bytes) -> bytes:
    """An ISO-BMFF box."""
    return (len(payload) + 8).to_bytes(4, "big") + name + payload
