"""Changing settings by key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.settings import MAX_INSTRUCTIONS, MAX_OPTIONS, MAX_VOICE, apply_changes
from duplex.core.types import AudioFormat, Modality, SessionSettings, TurnDetection

BASE = SessionSettings(instructions="be kind", voice="anna", options={"a": 1})
DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"a": DEEP}


def test_only_the_keys_that_are_named_change() -> None:
    after = apply_changes(
        BASE,
        {
            "voice": None,
            "output_modalities": ["audio"],
            "output_format": {"codec": "opus"},
            "turn_detection": {"silence_duration_ms": 700},
            "options": {"b": [1, 2]},
            "max_run_ahead_ms": 0,
        },
    )
    assert after == SessionSettings(
        instructions="be kind",
        voice=None,
        output_modalities=(Modality.AUDIO,),
        output_format=AudioFormat(codec="opus", sample_rate=24000),
        turn_detection=TurnDetection(silence_duration_ms=700),
        options={"a": 1, "b": [1, 2]},
        max_run_ahead_ms=0,
    )
    assert BASE.voice == "anna"


def test_turn_detection_can_be_taken_away_and_given_back() -> None:
    manual = apply_changes(BASE, {"turn_detection": None})
    assert manual.turn_detection is None
    again = apply_changes(manual, {"turn_detection": {"threshold": 0.7}})
    assert again.turn_detection == TurnDetection(threshold=0.7)


def test_nothing_changes_nothing() -> None:
    assert apply_changes(BASE, {}) == BASE


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"vioce": "x"}, ErrorCode.UNKNOWN_FIELD, "vioce"),
        ({"\ud83d": "x"}, ErrorCode.UNKNOWN_FIELD, "\ufffd"),
        ({"turn_detection": {"treshold": 0.5}}, ErrorCode.UNKNOWN_FIELD, "turn_detection"),
        ({"output_format": {"codec": "mp4"}}, ErrorCode.INVALID_VALUE, "output_format.codec"),
        ({"output_format": {"sample_rate": 44101}}, ErrorCode.INVALID_VALUE, "output_format.sample_rate"),
        ({"output_format": None}, ErrorCode.INVALID_VALUE, "output_format"),
        ({"instructions": {"text": "x"}}, ErrorCode.INVALID_VALUE, "instructions"),
        ({"instructions": None}, ErrorCode.INVALID_VALUE, "instructions"),
        ({"instructions": "x" * (MAX_INSTRUCTIONS + 1)}, ErrorCode.INVALID_VALUE, "instructions"),
        ({"instructions": "\udc00"}, ErrorCode.INVALID_VALUE, "instructions"),
        ({"voice": 3}, ErrorCode.INVALID_VALUE, "voice"),
        ({"voice": "x" * (MAX_VOICE + 1)}, ErrorCode.INVALID_VALUE, "voice"),
        ({"output_modalities": []}, ErrorCode.INVALID_VALUE, "output_modalities"),
        ({"output_modalities": {"audio": True}}, ErrorCode.INVALID_VALUE, "output_modalities"),
        ({"output_modalities": ["text", "text"]}, ErrorCode.INVALID_VALUE, "output_modalities"),
        ({"output_modalities": ["smell"]}, ErrorCode.INVALID_VALUE, "output_modalities[0]"),
        ({"gate_threshold": 1.5}, ErrorCode.INVALID_VALUE, "gate_threshold"),
        ({"gate_threshold": float("nan")}, ErrorCode.INVALID_VALUE, "gate_threshold"),
        ({"gate_threshold": "0.5"}, ErrorCode.INVALID_VALUE, "gate_threshold"),
        ({"max_run_ahead_ms": -1}, ErrorCode.INVALID_VALUE, "max_run_ahead_ms"),
        ({"max_run_ahead_ms": 3_600_001}, ErrorCode.INVALID_VALUE, "max_run_ahead_ms"),
        ({"max_run_ahead_ms": True}, ErrorCode.INVALID_VALUE, "max_run_ahead_ms"),
        ({"turn_detection": {"threshold": -0.1}}, ErrorCode.INVALID_VALUE, "turn_detection.threshold"),
        (
            {"turn_detection": {"silence_duration_ms": 60_001}},
            ErrorCode.INVALID_VALUE,
            "turn_detection.silence_duration_ms",
        ),
        ({"turn_detection": {"min_speech_ms": -1}}, ErrorCode.INVALID_VALUE, "turn_detection.min_speech_ms"),
        ({"options": {"x": "y" * MAX_OPTIONS}}, ErrorCode.INVALID_VALUE, "options"),
        ({"options": {"x": "\ud83d"}}, ErrorCode.INVALID_VALUE, "options"),
        ({"options": DEEP}, ErrorCode.INVALID_VALUE, "options"),
        ({"options": {"x": object()}}, ErrorCode.INVALID_VALUE, "options"),
    ],
)
def test_what_is_wrong_is_refused_by_name(changes: dict[str, Any], code: ErrorCode, param: str) -> None:
    with pytest.raises(DuplexError) as caught:
        apply_changes(BASE, changes, event_id="e1")
    error = caught.value
    assert (error.code, error.param, error.event_id) == (code, param, "e1")
    error.message.encode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"output_format": {"sample_rate": 1}},
            "output_format.sample_rate must be one of 8000, 16000, 22050, 24000, 44100, 48000",
        ),
        ({"output_modalities": ["smell"]}, "output_modalities[0] must be one of text, audio"),
        ({"max_run_ahead_ms": 0.5}, "max_run_ahead_ms must be a whole number, not a fraction"),
        ({"voice": []}, "voice must be a string or null, not an array"),
    ],
)
def test_a_refusal_says_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DuplexError) as caught:
        apply_changes(BASE, changes)
    assert caught.value.message == words


def test_a_codec_that_is_refused_is_told_the_others() -> None:
    with pytest.raises(DuplexError, match=r"must be one of pcm_s16le, .*g711_alaw"):
        apply_changes(BASE, {"output_format": {"codec": "zip"}})


def test_options_do_not_grow_without_bound() -> None:
    settings = BASE
    for number in range(60):
        settings = apply_changes(settings, {"options": {str(number): "x" * 1000}})
    with pytest.raises(DuplexError):
        apply_changes(settings, {"options": {"more": "x" * 10_000}})


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
keys = st.one_of(st.sampled_from(list(SessionSettings.__struct_fields__)), st.text(max_size=4))


@given(st.lists(st.dictionaries(keys, json_values, max_size=3), max_size=4))
def test_any_changes_are_taken_whole_or_refused_by_name(many: list[dict[str, Any]]) -> None:
    settings = BASE
    for changes in many:
        code = None
        try:
            settings = apply_changes(settings, changes)
        except DuplexError as error:
            code = error.code
        assert code in (None, ErrorCode.UNKNOWN_FIELD, ErrorCode.INVALID_VALUE)
