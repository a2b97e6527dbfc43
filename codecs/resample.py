"""Streaming sample-rate conversion: one resampler a stream, exact under any chunking.

Filtering is done in float32 by libsoxr and quantised here, because libsoxr's own int16 output is
dithered at random: two runs over the same samples would differ. So the output does not depend on how the
input was cut into chunks, to the bit. `flush` gives out the filter's tail; without it the last 7 to 45 ms
of the stream would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

import numpy as np
import soxr
from numpy.typing import NDArray

from duplex.codecs.pcm import (
    FLOAT32,
    INT16,
    Samples,
    SampleType,
    check_finite,
    check_samples,
    convert,
    quantize,
    widen,
)
from duplex.core.errors import DuplexError, ErrorCode

SAMPLE_RATES: Final = (8000, 16000, 22050, 24000, 44100, 48000)
"""Rates that the wire offers, Hz."""

MIN_RATE: Final = 1000
MAX_RATE: Final = 192_000


def check_rate(rate: int, name: str = "sample_rate") -> int:
    """`rate` if it is a rate that can be converted. Raises `DuplexError(UNSUPPORTED_FORMAT)`."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
        raise DuplexError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"{name} must be an integer from {MIN_RATE} to {MAX_RATE} Hz, not {rate!r}",
            param=name,
        )
    return rate


class Resampler:
    """One stream from `input_rate` to `output_rate` (Hz), mono, to the sample type `dtype`.

    With equal rates only the sample type is converted. int16 input may follow float32 input.
    `quality` is libsoxr's: QQ, LQ, MQ, HQ or VHQ.
    """

    __slots__ = ("_dtype", "_flushed", "_soxr", "input_rate", "output_rate", "samples_in", "samples_out")

    def __init__(
        self, input_rate: int, output_rate: int, *, dtype: SampleType = "int16", quality: str = "HQ"
    ) -> None:
        self.input_rate = check_rate(input_rate, "input_rate")
        self.output_rate = check_rate(output_rate, "output_rate")
        self.samples_in = 0
        self.samples_out = 0
        self._dtype: SampleType = dtype
        self._flushed = False
        self._soxr = (
            soxr.ResampleStream(input_rate, output_rate, 1, dtype="float32", quality=quality)
            if input_rate != output_rate
            else None
        )

    @property
    def dtype(self) -> SampleType:
        """The sample type that comes out."""
        return self._dtype

    @property
    def passthrough(self) -> bool:
        """True when the rates are equal, so that nothing is filtered."""
        return self._soxr is None

    def feed(self, samples: Samples) -> Samples:
        """What `samples` let out: shape (n,), n is 0 while the filter fills.

        Raises `DuplexError(INVALID_AUDIO)` for what is not finite mono audio; the stream can go on.
        """
        if self._flushed:
            raise ValueError("the resampler is flushed")
        if self._soxr is None:
            out = convert(samples, self._dtype)
            self.samples_in += len(samples)
            self.samples_out += len(out)
            return out
        check_samples(samples)
        if samples.dtype == INT16:
            floats = widen(cast("NDArray[np.int16]", samples))
        else:
            floats = np.ascontiguousarray(samples, dtype=FLOAT32)
            check_finite(floats)
            floats = np.clip(floats, -1.0, 1.0)
        self.samples_in += len(floats)
        return self._quantized(floats, last=False) if len(floats) else self._empty()

    def flush(self) -> Samples:
        """The filter's tail, shape (n,). The stream is over: all outputs have round(n_in * ratio) samples."""
        if self._flushed or self._soxr is None or self.samples_in == 0:
            self._flushed = True
            return self._empty()
        self._flushed = True
        return self._quantized(np.empty(0, np.float32), last=True)

    def _quantized(self, floats: NDArray[np.float32], *, last: bool) -> Samples:
        assert self._soxr is not None
        out = self._soxr.resample_chunk(floats, last=last)
        self.samples_out += len(out)
        # the filter may overshoot full scale by a few per cent: saturated, not wrapped
        return quantize(out) if self._dtype == "int16" else np.clip(out, -1.0, 1.0)

    def _empty(self) -> Samples:
        return np.empty(0, np.int16) if self._dtype == "int16" else np.empty(0, np.float32)


def resample_chunks(
    chunks: Iterable[Samples], input_rate: int, output_rate: int, *, dtype: SampleType = "int16"
) -> Iterator[Samples]:
    """`chunks` of one stream at another rate, the tail included; none that it yields is empty."""
    resampler = Resampler(input_rate, output_rate, dtype=dtype)
    for chunk in chunks:
        if len(out := resampler.feed(chunk)):
            yield out
    if len(out := resampler.flush()):
        yield out
