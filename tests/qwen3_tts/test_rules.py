"""What each checkpoint can do, as a table."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.adapters.qwen3_tts.names import language_key, speaker_key
from duplex.adapters.qwen3_tts.rules import MAX_FRAMES, Rules
from duplex.adapters.qwen3_tts.tiny import SPEAKERS, tiny_config
from duplex.adapters.speech import ReferenceAudio, SpeechRequest, UploadedVoice
from duplex.core.errors import DuplexError, ErrorCode

HIDDEN = 128
RECORDING = ReferenceAudio(samples=np.zeros(24000, np.float32), sample_rate=24000)
CLICK = ReferenceAudio(samples=np.zeros(2400, np.float32), sample_rate=24000)
EMBEDDING = tuple([0.5] * HIDDEN)
CODES = (tuple(range(16)), tuple(range(16)))
UPLOADED = UploadedVoice(name="ann", reference=RECORDING)
UPLOADED_WITH_TEXT = UploadedVoice(name="ann", reference=RECORDING, text="her words")
PROFILE = UploadedVoice(name="Bob", embedding=EMBEDDING)
PROFILE_IN_CONTEXT = UploadedVoice(name="cid", embedding=EMBEDDING, codes=CODES, text="his words")


def rules(kind: TtsModelType = "custom_voice", size: str = "1.7B", **options: Any) -> Rules:
    return Rules(tiny_config(kind, size), **options)  # type: ignore[arg-type]


def refused(of: Rules, **fields: Any) -> DuplexError:
    with pytest.raises(DuplexError) as caught:
        of.check(SpeechRequest(**fields))
    assert caught.value.code is ErrorCode.INVALID_VALUE
    return caught.value


# --- tasks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "task", "param"),
    [
        ({"task_type": "Base"}, "Base", "task_type"),
        ({"task_type": "VoiceDesign", "instructions": "old"}, "VoiceDesign", "task_type"),
        ({"reference": RECORDING}, "Base", "ref_audio"),
        ({"reference": RECORDING, "reference_text": "words"}, "Base", "ref_audio"),
        ({"reference_text": "words"}, "Base", "ref_text"),
        ({"speaker_embedding": EMBEDDING}, "Base", "speaker_embedding"),
        ({"voice": "ann", "stored_voice": UPLOADED}, "Base", "voice"),
        ({"voice": "ann", "stored_voice": UPLOADED, "task_type": "CustomVoice"}, "Base", "voice"),
        ({"voice": "bob", "stored_voice": PROFILE, "task_type": "VoiceDesign"}, "Base", "voice"),
    ],
)
def test_a_task_that_a_custom_voice_checkpoint_does_not_serve(
    fields: dict[str, Any], task: str, param: str
) -> None:
    error = refused(rules(), **fields)
    assert error.message == (
        f"Qwen3-TTS CustomVoice checkpoint does not support task_type='{task}'. "
        f"Use task_type='CustomVoice' or load the matching {task} checkpoint."
    )
    assert error.param == param


@pytest.mark.parametrize(("kind", "own"), [("voice_design", "VoiceDesign"), ("base", "Base")])
@pytest.mark.parametrize("fields", [{}, {"task_type": "CustomVoice"}, {"voice": "alloy"}])
def test_everything_else_is_taken_for_custom_voice(
    kind: TtsModelType, own: str, fields: dict[str, Any]
) -> None:
    error = refused(rules(kind), **fields)
    assert error.message == (
        f"Qwen3-TTS {own} checkpoint does not support task_type='CustomVoice'. "
        f"Use task_type='{own}' or load the matching CustomVoice checkpoint."
    )


@pytest.mark.parametrize(
    ("kind", "fields", "task"),
    [
        ("custom_voice", {}, "CustomVoice"),
        ("custom_voice", {"task_type": "CustomVoice"}, "CustomVoice"),
        ("voice_design", {"task_type": "VoiceDesign", "instructions": "an old man"}, "VoiceDesign"),
        ("base", {"reference": RECORDING, "reference_text": "words"}, "Base"),
        ("base", {"reference": RECORDING, "x_vector_only_mode": True}, "Base"),
        ("base", {"speaker_embedding": EMBEDDING}, "Base"),
        ("base", {"voice": "ann", "stored_voice": UPLOADED}, "Base"),
        ("base", {"voice": "ann", "stored_voice": UPLOADED, "task_type": "CustomVoice"}, "Base"),
    ],
)
def test_a_task_is_found_out(kind: TtsModelType, fields: dict[str, Any], task: str) -> None:
    of = rules(kind)
    checked = of.check(SpeechRequest(**fields))
    assert checked.task_type == task
    assert of.check(checked) == checked


# --- voices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "voice"),
    [
        (None, "vivian"),
        ("default", "vivian"),
        ("alloy", "vivian"),
        ("Nova", "vivian"),
        ("RYAN", "ryan"),
        ("Uncle_Fu", "uncle_fu"),
        ("uncle fu", "uncle_fu"),
        ("Ono-Anna", "ono_anna"),
    ],
)
def test_voices_are_found_by_any_spelling(asked: str | None, voice: str) -> None:
    assert rules().check(SpeechRequest(voice=asked)).voice == voice


def test_an_unknown_voice_is_refused_and_the_known_ones_are_named() -> None:
    error = refused(rules(), voice="nobody")
    assert error.param == "voice"
    for name in SPEAKERS:
        assert name in error.message
    assert refused(rules("voice_design"), voice="ryan", task_type="VoiceDesign").param == "voice"


def test_the_voices_of_a_checkpoint() -> None:
    voices = rules().voices
    assert [voice.id for voice in voices] == ["vivian", *(name for name in SPEAKERS if name != "vivian")]
    assert "alloy" in voices[0].aliases
    assert all(not voice.aliases for voice in voices[1:])
    assert set(voices[0].languages) >= {"Chinese", "English", "Russian"}
    assert not any("dialect" in language for language in voices[0].languages)
    assert all(voice.description for voice in voices)
    assert rules("voice_design").voices == ()


def test_the_default_voice_can_be_chosen() -> None:
    of = rules(voice="Ryan")
    assert of.voices[0].id == "ryan"
    assert of.check(SpeechRequest(voice="alloy")).voice == "ryan"
    with pytest.raises(DuplexError, match="'nobody': this model has: serena") as caught:
        rules(voice="nobody")
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_a_precomputed_voice_can_be_the_default_of_a_base_checkpoint() -> None:
    of = rules("base", voice="BOB", stored={"bob": PROFILE, "cid": PROFILE_IN_CONTEXT})
    assert [voice.id for voice in of.voices] == ["Bob", "cid"]
    for fields in ({}, {"voice": "alloy"}, {"voice": "bob"}):
        checked = of.check(SpeechRequest(**fields))
        assert (checked.task_type, checked.stored_voice) == ("Base", PROFILE)
    assert of.check(SpeechRequest(voice="Cid")).stored_voice is PROFILE_IN_CONTEXT
    # a recording in the request is another voice than the default one
    assert of.check(SpeechRequest(reference=RECORDING, x_vector_only_mode=True)).stored_voice is None


@pytest.mark.parametrize(
    ("kind", "voice", "words"),
    [
        ("custom_voice", PROFILE, "need a Base checkpoint, this one is CustomVoice"),
        (
            "base",
            UploadedVoice(name="x", embedding=(1.0, 2.0)),
            "2 numbers, this model takes 128",
        ),
        (
            "base",
            UploadedVoice(name="x", embedding=EMBEDDING, codes=((2048, *range(15)),), text="x"),
            "codes of another codec",
        ),
    ],
)
def test_precomputed_voices_of_another_model_stop_the_start(
    kind: TtsModelType, voice: UploadedVoice, words: str
) -> None:
    with pytest.raises(DuplexError, match=words) as caught:
        rules(kind, stored={voice.name: voice})
    assert (caught.value.code, caught.value.param) == (ErrorCode.BAD_CONFIG, "custom_voice_dir")


# --- cloning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "alone", "text"),
    [
        ({"reference": RECORDING, "reference_text": "words"}, False, "words"),
        ({"reference": RECORDING, "reference_text": "words", "x_vector_only_mode": True}, True, None),
        ({"reference": RECORDING, "x_vector_only_mode": True}, True, None),
        ({"speaker_embedding": EMBEDDING}, True, None),
        ({"stored_voice": UPLOADED}, True, None),
        ({"stored_voice": UPLOADED, "reference_text": "words"}, False, "words"),
        ({"stored_voice": UPLOADED_WITH_TEXT}, False, "her words"),
        ({"stored_voice": UPLOADED_WITH_TEXT, "x_vector_only_mode": True}, True, None),
        ({"stored_voice": PROFILE}, True, None),
        ({"stored_voice": PROFILE_IN_CONTEXT}, False, "his words"),
        ({"stored_voice": PROFILE_IN_CONTEXT, "x_vector_only_mode": True}, True, None),
    ],
)
def test_how_a_voice_is_cloned(fields: dict[str, Any], alone: bool, text: str | None) -> None:
    checked = rules("base").check(SpeechRequest(**fields))
    assert (checked.x_vector_only_mode, checked.reference_text) == (alone, text)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"task_type": "Base"}, "ref_audio", "needs a voice to clone"),
        ({"reference_text": "words"}, "ref_audio", "needs a voice to clone"),
        ({"reference": RECORDING}, "ref_text", "needs ref_text, what ref_audio says, or x_vector_only_mode"),
        ({"reference": RECORDING, "reference_text": " "}, "ref_text", "needs ref_text"),
        ({"reference": CLICK, "x_vector_only_mode": True}, "ref_audio", "shorter than 500 ms"),
        ({"stored_voice": UploadedVoice(name="a", reference=CLICK)}, "voice", "shorter than 500 ms"),
        ({"stored_voice": UPLOADED, "reference": RECORDING}, "ref_audio", "two voices"),
        ({"stored_voice": PROFILE, "speaker_embedding": EMBEDDING}, "speaker_embedding", "two voices"),
        ({"speaker_embedding": (0.5,) * 64}, "speaker_embedding", "must have 128 numbers .* not 64"),
        ({"speaker_embedding": EMBEDDING, "reference_text": "words"}, "ref_text", "needs a recording"),
        ({"stored_voice": UploadedVoice(name="x", embedding=(1.0,))}, "voice", "this model takes 128"),
        (
            {"stored_voice": UploadedVoice(name="x", embedding=EMBEDDING, codes=CODES)},
            "ref_text",
            "has codes but no ref_text",
        ),
        ({"reference": RECORDING, "voice": "nobody", "x_vector_only_mode": True}, "voice", "no voices"),
    ],
)
def test_voices_that_cannot_be_cloned(fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(rules("base"), **fields)
    assert error.param == param
    assert msgspec.json.encode(error.message)
    with pytest.raises(DuplexError, match=words):
        raise error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reference": RECORDING}, "ref_audio"),
        ({"reference_text": "words"}, "ref_text"),
        ({"x_vector_only_mode": True}, "x_vector_only_mode"),
        ({"speaker_embedding": EMBEDDING}, "speaker_embedding"),
    ],
)
@pytest.mark.parametrize(("kind", "task"), [("custom_voice", "CustomVoice"), ("voice_design", "VoiceDesign")])
def test_what_is_for_cloning_alone(kind: TtsModelType, task: str, fields: dict[str, Any], param: str) -> None:
    error = refused(rules(kind), task_type=task, instructions="old", **fields)
    assert (error.param, error.message) == (param, f"{param} is for task_type='Base', not '{task}'")


def test_an_empty_ref_text_is_none() -> None:
    assert rules().check(SpeechRequest(reference_text="")).reference_text is None


# --- instructions -------------------------------------------------------------------------------------


def test_voice_design_needs_instructions() -> None:
    for words in ("", "  "):
        error = refused(rules("voice_design"), task_type="VoiceDesign", instructions=words)
        assert error.param == "instructions"


@pytest.mark.parametrize(
    ("kind", "size", "follows"),
    [
        ("custom_voice", "1.7B", True),
        ("custom_voice", "0.6B", False),
        ("voice_design", "1.7B", True),
        ("base", "1.7B", False),
    ],
)
def test_who_follows_instructions(kind: TtsModelType, size: str, follows: bool) -> None:
    """The others ignore them, as the reference implementation does."""
    of = rules(kind, size)
    voice = {"speaker_embedding": (0.5,) * of.hidden_size} if kind == "base" else {}
    task = "VoiceDesign" if kind == "voice_design" else None
    checked = of.check(SpeechRequest(instructions="whisper", task_type=task, **voice))  # type: ignore[arg-type]
    assert checked.instructions == ("whisper" if follows else "")


def test_instructions_have_at_most_500_characters() -> None:
    assert len(rules().check(SpeechRequest(instructions="x" * 500)).instructions) == 500
    assert refused(rules(), instructions="x" * 501).param == "instructions"


# --- languages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ("Auto", "auto"),
        ("", "auto"),
        ("English", "english"),
        ("GERMAN", "german"),
        ("en", "english"),
        ("en-GB", "english"),
        ("pt_BR", "portuguese"),
        ("zh", "chinese"),
        ("zh-Hant-TW", "chinese"),
        ("ja", "japanese"),
    ],
)
def test_languages_by_name_or_code(asked: str, key: str) -> None:
    assert rules().check(SpeechRequest(language=asked)).language == key


def test_every_code_means_a_language_of_the_checkpoints() -> None:
    for code in ("zh", "en", "de", "it", "pt", "es", "ja", "ko", "fr", "ru"):
        assert language_key(code) in rules().languages


@pytest.mark.parametrize("asked", ["Klingon", "sv", "beijing_dialect", "x" * 500])
def test_other_languages_are_refused(asked: str) -> None:
    error = refused(rules(), language=asked)
    assert error.param == "language"
    assert "Auto, Chinese, English" in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("voice", "language", "spoken"),
    [
        ("dylan", "Auto", "beijing_dialect"),
        ("dylan", "Chinese", "beijing_dialect"),
        ("dylan", "English", "english"),
        ("eric", "zh", "sichuan_dialect"),
        ("vivian", "Chinese", "chinese"),
        ("vivian", "Auto", "auto"),
    ],
)
def test_speakers_of_a_dialect_speak_it(voice: str, language: str, spoken: str) -> None:
    of = rules()
    assert of.language(of.check(SpeechRequest(voice=voice, language=language))) == spoken


# --- numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": 1.1}, "speed"),
        ({"speed": 0.25}, "speed"),
        ({"max_new_tokens": MAX_FRAMES + 1}, "max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
    ],
)
def test_numbers_out_of_range(fields: dict[str, Any], param: str) -> None:
    assert refused(rules(), **fields).param == param


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1, 2**64 - 1])
def test_any_seed_of_64_bits_is_one(seed: int) -> None:
    assert rules().check(SpeechRequest(seed=seed)).seed == seed


def test_names_are_cleaned() -> None:
    assert speaker_key("  Uncle   FU ") == "uncle_fu"
    assert language_key(" DE ") == "german"
