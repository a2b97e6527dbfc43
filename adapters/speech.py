"""The speech face of an adapter: text in as it is written, audio out as it is made.

An adapter that can speak exact text offers `speech: SpeechFace` beside the `Adapter` contract; the speech
endpoints (`/v1/audio/speech`, its batch, its WebSocket) serve it. A model's own rules, such as which task a
checkpoint serves, are checked by `validate` before its engine is touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from duplex.adapters.base import Adapter
from duplex.core.types import Samples

OPENAI_VOICES: Final = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "marin"),
    *("cedar", "nova", "onyx", "sage", "shimmer", "verse"),
)
"""Names that OpenAI's clients send by default: a model's default voice, unless it has one so named."""
TaskType: TypeAlias = Literal["CustomVoice", "VoiceDesign", "Base"]


class SpeechVoice(msgspec.Struct, frozen=True, kw_only=True):
    """A voice that the model has. `aliases` are other names that select it (`alloy`, …)."""

    id: str
    aliases: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    description: str = ""


class ReferenceAudio(msgspec.Struct, frozen=True, kw_only=True):
    """A recording to clone: mono samples, shape (n,)."""

    samples: Samples
    sample_rate: int


class UploadedVoice(msgspec.Struct, frozen=True, kw_only=True):
    """A stored voice: uploaded (`reference`) or precomputed (`embedding`, shape (d,), and perhaps `codes`,
    shape (frames, 16)). `text` is what its recording says."""

    name: str
    text: str | None = None
    reference: ReferenceAudio | None = None
    embedding: tuple[float, ...] | None = None
    codes: tuple[tuple[int, ...], ...] | None = None


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the model. `speed` 1.0 is its own pace; None everywhere else: the model's default.

    `max_new_tokens` is in the model's audio tokens (frames); `initial_codec_chunk_frames` in frames.
    `stored_voice` is set when `voice` names an uploaded or precomputed voice.
    """

    voice: str | None = None
    stored_voice: UploadedVoice | None = None
    instructions: str = ""
    language: str = "Auto"
    speed: float = 1.0
    seed: int | None = None
    task_type: TaskType | None = None
    max_new_tokens: int | None = None
    initial_codec_chunk_frames: int | None = None
    reference: ReferenceAudio | None = None
    reference_text: str | None = None
    x_vector_only_mode: bool = False
    speaker_embedding: tuple[float, ...] | None = None
    word_timestamps: bool = False


class WordTime(msgspec.Struct, frozen=True, kw_only=True):
    """One word's place in the utterance's audio, ms."""

    word: str
    start_ms: float
    end_ms: float


class SpeechChunk(msgspec.Struct, frozen=True, kw_only=True):
    """More audio: mono samples, shape (n,), with the text that they speak.

    `words` None: not aligned (or not asked for); empty: silence. Times count from the utterance's start.
    `finish_reason` is set on the last chunk: "length" when a ceiling cut it.
    """

    samples: Samples
    sample_rate: int
    text: str = ""
    words: tuple[WordTime, ...] | None = None
    finish_reason: Literal["stop", "length"] | None = None


class SpeechFace(Protocol):
    """What the speech endpoints need."""

    sample_rate: int
    """The model's own output rate, Hz."""

    @property
    def voices(self) -> tuple[SpeechVoice, ...]:
        """The first one is the default."""
        ...

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its defaults and inferences filled in.

        Raises:
            DuplexError: what the model cannot do, before any work: `INVALID_VALUE`, `UNSUPPORTED_FORMAT` …
        """
        ...

    def synthesise(self, request: SpeechRequest, text: AsyncIterator[str]) -> AsyncIterator[SpeechChunk]:
        """Speak one utterance whose text arrives in pieces; audio comes before the text has ended.

        Cancelled by closing the iterator; work stops within one step.
        """
        ...


@runtime_checkable
class SpeechAdapter(Adapter, Protocol):
    """An adapter with a speech face."""

    speech: SpeechFace
