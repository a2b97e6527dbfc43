"""The decoders of one session: its windows in, frames with their place in the segment out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from duplex.adapters.mage_vl.windows.types import Times
from duplex.codecs.video import VideoFrame, VideoLimits, VideoStream
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import ImageWindow, VideoWindow

Visible: TypeAlias = VideoWindow | ImageWindow


class Place(NamedTuple):
    """Where a session's video is, in ms on the client's clock: its origin, None before its first frame, and
    the end of its last window."""

    origin_ms: float | None = None
    end_ms: float = 0.0


class Segment:
    """One window while it is decoded.

    Attributes:
        id: The window's segment id.
        stills: Its frames are pictures of their own, without side information of a codec.
    """

    def __init__(
        self, source: Source, stream: VideoStream, window: Visible | None, frames: Iterator[VideoFrame]
    ) -> None:
        self.id = window.segment_id if isinstance(window, VideoWindow) else ""
        self.stills = isinstance(window, ImageWindow) or (window is not None and bool(window.frames))
        self._at = window.pts_ms if window is not None else None
        self._lasts = window.duration_ms if isinstance(window, VideoWindow) else None
        self._source, self._stream, self._frames = source, stream, frames
        self._first: int | None = None
        self._first_ms = 0.0

    @property
    def expected(self) -> int:
        """Coded frames of the window, known from its first frame on; the decoder may hold a few back."""
        return self._stream.expected

    @property
    def start_ms(self) -> float:
        """Where it starts on the client's clock: where the client says, else at its first frame."""
        return self._first_ms if self._at is None else self._at

    @property
    def duration_ms(self) -> float:
        """Length: what the client says, else what was decoded."""
        return max(0.0, self._stream.end_ms - self.start_ms) if self._lasts is None else self._lasts

    def frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """Frames in display order, each with its index in this segment."""
        for frame in self._frames:
            self._source.check_open()
            if self._first is None:
                self._first, self._first_ms = frame.index, frame.pts_ms
                self._source.begin(frame.pts_ms)
            yield frame.index - self._first, frame

    def seconds(self, pts_ms: Times) -> Times:
        """Seconds from the start of the session's video, at least 0."""
        return np.maximum(0.0, (pts_ms - self._source.origin_ms) / 1000)


class Source:
    """Decodes a session's windows, in order, in one thread at a time.

    Args:
        limits: Bounds of a window; the defaults of `VideoLimits` when None.
        motion: Export motion vectors.
        place: Where the video goes on, after another source of this session.
    """

    def __init__(self, limits: VideoLimits | None, *, motion: bool, place: Place | None = None) -> None:
        self._video = VideoStream(limits, motion=motion)
        # a still between two pieces of one stream must not end that stream
        self._stills = VideoStream(limits, motion=False)
        self._origin_ms, self._video.end_ms = place or Place()
        self._closed = False

    @property
    def origin_ms(self) -> float:
        """Where the session's video begins on the client's clock."""
        return self._origin_ms or 0.0

    @property
    def place(self) -> Place:
        """Where the video is."""
        return Place(self._origin_ms, max(self._video.end_ms, self._stills.end_ms))

    def begin(self, pts_ms: float) -> None:
        """A frame is at this time; the first one is the session's origin."""
        if self._origin_ms is None:
            self._origin_ms = pts_ms

    def open(self, window: Visible) -> Segment:
        """Begin with a window.

        Raises:
            DuplexError: `empty_input`; and while its frames are taken `unsupported_format`, `invalid_media`
                or `media_too_large`. The windows before and after it are not touched by that.
        """
        self.check_open()
        pictures = (window.data,) if isinstance(window, ImageWindow) else window.frames
        if pictures:
            if not all(pictures):
                raise DuplexError(ErrorCode.EMPTY_INPUT, "a picture without bytes", param="data")
            self._stills.end_ms = max(self._stills.end_ms, self._video.end_ms)
            lasts = window.duration_ms if isinstance(window, VideoWindow) else None
            frames = self._stills.decode_stills(pictures, pts_ms=window.pts_ms, duration_ms=lasts)
            return Segment(self, self._stills, window, frames)
        assert isinstance(window, VideoWindow)
        if not window.data:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "a video window without bytes or frames", param="data")
        frames = self._video.decode(
            window.data, window.kind, pts_ms=window.pts_ms, duration_ms=window.duration_ms
        )
        return Segment(self, self._video, window, frames)

    def check_open(self) -> None:
        """Raise `DuplexError` (`session_closing`) after `close`."""
        if self._closed:
            raise DuplexError(ErrorCode.SESSION_CLOSING, "the session was closed")

    def close(self) -> None:
        """No more frames. From any thread."""
        self._closed = True

    def rest(self) -> Segment:
        """What the decoder held back at the end of the stream."""
        return Segment(self, self._video, None, self._video.finish())

    def reset(self) -> None:
        """Windows between the last and the next are missing: go on at the next key frame."""
        self._video.reset()
