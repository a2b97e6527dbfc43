"""From checked options to encoded audio: the part that all speech endpoints share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Final, cast

import msgspec

from duplex.adapters.base import Adapter
from duplex.adapters.speech import SpeechAdapter, SpeechChunk, SpeechFace, SpeechRequest, WordTime
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioCodec, AudioDelta, AudioFormat
from duplex.runtime.encoding import EncoderPool, ResponseEncoder, pieces
from duplex.runtime.faults import named
from duplex.speech.fields import SAMPLE_RATES, SpeechFields
from duplex.speech.reference import ReferencePolicy, load_reference
from duplex.speech.voices import VoiceStore

OPENAI_MODELS: Final = frozenset({"tts-1", "tts-1-hd", "gpt-4o-mini-tts"})
"""Model names that OpenAI clients send by default: they mean the default model here."""
_CODECS: Final[dict[str, AudioCodec]] = {"pcm": "pcm_s16le"}
FRAME_MS: Final = 80.0
"""Length of one output token in `usage`: the frame of a 12.5 Hz codec."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A request that its model has accepted."""

    model: str
    face: SpeechFace
    request: SpeechRequest
    format: AudioFormat


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the answer. `words`: times from the utterance's start, None when not aligned."""

    payload: bytes
    duration_ms: float
    words: tuple[WordTime, ...] | None = None
    finish_reason: str | None = None


class Synthesis:
    """The speech models of a gateway, its stored voices and its encoders.

    `admit` raises while the gateway takes no work; `first_audio` is told the seconds from a request's start
    to its first encoded audio. `in_use` counts admitted requests.
    """

    def __init__(
        self,
        adapters: Iterable[Adapter],
        *,
        voices: VoiceStore,
        policy: ReferencePolicy,
        pool: EncoderPool,
        most: int,
        admit: Callable[[], None] = lambda: None,
        first_audio: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._models = {a.info.id: a for a in adapters if isinstance(a, SpeechAdapter)}
        self.voices = voices
        self._policy = policy
        self._pool = pool
        self._most = most
        self._admit = admit
        self._first_audio = first_audio
        self.in_use = 0

    @property
    def models(self) -> dict[str, SpeechAdapter]:
        """By id; the first is the default."""
        return self._models

    @contextlib.contextmanager
    def admitted(self, count: int = 1) -> Iterator[None]:
        """Hold `count` places.

        Raises:
            DuplexError: `SERVER_FULL` (HTTP 429), or what `admit` raises.
        """
        self._admit()
        if self.in_use + count > self._most:
            raise DuplexError(
                ErrorCode.SERVER_FULL,
                f"{self.in_use} of {self._most} speech places are taken: try again later",
            )
        self.in_use += count
        try:
            yield
        finally:
            self.in_use -= count

    def model(self, name: str | None) -> tuple[str, SpeechAdapter]:
        """The model of that name; the default for none, and for OpenAI's own names.

        Raises:
            DuplexError: `MODEL_NOT_FOUND`.
        """
        if name in self._models:
            return name, self._models[name]
        if self._models and (name is None or name in OPENAI_MODELS):
            return next(iter(self._models.items()))
        known = ", ".join(self._models) or "none"
        raise DuplexError(
            ErrorCode.MODEL_NOT_FOUND, f"no speech model {str(name)[:128]!r}; served: {known}", param="model"
        )

    async def prepare(self, fields: SpeechFields) -> Job:
        """Everything that can be refused before the engine is touched.

        Raises:
            DuplexError: what the options, the stored voices or the model say.
        """
        name, adapter = self.model(fields.model)
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
        audio = msgspec.convert({"codec": codec, "sample_rate": fields.sample_rate or native}, AudioFormat)
        return Job(model=name, face=face, request=face.validate(request), format=audio)

    async def speak(self, job: Job, text: AsyncIterator[str]) -> AsyncGenerator[Encoded, None]:
        """Synthesise and encode. Closing the iterator stops the model within one step.

        Raises:
            DuplexError: what the model or the encoder say; anything else becomes `ADAPTER_FAILED`.
        """
        encoder = ResponseEncoder(job.format, self._pool)
        finish_reason: str | None = None
        aligned = job.request.word_timestamps
        words: list[WordTime] = []
        """Aligned words whose audio has not been yielded yet."""
        failed = False
        position_ms = 0.0
        begun_at: float | None = time.perf_counter()
        async with contextlib.aclosing(_guarded(job, text)) as chunks:
            async for chunk in chunks:
                finish_reason = chunk.finish_reason or finish_reason
                failed = chunk.words is None
                words += chunk.words or ()
                delta = AudioDelta(samples=chunk.samples, sample_rate=chunk.sample_rate, text=chunk.text)
                for piece in pieces(delta):
                    encoded = await encoder.encode(piece)
                    duration_ms = len(piece.samples) / piece.sample_rate * 1000
                    position_ms += duration_ms
                    if begun_at is not None and encoded.payload:
                        self._first_audio(time.perf_counter() - begun_at)
                        begun_at = None
                    begun = [word for word in words if word.start_ms < position_ms]
                    del words[: len(begun)]
                    yield Encoded(
                        payload=encoded.payload,
                        duration_ms=duration_ms,
                        words=tuple(begun) if aligned and not failed else None,
                    )
        rest = await encoder.flush()
        yield Encoded(
            payload=rest.payload if rest is not None else b"",
            duration_ms=0.0,
            words=tuple(words) if aligned and not failed else None,
            finish_reason=finish_reason or "stop",
        )


async def _guarded(job: Job, text: AsyncIterator[str]) -> AsyncGenerator[SpeechChunk, None]:
    """The model's chunks; its unnamed failures get a name."""
    try:
        async with contextlib.aclosing(_generator(job, text)) as chunks:
            async for chunk in chunks:
                yield chunk
    except DuplexError:
        raise
    except Exception as error:
        raise named(error, "speaking") from error


def _generator(job: Job, text: AsyncIterator[str]) -> AsyncGenerator[SpeechChunk, None]:
    # an async generator by contract: it can be closed in the middle
    return cast("AsyncGenerator[SpeechChunk, None]", job.face.synthesise(job.request, text))


async def once(text: str) -> AsyncIterator[str]:
    """A text that is there whole."""
    yield text


def usage(text: str, audio_ms: float) -> dict[str, int]:
    """Counts for clients that ask what a request cost: characters in, frames of `FRAME_MS` out."""
    frames = -(-int(audio_ms) // int(FRAME_MS))
    return {"input_tokens": len(text), "output_tokens": frames, "total_tokens": len(text) + frames}
