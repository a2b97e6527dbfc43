"""Messages as bytes: msgpack after its length, 4 bytes big endian. Sans-I/O; both ends use it."""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec

_T = TypeVar("_T")
_HEAD: Final = struct.Struct(">I")
_encode: Final = msgspec.msgpack.Encoder().encode

MAX_MESSAGE: Final = 256 * 1024 * 1024
"""Bytes. What is longer is no message but a stream out of step."""


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """All messages are tagged arrays."""


class WireError(Exception):
    """The bytes are no messages."""


def pack(message: msgspec.Struct) -> bytes:
    """One message, ready to be sent."""
    body = _encode(message)
    return _HEAD.pack(len(body)) + body


class Unpacker(Generic[_T]):
    """Takes bytes as they come, gives the messages that are whole. `type` is a struct or a union of them."""

    def __init__(self, type: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(type).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[_T]:
        """More bytes.

        Raises:
            WireError: they are no messages of this type.
        """
        buffer = self._buffer
        buffer += data
        messages: list[_T] = []
        start = 0
        with memoryview(buffer) as view:
            while len(view) - start >= _HEAD.size:
                (size,) = _HEAD.unpack_from(view, start)
                if size > MAX_MESSAGE:
                    raise WireError(f"a message of {size} bytes")
                begin = start + _HEAD.size
                if len(view) < begin + size:
                    break
                try:
                    messages.append(self._decode(view[begin : begin + size]))
                except msgspec.MsgspecError as error:
                    raise WireError(str(error)) from error
                start = begin + size
        del buffer[:start]
        return messages
