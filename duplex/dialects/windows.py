"""Input windows out of message fields and binary frames: shapes, base64, magic numbers; no decoding.

What the bytes of a video really hold is for the adapter that decodes them.
"""

from __future__ import annotations

import binascii
import math
from typing import Any, Final

import msgspec
import pybase64

from duplex.codecs.video_sniff import Container, sniff
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioWindow, CodecWindow, ImageWindow, Modality, TextWindow, VideoWindow, Window
from duplex.dialects.fields import MAX_ID, Fields

DEFAULT_SAMPLE_RATE: Final = 16000
"""Hz of audio that comes without a rate."""
MIN_SAMPLE_RATE: Final = 8000
MAX_SAMPLE_RATE: Final = 48000
MAX_CLOCK_MS: Final = 1e15
"""Latest time of a window: decoders count time in ticks of 64 bits. It is 31,000 years."""
MAX_FRAMES: Final = 256
"""Stills in one video window."""
MAX_LOOSE_BYTES: Final = 128 * 1024
"""Bytes of a MessagePack codec window that are not in `bin` or `str` values. Loose numbers and containers
take time on the event loop and grow up to 90 times when decoded; large arrays belong into `bin`, see
`duplex.codecs.number_arrays`."""


def window_from_message(message: Fields) -> Window:
    """The window of an `input.append`.

    Raises:
        DuplexError: `MISSING_MODALITY`, `UNKNOWN_MODALITY`, or a fault of the data with `param`.
    """
    match modality_of(message):
        case Modality.TEXT:
            return TextWindow(text=_text(message))
        case Modality.AUDIO:
            return _audio(message)
        case Modality.IMAGE:
            return ImageWindow(data=still(base64_field(message, "data"), "data"))
        case Modality.VIDEO:
            return _video(message.fields("data"))
        case Modality.CODEC_WINDOW:
            return _codec_window(message.fields("data"))


def modality_of(message: Fields) -> Modality:
    """The modality that an `input.append` names. Raises `MISSING_MODALITY` or `UNKNOWN_MODALITY`."""
    name = message.values.get("modality")
    if not isinstance(name, str):
        raise DuplexError(
            ErrorCode.MISSING_MODALITY, "input.append must have a string modality", param="modality"
        )
    try:
        return Modality(name)
    except ValueError:
        known = ", ".join(Modality)
        raise DuplexError(
            ErrorCode.UNKNOWN_MODALITY,
            f"unsupported input modality: {name[:64]} (known are {known})",
            param="modality",
        ) from None


def base64_field(message: Fields, name: str) -> bytes:
    """Decoded base64: the standard alphabet, padded, nothing else in it (RFC 4648, section 4).

    No white space, no URL-safe alphabet, no missing padding: each is more often a cut or mangled string
    than a habit. Raises `INVALID_BASE64`, `EMPTY_INPUT`.
    """
    return _decode_base64(message.string(name), message.path(name))


def _decode_base64(text: str, param: str) -> bytes:
    if not text:
        raise DuplexError(ErrorCode.EMPTY_INPUT, f"{param} is empty", param=param)
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DuplexError(
            ErrorCode.INVALID_BASE64,
            f"{param} must be base64: the standard alphabet, with padding, without white space",
            param=param,
        ) from None


def still(data: bytes, param: str) -> bytes:
    """`data`, if it begins like a JPEG, PNG or WebP. Raises `EMPTY_INPUT`, `UNSUPPORTED_FORMAT`."""
    if not data:
        raise DuplexError(ErrorCode.EMPTY_INPUT, f"{param} is empty", param=param)
    if (
        data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))
        or (data.startswith(b"RIFF") and data[8:12] == b"WEBP")
    ):  # fmt: skip
        return data
    raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"{param} must be a JPEG, PNG or WebP image", param=param)


def check_sample_rate(rate: int, param: str) -> int:
    """`rate` in Hz, if audio of that rate is taken. Raises `INVALID_VALUE`."""
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            f"{param} must be from {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz",
            param=param,
        )
    return rate


def check_clock(pts: int, param: str) -> float:
    """`pts` in ms, if a window may have it. Raises `INVALID_VALUE`."""
    if pts > MAX_CLOCK_MS:
        raise DuplexError(ErrorCode.INVALID_VALUE, f"{param} must be from 0 to 1e15", param=param)
    return float(pts)


def video_kind(data: bytes) -> str:
    """The media type of a piece of video that came without one. Raises `INVALID_MEDIA`."""
    match sniff(data):
        case Container.MP4:
            return "video/mp4"
        case Container.MATROSKA:
            return "video/webm"
        case Container.MPEG_TS:
            return "video/mp2t"
        case Container.H264 | Container.HEVC:
            return "video/hevc" if _begins_as_hevc(data) else "video/h264"
        case None:
            raise DuplexError(
                ErrorCode.INVALID_MEDIA, "the video is none of mp4, webm, mkv, mpeg-ts, h264, hevc"
            )


def codec_window_from_msgpack(payload: bytes, pts: int) -> CodecWindow:
    """The codec window of a binary frame: the same fields as in JSON; the data of arrays is `bin`.

    `pts` (ms) counts where the map has no `pts_ms`. Raises `INVALID_FRAME`, `MEDIA_TOO_LARGE`, or a fault
    of a field.
    """
    try:
        top = _raw_map(payload, "the codec window")
        codec = _raw_map(top.pop("codec", msgspec.Raw(b"\xc0")), "codec")
        loose = sum(_loose_size(raw) for raw in top.values())
        loose += sum(_loose_size(raw, field=True) for raw in codec.values())
        if loose > MAX_LOOSE_BYTES:
            raise DuplexError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"more than {MAX_LOOSE_BYTES} bytes of numbers and containers; send large arrays as"
                " {dtype, shape, data: bin}",
                param="codec",
            )
        values = {name: _plain(msgspec.msgpack.decode(raw), name) for name, raw in top.items()}
        values["codec"] = {name: _plain(msgspec.msgpack.decode(raw), name) for name, raw in codec.items()}
    except RecursionError:
        raise DuplexError(ErrorCode.INVALID_FRAME, "the codec window is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, OverflowError) as error:
        raise DuplexError(ErrorCode.INVALID_FRAME, f"the codec window is not MessagePack: {error}") from None
    values.setdefault("pts_ms", pts)
    return _codec_window(Fields(values))


# --- one modality each ------------------------------------------------------------------------------


def _text(message: Fields) -> str:
    text = message.string("data")
    if not text:
        raise DuplexError(ErrorCode.EMPTY_INPUT, "data is empty", param="data")
    return text


def _audio(message: Fields) -> AudioWindow:
    if isinstance(message.values.get("data"), dict):
        data = message.fields("data")
        rate = data.integer("sample_rate") if "sample_rate" in data else DEFAULT_SAMPLE_RATE
        check_sample_rate(rate, data.path("sample_rate"))
        return AudioWindow(pcm=base64_field(data, "audio_base64"), sample_rate=rate)
    if not isinstance(message.values.get("data"), str):
        raise message.refuse("data", "base64 pcm16 or {audio_base64, sample_rate}")
    return AudioWindow(pcm=base64_field(message, "data"), sample_rate=DEFAULT_SAMPLE_RATE)


def _video(outer: Fields) -> VideoWindow:
    inner = outer.fields("data") if "data" in outer else outer
    data = b""
    frames: tuple[bytes, ...] = ()
    if "frames" in inner:
        frames = _stills(inner)
    elif "video_base64" in inner:
        data = base64_field(inner, "video_base64")
    else:
        raise outer.refuse("data", "{video_base64} or {frames: [...]}")
    sniffed = video_kind(data) if data and "kind" not in outer else "image"
    return VideoWindow(kind=_kind(outer) or sniffed, data=data, frames=frames, **_place(outer))


def _stills(inner: Fields) -> tuple[bytes, ...]:
    texts = inner.strings("frames")
    if not 1 <= len(texts) <= MAX_FRAMES:
        raise inner.refuse("frames", f"1 to {MAX_FRAMES} images")
    names = [f"{inner.path('frames')}[{i}]" for i in range(len(texts))]
    return tuple(still(_decode_base64(text, name), name) for text, name in zip(texts, names, strict=True))


def _codec_window(data: Fields) -> CodecWindow:
    kind = _kind(data)
    if not kind:
        raise data.refuse("kind", "the codec's name")
    codec = data.object("codec")
    if not codec:
        raise DuplexError(ErrorCode.EMPTY_INPUT, f"{data.path('codec')} is empty", param=data.path("codec"))
    return CodecWindow(kind=kind, codec=codec, **_place(data))


def _kind(data: Fields) -> str:
    """A media type or a codec's name, "" when absent."""
    kind = data.string("kind") if "kind" in data else ""
    if len(kind) > MAX_ID:
        raise data.refuse("kind", f"at most {MAX_ID} characters")
    return kind


def _place(data: Fields) -> dict[str, Any]:
    """Where a window lies on the client's clock, and what the client says about it."""
    pts, duration = data.optional_number("pts_ms"), data.optional_number("duration_ms")
    for name, value in (("pts_ms", pts), ("duration_ms", duration)):
        if value is not None and not 0 <= value <= MAX_CLOCK_MS:
            raise data.refuse(name, "from 0 to 1e15")
    return {
        "segment_id": data.identifier("segment_id"),
        "pts_ms": pts,
        "duration_ms": duration,
        "metadata": data.optional_object("metadata"),
    }


def _begins_as_hevc(data: bytes) -> bool:
    """Whether the first NAL unit of an Annex B stream is one that only HEVC begins with.

    HEVC streams begin with a VPS, SPS, PPS, access unit delimiter or SEI prefix (types 32–35, 39). In H.264
    those header bytes are types that no stream begins with.
    """
    start = data.find(b"\x00\x00\x01") + 3
    return start < len(data) and data[start] >> 1 in (32, 33, 34, 35, 39)


# --- MessagePack ------------------------------------------------------------------------------------

_raw_maps = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def _raw_map(data: bytes | msgspec.Raw, name: str) -> dict[str, msgspec.Raw]:
    """The entries of a map, undecoded: nothing of its size is built yet."""
    try:
        entries = _raw_maps.decode(data)
    except msgspec.ValidationError:
        raise DuplexError(
            ErrorCode.INVALID_FRAME, f"{name} must be a MessagePack map with string keys"
        ) from None
    if len(entries) != _declared_entries(memoryview(data)):
        raise DuplexError(ErrorCode.INVALID_FRAME, f"{name} has a key twice")
    return entries


def _declared_entries(data: memoryview) -> int:
    head = data[0]
    if head >> 4 == 0x8:
        return head & 0x0F
    return int.from_bytes(data[1:3] if head == 0xDE else data[1:5], "big")


_FLAT: Final = frozenset((*range(0xA0, 0xC0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB))
"""First bytes of `bin` and `str`: decoded they are as large as on the wire."""


_MAP_HEADS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_ARRAY_ENTRIES: Final = 3  # of {dtype, shape, data}


def _loose_size(raw: msgspec.Raw, *, field: bool = False) -> int:
    """Bytes outside of flat values. A `field` of the codec may be {dtype, shape, data}."""
    view = memoryview(raw)
    if view[0] in _FLAT:
        return 0
    if not field or view[0] not in _MAP_HEADS or _declared_entries(view) != _ARRAY_ENTRIES:
        return len(view)
    try:
        flat = sum(len(memoryview(r)) for r in _raw_maps.decode(raw).values() if memoryview(r)[0] in _FLAT)
    except msgspec.ValidationError:
        return len(view)  # a key is no string
    return len(view) - flat


def _plain(value: Any, name: str) -> Any:
    """`value`, if it holds only what JSON has, and bytes. Raises `INVALID_VALUE`."""
    match value:
        case None | bool() | int() | str() | bytes():
            return value
        case float() if math.isfinite(value):
            return value
        case list():
            for item in value:
                _plain(item, name)
            return value
        case dict() if all(isinstance(key, str) for key in value):
            for item in value.values():
                _plain(item, name)
            return value
    raise DuplexError(
        ErrorCode.INVALID_VALUE,
        f"{name[:64]} must hold finite numbers, strings, bin, arrays and maps with string keys",
        param=name[:64],
    )
