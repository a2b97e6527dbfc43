"""The prompt layout: row by row the authors' package's, whatever pieces the text comes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.qwen3_tts.config import DecoderConfig, TalkerConfig, TtsConfig
from duplex.adapters.qwen3_tts.prompt import SPEAKER, ChatIds, Prompt, ReferenceFrame, Row, Voice
from duplex.core.errors import DuplexError, ErrorCode

CASES = json.loads((Path(__file__).parent / "golden" / "prompts.json").read_text())
SHAPE = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
CONFIG = TtsConfig(  # the published ids
    tts_model_type="custom_voice",
    talker_config=TalkerConfig(
        **SHAPE,
        codec_language_id={
            "chinese": 2055,
            "english": 2050,
            "beijing_dialect": 2074,
            "sichuan_dialect": 2062,
        },
        spk_id={"vivian": 3065, "eric": 2875, "dylan": 2878},
        spk_is_dialect={"vivian": False, "eric": "sichuan_dialect", "dylan": "beijing_dialect"},
        code_predictor_config=DecoderConfig(**SHAPE),
    ),
)
CHAT = ChatIds(user=872, newline=198)
CLONE = Voice(language="english", embedding=True, reference_text=(30, 31, 32), reference_frames=5)
PAD, EOS = CONFIG.tts_pad_token_id, CONFIG.tts_eos_token_id


def voice_of(case: dict[str, Any]) -> Voice:
    return Voice(
        language=case["language"],
        speaker=case["speaker"],
        instructions=tuple(range(2000, 2000 + case["instructions"])),
        embedding=case["embedding"],
        reference_text=tuple(range(3000, 3000 + case["reference_text"])),
        reference_frames=case["reference_frames"],
    )


def told(row: Row) -> list[Any]:
    """As `golden/make_prompts.py` writes a row."""
    frame = row.codec.index if isinstance(row.codec, ReferenceFrame) else None
    return [row.text, row.codec if isinstance(row.codec, int) else None, row.codec == SPEAKER, frame]


@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case['type']}" for index, case in enumerate(CASES)])
def test_rows_are_those_of_the_authors_package(case: dict[str, Any]) -> None:
    prompt = Prompt(CONFIG, CHAT, voice_of(case), whole=case["whole"])
    prompt.add(range(1000, 1000 + case["text"]), ended=True)
    assert [told(row) for row in prompt.rows] == case["rows"]
    assert prompt.complete
    # the package's last trailing row is the pad where there is no more text
    assert (prompt.trailing or [PAD]) == case["trailing"]


VOICES = st.builds(
    Voice,
    language=st.sampled_from(["auto", "chinese", "english"]),
    speaker=st.sampled_from([None, "vivian", "eric"]),
    instructions=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    embedding=st.booleans(),
    reference_text=st.lists(st.integers(0, 99), max_size=6).map(tuple),
    reference_frames=st.integers(0, 8),
)


@given(
    voice=VOICES,
    whole=st.booleans(),
    pieces=st.lists(st.lists(st.integers(100, 200), max_size=4), max_size=6),
)
def test_pieces_of_text_give_the_same_rows(voice: Voice, whole: bool, pieces: list[list[int]]) -> None:
    at_once = Prompt(CONFIG, CHAT, voice, whole=whole)
    at_once.add([token for piece in pieces for token in piece], ended=True)
    fed = Prompt(CONFIG, CHAT, voice, whole=whole)
    seen: list[Row] = []
    for piece in [*pieces, None]:
        assert fed.rows[: len(seen)] == seen  # a row never changes
        seen = list(fed.rows)
        assert fed.complete is (len(fed.rows) == fed.size)
        fed.add(piece or [], ended=piece is None)
    assert (fed.rows, fed.trailing, fed.size) == (at_once.rows, at_once.trailing, at_once.size)
    assert fed.text_tokens == sum(map(len, pieces))
    assert fed.complete


@given(
    voice=VOICES, whole=st.booleans(), texts=st.lists(st.lists(st.integers(100, 200)), min_size=2, max_size=4)
)
def test_the_prefix_is_the_same_for_every_text(voice: Voice, whole: bool, texts: list[list[int]]) -> None:
    heads = []
    for text in texts:
        prompt = Prompt(CONFIG, CHAT, voice, whole=whole)
        assert len(prompt.rows) >= prompt.prefix  # it is there before the text
        prompt.add(text, ended=True)
        assert prompt.prefix < len(prompt.rows)
        heads.append(prompt.rows[: prompt.prefix])
    assert all(head == heads[0] for head in heads)


def test_one_text_token_completes_a_streaming_prompt() -> None:
    prompt = Prompt(CONFIG, CHAT, Voice(speaker="vivian"), whole=False)
    assert (prompt.complete, prompt.size, prompt.prefix) == (False, 9, 8)
    prompt.add([7])
    assert prompt.complete
    prompt.add([8, 9])
    assert (prompt.trailing, prompt.ended) == ([8, 9], False)
    prompt.add([], ended=True)
    assert prompt.trailing == [8, 9, EOS]


def test_rows_in_context_wait_for_their_text() -> None:
    prompt = Prompt(CONFIG, CHAT, CLONE, whole=False)
    assert prompt.prefix == len(prompt.rows)
    assert prompt.size == prompt.prefix + 3  # six codes beside three tokens of the reference's text
    prompt.add([40])
    assert prompt.rows[-1] == Row(40, ReferenceFrame(2))
    assert not prompt.complete
    prompt.add([41, 42, 43])
    assert prompt.complete
    assert prompt.rows[-1] == Row(42, ReferenceFrame(4))
    assert prompt.trailing == [43]


def test_a_reference_s_text_may_be_longer_than_its_codes() -> None:
    voice = msgspec.structs.replace(CLONE, reference_frames=1)
    prompt = Prompt(CONFIG, CHAT, voice, whole=False)
    assert prompt.complete
    assert prompt.prefix == len(prompt.rows) - 1
    assert prompt.trailing == [32]
    prompt.add([40], ended=True)
    assert prompt.trailing == [32, 40, EOS]


def test_an_empty_text_is_its_end_alone() -> None:
    """The authors' package takes the chat layout's <|im_end|> for the first token of an empty text."""
    streaming = Prompt(CONFIG, CHAT, Voice(), whole=False)
    streaming.add([], ended=True)
    assert streaming.rows[-1] == Row(EOS, CONFIG.talker_config.codec_bos_id)
    assert (streaming.complete, streaming.trailing) == (True, [])
    whole = Prompt(CONFIG, CHAT, Voice(), whole=True)
    whole.add([], ended=True)
    assert [row.text for row in whole.rows[-2:]] == [EOS, PAD]
    clone = Prompt(CONFIG, CHAT, CLONE, whole=False)
    clone.add([], ended=True)
    assert [row.text for row in clone.rows[-3:]] == [EOS, PAD, PAD]
    with pytest.raises(ValueError, match="ended"):
        clone.add([1])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DuplexError, match="vivian") as caught:
        Prompt(CONFIG, CHAT, Voice(speaker="nobody"), whole=False)
    assert (caught.value.code, caught.value.param) == (ErrorCode.VOICE_NOT_FOUND, "voice")
    with pytest.raises(DuplexError, match="english") as caught:
        Prompt(CONFIG, CHAT, Voice(language="klingon"), whole=True)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "language")
