"""A recording of a voice, as the models of a Base checkpoint hear it."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import soxr
import torch

from duplex.adapters.qwen3_tts.device import new_stream, on_stream
from duplex.adapters.qwen3_tts.encoder import ReferenceEncoder
from duplex.adapters.qwen3_tts.job import EncodeReference, Reference
from duplex.adapters.qwen3_tts.sound import Sound
from duplex.adapters.qwen3_tts.speaker import SpeakerEncoder
from duplex.core.errors import DuplexError, ErrorCode

_RATES: Final = (1_000, 384_000)  # Hz


class Recordings:
    """Encodes recordings. The codec hears their codes at once, so that the first request with a voice finds
    that done. Any thread may ask; on a GPU the work is on a stream beside the frames."""

    def __init__(self, speaker: SpeakerEncoder, encoder: ReferenceEncoder, sound: Sound) -> None:
        self._speaker = speaker
        self._encoder = encoder
        self._sound = sound
        # one for all recordings: torch keeps the memory that was freed of a stream for that stream
        self._stream = new_stream(speaker.device)

    def encode(self, payload: bytes) -> Reference:
        """The answer of the call "encode_reference".

        Raises:
            DuplexError: `INVALID_VALUE` or `INVALID_AUDIO`: no such recording can be encoded.
        """
        try:
            asked = msgspec.msgpack.decode(payload, type=EncodeReference)
        except msgspec.DecodeError as error:
            raise DuplexError(ErrorCode.INVALID_VALUE, f"encode_reference: {error}") from error
        samples = self._samples(asked)
        with on_stream(self._stream), torch.inference_mode():
            embedding = self._speaker.embed(samples).float().cpu().numpy()
            codes = self._encoder.encode(samples).cpu().numpy() if asked.codes else None
        if codes is None:
            return Reference(embedding=embedding.astype("<f4").tobytes())
        packed = codes.astype("<i2").tobytes()
        self._sound.remember(codes.astype(np.int64), packed)
        return Reference(embedding=embedding.astype("<f4").tobytes(), codes=packed)

    def _samples(self, asked: EncodeReference) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Mono at the encoders' rate."""
        if len(asked.samples) % 4 or not asked.samples:
            raise DuplexError(
                ErrorCode.INVALID_AUDIO, "a recording is float32 samples, at least one", param="ref_audio"
            )
        if not _RATES[0] <= asked.sample_rate <= _RATES[1]:
            raise DuplexError(
                ErrorCode.INVALID_AUDIO,
                f"recordings at {asked.sample_rate} Hz are not taken",
                param="ref_audio",
            )
        samples = np.frombuffer(asked.samples, "<f4").astype(np.float32)
        if not np.isfinite(samples).all():
            raise DuplexError(ErrorCode.INVALID_AUDIO, "the recording is not finite", param="ref_audio")
        rate = self._speaker.config.sample_rate
        if asked.sample_rate == rate:
            return samples
        return np.asarray(soxr.resample(samples, asked.sample_rate, rate), np.float32)
