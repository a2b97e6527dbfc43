"""The backend `frames`: whole frames, so many a window or so many a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from duplex.adapters.mage_vl.windows.geometry import fitted, image_size, raster
from duplex.adapters.mage_vl.windows.sampling import Beat, evenly
from duplex.adapters.mage_vl.windows.source import Place, Segment, Source, Visible
from duplex.adapters.mage_vl.windows.types import MOST_PATCHES, PATCH, Images, VisualInput
from duplex.codecs.video import VideoFrame, VideoLimits
from duplex.core.types import CodecWindow

MOST_IMAGES: Final = 64
"""Images of one window at most, and fewer where they are large; a long window is thinned out evenly."""


class FrameWindows:
    """Samples frames of one session's windows.

    Args:
        num_frames: Frames of a window, spread evenly over it.
        target_fps: Frames a second, on one beat across the windows; `num_frames` is then ignored. Each window
            gives at least one.
        max_pixels: Pixels of an image.
        limits: Bounds of a window.
        place: Where the session's video goes on.
    """

    def __init__(
        self,
        *,
        num_frames: int,
        target_fps: float | None,
        max_pixels: int,
        limits: VideoLimits | None = None,
        place: Place | None = None,
    ) -> None:
        self._num = min(num_frames, MOST_IMAGES)
        self._beat = None if target_fps is None else Beat(target_fps)
        self._max_pixels = max_pixels
        self._source = Source(limits, motion=False, place=place)

    def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        """The window's frames; None while the decoder holds all of them back. `codec` is not used.

        Raises:
            DuplexError: The window cannot be used: see `Source.open`.
        """
        return self._collect(self._source.open(window))

    def finish(self) -> VisualInput | None:
        """The input ends: what the decoder held back."""
        return self._collect(self._source.rest())

    def reset(self) -> None:
        """Windows between the last and the next are missing."""
        self._source.reset()

    def close(self) -> None:
        """Give up, at the next frame, what is being decoded. From any thread."""
        self._source.close()

    @property
    def place(self) -> Place:
        """Where the session's video is."""
        return self._source.place

    def _collect(self, segment: Segment) -> VisualInput | None:
        kept: list[tuple[int, float, Images]] = []
        size: tuple[int, int] | None = None
        chosen = self._evenly(segment) if self._beat is None else _on_beat(segment, self._beat)
        stride, most = 1, MOST_IMAGES
        for number, (index, frame) in enumerate(chosen):
            if number % stride:
                continue
            if size is None:
                size = image_size(frame.width, frame.height, self._max_pixels)
                most = min(MOST_IMAGES, max(1, MOST_PATCHES * PATCH**2 // (size[0] * size[1])))
            kept.append((index, frame.pts_ms, fitted(frame, *size, self._max_pixels)))
            if len(kept) > most:  # longer than there is room for: every other one, from here on too
                del kept[1::2]
                stride *= 2
        if size is None:
            return None
        return VisualInput(
            images=np.stack([image for _, _, image in kept]),
            positions=raster([index for index, _, _ in kept], *size),
            times_s=segment.seconds(np.array([at for _, at, _ in kept])),
            segment_id=segment.id,
            pts_ms=segment.start_ms,
            duration_ms=segment.duration_ms,
        )

    def _evenly(self, segment: Segment) -> Iterator[tuple[int, VideoFrame]]:
        """`num_frames` of the segment from its first to its last, or all where it has fewer."""
        wanted: frozenset[int] = frozenset()
        last: tuple[int, VideoFrame] | None = None
        given = 0
        for index, frame in segment.frames():
            wanted = wanted or evenly(segment.expected, self._num)
            last = (index, frame)
            if index in wanted:
                given += 1
                yield last
                last = None
        if last is not None and given < max(len(wanted), 1):  # the decoder holds the true last one back
            yield last


def _on_beat(segment: Segment, beat: Beat) -> Iterator[tuple[int, VideoFrame]]:
    """Frames on the beat; the last one where none is."""
    last: tuple[int, VideoFrame] | None = None
    given = 0
    for index, frame in segment.frames():
        last = (index, frame)
        if beat.takes(frame.pts_ms):
            given += 1
            yield last
    if last is not None and not given:
        yield last
