"""Decoders of self-framed streams: MP3, AAC in ADTS, FLAC, and length-prefixed Opus packets.

MP3 and ADTS frames tell their own length, so they are cut apart here: that keeps the result independent of
how the bytes arrive, and tells a stream that is cut off from one that ends.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from typing import Final, NamedTuple

import av.error

from duplex.codecs.decoding import AudioDecoder, MonoSink, invalid, too_large
from duplex.codecs.framing import ADTS_RATES, MP3_DECODER_DELAY
from duplex.codecs.packet_decoder import PacketDecoder

_MAX_JUNK: Final = 64 << 10
"""Bytes that are no frame before the stream is called damaged."""


class FrameHeader(NamedTuple):
    """A frame's length in bytes, and what all frames of one stream have in common."""

    size: int
    rate: int
    samples: int
    kind: int


class _FramedDecoder(AudioDecoder):
    """Cuts frames by their headers; passes over ID3v2 tags, and junk before and between frames."""

    header_size: int

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        self._buffer = bytearray()
        self._skip = 0
        self._junk = 0
        self._first: FrameHeader | None = None  # of a stream in step
        self._frames = 0
        self._ended = False
        self._decoder: PacketDecoder | None = None

    @abstractmethod
    def _header(self, at: int) -> FrameHeader | None:
        """The frame header at `at` of the buffer, None if there is none."""

    @abstractmethod
    def _frame(self, header: FrameHeader, frame: bytes) -> None:
        """Decode one whole frame."""

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        self._cut(last=False)

    def _end(self) -> None:
        self._cut(last=True)
        if not self._frames:
            raise invalid(f"the data has no {self.format} audio")
        if self._decoder is not None:
            self._decoder.drain()

    def _cut(self, *, last: bool) -> None:
        at = 0
        try:
            while not self._ended:
                step = self._step(at, last)
                if step is None:
                    break
                at += step
        finally:
            del self._buffer[: len(self._buffer) if self._ended else at]

    def _step(self, at: int, last: bool) -> int | None:
        """How many bytes at `at` are dealt with; None when more must come first."""
        left = len(self._buffer) - at
        if self._skip:
            dropped = min(self._skip, left)
            self._skip -= dropped
            return dropped or None
        if left < 10 and not last:
            return None
        if self._buffer.startswith(b"ID3", at) and left >= 10:
            size = 0
            for byte in self._buffer[at + 6 : at + 10]:
                size = size << 7 | byte & 0x7F
            self._skip = size + (20 if self._buffer[at + 5] & 0x10 else 10)
            return 0
        if left < self.header_size:
            if left and self._buffer[at] == 0xFF and self._first is not None:
                raise invalid(f"the {self.format} stream is cut off inside a frame")
            return None
        header = self._header(at)
        if header is None or (self._first is not None and header.kind != self._first.kind):
            return self._lost(at)
        if left < header.size + (0 if self._first else 10) and not last:
            return None
        if self._first is None:
            if not self._confirmed(at, header, last):
                return self._lost(at)
            self._first = header
        elif left < header.size:
            raise invalid(f"the {self.format} stream is cut off inside a frame")
        self._junk = 0
        self._frame(header, bytes(self._buffer[at : at + header.size]))
        self._frames += 1
        return header.size

    def _confirmed(self, at: int, header: FrameHeader, last: bool) -> bool:
        """Whether another frame follows: two bytes that look like a header are found in any data."""
        after = at + header.size
        if len(self._buffer) - after < self.header_size:
            return last and after == len(self._buffer)
        following = self._header(after)
        return (following is not None and following.kind == header.kind) or self._tail(after)

    def _lost(self, at: int) -> int:
        """Out of step at `at`: look for the next frame, or end at a tag that stands behind the audio."""
        if self._first is not None and self._tail(at):
            self._ended = True
            return 0
        self._junk += 1
        if self._junk > _MAX_JUNK:
            raise invalid(f"the data is not {self.format} audio, or is damaged")
        return 1

    def _tail(self, at: int) -> bool:
        return self._buffer.startswith((b"TAG", b"APETAGEX", b"LYRICSBE", b"ID3"), at)


_MP3_KBPS_V1: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_KBPS_V2: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_RATES: Final = (44100, 48000, 32000)


class Mp3Decoder(_FramedDecoder):
    """MPEG-1, 2 and 2.5 layer III. An Info or Xing frame's delay and padding are trimmed."""

    format = "mp3"
    header_size = 4

    def _header(self, at: int) -> FrameHeader | None:
        word = int.from_bytes(self._buffer[at : at + 4], "big")
        version, layer = word >> 19 & 3, word >> 17 & 3
        kbps_index, rate_index = word >> 12 & 15, word >> 10 & 3
        if word >> 21 != 0x7FF or version == 1 or layer != 1 or rate_index == 3:
            return None
        if kbps_index in (0, 15):  # free format and reserved
            return None
        first = version == 3
        rate = _MP3_RATES[rate_index] >> (0 if first else 1 if version == 2 else 2)
        kbps = (_MP3_KBPS_V1 if first else _MP3_KBPS_V2)[kbps_index]
        size = (144 if first else 72) * kbps * 1000 // rate + (word >> 9 & 1)
        return FrameHeader(size, rate, 1152 if first else 576, version << 2 | rate_index)

    def _frame(self, header: FrameHeader, frame: bytes) -> None:
        if self._decoder is None:
            self._decoder = PacketDecoder("mp3float", self._sink, what="MP3")
            if self._info(header, frame):
                return
        self._decoder.decode(frame)

    def _info(self, header: FrameHeader, frame: bytes) -> bool:
        """Take an Info, Xing or VBRI frame's word on the length. True if `frame` is one, so has no audio."""
        mono = frame[3] >> 6 == 3
        side_info = (17 if mono else 32) if header.samples == 1152 else (9 if mono else 17)
        if frame[36:40] == b"VBRI":
            return True
        at = 4 + side_info
        if frame[at : at + 4] not in (b"Info", b"Xing"):
            return False
        flags = int.from_bytes(frame[at + 4 : at + 8], "big")
        at += 8
        frames = int.from_bytes(frame[at : at + 4], "big") if flags & 1 else None
        at += 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
        lame = frame[at : at + 24]
        if len(lame) == 24 and lame.startswith((b"LAME", b"Lavc", b"Lavf", b"L3.99")):
            trim = int.from_bytes(lame[21:24], "big")
            delay = (trim >> 12) + MP3_DECODER_DELAY
            self._sink.skip(delay)
            if frames:
                padding = max(0, (trim & 0xFFF) - MP3_DECODER_DELAY)
                total = max(0, frames * header.samples - delay - padding)
                self._sink.total = total if self._sink.total is None else min(total, self._sink.total)
        if frames:
            self._sink.open(header.rate, 1, frames * header.samples)
        return True


class AdtsDecoder(_FramedDecoder):
    """AAC in ADTS. The format says nothing of delay and padding; give the encoder's to the sink."""

    format = "aac"
    header_size = 7

    def _header(self, at: int) -> FrameHeader | None:
        head = self._buffer[at : at + 7]
        if head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
            return None
        rate_index = head[2] >> 2 & 15
        size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
        if rate_index >= len(ADTS_RATES) or size < (7 if head[1] & 1 else 9):
            return None
        return FrameHeader(size, ADTS_RATES[rate_index], 1024, head[2] & 0xFC)

    def _frame(self, header: FrameHeader, frame: bytes) -> None:
        if self._decoder is None:
            self._decoder = PacketDecoder("aac", self._sink, what="AAC")
        self._decoder.decode(frame)


_PARSE_BYTES: Final = 1024


class FlacDecoder(AudioDecoder):
    """Native FLAC. A declared length is checked against what came; checksums of frames are too."""

    format = "flac"

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        self._buffer = bytearray()
        self._skip = 0
        self._last_block = False
        self._declared = 0
        self._decoder: PacketDecoder | None = None
        self._stream_info = b""

    def _feed(self, data: bytes) -> None:
        if self._decoder is not None:
            self._frames(data)
            return
        self._buffer += data
        while self._decoder is None and self._metadata():
            pass
        if self._decoder is not None and self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            self._frames(data)

    def _metadata(self) -> bool:
        """Read the marker or one metadata block. False when more bytes must come first, or all are read."""
        buffer = self._buffer
        if self._skip:
            dropped = min(self._skip, len(buffer))
            del buffer[:dropped]
            self._skip -= dropped
            return not self._skip
        if self._last_block:
            self._open()
            return False
        if not self._stream_info:
            if len(buffer) < 42:
                return False
            if buffer[:4] != b"fLaC" or buffer[4] & 0x7F or int.from_bytes(buffer[5:8], "big") != 34:
                raise invalid("the data is not a FLAC stream from its start")
            self._last_block, self._stream_info = bool(buffer[4] >> 7), bytes(buffer[8:42])
            del buffer[:42]
        elif len(buffer) < 4:
            return False
        else:
            self._last_block, self._skip = bool(buffer[0] >> 7), int.from_bytes(buffer[1:4], "big")
            del buffer[:4]
        return True

    def _open(self) -> None:
        fields = int.from_bytes(self._stream_info[10:18], "big")
        rate, channels, self._declared = fields >> 44, (fields >> 41 & 7) + 1, fields & (1 << 36) - 1
        self._sink.open(rate, channels, self._declared or None)
        self._decoder = PacketDecoder(
            "flac", self._sink, what="FLAC", config=self._stream_info, rate=rate, channels=channels
        )

    def _frames(self, data: bytes) -> None:
        # libav's parser gives a frame or two a call and keeps the others for the next one
        for at in range(0, len(data), _PARSE_BYTES):
            self._parse(data[at : at + _PARSE_BYTES])

    def _parse(self, data: bytes) -> bool:
        assert self._decoder is not None
        try:
            packets = self._decoder.context.parse(data)
        except av.error.FFmpegError as error:
            raise invalid("the FLAC data is damaged") from error
        for packet in packets:
            self._decoder.decode(packet)
        return bool(packets)

    def _end(self) -> None:
        if self._decoder is None:
            raise invalid("the data is empty, or ends inside the FLAC header")
        while self._parse(b""):
            pass
        self._decoder.drain()
        if self._declared and self._sink.native_samples < self._declared and self._sink.total is None:
            missing = self._declared - self._sink.native_samples
            raise invalid(f"the FLAC stream is cut off: {missing} samples are missing")


class OpusRawDecoder(AudioDecoder):
    """Opus packets, each after its length as 16 bits, big-endian; mono, on the 48 kHz clock."""

    format = "opus_raw"

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        sink.open(48_000, 1)
        head = b"OpusHead\x01\x01" + struct.pack("<HIhB", 0, 48_000, 0, 0)
        self._decoder = PacketDecoder("libopus", sink, what="Opus", config=head)
        self._buffer = bytearray()

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= 2:
            size = int.from_bytes(self._buffer[at : at + 2], "big")
            if not size:
                raise invalid("an Opus packet has no bytes")
            if size > self._sink.limits.max_header_bytes:
                raise too_large(f"an Opus packet has {size} bytes")
            if len(self._buffer) - at - 2 < size:
                break
            self._decoder.decode(bytes(self._buffer[at + 2 : at + 2 + size]))
            at += 2 + size
        del self._buffer[:at]

    def _end(self) -> None:
        if self._buffer:
            raise invalid("the Opus stream is cut off inside a packet")
        self._decoder.drain()
