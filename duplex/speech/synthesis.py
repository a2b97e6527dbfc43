"""From checked options to encoded audio: the part that all speech endpoints share."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Final

import msgspec

from duplex.adapters.base import Adapter
from duplex.adapters.health import check_health
from duplex.adapters.speech import SpeechAdapter, SpeechFace, SpeechRequest, WordTime
from duplex.codecs.encoders import encoded_rate, wav_header
from duplex.codecs.resample import SAMPLE_RATES
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioCodec, AudioDelta, AudioFormat
from duplex.runtime.encoding import EncoderPool, ResponseEncoder, pieces
from duplex.runtime.faults import named
from duplex.speech.fields import SpeechFields
from duplex.speech.places import Places
from duplex.speech.reference import ReferencePolicy, load_reference
from duplex.speech.speaking import Patience, speak
from duplex.speech.voices import VoiceStore

OPENAI_MODELS: Final = frozenset({"tts-1", "tts-1-hd", "gpt-4o-mini-tts"})
"""Model names that OpenAI clients send by default: they mean the default model here."""
_CODECS: Final[dict[str, AudioCodec]] = {"pcm": "pcm_s16le"}
FRAME_MS: Final = 80.0
"""Length of one output token in `usage`: the frame of a 12.5 Hz codec."""
MAX_WHOLE_BYTES: Final = 64 * 1024 * 1024
"""Audio that is kept to be sent in one piece: 23 minutes of 24 kHz WAV."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A request that its model has accepted. `format` is that of the audio as it comes out: Opus has no
    22.05 and 44.1 kHz."""

    model: str
    face: SpeechFace
    request: SpeechRequest
    format: AudioFormat


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the answer: all have a payload but the last one, which has the finish reason.

    `words` are those whose sound begins in the piece, with times from the utterance's start; None: they could
    not be told, or were not asked for.
    """

    payload: bytes
    duration_ms: float
    words: tuple[WordTime, ...] | None = None
    finish_reason: str | None = None


class Synthesis:
    """The speech models of a gateway, its stored voices and its encoders.

    `check` raises while the gateway takes no work; `first_audio` is told the seconds from a request's start
    to its first encoded audio; `most` requests run at a time.
    """

    def __init__(
        self,
        adapters: Iterable[Adapter],
        *,
        voices: VoiceStore,
        policy: ReferencePolicy,
        pool: EncoderPool,
        most: int,
        check: Callable[[], None] = lambda: None,
        first_audio: Callable[[float], None] = lambda seconds: None,
        patience: Patience | None = None,
    ) -> None:
        self._models = {a.info.id: a for a in adapters if isinstance(a, SpeechAdapter)}
        self.voices = voices
        self.places = Places(most, check)
        self.patience = patience or Patience()
        self._policy = policy
        self._pool = pool
        self._first_audio = first_audio

    @property
    def models(self) -> dict[str, SpeechAdapter]:
        """By id; the first is the default."""
        return self._models

    @property
    def in_use(self) -> int:
        """Requests and connections that hold a place."""
        return self.places.in_use

    async def drain(self, grace_s: float) -> None:
        """Wait until no request runs, for at most `grace_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.places.empty(), grace_s)

    def model(self, name: str | None) -> tuple[str, SpeechAdapter]:
        """The model of that name; the default for none, and for OpenAI's own names.

        Raises:
            DuplexError: `MODEL_NOT_FOUND`.
        """
        if name in self._models:
            return name, self._models[name]
        if self._models and (name is None or name in OPENAI_MODELS):
            return next(iter(self._models.items()))
        words = "no model that speaks is served"
        if self._models:
            words = f"no speech model {str(name)[:128]!r}; served: {', '.join(self._models)}"
        raise DuplexError(ErrorCode.MODEL_NOT_FOUND, words, param="model")

    async def prepare(self, fields: SpeechFields) -> Job:
        """Everything that can be refused before the engine is touched.

        Raises:
            DuplexError: what the options, the stored voices or the model say; `ENGINE_DOWN`.
        """
        name, adapter = self.model(fields.model)
        check_health(adapter)
        request = fields.request()
        if fields.voice_name is not None:
            stored = await asyncio.to_thread(self.voices.find, fields.voice_name)
            if stored is not None:
                request = msgspec.structs.replace(request, stored_voice=stored)
        if fields.ref_audio is not None:
            reference = await asyncio.to_thread(load_reference, fields.ref_audio, self._policy)
            request = msgspec.structs.replace(request, reference=reference)
        face = adapter.speech
        native = face.sample_rate if face.sample_rate in SAMPLE_RATES else 24000
        codec = _CODECS.get(fields.response_format, fields.response_format)
        rate = encoded_rate(codec, fields.sample_rate or native)
        audio = msgspec.convert({"codec": codec, "sample_rate": rate}, AudioFormat)
        try:
            return Job(model=name, face=face, request=face.validate(request), format=audio)
        except Exception as error:
            raise named(error, "checking the options") from error

    async def speak(self, job: Job, text: AsyncIterator[str]) -> AsyncGenerator[Encoded, None]:
        """Synthesise and encode. Closing the iterator stops the model within one step.

        Raises:
            DuplexError: what the model or the encoder say; anything else becomes `ADAPTER_FAILED`.
        """
        encoder = ResponseEncoder(job.format, self._pool)
        words = _Words(asked=job.request.word_timestamps)
        finish_reason: str | None = None
        held_ms = 0.0  # audio that the encoder has and whose bytes have not come out
        begun_at: float | None = time.perf_counter()
        async with contextlib.aclosing(speak(job.face, job.request, text, self.patience)) as chunks:
            async for chunk in chunks:
                finish_reason = chunk.finish_reason or finish_reason
                words.add(chunk.words)
                delta = AudioDelta(samples=chunk.samples, sample_rate=chunk.sample_rate, text=chunk.text)
                for piece in pieces(delta):
                    encoded = await encoder.encode(piece)
                    duration_ms = len(piece.samples) / piece.sample_rate * 1000
                    words.position_ms += duration_ms
                    held_ms += duration_ms
                    if not encoded.payload:
                        continue
                    if begun_at is not None:
                        self._first_audio(time.perf_counter() - begun_at)
                        begun_at = None
                    told = words.take(encoder.delay_ms)
                    yield Encoded(payload=encoded.payload, duration_ms=held_ms, words=told)
                    held_ms = 0.0
        rest = await encoder.flush()
        yield Encoded(
            payload=rest.payload if rest is not None else b"",
            duration_ms=held_ms,
            words=words.take(encoder.delay_ms, last=True),
            finish_reason=finish_reason or "stop",
        )


class _Words:
    """Aligned words on their way to the audio that says them."""

    def __init__(self, *, asked: bool) -> None:
        self.position_ms = 0.0
        self._asked = asked
        self._failed = False
        self._waiting: list[WordTime] = []

    def add(self, words: tuple[WordTime, ...] | None) -> None:
        if words is None:
            self._failed = True
        else:
            self._waiting += words

    def take(self, delay_ms: float, *, last: bool = False) -> tuple[WordTime, ...] | None:
        """Words that begin before `position_ms`, all with the last piece; None for what was not aligned."""
        begun = [word for word in self._waiting if last or word.start_ms < self.position_ms]
        self._waiting = [word for word in self._waiting if not (last or word.start_ms < self.position_ms)]
        failed, self._failed = self._failed, False
        if not self._asked or failed:
            return None
        if delay_ms == 0.0:
            return tuple(begun)
        return tuple(
            WordTime(word=w.word, start_ms=w.start_ms + delay_ms, end_ms=w.end_ms + delay_ms) for w in begun
        )


async def once(text: str) -> AsyncIterator[str]:
    """A text that is there whole."""
    yield text


def whole(format: AudioFormat, payloads: Iterable[bytes]) -> bytes:
    """A complete file of a stream's pieces: a WAV header in it says how long it is."""
    data = b"".join(payloads)
    if format.codec != "wav":
        return data
    samples = data[len(wav_header(format.sample_rate)) :]
    return wav_header(format.sample_rate, len(samples) // 2) + samples


def check_whole(size: int) -> None:
    """Raises `MEDIA_TOO_LARGE` for more audio than is kept in one piece."""
    if size > MAX_WHOLE_BYTES:
        raise DuplexError(
            ErrorCode.MEDIA_TOO_LARGE,
            f"the audio is over {MAX_WHOLE_BYTES} bytes in one piece: stream it, or ask for another format",
        )


def usage(text: str, audio_ms: float) -> dict[str, int]:
    """Counts for clients that ask what a request cost: characters in, frames of `FRAME_MS` out."""
    frames = math.ceil(audio_ms / FRAME_MS - 1e-6)
    return {"input_tokens": len(text), "output_tokens": frames, "total_tokens": len(text) + frames}
