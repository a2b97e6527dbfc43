"""Which container a window really is. The declared kind is checked against the bytes."""

from __future__ import annotations

from enum import StrEnum

from duplex.codecs.video_limits import invalid, unsupported


class Container(StrEnum):
    """The forms of video that are read. The value is libav's demuxer; Annex B needs none."""

    MP4 = "mp4"
    MATROSKA = "matroska"
    MPEG_TS = "mpegts"
    H264 = "h264"
    HEVC = "hevc"


_KINDS: dict[str, Container] = {
    "mp4": Container.MP4,
    "m4v": Container.MP4,
    "x-m4v": Container.MP4,
    "quicktime": Container.MP4,
    "mov": Container.MP4,
    "webm": Container.MATROSKA,
    "mkv": Container.MATROSKA,
    "matroska": Container.MATROSKA,
    "x-matroska": Container.MATROSKA,
    "mp2t": Container.MPEG_TS,
    "ts": Container.MPEG_TS,
    "mpegts": Container.MPEG_TS,
    "mpeg-ts": Container.MPEG_TS,
    "h264": Container.H264,
    "avc": Container.H264,
    "avc1": Container.H264,
    "hevc": Container.HEVC,
    "h265": Container.HEVC,
    "hvc1": Container.HEVC,
}

KINDS: tuple[str, ...] = tuple(f"video/{name}" for name in _KINDS)
"""The media types that are accepted; the part before the slash may be left out."""

_MP4_BOXES = frozenset(
    (b"ftyp", b"moov", b"moof", b"styp", b"sidx", b"mdat", b"free", b"skip", b"wide", b"emsg", b"prft")
)
_EBML = b"\x1aE\xdf\xa3"
CLUSTER = b"\x1fC\xb6u"
"""Matroska's element id of a cluster: a window that begins with it continues the stream before it."""


def container_of(kind: str, data: bytes) -> Container:
    """The container of `data`, declared as `kind` (`video/mp4`, `webm`, `video/webm;codecs=vp9`, …).

    Raises:
        DuplexError: `unsupported_format` for a kind that is not known, `invalid_media` for bytes that
            are not of that kind.
    """
    name = kind.partition(";")[0].strip().lower().removeprefix("video/")
    declared = _KINDS.get(name)
    if declared is None:
        raise unsupported(f"video kind {kind[:64]!r} is not supported; known are {', '.join(KINDS)}")
    if not data:
        raise invalid("the video window is empty")
    found = sniff(data)
    annex_b = (Container.H264, Container.HEVC)
    if found is declared or (declared in annex_b and found in annex_b):
        return declared
    if found is None:
        raise invalid(f"the bytes are not {declared.value}, as {kind[:64]!r} says")
    raise invalid(f"the window says {kind[:64]!r} but its bytes are {found.value}")


def sniff(data: bytes) -> Container | None:
    """The container that the first bytes show, or None."""
    if data[4:8] in _MP4_BOXES and int.from_bytes(data[:4], "big") not in range(2, 8):
        return Container.MP4
    if data[:4] in (_EBML, CLUSTER):
        return Container.MATROSKA
    if data[:3] == b"\x00\x00\x01" or data[:4] == b"\x00\x00\x00\x01":
        return Container.H264
    if len(data) >= 188 and all(data[at] == 0x47 for at in range(0, min(len(data), 188 * 4), 188)):
        return Container.MPEG_TS
    return None
