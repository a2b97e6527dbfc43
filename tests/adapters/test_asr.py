"""The recogniser on real recordings, and the audio of a turn that is cut at pauses."""

from __future__ import annotations

import numpy as np
import pytest

from duplex.adapters.embedded.asr import (
    CUT_AFTER_MS,
    MAX_SEGMENT_MS,
    Recogniser,
    TurnAudio,
    _loop,
    _read_vocabulary,
)
from duplex.core.errors import DuplexError, ErrorCode

FRAME = 512
FRAME_MS = 32.0


def frames(audio: TurnAudio, ms: float, *, speech: bool, level: int = 1000) -> None:
    for _ in range(round(ms / FRAME_MS)):
        audio.add(np.full(FRAME, level, np.int16), speech=speech)


def test_audio_is_what_was_added() -> None:
    audio = TurnAudio()
    assert len(audio.audio()) == 0
    frames(audio, 320, speech=False, level=0)
    assert not audio.has_speech
    frames(audio, 640, speech=True, level=16384)
    assert audio.has_speech
    assert audio.duration_ms == 960
    assert audio.audio().dtype == np.float32
    assert audio.audio()[-1] == 0.5
    assert len(audio.audio(less_ms=64)) == (960 - 64) * 16
    assert len(audio.audio(less_ms=5000)) == 0


def test_a_short_turn_is_not_cut() -> None:
    audio = TurnAudio()
    frames(audio, 5000, speech=True)
    frames(audio, 3000, speech=False)
    assert audio.take_segment() is None


def test_a_long_turn_is_cut_in_its_longest_late_pause() -> None:
    audio = TurnAudio()
    frames(audio, 8000, speech=True, level=1)
    frames(audio, 192, speech=False, level=2)
    frames(audio, 2560, speech=True, level=3)
    frames(audio, 384, speech=False, level=4)
    frames(audio, CUT_AFTER_MS - audio.duration_ms - 64, speech=True, level=5)
    assert audio.take_segment() is None
    frames(audio, 128, speech=True, level=5)
    before = audio.audio()
    head = audio.take_segment()
    assert head is not None
    assert head[-1] * 32768 == 4
    assert audio.audio()[0] * 32768 == 4
    assert np.array_equal(np.concatenate([head, audio.audio()]), before)


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    audio = TurnAudio()
    frames(audio, 24000, speech=True, level=1000)
    frames(audio, 32, speech=True, level=100)
    frames(audio, MAX_SEGMENT_MS - audio.duration_ms - 32, speech=True, level=1000)
    assert audio.take_segment() is None
    frames(audio, 64, speech=True, level=1000)
    assert audio.take_segment() is not None
    assert audio.audio()[0] * 32768 == 100


def test_long_silence_is_let_go_and_comes_out_empty() -> None:
    audio = TurnAudio()
    longest = 0.0
    for _ in range(200):
        frames(audio, 1000, speech=False, level=5)
        segment = audio.take_segment()
        assert segment is None or len(segment) == 0
        longest = max(longest, audio.duration_ms)
    assert longest < CUT_AFTER_MS + 1000


def test_a_stuck_decoder_is_noticed() -> None:
    assert _loop([5, 6, 7, 8] + [1, 2, 3] * 4) == 9
    assert _loop([9] * 12) == 11
    assert _loop([9] * 8) == 0  # "no no no no …" may be said
    assert _loop(list(range(60))) == 0


def test_vocabulary_lengths_of_one_and_two_bytes() -> None:
    long = b"x" * 130
    assert _read_vocabulary(b"\x01a\x02bc" + bytes([128 + 2, 1]) + long) == [b"a", b"bc", long]


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    pytest.importorskip("moonshine_voice", reason="needs the embedded extra")
    pytest.importorskip("onnxruntime", reason="needs the embedded extra")
    recogniser = Recogniser()
    recogniser.start()
    return recogniser


def test_it_hears_what_the_synthesiser_says(recogniser: Recogniser) -> None:
    hibari = pytest.importorskip("hibari", reason="needs the embedded extra")
    soxr = pytest.importorskip("soxr")
    speech = hibari.Hibari()("Count from three to seven.", seed=0)
    heard = recogniser.recognise(soxr.resample(speech, 24000, 16000))
    assert heard.text.lower().replace("3", "three").replace("7", "seven") == "count from three to seven."
    assert heard.confidence > 0.7


def test_nothing_is_heard_in_nothing(recogniser: Recogniser) -> None:
    assert recogniser.recognise(np.zeros(0, np.float32)).text == ""
    assert recogniser.recognise(np.zeros(8000, np.float32)).confidence < 0.5


def test_missing_weights_say_what_to_install(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DuplexError, match=r"pip install") as refused:
        Recogniser().start()
    assert refused.value.code is ErrorCode.BAD_CONFIG
