"""G.711 companding, µ-law and A-law, by table. One byte is one sample; 8 kHz on the telephone.

The tables come from the definitions in ITU-T G.711 (the segments in the comments below); the codes are
those on the wire: µ-law inverted, A-law with its even bits inverted.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from duplex.codecs.pcm import Samples, to_int16

Law: TypeAlias = Literal["ulaw", "alaw"]

_ULAW_BIAS: Final = 33  # in the 14-bit domain of the recommendation
_ULAW_CLIP: Final = 8158


def _ulaw_decode_table() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.int64) & 0xFF
    segment, step = (code >> 4) & 7, code & 15
    magnitude = (((2 * step + _ULAW_BIAS) << segment) - _ULAW_BIAS) << 2
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _alaw_decode_table() -> NDArray[np.int16]:
    code = np.arange(256, dtype=np.int64) ^ 0x55
    segment, step = (code >> 4) & 7, code & 15
    magnitude = np.where(segment == 0, (step << 4) + 8, ((step << 4) + 0x108) << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def _ulaw_encode_table() -> NDArray[np.uint8]:
    linear = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int64)
    # the low two bits fall away towards minus infinity, as in the ITU's own software (G.191)
    magnitude = np.where(linear < 0, ~linear >> 2, linear >> 2)
    biased = np.minimum(magnitude, _ULAW_CLIP) + _ULAW_BIAS
    segment = np.maximum(np.floor(np.log2(biased)).astype(np.int64) - 5, 0)
    step = (biased >> (segment + 1)) & 15
    code: NDArray[np.int64] = ~(np.where(linear < 0, 0x80, 0) | (segment << 4) | step) & 0xFF
    return code.astype(np.uint8)


def _alaw_encode_table() -> NDArray[np.uint8]:
    linear = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int64)
    magnitude = np.where(linear < 0, ~linear, linear) >> 4
    segment = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int64) - 3, 0)
    segment_of = np.where(magnitude < 32, magnitude >> 4, segment)
    step = np.where(magnitude < 32, magnitude & 15, (magnitude >> np.maximum(segment_of - 1, 0)) & 15)
    code: NDArray[np.int64] = (np.where(linear < 0, 0, 0x80) | (segment_of << 4) | step) ^ 0x55
    return code.astype(np.uint8)


_DECODE: Final = {"ulaw": _ulaw_decode_table(), "alaw": _alaw_decode_table()}
_ENCODE: Final = {"ulaw": _ulaw_encode_table(), "alaw": _alaw_encode_table()}


def encode_g711(samples: Samples, law: Law) -> bytes:
    """Mono samples, shape (n,), as n bytes of companded audio. Floats saturate."""
    return _ENCODE[law].take(to_int16(samples).view(np.uint16)).tobytes()


def decode_g711(data: bytes | bytearray | memoryview, law: Law) -> NDArray[np.int16]:
    """n bytes of companded audio as int16, shape (n,). Every byte is a valid sample."""
    return _DECODE[law].take(np.frombuffer(data, dtype=np.uint8))
