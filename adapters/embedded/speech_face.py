"""The embedded voice behind the speech endpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol

import msgspec

from duplex.adapters.embedded.speaking import spoken
from duplex.adapters.embedded.speech import SAMPLE_RATE, Piece, Speech
from duplex.adapters.speech import OPENAI_VOICES, SpeechChunk, SpeechRequest, SpeechVoice, WordTime
from duplex.core.errors import DuplexError, ErrorCode

TOKEN_MS: Final = 80.0
"""What one of `max_new_tokens` is taken for: the frame of a 12.5 Hz codec."""
_LANGUAGES = frozenset({"auto", "english", "en", "en-us", "en-gb"})


class Say(Protocol):
    """Speaks one unit off the event loop, see `Speech.say`."""

    def __call__(
        self, text: str, *, voice: str | None, speed: float, seed: int, timed: bool
    ) -> Awaitable[Piece]: ...


class EmbeddedSpeech:
    """A `SpeechFace`. `instructions` are not followed: this voice has one manner."""

    sample_rate = SAMPLE_RATE

    def __init__(self, speech: Speech, say: Say) -> None:
        self._speech = speech
        self._say = say

    @property
    def voices(self) -> tuple[SpeechVoice, ...]:
        installed = self._speech.installed_voices()
        default = self._speech.default_voice
        names = [default, *(name for name in installed if name != default)]
        return tuple(
            SpeechVoice(
                id=name,
                aliases=tuple(alias for alias in OPENAI_VOICES if alias not in installed)
                if name == default
                else (),
                languages=("English",),
                description=self._speech.describe(name),
            )
            for name in names
        )

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        """See `SpeechFace.validate`."""
        _refuse_cloning(request)
        if request.language.casefold() not in _LANGUAGES:
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                f"the embedded voice speaks English, not {request.language[:32]!r}",
                param="language",
            )
        voice = self._named(request.voice)
        self._speech.check(voice=voice, speed=request.speed)
        return msgspec.structs.replace(request, voice=voice)

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[SpeechChunk, None]:
        """See `SpeechFace.synthesise`."""
        say = partial(
            self._say,
            voice=request.voice,
            speed=request.speed,
            seed=(request.seed or 0) % 2**64,  # seeds below zero are seeds too
            timed=request.word_timestamps,
        )
        room = None
        if request.max_new_tokens is not None:
            room = int(request.max_new_tokens * TOKEN_MS * SAMPLE_RATE / 1000)
        spoken_samples = 0
        async with aclosing(spoken(text, say)) as pieces:
            async for piece in pieces:
                samples = piece.samples if room is None else piece.samples[: room - spoken_samples]
                full = len(samples) < len(piece.samples)
                yield SpeechChunk(
                    samples=samples,
                    sample_rate=SAMPLE_RATE,
                    text=piece.text,
                    words=_later(piece.words, spoken_samples, len(samples)),
                    finish_reason="length" if full or piece.truncated else None,
                )
                spoken_samples += len(samples)
                if full:
                    return

    def _named(self, voice: str | None) -> str:
        if voice is None or voice == "default":
            return self._speech.default_voice
        name = voice.casefold()
        installed = self._speech.installed_voices()
        if name in OPENAI_VOICES and name not in installed:
            return self._speech.default_voice
        return name if name in installed else voice


def _refuse_cloning(request: SpeechRequest) -> None:
    """This voice clones none: the words are those of a checkpoint that lacks the task."""
    asked = {
        "voice": request.stored_voice is not None,
        "ref_audio": request.reference is not None,
        "ref_text": request.reference_text is not None,
        "speaker_embedding": request.speaker_embedding is not None,
        "x_vector_only_mode": request.x_vector_only_mode,
        "task_type": request.task_type not in (None, "CustomVoice"),
    }
    for param, given in asked.items():
        if given:
            task = request.task_type if param == "task_type" else "Base"
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                f"the embedded voice does not support task_type={task!r} ({param}): its voices are fixed. "
                "Use task_type='CustomVoice' or load a model that clones voices.",
                param=param,
            )


def _later(
    words: tuple[WordTime, ...] | None, samples_before: int, samples: int
) -> tuple[WordTime, ...] | None:
    """A piece's words on the utterance's clock, without those that begin behind its end."""
    if words is None:
        return None
    before_ms = samples_before / SAMPLE_RATE * 1000
    length_ms = samples / SAMPLE_RATE * 1000
    return tuple(
        WordTime(
            word=word.word,
            start_ms=before_ms + word.start_ms,
            end_ms=before_ms + min(word.end_ms, length_ms),
        )
        for word in words
        if word.start_ms < length_ms
    )
