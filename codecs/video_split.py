"""Cut a clip into short windows without re-encoding, as a live source would send it."""

from __future__ import annotations

import io
from collections.abc import Iterator
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


def split_clip(clip: str | PathLike[str] | bytes, *, window_ms: float = 500.0) -> Iterator[ClipWindow]:
    """Windows of about `window_ms` of a clip's first video track.

    The packets are copied into MPEG-TS, so the pictures and the codec's side information stay what they
    were. Only the first window is sure to begin with a key frame: send them all and in order, to a
    receiver that keeps its decoder across windows. For the sender's own files: nothing here guards
    against hostile input.

    Raises:
        ValueError: The clip has no video track, or a codec that MPEG-TS cannot carry (VP8, VP9, AV1: send
            the file whole).
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
        rate = stream.average_rate or stream.guessed_rate
        frame_ms = float(1000 / rate) if rate else 40.0
        waiting: list[VideoPacket] = []
        origin: float | None = None
        start = 0.0  # dts of the window's first packet
        for packet in container.demux(stream):
            if packet.dts is None or packet.time_base is None or not packet.size:
                continue
            dts = float(packet.dts * packet.time_base) * 1000
            if waiting and dts - start >= window_ms - frame_ms / 2:
                origin = _first_pts(waiting) if origin is None else origin
                yield _window(waiting, stream, origin, frame_ms)
                waiting = []
            if not waiting:
                start = dts
            waiting.append(packet)
        if waiting:
            yield _window(waiting, stream, _first_pts(waiting) if origin is None else origin, frame_ms)


def _first_pts(packets: list[VideoPacket]) -> float:
    return min(_ms(packet) for packet in packets)


def _ms(packet: VideoPacket) -> float:
    stamp = packet.pts if packet.pts is not None else packet.dts
    assert stamp is not None
    assert packet.time_base is not None
    return float(stamp * packet.time_base) * 1000


def _window(packets: list[VideoPacket], stream: av.VideoStream, origin: float, frame_ms: float) -> ClipWindow:
    begin = _first_pts(packets) - origin
    duration = len(packets) * frame_ms
    out = io.BytesIO()
    with av.open(out, "w", format="mpegts", options={"mpegts_copyts": "1"}) as muxer:
        track = muxer.add_stream_from_template(stream)
        for packet in packets:
            assert packet.time_base is not None
            # MPEG-TS has no negative times; one shift for all windows keeps them on one clock
            shift = round(_SHIFT_S / packet.time_base)
            packet.dts = None if packet.dts is None else packet.dts + shift
            packet.pts = None if packet.pts is None else packet.pts + shift
            packet.stream = track
            muxer.mux(packet)
    return ClipWindow(data=out.getvalue(), pts_ms=begin, duration_ms=duration)
