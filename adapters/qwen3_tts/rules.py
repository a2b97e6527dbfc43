"""What a checkpoint can do: each request is checked here before the engine is touched.

Rules are those of the reference implementation where it has one. Pure: no I/O, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.names import (
    AUTO,
    DEFAULT_SPEAKER,
    NO_VOICE,
    SPEAKERS,
    TASKS,
    language_key,
    speaker_key,
)
from duplex.adapters.speech import (
    OPENAI_VOICES,
    ReferenceAudio,
    SpeechRequest,
    SpeechVoice,
    TaskType,
    UploadedVoice,
)
from duplex.core.errors import DuplexError, ErrorCode

MAX_INSTRUCTIONS: Final = 500
"""Characters."""
MAX_FRAMES: Final = 65536
"""The largest bound of a request's length: 87 minutes. A long text is several utterances, so it can be far
above what one slot has positions for."""
MIN_REFERENCE_MS: Final = 500.0
"""A shorter recording tells nothing of a voice; the publisher asks for 3 s."""
GROUPS: Final = 16
"""Codes of one frame."""
CODES: Final = 2048
"""Values of one code."""


class Rules:
    """The rules of one checkpoint.

    Args:
        config: its `config.json`.
        voice: the voice of requests that name none; None: the checkpoint's own default.
        stored: precomputed voices of this adapter, by name in lower case.

    Raises:
        DuplexError: `BAD_CONFIG` for a default voice or a precomputed one that the checkpoint cannot use.
    """

    def __init__(
        self,
        config: TtsConfig,
        *,
        voice: str | None = None,
        stored: Mapping[str, UploadedVoice] | None = None,
    ) -> None:
        talker = config.talker_config
        self.kind = config.tts_model_type
        self.task: TaskType = TASKS[self.kind]
        self.hidden_size = talker.hidden_size
        self.languages = tuple(name for name in talker.codec_language_id if "dialect" not in name)
        """Names that a request may give beside "auto", lower case. Dialects come with their speakers."""
        self.takes_instructions = self.kind == "voice_design" or (
            self.kind == "custom_voice" and config.tts_model_size != "0b6"
        )
        self._stored = dict(stored or {})
        self._dialects = {
            name: dialect for name, dialect in talker.spk_is_dialect.items() if isinstance(dialect, str)
        }
        self._speakers = tuple(talker.spk_id) if self.kind == "custom_voice" else ()
        self._check_stored()
        self.default_voice = self._default(voice)

    # --- voices -------------------------------------------------------------------------------------

    @property
    def voices(self) -> tuple[SpeechVoice, ...]:
        """Speakers of the checkpoint and precomputed voices, the default one first."""
        names = [*self._speakers, *(voice.name for voice in self._stored.values())]
        if self.default_voice is not None:
            names.remove(self.default_voice)
            names.insert(0, self.default_voice)
        aliases = tuple(name for name in OPENAI_VOICES if name not in names)
        every = tuple(name.capitalize() for name in self.languages)
        return tuple(
            SpeechVoice(
                id=name,
                aliases=aliases if name == self.default_voice else (),
                languages=every,
                description=_described(name) if name in self._speakers else "precomputed voice",
            )
            for name in names
        )

    def _default(self, name: str | None) -> str | None:
        if name is not None:
            if (key := speaker_key(name)) in self._speakers:
                return key
            if (voice := self._stored.get(name.casefold())) is not None:
                return voice.name
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"qwen3-tts: voice {name!r}: {self._known_voices()}", param="voice"
            )
        if not self._speakers:
            return None
        return DEFAULT_SPEAKER if DEFAULT_SPEAKER in self._speakers else self._speakers[0]

    def _check_stored(self) -> None:
        if self._stored and self.kind != "base":
            raise DuplexError(
                ErrorCode.BAD_CONFIG,
                f"qwen3-tts: precomputed voices need a Base checkpoint, this one is {self.task}",
                param="custom_voice_dir",
            )
        for voice in self._stored.values():
            try:
                self._check_profile(voice)
            except DuplexError as error:
                raise DuplexError(
                    ErrorCode.BAD_CONFIG, f"qwen3-tts: {error.message}", param="custom_voice_dir"
                ) from None

    def _known_voices(self) -> str:
        names = [*self._speakers, *(voice.name for voice in self._stored.values())]
        return f"this model has: {', '.join(names)}" if names else "this model has no voices of its own"

    # --- requests -----------------------------------------------------------------------------------

    def check(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its task, voice and language filled in. Checking it again changes nothing.

        Raises:
            DuplexError: `INVALID_VALUE`, with the field at fault in `param`.
        """
        request = self.check_options(request)
        task, inferred_from = _task(request)
        if task != self.task:
            raise _invalid(
                inferred_from,
                f"Qwen3-TTS {self.task} checkpoint does not support task_type={task!r}. "
                f"Use task_type={self.task!r} or load the matching {task} checkpoint.",
            )
        request = msgspec.structs.replace(request, task_type=task)
        match task:
            case "CustomVoice":
                return self._custom_voice(request)
            case "VoiceDesign":
                return self._voice_design(request)
            case "Base":
                return self._base(request)

    def check_options(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its voice and language filled in; what its task needs beside them may still be
        missing. Raises as `check` does."""
        self._check_numbers(request)
        voice, stored = self._voice(request)
        return msgspec.structs.replace(
            request,
            voice=voice,
            stored_voice=stored,
            language=self._language(request.language),
            instructions=self._instructions(request.instructions),
            reference_text=request.reference_text or None,
        )

    def language(self, request: SpeechRequest) -> str:
        """The configuration's key for a checked request: a speaker of a dialect speaks it where Chinese, or
        nothing, is asked for."""
        dialect = self._dialects.get(request.voice or "") if self.kind == "custom_voice" else None
        return dialect if dialect is not None and request.language in (AUTO, "chinese") else request.language

    def _check_numbers(self, request: SpeechRequest) -> None:
        if request.speed != 1.0:
            raise _invalid("speed", "Qwen3-TTS has no speed: leave it at 1.0, or ask for it in instructions")
        most = request.max_new_tokens
        if most is not None and not 1 <= most <= MAX_FRAMES:
            raise _invalid("max_new_tokens", f"max_new_tokens must be from 1 to {MAX_FRAMES}")
        seed = request.seed
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise _invalid("seed", "seed must be a 64-bit integer")

    def _voice(self, request: SpeechRequest) -> tuple[str | None, UploadedVoice | None]:
        """The voice's name, None for none, and the stored voice of that name. A cloned voice has no name."""
        if request.stored_voice is not None:
            return request.voice, request.stored_voice
        name = request.voice
        cloned = request.reference is not None or request.speaker_embedding is not None
        if name is not None:
            if (key := speaker_key(name)) in self._speakers:
                return key, None
            if (stored := self._stored.get(name.casefold())) is not None:
                return stored.name, stored
            if name.casefold() not in NO_VOICE:
                raise _invalid("voice", f"unknown voice {name[:64]!r}; {self._known_voices()}")
        if cloned or self.default_voice is None:
            return None, None
        return self.default_voice, self._stored.get(self.default_voice.casefold())

    def _instructions(self, words: str) -> str:
        """Those that the model follows: the others ignore them, as the reference implementation does."""
        if not self.takes_instructions:
            return ""
        if len(words) > MAX_INSTRUCTIONS:
            raise _invalid("instructions", f"instructions must be at most {MAX_INSTRUCTIONS} characters")
        return words

    def _language(self, name: str) -> str:
        key = language_key(name)
        if key != AUTO and key not in self.languages:
            known = ", ".join(["Auto", *(language.capitalize() for language in self.languages)])
            raise _invalid("language", f"unknown language {name[:32]!r}; this model speaks: {known}")
        return key

    def _custom_voice(self, request: SpeechRequest) -> SpeechRequest:
        self._refuse_cloning(request)
        if request.voice is None:
            raise _invalid("voice", "the checkpoint has no speakers")
        return request

    def _voice_design(self, request: SpeechRequest) -> SpeechRequest:
        self._refuse_cloning(request)
        if not request.instructions.strip():
            raise _invalid(
                "instructions", "task_type='VoiceDesign' needs instructions that describe the voice"
            )
        return request

    def _refuse_cloning(self, request: SpeechRequest) -> None:
        given = {
            "ref_audio": request.reference is not None,
            "ref_text": request.reference_text is not None,
            "x_vector_only_mode": request.x_vector_only_mode,
            "speaker_embedding": request.speaker_embedding is not None,
        }
        for param, is_given in given.items():
            if is_given:
                raise _invalid(param, f"{param} is for task_type='Base', not {self.task!r}")

    # --- voices to clone ----------------------------------------------------------------------------

    def _base(self, request: SpeechRequest) -> SpeechRequest:
        sources = {
            "voice": request.stored_voice is not None,
            "ref_audio": request.reference is not None,
            "speaker_embedding": request.speaker_embedding is not None,
        }
        given = [name for name, is_given in sources.items() if is_given]
        if not given:
            raise _invalid(
                "ref_audio",
                "task_type='Base' needs a voice to clone: ref_audio, speaker_embedding, "
                "or the name of a stored voice",
            )
        if len(given) > 1:
            raise _invalid(given[1], f"{given[0]} and {given[1]} are two voices: give one")
        if request.stored_voice is not None:
            return self._from_stored(request, request.stored_voice)
        if request.speaker_embedding is not None:
            return self._from_embedding(request, request.speaker_embedding)
        return self._from_recording(request)

    def _from_stored(self, request: SpeechRequest, voice: UploadedVoice) -> SpeechRequest:
        text = request.reference_text or voice.text
        if voice.reference is not None:
            check_length(voice.reference, "voice")
        else:
            self._check_profile(voice)
            if voice.codes is not None and not text and not request.x_vector_only_mode:
                raise _invalid(
                    "ref_text",
                    f"voice {voice.name} has codes but no ref_text: give it, or x_vector_only_mode=true",
                )
        # without its words a recording gives the embedding alone
        alone = request.x_vector_only_mode or not text or (voice.reference is None and voice.codes is None)
        return msgspec.structs.replace(
            request, x_vector_only_mode=alone, reference_text=None if alone else text
        )

    def _from_embedding(self, request: SpeechRequest, embedding: tuple[float, ...]) -> SpeechRequest:
        if len(embedding) != self.hidden_size:
            raise _invalid(
                "speaker_embedding",
                f"speaker_embedding must have {self.hidden_size} numbers for this model, "
                f"not {len(embedding)}",
            )
        if request.reference_text:
            raise _invalid("ref_text", "ref_text needs a recording that says it: speaker_embedding has none")
        return msgspec.structs.replace(request, x_vector_only_mode=True, reference_text=None)

    def _from_recording(self, request: SpeechRequest) -> SpeechRequest:
        assert request.reference is not None
        check_length(request.reference, "ref_audio")
        if request.x_vector_only_mode:  # the reference implementation ignores the words, too
            return msgspec.structs.replace(request, reference_text=None)
        if not (request.reference_text or "").strip():
            raise _invalid(
                "ref_text",
                "task_type='Base' needs ref_text, what ref_audio says, or x_vector_only_mode=true",
            )
        return request

    def _check_profile(self, voice: UploadedVoice) -> None:
        """A voice that was computed ahead has to be of this size of model."""
        size = len(voice.embedding or ())
        if size != self.hidden_size:
            raise _invalid(
                "voice",
                f"voice {voice.name} has an embedding of {size} numbers, this model takes {self.hidden_size}",
            )
        for row in voice.codes or ():
            if len(row) != GROUPS or not all(0 <= code < CODES for code in row):
                raise _invalid("voice", f"voice {voice.name} has codes of another codec")


def _task(request: SpeechRequest) -> tuple[TaskType, str]:
    """The task that is asked for, and by which field."""
    if request.stored_voice is not None:
        return "Base", "voice"
    if request.task_type is not None:
        return request.task_type, "task_type"
    if request.reference is not None:
        return "Base", "ref_audio"
    if request.reference_text is not None:
        return "Base", "ref_text"
    if request.speaker_embedding is not None:
        return "Base", "speaker_embedding"
    return "CustomVoice", "task_type"


def _described(name: str) -> str:
    speaker = SPEAKERS.get(name)
    return f"{speaker.description}; native: {speaker.language}" if speaker is not None else ""


def check_length(recording: ReferenceAudio, param: str) -> None:
    """Raises `DuplexError(INVALID_VALUE)` for a recording that is too short to clone."""
    if len(recording.samples) < recording.sample_rate * MIN_REFERENCE_MS / 1000:
        raise _invalid(param, f"the recording is shorter than {MIN_REFERENCE_MS:g} ms")


def _invalid(param: str, words: str) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_VALUE, words, param=param)
