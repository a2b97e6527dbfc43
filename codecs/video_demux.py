"""Coded frames out of a container, held to the limits before anything is decoded."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import av
from av.error import FFmpegError

from duplex.codecs.video_limits import Budget, VideoLimits, invalid, too_large, unsupported
from duplex.codecs.video_mp4 import check_mp4
from duplex.codecs.video_sniff import Container, container_of

if TYPE_CHECKING:
    from duplex.codecs.video_frame import VideoPacket

DECODERS = frozenset(
    ("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg")
)
"""Video codecs that are decoded. The rest of libav's hundreds are not reachable from a session."""

# The demuxer reads nothing but the bytes it is given, and its probe decodes nothing.
_DEMUX_OPTIONS = {
    "protocol_whitelist": "none",
    "codec_whitelist": "none",
    "enable_drefs": "0",
    "max_streams": "32",
}

_WHITELIST = {
    Container.MP4: "mov,mp4,m4a,3gp,3g2,mj2",
    Container.MATROSKA: "matroska,webm",
    Container.MPEG_TS: "mpegts",
}


class Probe(NamedTuple):
    """What a window's headers and packets tell: coded frames, size as coded in pixels, codec, container."""

    frames: int
    width: int
    height: int
    codec: str
    container: Container


def demux(
    container: Container, data: bytes, budget: Budget
) -> tuple[list[VideoPacket], av.VideoCodecContext]:
    """Packets of the first video track, in decoding order, and a context to decode them with.

    Raises:
        DuplexError: `unsupported_format`, `invalid_media` or `media_too_large`.
        FFmpegError: The container cannot be read.
    """
    options = {**_DEMUX_OPTIONS, "format_whitelist": _WHITELIST[container]}
    with (
        budget.working(),
        av.open(io.BytesIO(data), "r", container.value, options, io_open=_refuse) as source,
    ):
        if not source.streams.video:
            raise invalid("the window has no video track")
        stream = source.streams.video[0]
        context = stream.codec_context
        if context is None or context.name not in DECODERS:
            name = "unknown" if context is None else context.name
            raise unsupported(f"the video codec {name} is not supported")
        if source.duration is not None:
            budget.check_duration(source.duration / 1000)
        budget.check_size(context.width, context.height)
        packets = []
        for packet in source.demux(stream):
            if packet.size:
                packets.append(packet)
                budget.check_frames(len(packets))
    if not packets:
        raise invalid("the window has no video frames: it is truncated or empty")
    return packets, context


def probe(data: bytes, kind: str, limits: VideoLimits | None = None) -> Probe:
    """Look at one complete window, in a container, without decoding it.

    Raises:
        DuplexError: `unsupported_format` (also for Annex B, which has no headers to look at),
            `invalid_media` or `media_too_large`.
    """
    limits = limits or VideoLimits()
    budget = Budget(limits)
    if len(data) > limits.max_bytes:
        raise too_large(f"a window of {len(data):,} bytes; the limit is {limits.max_bytes:,}")
    container = container_of(kind, data)
    if container not in _WHITELIST:
        raise unsupported(f"a window of {container.value} without a container")
    try:
        if container is Container.MP4:
            check_mp4(data, budget)
        packets, context = demux(container, data, budget)
    except (FFmpegError, MemoryError, ValueError, OverflowError) as error:
        raise invalid(
            f"the video cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"
        ) from error
    return Probe(len(packets), context.width, context.height, context.name, container)


def _refuse(url: str, flags: int, options: dict[str, str]) -> io.BytesIO:
    raise invalid("the window refers to another file or address; it must hold its own media")
