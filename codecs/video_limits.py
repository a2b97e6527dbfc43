"""What a piece of video may cost, and the meter that stops it.

A few bytes can ask for a great deal: a header may claim 100,000 × 100,000 pixels, ten hours, or four
billion samples. Every claim is checked before libav acts on it, and what the decoder really does is
metered, so that a hostile window costs a `DuplexError` and not the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from duplex.core.errors import DuplexError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """Bounds for one window.

    The defaults let through eight seconds of 4K at 30 frames/s (2 Gpx decoded, measured here at about
    18 s of one slow core) and a minute of 1080p.

    Attributes:
        max_bytes: Encoded bytes of the window.
        max_side: Pixels of the longer side of a frame, as coded.
        max_pixels: Pixels of one frame, as coded.
        max_frames: Coded frames of the window.
        max_duration_ms: What the header claims, and what the time stamps span.
        max_decoded_pixels: Pixels of all decoded frames together.
        max_output_bytes: Bytes of the pictures and arrays that are handed out and kept.
        max_decode_s: Seconds spent in the decoder.
    """

    max_bytes: int = 64 * 1024 * 1024
    max_side: int = 8192
    max_pixels: int = 4096 * 2304
    max_frames: int = 4096
    max_duration_ms: float = 120_000.0
    max_decoded_pixels: int = 4_000_000_000
    max_output_bytes: int = 512 * 1024 * 1024
    max_decode_s: float = 60.0


def too_large(message: str) -> DuplexError:
    """The fault of a window that asks for more than the limits give."""
    return DuplexError(ErrorCode.MEDIA_TOO_LARGE, message)


def invalid(message: str) -> DuplexError:
    """The fault of a window that cannot be read."""
    return DuplexError(ErrorCode.INVALID_MEDIA, message)


def unsupported(message: str) -> DuplexError:
    """The fault of a window in a format that is not served."""
    return DuplexError(ErrorCode.UNSUPPORTED_FORMAT, message)


class Budget:
    """Meters one window against its limits. Not shared between threads."""

    def __init__(self, limits: VideoLimits) -> None:
        self.limits = limits
        self._pixels = 0
        self._frames = 0
        self._output = 0
        self._seconds = 0.0

    def check_size(self, width: int, height: int) -> None:
        """Refuse a frame size before anything is allocated for it."""
        limits = self.limits
        if max(width, height) > limits.max_side or width * height > limits.max_pixels:
            raise too_large(
                f"{width}×{height} pixels; the limit is {limits.max_pixels:,} pixels "
                f"and {limits.max_side:,} a side"
            )

    def check_duration(self, duration_ms: float) -> None:
        """Refuse a duration that a header claims or that time stamps span."""
        if duration_ms > self.limits.max_duration_ms:
            raise too_large(
                f"{duration_ms / 1000:,.0f} s of video in one window; "
                f"the limit is {self.limits.max_duration_ms / 1000:,.0f} s"
            )

    def check_frames(self, frames: int) -> None:
        """Refuse a number of coded frames that a header claims or that were found."""
        if frames > self.limits.max_frames:
            raise too_large(f"{frames:,} frames in one window; the limit is {self.limits.max_frames:,}")

    def decoded(self, width: int, height: int) -> None:
        """Count one decoded frame."""
        self.check_size(width, height)
        self._frames += 1
        self.check_frames(self._frames)
        self._pixels += width * height
        if self._pixels > self.limits.max_decoded_pixels:
            raise too_large(f"more than {self.limits.max_decoded_pixels:,} pixels to decode in one window")

    def output(self, size: int) -> None:
        """Count bytes of decoded pictures and arrays that are kept."""
        self._output += size
        if self._output > self.limits.max_output_bytes:
            raise too_large(f"more than {self.limits.max_output_bytes:,} decoded bytes in one window")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Time one step of decoding."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began
        if self._seconds > self.limits.max_decode_s:
            raise too_large(f"the window took more than {self.limits.max_decode_s:g} s to decode")
