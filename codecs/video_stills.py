"""Stills: JPEG, PNG and WebP, decoded straight from the bytes, without a demuxer."""

from __future__ import annotations

import struct

import av
from av.error import FFmpegError

from duplex.codecs.video_limits import Budget, invalid, too_large, unsupported

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_NEEDED = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))


def decode_still(data: bytes, budget: Budget) -> av.VideoFrame:
    """One picture.

    Raises:
        DuplexError: `unsupported_format` when the bytes are no JPEG, PNG or WebP, `invalid_media` when
            they cannot be decoded, `media_too_large` beyond the limits.
    """
    if not data:
        raise invalid("the image is empty")
    if len(data) > budget.limits.max_bytes:
        raise too_large(f"an image of {len(data):,} bytes; the limit is {budget.limits.max_bytes:,}")
    name, data = _decoder(data, budget)
    context = av.CodecContext.create(name, "r")
    assert isinstance(context, av.VideoCodecContext)
    context.thread_count = 1
    context.options = {"max_pixels": str(budget.limits.max_pixels)}
    try:
        with budget.working():
            frames = [*context.decode(av.Packet(data)), *context.decode(None)]
    except (FFmpegError, ValueError, MemoryError) as error:
        raise invalid(f"the {name} image cannot be decoded: {_reason(error)}") from error
    if not frames:
        raise invalid(f"the {name} image is incomplete")
    budget.decoded(frames[0].width, frames[0].height)
    return frames[0]


def _decoder(data: bytes, budget: Budget) -> tuple[str, bytes]:
    if data[:3] == b"\xff\xd8\xff":
        budget.check_size(*_jpeg_size(data))
        return "mjpeg", data
    if data[:8] == _PNG:
        return "png", _plain_png(data, budget)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        budget.check_size(*_webp_size(data))
        return "webp", data
    raise unsupported("an image must be JPEG, PNG or WebP")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Width and height of the first frame header; libav's own refusal does not say what it refused."""
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        if marker == 0xFF or 0xD0 <= marker <= 0xD8 or marker == 0x01:  # fill, or no payload
            position += 1 if marker == 0xFF else 2
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    raise invalid("the jpeg image is incomplete")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height of the canvas, or of the one frame."""
    name, head = data[12:16], data[20:30]
    if len(head) == 10:
        if name == b"VP8X":
            return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
        if name == b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 6)
            return width & 0x3FFF, height & 0x3FFF
        if name == b"VP8L":
            bits = int.from_bytes(head[1:5], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise invalid("the webp image is incomplete")


def _plain_png(data: bytes, budget: Budget) -> bytes:
    """The PNG less its ancillary chunks: a compressed text or colour profile may inflate without bound."""
    parts = [_PNG]
    position = len(_PNG)
    while position + 12 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        name = data[position + 4 : position + 8]
        end = position + 12 + size
        if end > len(data):
            raise invalid("the png image is truncated")
        if name == b"IHDR":
            width, height = (int.from_bytes(data[position + at : position + at + 4], "big") for at in (8, 12))
            budget.check_size(width, height)
        if name in _PNG_NEEDED:
            parts.append(data[position:end])
        position = end
        if name == b"IEND":
            return b"".join(parts)
    raise invalid("the png image is truncated")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
