"""The embedded synthesiser, for real: no fakes, a second or two in all."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("hibari", reason="needs the embedded extra")

from duplex.adapters.embedded.speech import (
    MAX_PIECE,
    MAX_TEXT,
    SAMPLE_RATE,
    Piece,
    Speech,
    cut,
    speakable,
    trim,
)
from duplex.core.errors import DuplexError, ErrorCode


@pytest.fixture(scope="module")
def speech() -> Speech:
    speech = Speech()
    speech.start()
    return speech


def leading_silence_ms(samples: np.ndarray) -> float:
    loud = np.flatnonzero(np.abs(samples) > 0.1 * np.abs(samples).max())
    return float(loud[0]) / SAMPLE_RATE * 1000


def test_one_piece_a_sentence_whose_texts_join(speech: Speech) -> None:
    text = "It was the best of times. It was the worst of times!  Was it?"
    pieces = list(speech.speak(text))
    assert [piece.text for piece in pieces] == [
        "It was the best of times. ",
        "It was the worst of times!  ",
        "Was it?",
    ]
    for piece in pieces:
        assert piece.samples.dtype == np.float32
        assert piece.samples.ndim == 1
        assert 500 < piece.duration_ms < 4000
        assert np.abs(piece.samples).max() <= 1


@pytest.mark.parametrize("text", ["Hello there.", "One.", "Shh.", "Apples, and pears?"])
def test_leading_silence_is_trimmed_and_the_ends_are_faded(speech: Speech, text: str) -> None:
    piece = speech.say(text)
    assert leading_silence_ms(piece.samples) < 80  # the raw lead-in is 230 ms and more
    assert abs(piece.samples[0]) < 1e-3
    assert abs(piece.samples[-1]) < 1e-3


def test_trim_keeps_a_soft_onset() -> None:
    rng = np.random.default_rng(0)
    hiss = rng.normal(0, 0.004, SAMPLE_RATE // 10).astype(np.float32)  # 100 ms, 34 dB below the vowel
    vowel = np.sin(np.arange(SAMPLE_RATE // 4) * 2 * math.pi * 200 / SAMPLE_RATE).astype(np.float32) * 0.28
    lead = rng.normal(0, 1e-5, SAMPLE_RATE * 3 // 10).astype(np.float32)
    trimmed = trim(np.concatenate([lead, hiss, vowel, lead, lead]))
    assert len(trimmed) / SAMPLE_RATE == pytest.approx(0.1 + 0.25 + 0.015 + 0.26, abs=0.012)


def test_speed_changes_the_length(speech: Speech) -> None:
    text = "It was the age of wisdom."
    slow, normal, fast = (speech.say(text, speed=speed).duration_ms for speed in (0.5, 1.0, 2.0))
    assert slow > 1.4 * normal
    assert fast < 0.75 * normal


def test_the_same_text_sounds_the_same(speech: Speech) -> None:
    assert np.array_equal(speech.say("Again.").samples, speech.say("Again.").samples)


@pytest.mark.parametrize("text", ["", "   ", "😀", "…!?", "你好。", "--- ***"])
def test_text_without_words_is_silent_and_keeps_its_text(speech: Speech, text: str) -> None:
    pieces = list(speech.speak(text))
    assert "".join(piece.text for piece in pieces) == text
    assert all(len(piece.samples) == 0 for piece in pieces)


def test_long_sentences_are_spoken_in_steps(speech: Speech) -> None:
    text = "He walked along the river, " * 20 + "and then he stopped."
    parts = cut(text)
    assert "".join(parts) == text
    assert all(len(part) <= MAX_PIECE for part in parts)
    assert len(parts) < 6
    assert max(len(part) for part in cut("1234567 " * 50)) <= MAX_PIECE / 4


@pytest.mark.parametrize("text", ["1 time", "a", "Hmm", "9" * 40, "x" * 170, "ha " * 50])
def test_fault_23_sound_is_no_longer_than_its_text_can_take(speech: Speech, text: str) -> None:
    for piece in speech.speak(text):
        assert piece.duration_ms < 1500 + 600 * len(piece.text)


def test_fault_23_a_synthesiser_that_runs_on_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    class RunsOn:
        def phonemize(self, text: str) -> list[str]:
            return ["wˈʌn tˈIm"]

        def from_phonemes(self, phonemes: str, speed: float, seed: int) -> np.ndarray:
            return np.full(SAMPLE_RATE * 36, 0.1, np.float32)

    speech = Speech()
    monkeypatch.setattr(speech, "_voice", lambda name: RunsOn())
    piece = speech.say("1 time")
    assert isinstance(piece, Piece)
    assert piece.truncated
    assert piece.duration_ms < 5000


@pytest.mark.parametrize(
    "text", ["①M", "½İ00", "1" * 60, "$१①Ⅳ", "\x00", "10:75 ①", "1,000,000,000,000,000,000,000"]
)
def test_odd_symbols_do_not_fail(speech: Speech, text: str) -> None:
    assert "".join(piece.text for piece in speech.speak(text)) == text


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("**Bold** and `code`.", "Bold and code."),
        ("See [the docs](https://example.com/a?b=1).", "See the docs."),
        ("At https://www.example.com/a/b now", "At example.com now"),
        ("# Title", "Title"),
        ("- item", "item"),
        ("2*3 = 6", "2 times 3 = 6"),
        ("```python\nx\n```", "x"),
        ("-5 degrees", "-5 degrees"),
        ("don't", "don't"),
    ],
)
def test_markup_is_not_read_aloud(written: str, spoken: str) -> None:
    assert " ".join(speakable(written).replace(" .", ".").split()) == spoken


def test_what_cannot_be_spoken_is_refused_by_name(speech: Speech) -> None:
    for arguments, param in (
        ({"voice": "nobody"}, "voice"),
        ({"speed": 9.0}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"text": "a" * (MAX_TEXT + 1)}, "text"),
    ):
        with pytest.raises(DuplexError) as refused:
            speech.check(**arguments)  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.INVALID_VALUE
        assert refused.value.param == param


def test_a_voice_that_is_known_but_not_fetched_says_so() -> None:
    with pytest.raises(DuplexError, match="not installed"):
        Speech("fenrir-that-does-not-exist").start()
