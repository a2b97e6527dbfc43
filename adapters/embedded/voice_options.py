"""Options of the embedded voice: of the adapter, and of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from duplex.adapters.embedded.smart_turn import find_model
from duplex.core.errors import DuplexError, ErrorCode


class VoiceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the adapter: `[adapters.embedded-voice]`.

    Replies come from `llm_url` if given, else from the skills, else (with `llm = "smollm2"`) from the small
    local model. `skills` true puts the skills before an endpoint too. `smart_turn` true needs the Smart Turn
    model, false does without; None uses it where it is installed. Threads are for all sessions together.
    """

    id: str = "embedded-voice"
    voice: str = "heart"
    llm_url: str | None = None
    llm_model: str = "default"
    llm_api_key: str | None = None
    llm_max_tokens: int = 400
    llm: Literal["none", "smollm2"] = "none"
    skills: bool | None = None
    smart_turn: bool | None = None
    stall_timeout_ms: int = 2000
    max_turn_ms: int = 120_000
    hearing_threads: int = 1
    recognition_threads: int = 1
    speaking_threads: int = 1
    max_sessions: int | None = None


class SpeakingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`SessionSettings.options` of this model. `split`: what is synthesised at a time."""

    speed: float = 1.0
    split: Literal["sentence", "clause"] = "sentence"


def read_options(options: Mapping[str, Any]) -> VoiceOptions:
    """The adapter's options out of a configuration.

    Raises:
        DuplexError: `BAD_CONFIG` for an unknown or impossible one.
    """
    try:
        parsed = msgspec.convert(dict(options), VoiceOptions)
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"embedded-voice: {error}") from None
    if parsed.smart_turn and find_model() is None:
        words = "smart_turn needs the model of pipecat-ai: pip install --no-deps pipecat-ai"
        raise DuplexError(ErrorCode.BAD_CONFIG, f"embedded-voice: {words}", param="smart_turn")
    for name in ("hearing_threads", "recognition_threads", "speaking_threads", "llm_max_tokens"):
        if getattr(parsed, name) < 1:
            raise DuplexError(ErrorCode.BAD_CONFIG, f"embedded-voice: {name} must be at least 1", param=name)
    return parsed
