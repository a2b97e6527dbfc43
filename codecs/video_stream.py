"""One session's video: windows in, frames out.

MP4, WebM and Matroska windows are complete files; MPEG-TS and Annex B windows, and fragments without
their header, go on from the window before. One decoder lives across such windows, so that a client may cut
a stream at any frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import av
from av.error import FFmpegError

from duplex.codecs.video_demux import demux
from duplex.codecs.video_frame import Scaler, VideoFrame, picture_type
from duplex.codecs.video_limits import Budget, VideoLimits, invalid, too_large
from duplex.codecs.video_mp4 import check_mp4, init_segment, starts_fragment
from duplex.codecs.video_sniff import CLUSTER, Container, container_of
from duplex.codecs.video_stills import decode_still
from duplex.core.errors import DuplexError

if TYPE_CHECKING:
    from duplex.codecs.video_frame import VideoPacket

_SAME_CLOCK_MS = 500.0
_MICROSECONDS = Fraction(1, 1_000_000)


class VideoStream:
    """Decoder of one session's video windows, one thread at a time.

    Args:
        limits: Bounds of each window.
        motion: Export motion vectors (about a third more decoding time for H.264).

    After an error or `reset` the decoder starts afresh; frames before the next key frame are skipped.
    """

    def __init__(self, limits: VideoLimits | None = None, *, motion: bool = True) -> None:
        self.limits = limits or VideoLimits()
        self.end_ms = 0.0
        """Where the last window ended on the client's clock."""
        self.expected = 0
        """Coded frames of the window whose frames are being given; the decoder may hold a few back."""
        self._motion = motion
        self._scaler = Scaler()
        self._decoder: av.VideoCodecContext | None = None
        self._codec = ""
        self._header: tuple[Container, bytes] | None = None
        self._index = 0
        self._packet_bytes: dict[int, int] = {}
        self._has_key = False
        self._offset: float | None = None
        self._clock: tuple[float, float] | None = None  # Annex B: the next frame's time, and the step
        self._serial = 0

    def reset(self) -> None:
        """Forget the stream: windows between the last and the next are missing."""
        self._decoder = None
        self._packet_bytes.clear()
        self._has_key = False
        self._offset = None
        self._clock = None

    def decode(
        self, data: bytes, kind: str, *, pts_ms: float | None = None, duration_ms: float | None = None
    ) -> Iterator[VideoFrame]:
        """Frames of one window, in display order.

        Args:
            data: The window's bytes.
            kind: Declared media type, such as `video/mp4` or `h264`.
            pts_ms: Time of the window's first frame on the client's clock; None: it follows the last.
            duration_ms: Its length, used where the stream has no time stamps (Annex B).

        Raises:
            DuplexError: `unsupported_format`, `invalid_media` or `media_too_large`; frames that were
                already given stand.
        """
        budget = Budget(self.limits)
        start_ms = self.end_ms if pts_ms is None else pts_ms
        try:
            yield from self._decode(data, kind, start_ms, duration_ms, budget)
        except DuplexError:
            self.reset()
            raise
        except (FFmpegError, MemoryError, ValueError, OverflowError) as error:
            self.reset()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise invalid(f"the video cannot be read: {reason}") from error

    def decode_stills(
        self,
        images: Sequence[bytes],
        *,
        pts_ms: float | None = None,
        duration_ms: float | None = None,
        interval_ms: float = 500.0,
    ) -> Iterator[VideoFrame]:
        """Frames of a window of encoded stills, spread evenly over its duration.

        Without a duration they are `interval_ms` apart.
        """
        budget = Budget(self.limits)
        budget.check_frames(len(images))
        self.reset()
        self.expected = len(images)
        start_ms = self.end_ms if pts_ms is None else pts_ms
        step = interval_ms if duration_ms is None else duration_ms / max(1, len(images))
        budget.check_duration(step * len(images))
        self.end_ms = start_ms + step * len(images)
        for number, image in enumerate(images):
            frame = self._frame(decode_still(image, budget), start_ms + number * step, len(image))
            yield replace(frame, type="I", key=True)

    def finish(self) -> Iterator[VideoFrame]:
        """Frames that the decoder still held back at the end of the stream."""
        if self._decoder is not None and self._has_key:
            budget = Budget(self.limits)
            yield from self._drain(budget)
        self.reset()

    # --- windows ------------------------------------------------------------------------------------

    def _decode(
        self, data: bytes, kind: str, start_ms: float, duration_ms: float | None, budget: Budget
    ) -> Iterator[VideoFrame]:
        if len(data) > self.limits.max_bytes:
            raise too_large(f"a window of {len(data):,} bytes; the limit is {self.limits.max_bytes:,}")
        container = container_of(kind, data)
        if container in (Container.H264, Container.HEVC):
            yield from self._annex_b(container, data, start_ms, duration_ms, budget)
            return
        data, continues = self._with_header(container, data)
        if container is Container.MP4:
            check_mp4(data, budget)
        packets, context = demux(container, data, budget)
        self.expected = len(packets)
        whole = not continues and container is not Container.MPEG_TS
        if whole or self._decoder is None or self._codec != context.name:
            if self._decoder is not None and self._has_key:
                yield from self._drain(budget)
            self.reset()
            self._open(context)
        self._stamp(packets, start_ms, continues=not whole)
        yield from self._feed(packets, budget)
        if whole:
            yield from self._drain(budget)
            self._decoder = None

    def _with_header(self, container: Container, data: bytes) -> tuple[bytes, bool]:
        """The data with its stream's header in front, and whether it goes on from the window before."""
        if container is Container.MP4:
            fragment = starts_fragment(data)
            header = init_segment(data) if not fragment else b""
        elif container is Container.MATROSKA:
            fragment = data[:4] == CLUSTER
            at = -1 if fragment else data.find(CLUSTER)
            header = data[:at] if at > 0 else b""
        else:
            return data, False
        if not fragment:
            self._header = (container, header) if header else None
            return data, False
        if self._header is None or self._header[0] is not container:
            raise invalid("a fragment without a header, and no window before it had one")
        return self._header[1] + data, True

    def _stamp(self, packets: Sequence[VideoPacket], start_ms: float, *, continues: bool) -> None:
        """Put the packets on the client's clock, in microseconds, the first shown at `start_ms`."""
        times: list[float | None] = []
        for packet in packets:
            stamp = packet.pts if packet.pts is not None else packet.dts
            base = packet.time_base
            times.append(None if stamp is None or base is None else float(stamp * base) * 1000)
        known = [t for t in times if t is not None]
        first = min(known, default=0.0)
        span = max(known, default=0.0) - first
        Budget(self.limits).check_duration(span)
        step = span / (len(known) - 1) if len(known) > 1 else 40.0
        offset = start_ms - first
        # a stream that goes on keeps its own clock: windows cut in decoding order start a few frames apart
        if continues and self._offset is not None and abs(offset - self._offset) < _SAME_CLOCK_MS:
            offset = self._offset
        self._offset = offset
        for number, (packet, at) in enumerate(zip(packets, times, strict=True)):
            packet.time_base = _MICROSECONDS
            packet.dts = None
            packet.pts = round(1000 * (offset + (first + number * step if at is None else at)))
        self.end_ms = offset + first + span + step

    def _annex_b(
        self, container: Container, data: bytes, start_ms: float, duration_ms: float | None, budget: Budget
    ) -> Iterator[VideoFrame]:
        if self._decoder is None or self._codec != container.value:
            if self._decoder is not None and self._has_key:
                yield from self._drain(budget)
            self.reset()
            self._open(_decoder(container.value))
        parser = _decoder(container.value)
        with budget.working():
            packets = [*parser.parse(data), *parser.parse(None)]
        budget.check_frames(len(packets))
        if not packets:
            raise invalid("the window has no video frames: it is truncated or empty")
        # No time stamps in the stream: frames are spread evenly in display order, after those that the
        # decoder still holds back of the window before.
        self.expected = len(packets)
        step = 40.0 if duration_ms is None else duration_ms / len(packets)
        budget.check_duration(step * len(packets))
        self._clock = (start_ms - step * len(self._packet_bytes), step)
        self.end_ms = start_ms + step * len(packets)
        for packet in packets:
            packet.pts = self._serial
            packet.time_base = _MICROSECONDS
            self._serial += 1
        yield from self._feed(packets, budget)

    # --- the decoder --------------------------------------------------------------------------------

    def _open(self, context: av.VideoCodecContext) -> None:
        context.thread_count = 1
        context.options = {
            "max_pixels": str(self.limits.max_pixels),
            **({"flags2": "+export_mvs"} if self._motion else {}),
        }
        self._decoder = context
        self._codec = context.name

    def _feed(self, packets: Sequence[VideoPacket], budget: Budget) -> Iterator[VideoFrame]:
        assert self._decoder is not None
        good = 0
        last: FFmpegError | None = None
        for packet in packets:
            if not self._has_key:
                if not packet.is_keyframe:
                    continue
                self._has_key = True
            if packet.pts is not None:
                self._packet_bytes[packet.pts] = packet.size
            try:
                with budget.working():
                    pictures = self._decoder.decode(packet)
            except FFmpegError as error:
                # libav refuses a size over its bound with a mere "invalid argument"
                budget.check_size(self._decoder.width, self._decoder.height)
                last = error
                continue
            good += 1
            for picture in pictures:
                yield self._checked(picture, budget)
        if last is not None and not good:
            raise last
        if not self._has_key:
            raise invalid("the stream has no key frame yet; frames before the first one cannot be decoded")

    def _drain(self, budget: Budget) -> Iterator[VideoFrame]:
        assert self._decoder is not None
        with budget.working():
            pictures = self._decoder.decode(None)
        for picture in pictures:
            yield self._checked(picture, budget)
        self._packet_bytes.clear()

    def _checked(self, picture: av.VideoFrame, budget: Budget) -> VideoFrame:
        budget.decoded(picture.width, picture.height)
        pts = picture.pts
        size = self._packet_bytes.pop(pts, 0) if pts is not None else 0
        if len(self._packet_bytes) > 64:  # far more than any decoder holds back: they never came out
            self._packet_bytes.clear()
        if self._clock is None:
            return self._frame(picture, (pts or 0) / 1000, size)
        at, step = self._clock
        self._clock = (at + step, step)
        return self._frame(picture, at, size)

    def _frame(self, picture: av.VideoFrame, pts_ms: float, packet_bytes: int) -> VideoFrame:
        turned = round((picture.rotation or 0) / 90) % 2
        width, height = picture.width, picture.height
        frame = VideoFrame(
            pts_ms=pts_ms,
            index=self._index,
            width=height if turned else width,
            height=width if turned else height,
            type=picture_type(picture),
            key=bool(picture.key_frame),
            packet_bytes=packet_bytes,
            corrupt=bool(picture.is_corrupt),
            picture=picture,
            scaler=self._scaler,
        )
        self._index += 1
        return frame


def _decoder(name: str) -> av.VideoCodecContext:
    context = av.CodecContext.create(name, "r")
    assert isinstance(context, av.VideoCodecContext)
    return context
