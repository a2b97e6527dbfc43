"""What all audio decoders share: limits, trimming, down-mixing, resampling, named failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.codecs.pcm import Samples, SampleType, convert, join, to_float32
from duplex.codecs.resample import MAX_RATE, MIN_RATE, Resampler
from duplex.core.errors import DuplexError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """What one stream may cost. The first limit that a header or the audio passes ends the stream.

    The defaults are for files. A decoder gives its samples away as they come, so that a live stream may have
    limits without end (`math.inf`); what one `feed` returns is then bounded by the bytes it is given alone.

    `max_seconds` of audio, as declared by a header or as decoded; `max_decoded_bytes` of mono output;
    `max_input_bytes` of encoded input; `max_header_bytes` of one header, tag or packet held in memory.
    """

    max_seconds: float = 3600.0
    max_decoded_bytes: float = 512 << 20
    max_input_bytes: float = 256 << 20
    max_header_bytes: int = 1 << 20
    max_channels: int = 8


DEFAULT_LIMITS: Final = DecodeLimits()


def invalid(message: str) -> DuplexError:
    """The error for bytes that are not what they should be."""
    return DuplexError(ErrorCode.INVALID_MEDIA, message)


def too_large(message: str) -> DuplexError:
    """The error for a passed limit."""
    return DuplexError(ErrorCode.MEDIA_TOO_LARGE, message)


class MonoSink:
    """Takes decoded frames of any rate and channel count, gives mono samples at the rate asked for.

    `skip` native samples are dropped at the start (encoder delay), and all after `total` (padding).
    """

    def __init__(
        self,
        *,
        output_rate: int | None = None,
        dtype: SampleType = "int16",
        limits: DecodeLimits = DEFAULT_LIMITS,
        skip: int = 0,
        total: int | None = None,
    ) -> None:
        self.limits = limits
        self.total = total
        self.sample_rate: int | None = None
        self.native_rate: int | None = None
        self.native_samples = 0  # kept ones, at the native rate
        self._skip = skip
        self._output_rate = output_rate
        self._dtype: SampleType = dtype
        self._resampler: Resampler | None = None
        self._waiting: list[Samples] = []
        self._most = 0.0  # native samples that the limits allow
        self._too_long = ""

    def open(self, rate: int, channels: int, total: int | None = None) -> None:
        """The stream's parameters, from its header. `total` is the declared length in native samples."""
        if not MIN_RATE <= rate <= MAX_RATE:
            raise invalid(f"the audio has a sample rate of {rate} Hz, outside {MIN_RATE} to {MAX_RATE} Hz")
        if not 1 <= channels <= self.limits.max_channels:
            raise too_large(f"the audio has {channels} channels; 1 to {self.limits.max_channels} are allowed")
        if total is not None and total > self.limits.max_seconds * rate:
            raise too_large(
                f"the audio declares {total / rate:.0f} s; at most {self.limits.max_seconds:g} s are allowed"
            )
        if self.native_rate is not None and self.native_rate != rate:
            raise invalid(f"the audio changes its sample rate from {self.native_rate} to {rate} Hz")
        if self._resampler is None:
            self.native_rate = rate
            self.sample_rate = self._output_rate or rate
            self._resampler = Resampler(rate, self.sample_rate, dtype=self._dtype)
            self._set_most(rate, self.sample_rate)

    def _set_most(self, rate: int, output_rate: int) -> None:
        width = 2 if self._dtype == "int16" else 4
        by_time = self.limits.max_seconds * rate
        by_size = self.limits.max_decoded_bytes / width * rate / output_rate
        self._most = min(by_time, by_size)
        self._too_long = (
            f"the audio is longer than the {self.limits.max_seconds:g} s that are allowed"
            if by_time <= by_size
            else f"the audio decodes to more than {self.limits.max_decoded_bytes} bytes"
        )

    def skip(self, samples: int) -> None:
        """Drop `samples` more at the start, as a header that came by now asks."""
        self._skip += samples

    def add(self, frame: NDArray[Any], *, discard: int = 0) -> None:
        """One decoded frame, shape (n,) or (n, channels), int16 or float32; without its last `discard`."""
        assert self._resampler is not None, "add() before open()"
        if discard:
            frame = frame[: max(0, len(frame) - discard)]
        if self._skip:
            dropped = min(self._skip, len(frame))
            self._skip -= dropped
            frame = frame[dropped:]
        if self.total is not None:
            frame = frame[: max(0, self.total - self.native_samples)]
        if not len(frame):
            return
        self.native_samples += len(frame)
        if self.native_samples > self._most:
            raise too_large(self._too_long)
        self._waiting.append(_mono(frame))

    def take(self) -> Samples:
        """All samples that are ready, shape (n,), n may be 0."""
        waiting, self._waiting = self._waiting, []
        if self._resampler is None or not waiting:
            return convert(np.empty(0, np.int16), self._dtype)
        # all frames of a feed are converted in one go: each step costs more than its samples do
        if len(waiting) == 1:
            return self._resampler.feed(waiting[0])
        if all(part.dtype == np.int16 for part in waiting):
            return self._resampler.feed(join(waiting, "int16"))
        if any(part.dtype == np.int16 for part in waiting):
            waiting = [to_float32(part) for part in waiting]
        return self._resampler.feed(join(waiting, "float32"))

    def finish(self) -> Samples:
        """The rest, with the resampler's tail."""
        rest = self.take()
        return rest if self._resampler is None else join([rest, self._resampler.flush()], self._dtype)


def _mono(frame: NDArray[Any]) -> Samples:
    if frame.ndim == 1 or frame.shape[1] == 1:
        samples: Samples = frame.reshape(-1)
    else:
        scale = np.float32(1 / 32768) if frame.dtype == np.int16 else np.float32(1)
        samples = frame.mean(axis=1, dtype=np.float32) * scale
    return samples


class AudioDecoder(ABC):
    """A stream of encoded bytes, cut anywhere, turned into mono samples.

    `sample_rate` is the output's rate in Hz, None until the header is read. All methods raise
    `DuplexError`: INVALID_MEDIA for damaged, cut-off or foreign bytes, MEDIA_TOO_LARGE for a passed limit,
    UNSUPPORTED_FORMAT for what is sound but not decoded. A failed decoder stays failed.
    """

    format: str

    def __init__(self, sink: MonoSink) -> None:
        self._sink = sink
        self._received = 0
        self._failure: DuplexError | None = None
        self._flushed = False

    @property
    def sample_rate(self) -> int | None:
        return self._sink.sample_rate

    def feed(self, data: bytes | bytearray | memoryview) -> Samples:
        """The samples that `data` completes, shape (n,), n may be 0."""
        if self._flushed:
            raise ValueError("the decoder is flushed")
        self._check()
        self._received += len(data)
        try:
            if self._received > self._sink.limits.max_input_bytes:
                raise too_large(f"the audio has more than {self._sink.limits.max_input_bytes} bytes")
            self._feed(bytes(data))
        except DuplexError as error:
            self._fail(error)
            raise
        return self._sink.take()

    def flush(self) -> Samples:
        """The rest, after the last byte. Raises when the stream is cut off or never was this format."""
        self._check()
        if self._flushed:
            return self._sink.take()
        self._flushed = True
        try:
            self._end()
            return self._sink.finish()
        except DuplexError as error:
            self._fail(error)
            raise
        finally:
            self.close()

    def close(self) -> None:  # noqa: B027 - most decoders hold nothing to give back
        """Give back what the decoder holds. Safe at any time, and more than once."""

    def _check(self) -> None:
        if self._failure is not None:
            raise DuplexError(self._failure.code, self._failure.message) from self._failure

    def _fail(self, error: DuplexError) -> None:
        self._failure = error
        self._sink.take()
        self.close()

    @abstractmethod
    def _feed(self, data: bytes) -> None:
        """Decode what `data` completes into the sink."""

    @abstractmethod
    def _end(self) -> None:
        """Decode the rest into the sink."""
