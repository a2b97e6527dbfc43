"""Decoded frames, and the codec's side information as arrays.

Units: times in milliseconds on the client's clock, sizes and positions in pixels of the upright picture,
packet sizes in bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

if TYPE_CHECKING:
    VideoPacket: TypeAlias = av.Packet[av.VideoStream]

Pixels: TypeAlias = NDArray[np.uint8]

MOTION_DTYPE: Final = np.dtype(
    [
        ("source", "i1"),
        ("w", "u1"),
        ("h", "u1"),
        ("x", "f4"),
        ("y", "f4"),
        ("dx", "f4"),
        ("dy", "f4"),
    ]
)
"""One motion vector of one block.

`source`: -1 predicted from an earlier frame, +1 from a later one. `w`, `h`: the block's size. `x`, `y`:
its centre. `dx`, `dy`: how far its content moved from the reference frame to this frame (x to the right, y
down); for `source` +1 that is backwards in time. The distance to the reference in frames is not in
the stream's vectors: divide by your own estimate of it.
"""

NO_MOTION: Final[NDArray[Any]] = np.zeros(0, MOTION_DTYPE)

_ONE_THREAD: Final[dict[str, Any]] = (
    {"threads": 1} if "threads" in (VideoReformatter.reformat.__doc__ or "") else {}
)
_MOST_SCALERS: Final = 8

_PICTURE_TYPES = {1: "I", 2: "P", 3: "B", 4: "S", 5: "I", 6: "P", 7: "B"}


class Scaler:
    """Converts pictures of one stream, one thread at a time.

    It keeps libav's tables from frame to frame: making them anew is most of the work for a thumbnail.
    """

    def __init__(self) -> None:
        self._by_target: dict[tuple[int, int, str], VideoReformatter] = {}

    def convert(self, picture: av.VideoFrame, width: int, height: int, pixel_format: str) -> Pixels:
        """The picture in that size and format (`rgb24` or `gray`)."""
        if (width, height, pixel_format) != (picture.width, picture.height, picture.format.name):
            key = (width, height, pixel_format)
            reformatter = self._by_target.pop(key, None) or VideoReformatter()
            self._by_target[key] = reformatter  # the newest is last
            if len(self._by_target) > _MOST_SCALERS:
                del self._by_target[next(iter(self._by_target))]
            how = Interpolation.AREA if width < picture.width else Interpolation.BILINEAR
            picture = reformatter.reformat(
                picture, width, height, pixel_format, interpolation=how, **_ONE_THREAD
            )
        return picture.to_ndarray().astype(np.uint8, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoFrame:
    """One decoded frame. Pixels are converted only when asked for, by one thread at a time for all frames of
    a stream: they share a `Scaler`.

    Attributes:
        pts_ms: Time on the client's clock.
        index: Number of the frame in its stream, from 0.
        width: Width of the upright picture.
        height: Height of the upright picture.
        type: Picture type: `I`, `P`, `B`, `S`, or `?` when the codec does not say. A still is `I`.
        key: True for a key frame.
        packet_bytes: Coded size of the frame; 0 when it could not be matched to a packet.
        corrupt: True when the decoder had to conceal missing data.
    """

    pts_ms: float
    index: int
    width: int
    height: int
    type: str
    key: bool
    packet_bytes: int
    corrupt: bool
    picture: av.VideoFrame
    scaler: Scaler

    def rgb(self, max_pixels: int | None = None) -> Pixels:
        """Upright pixels, shape (height, width, 3), scaled down to at most `max_pixels`."""
        width, height = fit(self.picture.width, self.picture.height, max_pixels)
        return self._upright(self._converted(width, height, "rgb24"))

    def scaled_rgb(self, width: int, height: int) -> Pixels:
        """Upright pixels of exactly this size, shape (height, width, 3)."""
        return self._upright(self._converted(*self._coded(width, height), "rgb24"))

    def luma(self, width: int, height: int) -> Pixels:
        """Upright luma of exactly this size, shape (height, width)."""
        return self._upright(self._converted(*self._coded(width, height), "gray"))

    def mirrored(self) -> VideoFrame:
        """The frame as a mirror shows it, upright, without motion vectors."""
        pixels = np.ascontiguousarray(self.rgb()[:, ::-1])
        return replace(self, picture=av.VideoFrame.from_ndarray(pixels, format="rgb24"), scaler=Scaler())

    def motion(self) -> NDArray[Any]:
        """Motion vectors, shape (n,) of `MOTION_DTYPE`.

        Empty for key frames, stills, and codecs that do not export vectors (HEVC, VP8, VP9, AV1).
        """
        # not `picture.side_data`: the picture would keep that, and it the picture, until the collector comes
        try:
            side_data = SideDataContainer(self.picture)  # type: ignore[call-arg]  # the stub lacks __init__
        except ValueError:  # side data that PyAV has no name for, such as a photograph's EXIF
            return NO_MOTION
        vectors = side_data.get("MOTION_VECTORS")
        if vectors is None:
            return NO_MOTION
        raw = vectors.to_ndarray()
        out = np.empty(len(raw), MOTION_DTYPE)
        out["source"] = np.sign(raw["source"])
        scale = np.maximum(raw["motion_scale"], 1).astype(np.float32)
        x, y = raw["dst_x"].astype(np.float32), raw["dst_y"].astype(np.float32)
        dx, dy = -raw["motion_x"] / scale, -raw["motion_y"] / scale
        w, h = raw["w"], raw["h"]
        width, height = self.picture.width, self.picture.height
        for _ in range(self._quarter_turns()):  # counter-clockwise, as numpy.rot90 turns the pixels
            x, y, dx, dy, w, h = y, width - x, dy, -dx, h, w
            width, height = height, width
        out["x"], out["y"], out["dx"], out["dy"], out["w"], out["h"] = x, y, dx, dy, w, h
        return out

    def residual_proxy(self, motion: NDArray[Any] | None = None) -> float:
        """Bits per pixel that motion does not explain, an estimate of the frame's residual energy.

        libav gives no residual. What the frame cost, less `MOTION_BITS` for each block with a
        non-zero vector, over its pixels: near 0 for a still scene, 0.5 and more at a cut.
        """
        vectors = self.motion() if motion is None else motion
        moving = np.count_nonzero((vectors["dx"] != 0) | (vectors["dy"] != 0)) if len(vectors) else 0
        bits = self.packet_bytes * 8 - MOTION_BITS * moving
        return max(0.0, bits / (self.width * self.height))

    def _quarter_turns(self) -> int:
        return round((self.picture.rotation or 0) / 90) % 4

    def _coded(self, width: int, height: int) -> tuple[int, int]:
        return (height, width) if self._quarter_turns() % 2 else (width, height)

    def _converted(self, width: int, height: int, pixel_format: str) -> Pixels:
        return self.scaler.convert(self.picture, width, height, pixel_format)

    def _upright(self, pixels: Pixels) -> Pixels:
        turns = self._quarter_turns()
        return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels


MOTION_BITS: Final = 6
"""Assumed cost of coding one non-zero motion vector, in bits: the middle of what CABAC streams show."""


def picture_type(frame: av.VideoFrame) -> str:
    """`I`, `P`, `B`, `S` or `?`."""
    return _PICTURE_TYPES.get(int(frame.pict_type), "?")


def fit(width: int, height: int, max_pixels: int | None) -> tuple[int, int]:
    """The largest size of the same shape with at most `max_pixels`; even, at least 2 × 2."""
    if max_pixels is None or width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    return max(2, int(width * scale) // 2 * 2), max(2, int(height * scale) // 2 * 2)
