"""The options of a speech request, the same for HTTP, its batch and the WebSocket's `session.config`.

Everything is checked here that does not need a model: types, ranges, names, sizes. What a model can do is
for its `SpeechFace.validate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from duplex.adapters.speech import SpeechRequest, TaskType
from duplex.adapters.text import Granularity
from duplex.codecs.resample import SAMPLE_RATES
from duplex.core.errors import DuplexError, ErrorCode

ResponseFormat: TypeAlias = Literal["wav", "pcm", "flac", "mp3", "opus", "aac"]

MAX_INPUT_CHARACTERS: Final = 128 * 1024
MAX_INSTRUCTIONS: Final = 500
"""Characters; the limit of Qwen3-TTS."""
EMBEDDING_SIZES: Final = (1024, 2048)
"""Floats of a speaker embedding: 0.6B and 1.7B checkpoints of Qwen3-TTS."""
_MAX_ECHO: Final = 200
"""Characters of a client's own words that an error repeats."""
MEDIA_TYPES: Final[dict[str, str]] = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}


class SpeechFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of spoken text. `sample_rate` None: the model's own, Hz."""

    model: str | None = None
    voice: str | dict[str, str] | None = None
    speaker: str | None = None
    instructions: str | None = None
    response_format: ResponseFormat = "wav"
    speed: float = 1.0
    sample_rate: int | None = None
    task_type: TaskType | None = None
    language: str = "Auto"
    max_new_tokens: int | None = None
    seed: int | None = None
    initial_codec_chunk_frames: int | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool = False
    speaker_embedding: list[float] | None = None
    word_timestamps: bool = False

    @property
    def voice_name(self) -> str | None:
        """The voice asked for, under any of its spellings."""
        if isinstance(self.voice, dict):
            return self.voice.get("id")
        return self.voice or self.speaker

    def check(self) -> None:
        """Raises `DuplexError(INVALID_VALUE)` with `param` for a value out of range."""
        _check(math.isfinite(self.speed) and 0.25 <= self.speed <= 4.0, "speed", "from 0.25 to 4.0")
        rate = self.sample_rate
        rates = ", ".join(map(str, SAMPLE_RATES))
        _check(rate is None or rate in SAMPLE_RATES, "sample_rate", f"one of {rates} Hz")
        words = self.instructions or ""
        _check(len(words) <= MAX_INSTRUCTIONS, "instructions", f"at most {MAX_INSTRUCTIONS} characters")
        tokens = self.max_new_tokens
        _check(tokens is None or 1 <= tokens <= 65536, "max_new_tokens", "from 1 to 65536")
        frames = self.initial_codec_chunk_frames
        _check(frames is None or 0 <= frames <= 100, "initial_codec_chunk_frames", "from 0 to 100")
        _check(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "a 64-bit integer")
        if isinstance(self.voice, dict):
            _check(set(self.voice) == {"id"}, "voice", 'a name or {"id": name}')
        embedding = self.speaker_embedding
        if embedding is not None:
            sizes = " or ".join(map(str, EMBEDDING_SIZES))
            _check(len(embedding) in EMBEDDING_SIZES, "speaker_embedding", f"{sizes} numbers")
            _check(all(map(math.isfinite, embedding)), "speaker_embedding", "finite numbers")
            _check(self.ref_audio is None, "speaker_embedding", "without ref_audio: they exclude each other")

    def request(self) -> SpeechRequest:
        """What the model is asked, less references and stored voices, which need I/O."""
        return SpeechRequest(
            voice=self.voice_name,
            instructions=self.instructions or "",
            language=self.language,
            speed=self.speed,
            seed=self.seed,
            task_type=self.task_type,
            max_new_tokens=self.max_new_tokens,
            initial_codec_chunk_frames=self.initial_codec_chunk_frames,
            reference_text=self.ref_text,
            x_vector_only_mode=self.x_vector_only_mode,
            speaker_embedding=tuple(self.speaker_embedding) if self.speaker_embedding else None,
            word_timestamps=self.word_timestamps,
        )


class SpeechBody(SpeechFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/audio/speech`. `stream` is another spelling of `stream_format="audio"`."""

    input: str
    stream_format: Literal["audio", "sse"] | None = None
    stream: bool = False

    def check(self) -> None:
        super().check()
        check_input(self.input)


class SocketConfig(SpeechFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`session.config`. `stream_audio`: frames as they are made, else one frame a unit.

    `stream_text`: with granularity "none", begin before the text has ended.
    """

    stream_audio: bool = False
    split_granularity: Granularity = "sentence"
    stream_text: bool = False


SpeechFieldsT = TypeVar("SpeechFieldsT", bound=SpeechFields)


def check_input(text: str) -> None:
    """Raises `EMPTY_INPUT` or `MESSAGE_TOO_LARGE` for text that cannot be spoken."""
    if not text.strip():
        raise DuplexError(ErrorCode.EMPTY_INPUT, "input must not be empty", param="input")
    if len(text) > MAX_INPUT_CHARACTERS:
        raise DuplexError(
            ErrorCode.INPUT_OVERFLOW, f"input has more than {MAX_INPUT_CHARACTERS} characters", param="input"
        )


def parse(
    raw: Mapping[str, Any], kind: type[SpeechFieldsT], base: SpeechFieldsT | None = None
) -> SpeechFieldsT:
    """Fields of `kind` from decoded JSON, over `base` where that is given; checked.

    Raises:
        DuplexError: `UNKNOWN_FIELD`, `INVALID_VALUE`, `EMPTY_INPUT`, with `param` where it is known.
    """
    merged = over(msgspec.to_builtins(base) if base is not None else {}, raw)
    for name in raw:
        if name not in kind.__struct_fields__:
            name = name[:_MAX_ECHO]
            raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown field: {name}", param=name)
    return _convert(merged, kind, strict=True)


def over(base: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the fields of `raw` over it. Two spellings are of one field: the newer one counts."""
    merged = {**base, **raw}
    if "voice" in raw or "speaker" in raw:
        for name in ("voice", "speaker"):
            if name not in raw:
                merged.pop(name, None)
    return merged


def parse_query(query: Mapping[str, str], kind: type[SpeechFieldsT]) -> SpeechFieldsT | None:
    """Fields from query parameters: the same names, values as text. None when none of them is there; other
    parameters are not ours."""
    known = {name: value for name, value in query.items() if name in kind.__struct_fields__}
    return _convert(known, kind, strict=False) if known else None


def _convert(values: Mapping[str, Any], kind: type[SpeechFieldsT], *, strict: bool) -> SpeechFieldsT:
    try:
        fields = msgspec.convert(dict(values), kind, strict=strict)
    except msgspec.ValidationError as error:
        words = str(error)
        param = words.rpartition("`$.")[2].rstrip("`") if "`$." in words else None
        if "missing required field" in words:
            param = words.split("`")[1]
        if len(words) > _MAX_ECHO:  # it tells the value, which may be long
            words = f"{words[:_MAX_ECHO]}…"
        raise DuplexError(ErrorCode.INVALID_VALUE, words, param=param) from None
    fields.check()
    return fields


def _check(ok: bool, param: str, words: str) -> None:
    if not ok:
        raise DuplexError(ErrorCode.INVALID_VALUE, f"{param} must be {words}", param=param)
