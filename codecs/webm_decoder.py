"""Audio in WebM and Matroska (RFC 9559) from bytes cut anywhere, as browsers' MediaRecorder sends it.

Elements are read as one flat sequence: Segment, Cluster and BlockGroup are entered, all others are taken
whole or passed over. So open-ended clusters need no special care, and nothing recurses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from duplex.codecs.decoding import AudioDecoder, MonoSink, invalid, too_large
from duplex.codecs.packet_decoder import PacketDecoder
from duplex.core.errors import DuplexError, ErrorCode

_EBML, _SEGMENT, _INFO, _TRACKS, _CLUSTER = 0x1A45DFA3, 0x18538067, 0x1549A966, 0x1654AE6B, 0x1F43B675
_BLOCK_GROUP, _BLOCK, _SIMPLE_BLOCK, _DISCARD_PADDING = 0xA0, 0xA1, 0xA3, 0x75A2
_ENTERED: Final = (_SEGMENT, _CLUSTER, _BLOCK_GROUP)
_TAKEN: Final = (_EBML, _INFO, _TRACKS, _BLOCK, _SIMPLE_BLOCK, _DISCARD_PADDING)
_UNKNOWN_SIZE: Final = -1
_NS: Final = 1_000_000_000

_CODECS: Final = {
    "A_OPUS": "libopus",
    "A_VORBIS": "vorbis",
    "A_AAC": "aac",
    "A_FLAC": "flac",
    "A_MPEG/L3": "mp3float",
}


def _vint(data: bytes | bytearray, at: int, *, keep_marker: bool) -> tuple[int, int] | None:
    """A variable-length integer and its size in bytes; None when more bytes must come first."""
    if at >= len(data):
        return None
    length = 9 - data[at].bit_length()
    if length > 8:
        raise invalid("the WebM stream is damaged")
    if at + length > len(data):
        return None
    value = int.from_bytes(data[at : at + length], "big")
    if not keep_marker:
        value &= (1 << 7 * length) - 1
        if value == (1 << 7 * length) - 1:
            value = _UNKNOWN_SIZE
    return value, length


def _children(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements inside a master element that was taken whole."""
    at = 0
    while at < len(data):
        name = _vint(data, at, keep_marker=True)
        size = _vint(data, at + name[1], keep_marker=False) if name else None
        if name is None or size is None:
            raise invalid("the WebM header is damaged")
        at += name[1] + size[1]
        if size[0] < 0 or at + size[0] > len(data):
            raise invalid("the WebM header is damaged")
        yield name[0], data[at : at + size[0]]
        at += size[0]


def _number(data: bytes) -> float:
    if len(data) not in (4, 8):
        return 0.0
    value: float = struct.unpack(">f" if len(data) == 4 else ">d", data)[0]
    return value if 0 <= value < 2**62 else 0.0


class WebmDecoder(AudioDecoder):
    """The first audio track of a WebM or Matroska stream; CodecDelay and DiscardPadding are trimmed."""

    format = "webm"

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        self._buffer = bytearray()
        self._skip = 0
        self._seen_header = False
        self._track = 0
        self._rate = 0
        self._decoder: PacketDecoder | None = None
        self._held: bytes | None = None  # a block that a DiscardPadding may still follow
        self._discard = 0

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while (step := self._element(at)) is not None:
            at += step
        del self._buffer[:at]

    def _end(self) -> None:
        self._release()
        if not self._seen_header:
            raise invalid("the data is empty or no WebM stream")
        if self._decoder is None:
            raise invalid("the WebM stream ends before its audio")
        if self._buffer or self._skip:
            raise invalid("the WebM stream is cut off inside an element")
        self._decoder.drain()

    def _element(self, at: int) -> int | None:
        """Read the element at `at`: how many bytes are dealt with, None when more must come first."""
        buffer = self._buffer
        if self._skip:
            dropped = min(self._skip, len(buffer) - at)
            self._skip -= dropped
            return dropped or None
        name = _vint(buffer, at, keep_marker=True)
        size = _vint(buffer, at + name[1], keep_marker=False) if name else None
        if name is None or size is None:
            return None
        head = name[1] + size[1]
        self._check_order(name[0])
        if name[0] in (_CLUSTER, _BLOCK_GROUP, _SIMPLE_BLOCK):
            self._release()
        if name[0] in _ENTERED:
            return head
        if size[0] == _UNKNOWN_SIZE:
            raise invalid("the WebM stream has an element of unknown length where none may be")
        if name[0] not in _TAKEN or (
            name[0] in (_BLOCK, _SIMPLE_BLOCK) and (other := self._other_track(at + head)) is True
        ):
            self._skip = size[0]
            return head
        if name[0] in (_BLOCK, _SIMPLE_BLOCK) and other is None:
            return None
        if size[0] > self._sink.limits.max_header_bytes:
            raise too_large(f"the WebM stream has an element of {size[0]} bytes")
        if len(buffer) - at < head + size[0]:
            return None
        self._take(name[0], bytes(buffer[at + head : at + head + size[0]]))
        return head + size[0]

    def _check_order(self, name: int) -> None:
        if not self._seen_header and name != _EBML:
            if name == _CLUSTER:
                raise invalid("the WebM stream was joined in the middle: its header is missing")
            raise invalid("the data is not a WebM stream")
        if name in (_CLUSTER, _SIMPLE_BLOCK, _BLOCK) and self._decoder is None:
            raise invalid("the WebM stream has media before its tracks are described")

    def _other_track(self, at: int) -> bool | None:
        """Whether the block whose body begins at `at` belongs to another track; None: not known yet."""
        track = _vint(self._buffer, at, keep_marker=False)
        return None if track is None else track[0] != self._track

    def _take(self, name: int, body: bytes) -> None:
        match name:
            case 0x1A45DFA3:
                doc_type = dict(_children(body)).get(0x4282, b"webm").rstrip(b"\0")
                if doc_type not in (b"webm", b"matroska"):
                    raise invalid("the data is EBML, but not WebM")
                self._seen_header = True
            case 0x1549A966:
                self._info(dict(_children(body)))
            case 0x1654AE6B:
                self._tracks(body)
            case 0x75A2:
                self._discard = round(int.from_bytes(body[:8], "big", signed=True) * self._rate / _NS)
            case 0xA1:
                self._held = body
            case _:
                self._block(body, 0)

    def _info(self, info: dict[int, bytes]) -> None:
        scale = int.from_bytes(info.get(0x2AD7B1, b""), "big") or 1_000_000
        seconds = _number(info.get(0x4489, b"")) * scale / _NS
        if seconds > self._sink.limits.max_seconds:
            raise too_large(
                f"the audio declares {seconds:.0f} s; at most {self._sink.limits.max_seconds:g} s are allowed"
            )

    def _tracks(self, body: bytes) -> None:
        if self._decoder is not None:
            return  # a muxer may repeat the tracks
        for name, entry in _children(body):
            track = dict(_children(entry)) if name == 0xAE else {}
            if track.get(0x83, b"") == b"\x02":
                self._open(track)
                return
        raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, "the WebM stream has no audio track")

    def _open(self, track: dict[int, bytes]) -> None:
        codec = track.get(0x86, b"").rstrip(b"\0").decode("ascii", "replace")
        if codec.split("/MPEG")[0] not in _CODECS:
            raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"audio codec {codec!r} in WebM is not supported")
        if 0x6D80 in track:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_FORMAT, "compressed or encrypted WebM tracks are not supported"
            )
        name = _CODECS[codec.split("/MPEG")[0]]
        audio = dict(_children(track.get(0xE1, b"")))
        channels = int.from_bytes(audio.get(0x9F, b"\x01"), "big")
        self._rate = 48_000 if name == "libopus" else int(_number(audio.get(0xB5, b"")) or 8000)
        self._track = int.from_bytes(track.get(0xD7, b""), "big")
        if name == "libopus":
            self._sink.open(self._rate, channels)
        elif not 1 <= channels <= self._sink.limits.max_channels:
            raise too_large(
                f"the audio has {channels} channels; 1 to {self._sink.limits.max_channels} are allowed"
            )
        settings: dict[str, Any] = {"rate": self._rate, "channels": channels}
        private = track.get(0x63A2)
        self._decoder = PacketDecoder(name, self._sink, what=codec, config=private, **settings)
        delay = int.from_bytes(track.get(0x56AA, b""), "big")
        self._sink.skip(round(delay * self._rate / _NS))

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._block(held, max(0, self._discard))
        self._discard = 0

    def _block(self, body: bytes, discard: int) -> None:
        track = _vint(body, 0, keep_marker=False)
        if track is None or len(body) < track[1] + 3:
            raise invalid("a WebM block is damaged")
        at = track[1] + 3
        packets = _laced(body[at:], body[at - 1] >> 1 & 3)
        assert self._decoder is not None
        for index, packet in enumerate(packets):
            self._decoder.decode(packet, discard=discard if index == len(packets) - 1 else 0)


def _laced(data: bytes, lacing: int) -> list[bytes]:
    """The frames of one block: 0 is one frame, 1 Xiph lacing, 2 equal sizes, 3 EBML lacing."""
    if lacing == 0:
        return [data]
    if not data:
        raise invalid("a WebM block is damaged")
    count, at, sizes = data[0] + 1, 1, list[int]()
    if lacing == 2:
        sizes = [(len(data) - 1) // count] * (count - 1)
    elif lacing == 1:
        for _ in range(count - 1):
            size = 0
            while at < len(data) and data[at] == 255:
                size, at = size + 255, at + 1
            if at >= len(data):
                raise invalid("a WebM block is damaged")
            sizes.append(size + data[at])
            at += 1
    else:
        for index in range(count - 1):
            coded = _vint(data, at, keep_marker=False)
            if coded is None:
                raise invalid("a WebM block is damaged")
            at += coded[1]
            # all sizes but the first are differences, coded with the middle of their range as zero
            bias = (1 << 7 * coded[1] - 1) - 1
            sizes.append(coded[0] if index == 0 else sizes[-1] + coded[0] - bias)
    if min(sizes, default=0) < 0 or at + sum(sizes) > len(data):
        raise invalid("a WebM block is damaged")
    frames = []
    for size in sizes:
        frames.append(data[at : at + size])
        at += size
    return [*frames, data[at:]]
