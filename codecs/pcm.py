"""Linear PCM: checked, saturating sample conversion, and bytes that arrive in any pieces.

Audio is mono, shape (n,). Full scale is 2**15: int16 `s` is the float `s / 32768`, so int16 -> float32 ->
int16 gives the same samples. A float outside [-1, 1] saturates; NaN and infinities are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from duplex.core.errors import DuplexError, ErrorCode

Samples: TypeAlias = NDArray[np.int16] | NDArray[np.float32]
SampleType: TypeAlias = Literal["int16", "float32"]

FULL_SCALE: Final = 32768.0
INT16: Final = np.dtype(np.int16)
FLOAT32: Final = np.dtype(np.float32)

# arrays, as numpy takes twice as long over a scalar in calls as short as 20 ms of audio
_SCALE: Final = np.array(FULL_SCALE, np.float32)
_STEP: Final = np.array(1.0 / FULL_SCALE, np.float32)
_TOP: Final = np.array(32767.0 / FULL_SCALE, np.float32)
_BOTTOM: Final = np.array(-1.0, np.float32)

if sys.byteorder != "little":  # pragma: no cover - no supported platform is big-endian
    raise ImportError("duplex.codecs needs a little-endian machine")


def check_samples(samples: Samples) -> None:
    """Refuse what is not mono int16 or float32 audio. Raises `DuplexError(INVALID_AUDIO)`."""
    if not isinstance(samples, np.ndarray) or samples.ndim != 1:
        raise DuplexError(ErrorCode.INVALID_AUDIO, "audio must be a mono array of shape (samples,)")
    if samples.dtype != INT16 and samples.dtype != FLOAT32:
        raise DuplexError(
            ErrorCode.INVALID_AUDIO, f"audio samples must be int16 or float32, not {samples.dtype}"
        )


def check_finite(samples: NDArray[np.float32]) -> None:
    """Refuse NaN and infinite samples. Raises `DuplexError(INVALID_AUDIO)`."""
    if not np.isfinite(samples).all():
        raise DuplexError(ErrorCode.INVALID_AUDIO, "audio has samples that are not finite numbers")


def to_int16(samples: Samples) -> NDArray[np.int16]:
    """Samples as int16: floats are scaled by 2**15, rounded to nearest, saturated (never wrapped)."""
    check_samples(samples)
    if samples.dtype == INT16:
        return cast("NDArray[np.int16]", samples)
    floats = cast("NDArray[np.float32]", samples)
    check_finite(floats)
    return quantize(floats)


def quantize(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """`to_int16` for finite floats that were checked before."""
    # clipped before scaling: a float near the type's limit would overflow to infinity with a warning
    scaled = np.minimum(samples, _TOP)
    np.maximum(scaled, _BOTTOM, out=scaled)
    np.multiply(scaled, _SCALE, out=scaled)
    np.rint(scaled, out=scaled)
    return scaled.astype(INT16)


def to_float32(samples: Samples) -> NDArray[np.float32]:
    """Samples as float32 in [-1, 1]: int16 is divided by 2**15, floats saturate."""
    check_samples(samples)
    if samples.dtype == INT16:
        return widen(cast("NDArray[np.int16]", samples))
    floats = cast("NDArray[np.float32]", samples)
    check_finite(floats)
    return np.clip(floats, -1.0, 1.0)


def widen(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    """int16 as float32 in [-1, 1), exactly."""
    return np.multiply(samples, _STEP, dtype=FLOAT32)


def convert(samples: Samples, dtype: SampleType) -> Samples:
    """Samples in the sample type `dtype`, by `to_int16` or `to_float32`."""
    return to_int16(samples) if dtype == "int16" else to_float32(samples)


def join(parts: Sequence[Samples], dtype: SampleType) -> Samples:
    """All parts, which are of the sample type `dtype`, in one array, shape (n,), n may be 0."""
    if len(parts) == 1:
        return parts[0]
    if dtype == "int16":
        return np.concatenate([np.empty(0, np.int16), *parts]).astype(np.int16, copy=False)
    return np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32, copy=False)


class PcmBytes:
    """Raw PCM bytes, in any pieces, as whole samples.

    A chunk that ends inside a sample keeps the rest for the next one, so an odd byte count neither fails
    nor shifts the bytes after it. `pending` is how many bytes wait (0 to 3).
    """

    __slots__ = ("_dtype", "_rest")

    def __init__(self, dtype: SampleType = "int16") -> None:
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._rest = b""

    @property
    def pending(self) -> int:
        """Bytes of an unfinished sample that wait for their rest."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray | memoryview) -> Samples:
        """The whole samples that `data` completes, shape (n,), n may be 0. The array is read-only."""
        joined = self._rest + bytes(data) if self._rest else bytes(data)
        whole = len(joined) // self._dtype.itemsize
        self._rest = joined[whole * self._dtype.itemsize :]
        samples: Samples = np.frombuffer(joined, dtype=self._dtype, count=whole)
        return samples

    def flush(self) -> None:
        """End the stream. Raises `DuplexError(ODD_AUDIO_BYTES)` when it ends inside a sample."""
        pending, self._rest = len(self._rest), b""
        if pending:
            raise DuplexError(
                ErrorCode.ODD_AUDIO_BYTES, f"the audio ends inside a sample: {pending} byte(s) are left over"
            )
