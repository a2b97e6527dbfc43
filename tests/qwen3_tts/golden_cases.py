"""The requests that the authors' package answered: `golden/talker.npz`. Imports only Python's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GOLDEN = Path(__file__).with_name("golden")
LOGIT_FRAMES = (0, 1, 50, 199)
"""Frames before which the talker's logits are kept."""
AUDIO_FRAMES = 6
"""Frames of audio that are kept, where any are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request to a tiny checkpoint: `model_type`, `size`, `seed` and `end_gain` say which.

    `whole`: the authors' `non_streaming_mode`. `reference`: the speaker embedding alone, or in-context with
    `reference_frames` frames that say `reference_text`; both are in the golden file. `frames`: the ceiling.
    `audio`: the first of the audio is kept too.
    """

    name: str
    model_type: Literal["custom_voice", "voice_design", "base"]
    size: Literal["0.6B", "1.7B"]
    seed: int
    text: str
    whole: bool
    language: str = "auto"
    speaker: str | None = None
    instructions: str = ""
    reference: Literal["embedding", "context"] | None = None
    reference_text: str = ""
    reference_frames: int = 0
    frames: int = 208
    end_gain: float = 0.0
    audio: bool = False


_LONG = (
    "There was a long, slow river, and the people who came down to the water each day said that it could "
    "speak. What did it say? Look, one of them said; you may call this a voice, but it is 42 or 43 other "
    "things too."
)
_SHORT = "Hello world, how are you?"
_CHINESE = "你好，世界。今天天气很好！"

CASES = (
    Case(
        name="custom_voice_whole",
        model_type="custom_voice",
        size="1.7B",
        seed=41,
        text=_LONG,
        whole=True,
        language="english",
        speaker="vivian",
        instructions="Speak slow and calm.",
    ),
    Case(
        name="custom_voice_streaming",
        model_type="custom_voice",
        size="1.7B",
        seed=61,
        text=_LONG,
        whole=False,
        speaker="eric",  # of a dialect, which the open language is replaced by
    ),
    Case(
        name="custom_voice_small",
        audio=True,
        model_type="custom_voice",
        size="0.6B",
        seed=15,
        text=_SHORT,
        whole=True,
        language="german",
        speaker="ryan",
    ),
    Case(
        name="custom_voice_ends",
        model_type="custom_voice",
        size="1.7B",
        seed=142,
        text=_SHORT,
        whole=False,
        language="french",
        speaker="serena",
        end_gain=4.0,
    ),
    Case(
        name="voice_design",
        model_type="voice_design",
        size="1.7B",
        seed=4,
        text=_CHINESE,
        whole=True,
        language="chinese",
        instructions="A happy voice, and fast.",
    ),
    Case(
        name="base_embedding",
        audio=True,
        model_type="base",
        size="1.7B",
        seed=4,
        text=_LONG,
        whole=False,
        language="russian",
        reference="embedding",
    ),
    Case(
        name="base_context_streaming",
        model_type="base",
        size="1.7B",
        seed=95,
        text=_LONG,
        whole=False,
        language="english",
        reference="context",
        reference_text="Now the people have made their way to the water.",
        reference_frames=20,
    ),
    Case(
        name="base_context_short",
        audio=True,
        model_type="base",
        size="0.6B",
        seed=8,
        text=_SHORT,  # shorter than the reference: tts_pad stands beside its last frames
        whole=False,
        language="auto",
        reference="context",
        reference_text="Now the people have made their way.",
        reference_frames=45,
    ),
    Case(
        name="base_context_whole",
        model_type="base",
        size="1.7B",
        seed=110,
        text=_SHORT,
        whole=True,
        language="english",
        reference="context",
        reference_text="Now the people have made their way.",
        reference_frames=20,
    ),
)
