"""Names that requests use: languages, speakers, tasks. Upper and lower case are alike everywhere."""

from __future__ import annotations

from typing import Final

import msgspec

from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.adapters.speech import OPENAI_VOICES, TaskType

TASKS: Final[dict[TtsModelType, TaskType]] = {
    "custom_voice": "CustomVoice",
    "voice_design": "VoiceDesign",
    "base": "Base",
}
"""The one task that a checkpoint of each type serves."""

AUTO: Final = "auto"
"""The model finds the language out by itself."""
_ISO: Final = {
    "zh": "chinese",
    "cmn": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}
NO_VOICE: Final = frozenset({"default", *OPENAI_VOICES})
"""Voices that mean the default one, unless the checkpoint has a speaker of that name."""


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkpoints' publisher says of a voice."""

    language: str
    description: str


SPEAKERS: Final = {
    "vivian": Speaker(language="Chinese", description="bright, slightly edgy young female voice"),
    "serena": Speaker(language="Chinese", description="warm, gentle young female voice"),
    "uncle_fu": Speaker(language="Chinese", description="seasoned male voice, low and mellow"),
    "dylan": Speaker(language="Chinese (Beijing dialect)", description="clear, natural young male voice"),
    "eric": Speaker(language="Chinese (Sichuan dialect)", description="lively male voice, a little husky"),
    "ryan": Speaker(language="English", description="dynamic male voice, strong in rhythm"),
    "aiden": Speaker(language="English", description="sunny American male voice, clear in the middle"),
    "ono_anna": Speaker(language="Japanese", description="playful female voice, light and nimble"),
    "sohee": Speaker(language="Korean", description="warm female voice, rich in emotion"),
}
"""Their native languages; each of them speaks all languages. Source: the model cards of Qwen3-TTS."""
DEFAULT_SPEAKER: Final = "vivian"


def language_key(name: str) -> str:
    """`"English"`, `"en"`, `"en-US"` as the configuration's key, `"english"`; `"auto"` for nothing. What is
    none of these comes back as it is, in lower case."""
    name = name.strip().casefold()
    return _ISO.get(name.replace("_", "-").partition("-")[0], name) or AUTO


def speaker_key(name: str) -> str:
    """`"Uncle Fu"`, `"uncle-fu"` as the configuration's key, `"uncle_fu"`."""
    return "_".join(name.strip().casefold().replace("-", " ").replace("_", " ").split())
