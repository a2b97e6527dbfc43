"""Cut a clip into short windows without re-encoding, as a live source would send it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import av

if TYPE_CHECKING:
    from duplex.codecs.video_frame import VideoPacket

_SHIFT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipWindow:
    """One window of a clip: MPEG-TS bytes, and where they lie, in ms from the clip's start."""

    data: bytes
    pts_ms: float
    duration_ms: float
    kind: str = "video/mp2t"


def split_clip(
    clip: str | PathLike[str] | bytes, *, window_ms: float = 500.0, alone: bool = False
) -> Iterator[ClipWindow]:
    """Windows of about `window_ms` of a clip's first video track.

    The packets are copied into MPEG-TS, so the pictures and the codec's side information stay what they
    were. Only the first window is sure to begin with a key frame: send them all and in order, to a
    receiver that keeps its decoder across windows. For the sender's own files: nothing here guards
    against hostile input.

    With `alone` each window is an MP4 that stands alone: it begins with a key frame, so that it may be far
    longer, and a receiver holds none of its frames back until the next comes.

    Raises:
        ValueError: The clip has no video track, or a codec that MPEG-TS cannot carry (VP8, VP9, AV1: send
            the file whole); or its windows cannot stand alone.
        av.FFmpegError: The clip cannot be read.
    """
    source = io.BytesIO(clip) if isinstance(clip, bytes) else str(clip)
    with av.open(source, "r") as container:
        if not container.streams.video:
            raise ValueError("the clip has no video track")
        stream = container.streams.video[0]
        name = stream.codec_context.name
        if name not in ("h264", "hevc", "mpeg2video", "mpeg4", "mpeg1video"):
            raise ValueError(f"a {name} track cannot be cut into windows without re-encoding")
        # of a variable rate the average may be a frame in many seconds
        rate = max(filter(None, (stream.average_rate, stream.guessed_rate)), default=None)
        frame_ms = float(1000 / rate) if rate else 40.0
        waiting: list[VideoPacket] = []
        origin: float | None = None
        start = 0.0  # dts of the window's first packet
        for packet in _timed(container.demux(stream), frame_ms):
            dts = _dts(packet)
            if waiting and dts - start >= window_ms - frame_ms / 2 and (packet.is_keyframe or not alone):
                origin = _first_pts(waiting) if origin is None else origin
                yield _window(waiting, stream, origin, frame_ms, dts - start, alone=alone)
                waiting = []
            if not waiting:
                start = dts
            waiting.append(packet)
        if waiting:
            origin = _first_pts(waiting) if origin is None else origin
            decoded_ms = _dts(waiting[-1]) - start + frame_ms
            yield _window(waiting, stream, origin, frame_ms, decoded_ms, alone=alone)


def _timed(packets: Iterable[VideoPacket], frame_ms: float) -> Iterator[VideoPacket]:
    """The packets that can be sent, each with a dts. Matroska has none: libav tells it from the frames'
    order, but not of the first packets (the key frame is one of them), which lie so many frames before."""
    early: list[VideoPacket] = []
    known = False
    for packet in packets:
        if packet.time_base is None or not packet.size or (packet.dts is None and packet.pts is None):
            continue
        if packet.dts is None and not known:
            early.append(packet)
            continue
        known = True
        yield from _before(early, packet, frame_ms)
        early = []
        if packet.dts is not None:
            yield packet
    yield from _before(early, None, frame_ms)


def _before(early: list[VideoPacket], later: VideoPacket | None, frame_ms: float) -> Iterator[VideoPacket]:
    """`early` with the dts that they must have had before that of a `later` packet."""
    for back, packet in zip(range(len(early), 0, -1), early, strict=True):
        assert packet.time_base is not None
        step = max(1, round(frame_ms / 1000 / packet.time_base))
        end = min(p.pts for p in early if p.pts is not None) + step if later is None else later.dts
        assert end is not None
        packet.dts = end - back * step
        yield packet


def _dts(packet: VideoPacket) -> float:
    assert packet.dts is not None
    assert packet.time_base is not None
    return float(packet.dts * packet.time_base) * 1000


def _first_pts(packets: list[VideoPacket]) -> float:
    return min(_ms(packet) for packet in packets)


def _ms(packet: VideoPacket) -> float:
    stamp = packet.pts if packet.pts is not None else packet.dts
    assert stamp is not None
    assert packet.time_base is not None
    return float(stamp * packet.time_base) * 1000


def _window(
    packets: list[VideoPacket],
    stream: av.VideoStream,
    origin: float,
    frame_ms: float,
    decoded_ms: float,
    *,
    alone: bool,
) -> ClipWindow:
    """`decoded_ms`: from its first packet to the next window's, in decoding order."""
    first = _first_pts(packets)
    begin = first - origin
    # at an even rate all three are the same, but for frames that are shown after some of the next window
    shown_ms = max(_ms(packet) for packet in packets) - first + frame_ms
    duration = max(len(packets) * frame_ms, min(decoded_ms, shown_ms))
    if alone and begin and first < _ms(packets[0]):
        raise ValueError("frames before a key frame need the window before theirs")
    out = io.BytesIO()
    form, options = ("mp4", {}) if alone else ("mpegts", {"mpegts_copyts": "1"})
    with av.open(out, "w", format=form, options=options) as muxer:
        track = muxer.add_stream_from_template(stream)
        for packet in packets:
            assert packet.time_base is not None
            # MPEG-TS has no negative times; one shift for all windows keeps them on one clock
            shift = round(_SHIFT_S / packet.time_base)
            packet.dts = None if packet.dts is None else packet.dts + shift
            packet.pts = None if packet.pts is None else packet.pts + shift
            packet.stream = track
            muxer.mux(packet)
    kind = "video/mp4" if alone else "video/mp2t"
    return ClipWindow(data=out.getvalue(), pts_ms=begin, duration_ms=duration, kind=kind)
