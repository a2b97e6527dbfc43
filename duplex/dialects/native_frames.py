"""Binary frames of the native dialect (`frames=binary`): a 16-byte little-endian header, then the payload.

| bytes | field | |
| --- | --- | --- |
| 0 | u8 version | 1 |
| 1 | u8 kind | see `FrameKind` |
| 2–3 | u16 flags | audio: its rate in Hz, 0 for 16000; video: its duration in ms, 0 if unknown; else 0 |
| 4–7 | u32 response index | 0 for input |
| 8–15 | u64 pts | audio: samples since the response or the input began; image, video: ms |
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from duplex.core.errors import DuplexError, ErrorCode

VERSION: Final = 1
HEADER: Final = struct.Struct("<BBHIQ")
MAX_RESPONSE_INDEX: Final = 2**32 - 1
MAX_PTS: Final = 2**64 - 1


class FrameKind(IntEnum):
    """What a frame's payload is."""

    AUDIO_IN = 1  # pcm16 mono
    AUDIO_OUT = 2  # the session's output format
    IMAGE = 3  # JPEG, PNG or WebP
    VIDEO = 4  # a container or elementary stream
    CODEC_WINDOW = 5  # MessagePack


class BinaryFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame, header read. `flags` and `pts` as in the module's table."""

    kind: FrameKind
    payload: bytes
    response_index: int = 0
    pts: int = 0
    flags: int = 0


def pack(kind: FrameKind, payload: bytes, *, response_index: int = 0, pts: int = 0, flags: int = 0) -> bytes:
    """A frame's bytes. Raises `struct.error` when a field does not fit."""
    return HEADER.pack(VERSION, kind, flags, response_index, pts) + payload


def unpack(frame: bytes) -> BinaryFrame:
    """Read a frame.

    Raises:
        DuplexError: `INVALID_FRAME` for one that is too short, of another version or of an unknown kind.
    """
    if len(frame) < HEADER.size:
        raise DuplexError(
            ErrorCode.INVALID_FRAME, f"a binary frame has a {HEADER.size}-byte header; got {len(frame)} bytes"
        )
    version, kind, flags, response_index, pts = HEADER.unpack_from(frame)
    if version != VERSION:
        raise DuplexError(ErrorCode.INVALID_FRAME, f"binary frame of version {version}; known is {VERSION}")
    if kind not in _KINDS:
        raise DuplexError(ErrorCode.INVALID_FRAME, f"binary frame of unknown kind {kind}; known are 1 to 5")
    return BinaryFrame(
        kind=_KINDS[kind],
        payload=frame[HEADER.size :],
        response_index=response_index,
        pts=pts,
        flags=flags,
    )


_KINDS: Final = {kind.value: kind for kind in FrameKind}
