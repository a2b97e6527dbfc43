"""The embedded voice behind the speech endpoints: exact text in, audio and word times out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import Final

import msgspec

from duplex.adapters.embedded.speech import MAX_SPEED, MIN_SPEED, SAMPLE_RATE, Piece, Speech, cut
from duplex.adapters.speech import SpeechChunk, SpeechRequest, SpeechVoice, WordTime
from duplex.adapters.text import Splitter
from duplex.core.errors import DuplexError, ErrorCode

OPENAI_VOICES: Final = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin"),
    *("nova", "onyx", "sage", "shimmer", "verse"),
)
"""Names that OpenAI's clients send. They select the default voice: this model has no more to offer."""
FRAME_MS: Final = 80
"""What `max_new_tokens` counts: frames of a 12.5 Hz codec, so that one number means the same everywhere."""
_DESCRIPTIONS: Final = {
    "heart": "American English, female",
    "fenrir": "American English, male",
    "emma": "British English, female",
    "fable": "British English, male",
    "kore": "American English, female",
}


class Narrator:
    """`SpeechFace` of the embedded voice. Each sentence is one step on a thread of `executor`."""

    sample_rate = SAMPLE_RATE

    def __init__(self, speech: Speech, executor: Executor) -> None:
        self._speech = speech
        self._executor = executor

    @property
    def voices(self) -> tuple[SpeechVoice, ...]:
        """The installed ones, the default first. A voice's own name wins over an alias of the same name."""
        default = self._speech.default_voice
        installed = self._speech.installed_voices()
        names = sorted(installed, key=lambda name: name != default)
        return tuple(
            SpeechVoice(
                id=name,
                aliases=tuple(a for a in OPENAI_VOICES if a not in installed) if name == default else (),
                languages=("English",),
                description=_DESCRIPTIONS.get(name, ""),
            )
            for name in names
        )

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        """Resolves the voice's name. Instructions have no effect on this model and are let pass."""
        self._refuse_cloning(request)
        if request.language.casefold() not in ("auto", "english", "en"):
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                f"language {request.language[:32]!r} is not spoken here; this model speaks English",
                param="language",
            )
        if not MIN_SPEED <= request.speed <= MAX_SPEED:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"speed must be from {MIN_SPEED} to {MAX_SPEED}", param="speed"
            )
        return msgspec.structs.replace(request, voice=self._voice(request.voice))

    def _voice(self, name: str | None) -> str:
        voices = self.voices
        if name is None:
            return voices[0].id
        wanted = name.casefold()
        for voice in voices:
            if wanted == voice.id.casefold() or wanted in voice.aliases:
                return voice.id
        known = ", ".join(voice.id for voice in voices)
        raise DuplexError(
            ErrorCode.INVALID_VALUE, f"unknown voice {name[:64]!r}; this model has: {known}", param="voice"
        )

    @staticmethod
    def _refuse_cloning(request: SpeechRequest) -> None:
        """This model has fixed voices. Words as a checkpoint of another task would be refused with."""
        wanted = {
            "voice": request.stored_voice is not None,
            "ref_audio": request.reference is not None,
            "ref_text": request.reference_text is not None,
            "x_vector_only_mode": request.x_vector_only_mode,
            "speaker_embedding": request.speaker_embedding is not None,
            "task_type": request.task_type not in (None, "CustomVoice"),
        }
        for param, given in wanted.items():
            if given:
                task = request.task_type if param == "task_type" else "Base"
                raise DuplexError(
                    ErrorCode.INVALID_VALUE,
                    f"the embedded voice does not support task_type={task!r} ({param}): it has fixed voices. "
                    "Use task_type='CustomVoice' or load a model that clones voices.",
                    param=param,
                )

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        """A chunk a sentence (a clause of a long one), as soon as the text has it whole."""
        ceiling = (request.max_new_tokens or 0) * FRAME_MS * SAMPLE_RATE // 1000
        made = 0
        async for unit in _units(text):
            for part in cut(unit):
                piece = await self._say(part, request)
                over = bool(ceiling) and made + len(piece.samples) >= ceiling
                samples = piece.samples[: ceiling - made] if over else piece.samples
                position_ms = made / SAMPLE_RATE * 1000
                made += len(samples)
                yield SpeechChunk(
                    samples=samples,
                    sample_rate=SAMPLE_RATE,
                    text=part,
                    words=_shifted(piece, position_ms, made / SAMPLE_RATE * 1000),
                    finish_reason="length" if over or piece.truncated else None,
                )
                if over:
                    return

    async def _say(self, text: str, request: SpeechRequest) -> Piece:
        def work() -> Piece:
            return self._speech.say(
                text, voice=request.voice, speed=request.speed, timed=request.word_timestamps
            )

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


async def _units(text: AsyncIterator[str]) -> AsyncIterator[str]:
    splitter = Splitter("sentence")
    async for piece in text:
        for unit in splitter.feed(piece):
            yield unit
    for unit in splitter.flush():
        yield unit


def _shifted(piece: Piece, position_ms: float, end_ms: float) -> tuple[WordTime, ...] | None:
    """The piece's word times in the utterance; words beyond its end were not said."""
    if piece.words is None:
        return None
    return tuple(
        WordTime(
            word=word.word,
            start_ms=position_ms + word.start_ms,
            end_ms=min(position_ms + word.end_ms, end_ms),
        )
        for word in piece.words
        if position_ms + word.start_ms < end_ms
    )
