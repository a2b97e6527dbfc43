"""WAV from bytes cut anywhere: PCM of 8 to 32 bits, floats, µ-law, A-law; RF64; unknown lengths."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.codecs.decoding import AudioDecoder, MonoSink, invalid, too_large
from duplex.codecs.g711 import decode_g711
from duplex.core.errors import DuplexError, ErrorCode

_PCM, _FLOAT, _ALAW, _ULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_KINDS: Final = {
    **{(_PCM, bits): f"i{bits}" for bits in (8, 16, 24, 32)},
    (_FLOAT, 32): "f32",
    (_FLOAT, 64): "f64",
    (_ALAW, 8): "alaw",
    (_ULAW, 8): "ulaw",
}
# Writers that stream put 0, the largest 32-bit or 31-bit number, or one a header less, for "until the end".
_UNKNOWN_FROM: Final = 0x7FFF_0000


def _to_samples(kind: str, data: bytes) -> NDArray[Any]:
    match kind:
        case "i16":
            return np.frombuffer(data, np.int16)
        case "alaw" | "ulaw":
            return decode_g711(data, "alaw" if kind == "alaw" else "ulaw")
        case "f32" | "f64":
            floats = np.frombuffer(data, np.float32 if kind == "f32" else np.float64)
            with np.errstate(over="ignore"):
                return floats.astype(np.float32)
        case "i8":
            return (np.frombuffer(data, np.uint8).astype(np.int16) - 128) << 8
        case "i24":
            wide = np.zeros((len(data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            return (wide.view(np.int32).reshape(-1) * 2.0**-31).astype(np.float32)
        case _:
            return (np.frombuffer(data, np.int32) * 2.0**-31).astype(np.float32)


class WavDecoder(AudioDecoder):
    """RIFF, RF64 or BW64 with one `fmt ` and one `data` chunk; other chunks are passed over."""

    format = "wav"

    def __init__(self, sink: MonoSink) -> None:
        super().__init__(sink)
        self._buffer = bytearray()
        self._seen_riff = False
        self._skip = 0
        self._kind = ""
        self._rate = self._channels = self._block = 0
        self._data_size: int | None = None  # from an RF64 header
        self._left: int | None = None  # bytes of the data chunk to come; None: until the end
        self._in_data = False
        self._done = False

    def _feed(self, data: bytes) -> None:
        if self._done:
            return
        self._buffer += data
        while not self._in_data and not self._done:
            if not self._chunk():
                return
        if self._in_data:
            self._audio()

    def _end(self) -> None:
        if not self._seen_riff:
            raise invalid("the data is empty or too short for a WAV file")
        if not self._in_data and not self._done:
            raise invalid("the WAV file ends before its audio")
        if self._left:
            raise invalid(f"the WAV file is cut off: {self._left} bytes of audio are missing")
        if self._in_data and self._buffer:
            raise invalid("the WAV file ends inside a sample")

    def _chunk(self) -> bool:
        """Read one chunk header (and body, if needed). False when more bytes must come first."""
        buffer = self._buffer
        if self._skip:
            dropped = min(self._skip, len(buffer))
            del buffer[:dropped]
            self._skip -= dropped
            if self._skip:
                return False
        if not self._seen_riff:
            if len(buffer) < 12:
                return False
            if bytes(buffer[:4]) not in (b"RIFF", b"RF64", b"BW64") or buffer[8:12] != b"WAVE":
                raise invalid("the data is not a WAV file")
            self._seen_riff = True
            del buffer[:12]
        if len(buffer) < 8:
            return False
        name, size = struct.unpack_from("<4sI", buffer)
        if name == b"data":
            del buffer[:8]
            self._begin_data(size)
            return True
        if name not in (b"fmt ", b"ds64"):
            del buffer[:8]
            self._skip = size + (size & 1)
            return True
        if size > self._sink.limits.max_header_bytes:
            raise too_large(f"the WAV file has a header of {size} bytes")
        if len(buffer) < 8 + size + (size & 1):
            return False
        body = bytes(buffer[8 : 8 + size])
        del buffer[: 8 + size + (size & 1)]
        if name == b"fmt ":
            self._format_chunk(body)
        elif size >= 16:
            self._data_size = struct.unpack_from("<Q", body, 8)[0]
        return True

    def _format_chunk(self, body: bytes) -> None:
        if len(body) < 16:
            raise invalid("the WAV file has a broken format chunk")
        tag, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", body)
        if tag == _EXTENSIBLE and len(body) >= 26:
            tag = struct.unpack_from("<H", body, 24)[0]
        kind = _KINDS.get((tag, bits))
        if kind is None:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_FORMAT, f"WAV with format tag {tag} and {bits} bits is not supported"
            )
        if channels == 0 or block != channels * bits // 8:
            raise invalid("the WAV file's format chunk contradicts itself")
        self._kind, self._rate, self._channels, self._block = kind, rate, channels, block

    def _begin_data(self, size: int) -> None:
        if not self._kind:
            raise invalid("the WAV file has audio before its format chunk")
        if self._data_size is not None and size == 0xFFFFFFFF:
            self._left = self._data_size
        else:
            self._left = None if size == 0 or size >= _UNKNOWN_FROM else size
        total = self._left // self._block if self._left is not None else None
        self._sink.open(self._rate, self._channels, total)
        self._in_data = True

    def _audio(self) -> None:
        size = len(self._buffer) if self._left is None else min(len(self._buffer), self._left)
        whole = size - size % self._block
        if whole:
            samples = _to_samples(self._kind, bytes(self._buffer[:whole]))
            del self._buffer[:whole]
            self._sink.add(samples.reshape(-1, self._channels))
            if self._left is not None:
                self._left -= whole
        if self._left is not None and self._left < self._block:
            # a size that is no multiple of a sample: the odd bytes are padding; chunks after it say nothing
            self._left, self._in_data, self._done = 0, False, True
            self._buffer.clear()
