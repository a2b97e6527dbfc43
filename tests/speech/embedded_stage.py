"""A gateway that speaks with the embedded voice, and an ear that writes down what it says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray
from speech_stage import config

from duplex.adapters.embedded.asr import MAX_SEGMENT_MS, Recogniser
from duplex.adapters.embedded.asr import SAMPLE_RATE as HEARING_RATE
from duplex.adapters.embedded.voice import VoiceAdapter
from duplex.codecs.decoders import decode_audio
from duplex.server.run import Gateway, running_gateway

TEXT = (
    "The old lighthouse keeper climbed the narrow stairs every evening. He lit the lamp, and he watched the "
    "ships go by until the morning came."
)


class Ear:
    """The embedded recogniser."""

    def __init__(self) -> None:
        self._recogniser = Recogniser()
        self._recogniser.start()

    def words(self, samples: NDArray[np.float32], rate: int) -> str:
        """What is said, in lower case without punctuation."""
        heard = soxr.resample(samples, rate, HEARING_RATE) if rate != HEARING_RATE else samples
        assert len(heard) / HEARING_RATE * 1000 < MAX_SEGMENT_MS
        return plain(self._recogniser.recognise(heard.astype(np.float32)).text)

    def file(self, data: bytes) -> str:
        """What is said in a recording of any format."""
        samples, rate = decode_audio(data, dtype="float32")
        return self.words(samples, rate)

    def pcm(self, data: bytes, rate: int) -> str:
        """What is said in 16-bit samples."""
        return self.words(np.frombuffer(data, "<i2").astype(np.float32) / 32768, rate)


def plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def word_error_rate(heard: str, text: str = TEXT) -> float:
    import jiwer

    return float(jiwer.wer(plain(text), heard))


@contextlib.asynccontextmanager
async def embedded_gateway(**fields: Any) -> AsyncIterator[Gateway]:
    async with running_gateway(config(**fields), [VoiceAdapter()]) as gateway:
        yield gateway
