"""Opus packets as a stream of bytes: Ogg (RFC 7845), WebM, and length-prefixed raw packets.

Each takes packets of equal duration on the 48 kHz clock and trims the encoder's delay and padding by its
format's own means. The last packet is held back until the end is known, because the trimming is said in it.

Raw packets: each is a 16-bit big-endian length, then that many bytes of one Opus packet of 20 ms. There is no
header and nothing to trim by; the sender declares `delay_samples` and `padding_samples`.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from duplex.codecs.framing import EBML_UNKNOWN, OggWriter, ebml, ebml_id

VENDOR: Final = "duplex"
_OGG_SERIAL: Final = 0x44504C58  # one stream a file, so that any number serves; the same for the same input
_SEEK_PREROLL_NS: Final = 80_000_000  # RFC 7845: decoders converge within 80 ms
_CLUSTER_MS: Final = 5_000


class OpusStream(Protocol):
    """What stands around Opus packets. `head` is the OpusHead, `ticks` a packet's length at 48 kHz."""

    media_type: str

    def __init__(self, head: bytes, ticks: int) -> None: ...

    def packet(self, packet: bytes) -> bytes:
        """Bytes that may be sent now that `packet` is known."""
        ...

    def end(self, total_ticks: int) -> bytes:
        """The rest, for a stream that stands for `total_ticks` of input at 48 kHz."""
        ...


class OpusRawStream:
    """Length-prefixed packets."""

    media_type = "audio/opus"

    def __init__(self, head: bytes, ticks: int) -> None:
        pass

    def packet(self, packet: bytes) -> bytes:
        return struct.pack(">H", len(packet)) + packet

    def end(self, total_ticks: int) -> bytes:
        return b""


class OpusOggStream:
    """Ogg: the last page's granule position tells where the audio ends."""

    media_type = "audio/ogg; codecs=opus"

    def __init__(self, head: bytes, ticks: int) -> None:
        self._pages = OggWriter(_OGG_SERIAL)
        self._head: bytes = head
        self._ticks = ticks
        self._pre_skip = int.from_bytes(head[10:12], "little")
        self._granule = 0
        self._held: bytes | None = None

    def _headers(self) -> bytes:
        if not self._head:
            return b""
        head, self._head = self._head, b""
        tags = b"OpusTags" + struct.pack("<I", len(VENDOR)) + VENDOR.encode() + bytes(4)
        return self._pages.page(head, 0, first=True) + self._pages.page(tags, 0)

    def packet(self, packet: bytes) -> bytes:
        held, self._held = self._held, packet
        if held is None:
            return self._headers()
        self._granule += self._ticks
        return self._pages.page(held, self._granule)

    def end(self, total_ticks: int) -> bytes:
        granule = self._pre_skip + total_ticks if self._held is not None else 0
        return self._headers() + self._pages.page(self._held or b"", granule, last=True)


class OpusWebmStream:
    """WebM of unknown length: clusters are left open, so that each block leaves at once."""

    media_type = "audio/webm; codecs=opus"

    def __init__(self, head: bytes, ticks: int) -> None:
        self._head: bytes = head
        self._ticks = ticks
        self._pre_skip = int.from_bytes(head[10:12], "little")
        self._rate = int.from_bytes(head[12:16], "little")
        self._sent = 0  # packets written
        self._cluster_ms: int | None = None
        self._held: bytes | None = None

    def _headers(self) -> bytes:
        if not self._head:
            return b""
        head, self._head = self._head, b""
        track = (
            ebml(0xD7, 1)  # TrackNumber
            + ebml(0x73C5, 1)  # TrackUID
            + ebml(0x83, 2)  # TrackType: audio
            + ebml(0x86, "A_OPUS")
            + ebml(0x63A2, head)  # CodecPrivate
            + ebml(0x56AA, self._pre_skip * 1_000_000_000 // 48_000)  # CodecDelay, ns
            + ebml(0x56BB, _SEEK_PREROLL_NS)
            + ebml(0xE1, ebml(0xB5, float(48_000)) + ebml(0x9F, 1))  # Audio: rate, channels
        )
        return (
            ebml(
                0x1A45DFA3,
                ebml(0x4286, 1)  # EBMLVersion
                + ebml(0x42F7, 1)
                + ebml(0x42F2, 4)
                + ebml(0x42F3, 8)
                + ebml(0x4282, "webm")
                + ebml(0x4287, 4)
                + ebml(0x4285, 2),
            )
            + ebml_id(0x18538067)  # Segment
            + EBML_UNKNOWN
            + ebml(
                0x1549A966,
                ebml(0x2AD7B1, 1_000_000) + ebml(0x4D80, VENDOR) + ebml(0x5741, VENDOR),
            )
            + ebml(0x1654AE6B, ebml(0xAE, track))
        )

    def _cluster(self, at_ms: int) -> bytes:
        if self._cluster_ms is not None and at_ms - self._cluster_ms < _CLUSTER_MS:
            return b""
        self._cluster_ms = at_ms
        return ebml_id(0x1F43B675) + EBML_UNKNOWN + ebml(0xE7, at_ms)

    def _block(self, packet: bytes, discard_ticks: int) -> bytes:
        at_ms = self._sent * self._ticks // 48
        self._sent += 1
        cluster = self._cluster(at_ms)
        assert self._cluster_ms is not None
        body = b"\x81" + struct.pack(">h", at_ms - self._cluster_ms)
        if discard_ticks <= 0:
            return cluster + ebml(0xA3, body + b"\x80" + packet)
        padding = discard_ticks * 1_000_000_000 // 48_000
        # DiscardPadding is a signed integer, which `ebml` would write without its leading zero
        size = (padding.bit_length() + 8) // 8
        discard = ebml(0x75A2, padding.to_bytes(size, "big", signed=True))
        return cluster + ebml(0xA0, ebml(0xA1, body + b"\x00" + packet) + discard)

    def packet(self, packet: bytes) -> bytes:
        held, self._held = self._held, packet
        return self._headers() if held is None else self._block(held, 0)

    def end(self, total_ticks: int) -> bytes:
        if self._held is None:
            return self._headers()
        coded = (self._sent + 1) * self._ticks
        return self._headers() + self._block(self._held, coded - self._pre_skip - total_ticks)
