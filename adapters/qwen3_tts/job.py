"""What the adapter asks of a Qwen3-TTS worker: the `job` of a `Start` and the payloads of its calls."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

TtsModelType: TypeAlias = Literal["custom_voice", "voice_design", "base"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How codes are drawn: the checkpoints' own defaults. Temperature 0 is greedy, top_k 0 all codes.

    `predictor_*` are those of code groups 1–15, which have no repetition penalty. There is no top_p: the
    checkpoints' is 1.
    """

    temperature: float = 0.9
    top_k: int = 50
    repetition_penalty: float = 1.05
    predictor_temperature: float = 0.9
    predictor_top_k: int = 50


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A voice to clone. `embedding` float32 little endian, shape (talker hidden size,); `codes` int16 little
    endian, shape (frames, 16), with `text`, what they say, for in-context cloning; without codes the
    embedding alone (x-vector)."""

    embedding: bytes
    codes: bytes = b""
    text: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One utterance.

    `text` is what is known of it now; `ended`: that is all. `whole` asks for the layout with all text before
    the first frame (needs `ended`), else one text token goes in a frame. `language` and `speaker` are the
    config's keys, lower case. `max_frames` None: a ceiling scaled by the text.
    """

    text: str
    ended: bool
    whole: bool
    language: str = "auto"
    speaker: str | None = None
    instructions: str = ""
    reference: Reference | None = None
    seed: int = 0
    sampling: Sampling = Sampling()
    max_frames: int | None = None


class EncodeReference(msgspec.Struct, frozen=True, kw_only=True):
    """Payload of the call "encode_reference": a recording, float32 little endian mono at `sample_rate` Hz.

    `codes`: also the codec's codes, for in-context cloning. Answered by a `Reference` without text.
    """

    samples: bytes
    sample_rate: int
    codes: bool
