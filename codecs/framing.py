"""The bytes around codec packets: ADTS and MP3 Info headers, Ogg pages, WebM elements.

Written here rather than by libav's muxers because those hold packets back until a page or a cluster is
full, and call back into Python for every write; here each packet leaves as soon as it exists.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

# --- AAC in ADTS (ISO/IEC 14496-3, 1.A.2.2) ----------------------------------------------------------

ADTS_RATES: Final = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)


def adts_header(sample_rate: int, payload_size: int) -> bytes:
    """The 7 bytes before one mono AAC-LC frame of `payload_size` bytes, without CRC."""
    size = payload_size + 7
    fields = (
        (0xFFF1 << 40)  # sync word, MPEG-4, layer 0, no CRC
        | (1 << 38)  # profile: object type 2 (LC) less 1
        | (ADTS_RATES.index(sample_rate) << 34)
        | (1 << 30)  # one channel
        | (size << 13)
        | (0x7FF << 2)  # buffer fullness: variable rate
    )
    return fields.to_bytes(7, "big")


# --- MP3 Info frame (the LAME extension of the Xing header) ------------------------------------------

_MP3_BITRATES_V1: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_BITRATES_V2: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_RATES: Final = (44100, 48000, 32000)
MP3_DECODER_DELAY: Final = 529
"""Samples that every MP3 decoder adds before the encoder's own delay (528 + 1)."""


def mp3_info_frame(sample_rate: int, delay: int, frames: int | None = None, padding: int = 0) -> bytes:
    """A silent mono MP3 frame that tells decoders to drop `delay` samples, encoder and decoder together.

    With `frames`, the number of audio frames to come, `padding` samples at the end are dropped too.
    """
    version = 0 if sample_rate >= 32000 else 1 if sample_rate >= 16000 else 2  # MPEG-1, 2, 2.5
    rate_index = _MP3_RATES.index(sample_rate << version)
    bitrates, per_byte, side_info = (_MP3_BITRATES_V1, 144, 17) if version == 0 else (_MP3_BITRATES_V2, 72, 9)
    tag_end = 4 + side_info + 16 + 36
    index, size = next(
        (i, size)
        for i, kbps in enumerate(bitrates)
        if (size := per_byte * kbps * 1000 // sample_rate) >= tag_end
    )
    version_bits = (3, 2, 0)[version]
    header = struct.pack(
        ">I", 0xFFE00000 | version_bits << 19 | 1 << 17 | 1 << 16 | index << 12 | rate_index << 10 | 3 << 6
    )
    fields = struct.pack(">4sI", b"Info", 1 if frames is not None else 0)
    if frames is not None:
        fields += struct.pack(">I", frames)
    trim = (delay - MP3_DECODER_DELAY) << 12 | padding
    lame = b"Lavc dplx" + bytes(12) + trim.to_bytes(3, "big") + bytes(8) + bytes(2)
    body = header + bytes(side_info) + fields + lame
    return (body + _crc16(body).to_bytes(2, "big")).ljust(size, b"\0")


def _crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


# --- FLAC ------------------------------------------------------------------------------------------


def flac_header(stream_info: bytes, total_samples: int | None = None) -> bytes:
    """Marker and STREAMINFO block (34 bytes, as the encoder gives them). Length unknown: 0 (RFC 9639)."""
    info = bytearray(stream_info[:34])
    if total_samples is not None and total_samples < 1 << 36:
        info[13] = info[13] & 0xF0 | total_samples >> 32
        info[14:18] = (total_samples & 0xFFFFFFFF).to_bytes(4, "big")
    return b"fLaC" + bytes((0x80, 0, 0, 34)) + bytes(info)


# --- Ogg (RFC 3533) --------------------------------------------------------------------------------

_REVERSED: Final = bytes(int(f"{i:08b}"[::-1], 2) for i in range(256))


def ogg_crc(page: bytes) -> int:
    """Ogg's CRC-32 (polynomial 0x04C11DB7, not reflected) of a page whose checksum field is zero.

    zlib's CRC is the same polynomial reflected: bits of every byte, and of the result, are turned round.
    """
    reflected = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(reflected.to_bytes(4, "little").translate(_REVERSED), "big")


class OggWriter:
    """Pages of one logical stream, one packet a page so that no packet waits for another.

    That costs 28 bytes a packet, 11 kbit/s at 20 ms.
    """

    __slots__ = ("_sequence", "_serial")

    def __init__(self, serial: int) -> None:
        self._serial = serial
        self._sequence = 0

    def page(self, packet: bytes, granule: int, *, first: bool = False, last: bool = False) -> bytes:
        """One page with one whole packet (< 65,025 bytes); b"" as the last packet makes an empty page."""
        segments = b"" if last and not packet else bytes([255] * (len(packet) // 255) + [len(packet) % 255])
        head = struct.pack(
            "<4sBBqIIIB",
            *(b"OggS", 0, (2 if first else 0) | (4 if last else 0), granule),
            *(self._serial, self._sequence, 0, len(segments)),
        )
        self._sequence += 1
        page = head + segments + packet
        return page[:22] + ogg_crc(page).to_bytes(4, "little") + page[26:]


# --- WebM (RFC 8794, RFC 9559) -----------------------------------------------------------------------

EBML_UNKNOWN: Final = b"\x01" + b"\xff" * 7


def ebml(element_id: int, payload: bytes | int | float | str) -> bytes:
    """One element. Integers are written unsigned (negative ones signed), floats as 8 bytes."""
    if isinstance(payload, int):
        payload = payload.to_bytes(max(1, (payload.bit_length() + 8) // 8), "big", signed=True)
        payload = payload.lstrip(b"\0") or b"\0" if payload[0] == 0 else payload
    elif isinstance(payload, float):
        payload = struct.pack(">d", payload)
    elif isinstance(payload, str):
        payload = payload.encode()
    return ebml_id(element_id) + (len(payload) | 1 << 56).to_bytes(8, "big") + payload


def ebml_id(element_id: int) -> bytes:
    """An element's id as it stands in the stream."""
    return element_id.to_bytes((element_id.bit_length() + 7) // 8, "big")
