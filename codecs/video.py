"""Video windows: decode to frames at a rate and a size, with the codec's own side information.

`VideoStream` serves a live session window by window; `decode_window` and `decode_images` take one window
and return everything at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from duplex.codecs.video_frame import MOTION_DTYPE, Pixels, VideoFrame
from duplex.codecs.video_limits import Budget, VideoLimits, invalid
from duplex.codecs.video_sniff import KINDS, Container, container_of
from duplex.codecs.video_stream import VideoStream

__all__ = [
    "KINDS",
    "MOTION_DTYPE",
    "CodecInfo",
    "Container",
    "DecodedWindow",
    "VideoFrame",
    "VideoLimits",
    "VideoStream",
    "container_of",
    "decode_images",
    "decode_window",
]

_NO_PICTURE = av.VideoFrame(2, 2, "gray")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodecInfo:
    """Side information of every coded frame of a window, in display order; n frames.

    Attributes:
        pts_ms: float64 (n,), time on the client's clock.
        types: str (n,), picture type `I`, `P`, `B`, `S` or `?`.
        key: bool (n,), key frames.
        packet_bytes: int64 (n,), coded size; 0 where it could not be matched.
        residual: float32 (n,), bits per pixel that motion does not explain (an estimate: see
            `VideoFrame.residual_proxy`).
        motion: `MOTION_DTYPE` (m,), the motion vectors of all frames, one after the other.
        motion_start: int64 (n + 1,): frame i has `motion[motion_start[i]:motion_start[i + 1]]`.
    """

    pts_ms: NDArray[np.float64]
    types: NDArray[np.str_]
    key: NDArray[np.bool_]
    packet_bytes: NDArray[np.int64]
    residual: NDArray[np.float32]
    motion: NDArray[Any]
    motion_start: NDArray[np.int64]

    def vectors(self, frame: int) -> NDArray[Any]:
        """Motion vectors of one frame."""
        vectors: NDArray[Any] = self.motion[self.motion_start[frame] : self.motion_start[frame + 1]]
        return vectors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedWindow:
    """One decoded window.

    Attributes:
        frames: Pictures, each (height, width, 3) uint8 RGB.
        pts_ms: float64 (k,), their times on the client's clock.
        width: Width of the source, pixels.
        height: Height of the source, pixels.
        duration_ms: From the first frame to the end of the last.
        corrupt_frames: Source frames that the decoder had to patch up.
        codec: Side information of all source frames.
    """

    frames: tuple[Pixels, ...]
    pts_ms: NDArray[np.float64]
    width: int
    height: int
    duration_ms: float
    corrupt_frames: int
    codec: CodecInfo


def decode_window(
    data: bytes,
    kind: str,
    *,
    target_fps: float | None = None,
    max_pixels: int | None = None,
    motion: bool = True,
    pts_ms: float = 0.0,
    duration_ms: float | None = None,
    limits: VideoLimits | None = None,
) -> DecodedWindow:
    """Decode one complete window.

    Args:
        data: MP4, WebM, Matroska, MPEG-TS, or Annex B H.264 or HEVC.
        kind: Its media type, such as `video/mp4`; one of `KINDS`.
        target_fps: Pictures a second to keep; None keeps all. Side information covers all frames.
        max_pixels: Pictures are scaled down to at most this many pixels.
        motion: Keep motion vectors.
        pts_ms: Time of the first frame.
        duration_ms: Length, where the stream has no time stamps (Annex B).
        limits: Bounds; the defaults of `VideoLimits` when None.

    Raises:
        DuplexError: `unsupported_format`, `invalid_media` or `media_too_large`.
    """
    stream = VideoStream(limits, motion=motion)

    def frames() -> Iterable[VideoFrame]:
        yield from stream.decode(data, kind, pts_ms=pts_ms, duration_ms=duration_ms)
        yield from stream.finish()

    return _collect(frames(), stream, pts_ms, target_fps, max_pixels, motion)


def decode_images(
    images: Sequence[bytes],
    *,
    target_fps: float | None = None,
    max_pixels: int | None = None,
    pts_ms: float = 0.0,
    duration_ms: float | None = None,
    limits: VideoLimits | None = None,
) -> DecodedWindow:
    """Decode a window of JPEG, PNG or WebP stills, spread evenly over `duration_ms` (else 500 ms apart).

    Raises:
        DuplexError: `unsupported_format`, `invalid_media` or `media_too_large`.
    """
    stream = VideoStream(limits)
    frames = stream.decode_stills(images, pts_ms=pts_ms, duration_ms=duration_ms)
    return _collect(frames, stream, pts_ms, target_fps, max_pixels, motion=False)


def _collect(
    source: Iterable[VideoFrame],
    stream: VideoStream,
    start_ms: float,
    target_fps: float | None,
    max_pixels: int | None,
    motion: bool,
) -> DecodedWindow:
    budget = Budget(stream.limits)
    kept: list[Pixels] = []
    kept_ms: list[float] = []
    seen: list[VideoFrame] = []
    vectors: list[NDArray[Any]] = []
    residual: list[float] = []
    due = -np.inf
    for frame in source:
        mv = frame.motion()
        residual.append(frame.residual_proxy(mv))
        if motion:
            budget.output(mv.nbytes)
            vectors.append(mv)
        if frame.pts_ms >= due - 1:  # a millisecond of grace: time stamps are rounded
            picture = frame.rgb(max_pixels)
            budget.output(picture.nbytes)
            kept.append(picture)
            kept_ms.append(frame.pts_ms)
            if target_fps is not None:
                step = 1000 / target_fps
                due = (frame.pts_ms if due == -np.inf else max(due, frame.pts_ms - step)) + step
        seen.append(replace(frame, picture=_NO_PICTURE))  # its numbers stay, its pixels go
    if not seen:
        raise invalid("the window has no video frames that can be decoded")
    counts = [len(v) for v in vectors] if motion else [0] * len(seen)
    return DecodedWindow(
        frames=tuple(kept),
        pts_ms=np.array(kept_ms),
        width=seen[0].width,
        height=seen[0].height,
        duration_ms=max(0.0, stream.end_ms - start_ms),
        corrupt_frames=sum(f.corrupt for f in seen),
        codec=CodecInfo(
            pts_ms=np.array([f.pts_ms for f in seen]),
            types=np.array([f.type for f in seen]),
            key=np.array([f.key for f in seen]),
            packet_bytes=np.array([f.packet_bytes for f in seen], np.int64),
            residual=np.array(residual, np.float32),
            motion=np.concatenate(vectors) if vectors else np.zeros(0, MOTION_DTYPE),
            motion_start=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        ),
    )
