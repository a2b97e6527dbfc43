"""Opus in Ogg (RFC 3533, RFC 7845) from bytes cut anywhere; other codecs in Ogg go to libav."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from duplex.codecs.decoding import AudioDecoder, MonoSink, invalid, too_large
from duplex.codecs.framing import ogg_crc
from duplex.codecs.libav_decoder import LibavDecoder
from duplex.codecs.packet_decoder import PacketDecoder

_CONTINUED, _FIRST, _LAST = 1, 2, 4
_MAX_WAIT: Final = 64 << 10
"""Bytes without the beginning of a stream after which waiting for one is given up."""


def opus_packet_ticks(packet: bytes) -> int:
    """An Opus packet's duration in samples at 48 kHz, by its first bytes (RFC 6716, section 3.1)."""
    if not packet:
        raise invalid("an Opus packet has no bytes")
    config = packet[0] >> 3
    if config < 12:  # SILK
        frame = (480, 960, 1920, 2880)[config & 3]
    elif config < 16:  # hybrid
        frame = (480, 960)[config & 1]
    else:  # CELT
        frame = (120, 240, 480, 960)[config & 3]
    code = packet[0] & 3
    if code == 3 and len(packet) < 2:
        raise invalid("an Opus packet is too short")
    return frame * (1 if code == 0 else 2 if code < 3 else packet[1] & 63)


class OggDecoder(AudioDecoder):
    """Ogg. A stream joined in its middle is passed over up to the next beginning, for 64 KiB at most."""

    format = "ogg"

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        self._buffer = bytearray()
        self._waited = 0
        self._other: LibavDecoder | None = None
        self._serial: int | None = None  # of the stream that is decoded now
        self._decoder: PacketDecoder | None = None
        self._packets = 0  # of this stream, headers included
        self._partial = b""
        self._pre_skip = 0
        self._base = 0  # samples that earlier streams of the chain gave
        self._start: int | None = None  # granule position of this stream's first sample
        self._declared_total = sink.total

    def _feed(self, data: bytes) -> None:
        if self._other is not None:
            self._other.pass_on(data)
            return
        self._buffer += data
        while self._other is None and (size := self._page_size()):
            page = bytes(self._buffer[:size])
            if (
                self._serial is None
                and page[5] & _FIRST
                and not self._page_body(page).startswith(b"OpusHead")
            ):
                self._other = LibavDecoder(self._sink, "ogg")
                self._other.pass_on(bytes(self._buffer))
                self._buffer.clear()
                return
            del self._buffer[:size]
            self._page(page)

    def _end(self) -> None:
        if self._other is not None:
            self._other.end()
            return
        if self._serial is None and self._decoder is None:
            what = "no beginning of a stream came" if self._waited else "the data is empty or too short"
            raise invalid(f"the data cannot be decoded as Ogg: {what}")
        if self._buffer:
            raise invalid("the Ogg stream is cut off inside a page")
        if self._decoder is not None:
            self._decoder.drain()

    def close(self) -> None:
        if self._other is not None:
            self._other.close()

    def _page_size(self) -> int:
        """Size of the whole page at the front; 0 when more bytes must come first. Skips what is no page."""
        while True:
            at = self._buffer.find(b"OggS")
            if at:
                junk = at if at > 0 else max(0, len(self._buffer) - 3)
                if junk and self._serial is not None:
                    raise invalid("the Ogg stream is damaged: a page does not follow the page before it")
                self._wait(junk)
                if at < 0:
                    return 0
            if len(self._buffer) < 27:
                return 0
            table_end = 27 + self._buffer[26]
            if len(self._buffer) < table_end:
                return 0
            size = table_end + sum(self._buffer[27:table_end])
            if len(self._buffer) < size:
                return 0
            page = bytes(self._buffer[:size])
            if ogg_crc(page[:22] + bytes(4) + page[26:]) == int.from_bytes(page[22:26], "little"):
                if self._serial is not None or self._decoder is not None or page[5] & _FIRST:
                    return size
                self._wait(size)
            elif self._serial is not None:
                raise invalid("the Ogg stream is damaged: a page's checksum is wrong")
            else:
                self._wait(4)

    def _wait(self, skipped: int) -> None:
        del self._buffer[:skipped]
        self._waited += skipped
        if self._waited > _MAX_WAIT:
            raise invalid(
                "the data has no beginning of an Ogg stream: it is not Ogg, or was joined in the middle"
            )

    @staticmethod
    def _page_body(page: bytes) -> bytes:
        return page[27 + page[26] :]

    def _page(self, page: bytes) -> None:
        flags, granule, serial = page[5], *struct.unpack_from("<qI", page, 6)
        if flags & _FIRST and self._page_body(page).startswith(b"OpusHead") and serial != self._serial:
            self._begin(serial)
        if serial != self._serial:
            return  # another stream of the multiplex
        self._wait_is_over()
        packets = self._cut(page, continued=bool(flags & _CONTINUED))
        ticks = 0
        audio: list[bytes] = []
        for packet in packets:
            self._packets += 1
            if self._packets == 1:
                self._head(packet)
            elif self._packets > 2:
                audio.append(packet)
                ticks += opus_packet_ticks(packet)
        last = bool(flags & _LAST)
        if audio:
            if self._start is None:
                # a live stream may begin at any position; one page that is the last too begins at zero
                self._start = 0 if last else granule - ticks
            if last and granule >= 0:
                total = self._base + max(0, granule - self._start - self._pre_skip)
                declared = self._declared_total
                self._sink.total = total if declared is None else min(total, declared)
        for packet in audio:
            assert self._decoder is not None
            self._decoder.decode(packet)
        if last:
            self._serial = None

    def _wait_is_over(self) -> None:
        self._waited = 0

    def _begin(self, serial: int) -> None:
        self._serial = serial
        self._packets = 0
        self._partial = b""
        self._start = None
        self._base = self._sink.native_samples
        self._sink.total = self._declared_total

    def _head(self, head: bytes) -> None:
        if len(head) < 19 or head[8] >> 4:
            raise invalid("the Opus header is damaged or of an unknown version")
        self._pre_skip = int.from_bytes(head[10:12], "little")
        self._sink.open(48_000, head[9])
        self._sink.skip(self._pre_skip)
        self._decoder = PacketDecoder("libopus", self._sink, what="Opus", config=head)

    def _cut(self, page: bytes, *, continued: bool) -> list[bytes]:
        """The packets that end on this page."""
        sizes = np.frombuffer(page, np.uint8, page[26], 27).tolist()
        packets: list[bytes] = []
        at = 27 + len(sizes)
        # a continuation whose start was on a lost page cannot be decoded; nor a start whose rest was
        part = self._partial if continued else b""
        lost = continued and not self._partial
        for size in sizes:
            part += page[at : at + size]
            at += size
            if size == 255:
                continue
            if not lost:
                packets.append(part)
            lost, part = False, b""
        self._partial = b"" if lost else part
        if len(self._partial) > self._sink.limits.max_header_bytes:
            raise too_large("an Ogg packet is too large")
        return packets
