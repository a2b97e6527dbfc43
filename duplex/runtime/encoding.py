"""From an adapter's audio to the bytes that the client asked for, off the event loop where it costs.

Work on one response follows its order because its pump waits for each piece; so at most one job a session
is under way, and the pool's queue is bounded by the number of sessions. A pump that is cancelled drops the
job: one that has not begun never runs, the result of one that has is thrown away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from duplex.codecs.encoders import AudioEncoder, open_encoder
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioDelta, AudioFormat, EncodedAudio, Samples

T = TypeVar("T")

MAX_PIECE_MS = 200
"""Longer deltas are cut into pieces of this, so that the run-ahead limit holds for any adapter."""
FLOOR_DBFS = -120.0
_LIBRARY_CODECS = frozenset({"flac", "mp3", "aac", "opus"})
"""Codecs whose streams take a library and a codec's set-up to open."""


class EncoderPool:
    """Threads that encode and nothing else. `depth` counts the jobs that wait or run."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="duplex-encoder")
        self.depth = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` on a thread of the pool."""
        self.depth += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self.depth -= 1

    def close(self) -> None:
        """Start nothing more; what runs may end."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class ResponseEncoder:
    """The encoder of one response. Opened by its first audio, whose rate all later audio must have."""

    def __init__(self, format: AudioFormat, pool: EncoderPool) -> None:
        self._format = format
        self._pool = pool
        self._encoder: AudioEncoder | None = None
        self._inline = False
        self._input_rate = 0
        self._taken = 0
        self._counted = 0

    @property
    def delay_ms(self) -> float:
        """Silence that players hear before the first sample. AAC alone has some: ADTS cannot declare it."""
        encoder = self._encoder
        if encoder is None or encoder.codec != "aac":
            return 0.0
        return encoder.delay_samples / encoder.sample_rate * 1000

    def encode_inline(self, delta: AudioDelta) -> EncodedAudio | None:
        """Encode one piece here and now, if that costs less than handing it over; None: `encode` has to."""
        encoder = self._encoder
        if not self._inline or encoder is None or delta.sample_rate != self._input_rate:
            return None
        samples = delta.samples
        return self._encoded(encoder, delta, encoder.feed(samples), level_dbfs(samples))

    async def encode(self, delta: AudioDelta) -> EncodedAudio:
        """Encode one piece.

        Raises:
            DuplexError: `INVALID_AUDIO` or `UNSUPPORTED_FORMAT`.
        """
        encoder = self._encoder
        if encoder is None or delta.sample_rate != self._input_rate:
            encoder = await self._open(delta.sample_rate)
        encoded = self.encode_inline(delta)
        if encoded is not None:
            return encoded
        samples = delta.samples
        payload, level = await self._pool.run(lambda: (encoder.feed(samples), level_dbfs(samples)))
        return self._encoded(encoder, delta, payload, level)

    def _encoded(
        self, encoder: AudioEncoder, delta: AudioDelta, payload: bytes, level: float
    ) -> EncodedAudio:
        return EncodedAudio(
            payload=payload,
            samples=self._count(len(delta.samples)),
            sample_rate=encoder.sample_rate,
            level_dbfs=level,
            text=delta.text,
        )

    async def flush(self) -> EncodedAudio | None:
        """What the encoder still held, which counts for no further samples; None if nothing."""
        encoder = self._encoder
        if encoder is None:
            return None
        payload = encoder.flush() if self._inline else await self._pool.run(encoder.flush)
        if not payload:
            return None
        return EncodedAudio(payload=payload, samples=0, sample_rate=encoder.sample_rate)

    def _count(self, samples: int) -> int:
        """Input samples in samples of the output rate, without drift."""
        encoder = self._encoder
        if encoder is None or encoder.sample_rate == self._input_rate:
            return samples
        self._taken += samples
        due = self._taken * encoder.sample_rate // self._input_rate
        fresh = due - self._counted
        self._counted = due
        return fresh

    async def _open(self, input_rate: int) -> AudioEncoder:
        if self._encoder is not None:
            raise DuplexError(
                ErrorCode.ADAPTER_FAILED,
                f"the model changed its sample rate from {self._input_rate} to {input_rate} Hz",
            )
        format = self._format

        def opened() -> AudioEncoder:
            return open_encoder(format.codec, input_rate=input_rate, output_rate=format.sample_rate)

        encoder = await self._pool.run(opened) if format.codec in _LIBRARY_CODECS else opened()
        self._encoder = encoder
        self._input_rate = input_rate
        self._inline = encoder.inline
        return encoder


def pieces(delta: AudioDelta) -> Iterable[AudioDelta]:
    """The delta, cut into pieces of at most `MAX_PIECE_MS`. Its text goes with the first: the words of the
    ones behind it are the same."""
    samples = delta.samples
    most = delta.sample_rate * MAX_PIECE_MS // 1000
    if len(samples) <= most:
        return (delta,)
    if most <= 0:
        raise DuplexError(ErrorCode.ADAPTER_FAILED, f"a sample rate of {delta.sample_rate} Hz")
    return [
        AudioDelta(
            samples=samples[start : start + most],
            sample_rate=delta.sample_rate,
            text=delta.text if start == 0 else "",
        )
        for start in range(0, len(samples), most)
    ]


def level_dbfs(samples: Samples) -> float:
    """RMS level, dB of full scale; `FLOOR_DBFS` for silence and for nothing."""
    size = len(samples)
    if size == 0:
        return FLOOR_DBFS
    wave = samples if samples.dtype == np.float32 else samples.astype(np.float32)
    power = float(wave.dot(wave)) / size
    if wave is not samples:
        power /= 32768.0 * 32768.0
    return 10 * math.log10(power) if power > 1e-12 else FLOOR_DBFS
