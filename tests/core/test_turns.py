"""Turn taking in virtual time: the clock is the position in the input audio."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.core.turns import PAUSE_MS, REACH_MS, SpeechPaused, TurnDetector, TurnEvent
from duplex.core.types import SpeechStarted, SpeechStopped, TurnDetection

FRAME = 32.0
SPEECH = (0.95, -25.0)
SILENCE = (0.02, -60.0)


class Input:
    """Feeds a detector and keeps the time."""

    def __init__(self, detector: TurnDetector) -> None:
        self.detector = detector
        self.now = 0.0
        self.events: list[TurnEvent] = []

    def feed(
        self, kind: tuple[float, float], ms: float, playout_dbfs: float | None = None
    ) -> list[TurnEvent]:
        got: list[TurnEvent] = []
        for _ in range(round(ms / FRAME)):
            got += self.detector.feed(kind[0], FRAME, kind[1], playout_dbfs, self.now)
            self.now += FRAME
        self.events += got
        return got


def test_a_turn_begins_with_its_pre_roll_and_ends_after_silence() -> None:
    feed = Input(TurnDetector())
    assert feed.feed(SILENCE, 960) == []
    assert feed.feed(SPEECH, 960) == [SpeechStarted(at_ms=960 - 300)]
    assert feed.detector.speaking
    assert feed.feed(SILENCE, 480) == [SpeechPaused(at_ms=1920)]
    assert feed.feed(SILENCE, 64) == [SpeechStopped(at_ms=1920)]
    assert not feed.detector.speaking


def test_pre_roll_is_clipped_to_the_beginning_and_to_the_turn_before() -> None:
    feed = Input(TurnDetector(TurnDetection(silence_duration_ms=64)))
    assert feed.feed(SPEECH, 320) == [SpeechStarted(at_ms=0)]
    assert feed.feed(SILENCE, 64) == [SpeechStopped(at_ms=320)]
    assert feed.feed(SPEECH, 320) == [SpeechStarted(at_ms=320)]


def test_a_pause_within_a_turn_does_not_end_it() -> None:
    feed = Input(TurnDetector())
    feed.feed(SPEECH, 640)
    assert feed.feed(SILENCE, 416) == [SpeechPaused(at_ms=640)]
    assert feed.feed(SPEECH, 320) == []
    assert feed.feed(SILENCE, 512) == [SpeechPaused(at_ms=1376), SpeechStopped(at_ms=1376)]


def test_hysteresis_keeps_a_fading_voice() -> None:
    feed = Input(TurnDetector())
    assert feed.feed((0.4, -25.0), 960) == []
    feed.feed(SPEECH, 320)
    assert feed.feed((0.4, -25.0), 960) == []
    assert feed.detector.speaking


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_fault_8_a_bang_of_70_ms_does_not_act(frames: int) -> None:
    # 70 ms touch four frames at most; the model goes on saying "speech" after it, but the level has fallen
    feed = Input(TurnDetector())
    feed.feed(SILENCE, 320)
    feed.feed((0.99, -3.0), frames * FRAME)
    feed.feed((0.8, -55.0), 96)
    feed.feed(SILENCE, 960)
    assert feed.events == []


def test_fault_8_repeated_bangs_do_not_add_up() -> None:
    feed = Input(TurnDetector())
    for _ in range(20):
        feed.feed((0.99, -3.0), 96)
        feed.feed(SILENCE, 64)
    assert feed.events == []


def test_speech_that_swells_acts() -> None:
    feed = Input(TurnDetector())
    feed.feed((0.7, -45.0), 64)
    assert feed.feed(SPEECH, 192) == [SpeechStarted(at_ms=0)]


def test_fault_8_our_own_echo_at_minus_20_db_does_not_act() -> None:
    feed = Input(TurnDetector())
    playout = -22.0
    for peak in (0.0, 8.0, 3.0, 7.0) * 20:  # single frames stand out of the average
        feed.feed((0.99, playout - 20 + peak), 96, playout)
    assert feed.events == []
    assert feed.detector.echo_db == pytest.approx(-12, abs=1)


def test_speech_over_our_own_audio_acts() -> None:
    feed = Input(TurnDetector())
    feed.feed((0.99, -42.0), 2016, -22.0)
    assert feed.feed(SPEECH, 192, -22.0) == [SpeechStarted(at_ms=2016 - 300)]


def test_a_headset_lowers_the_bar_for_a_quiet_voice() -> None:
    quiet = (0.95, -45.0)
    speaker, headset = Input(TurnDetector()), Input(TurnDetector())
    speaker.feed((0.9, -42.0), 2016, -22.0)
    headset.feed((0.01, -75.0), 2016, -22.0)
    assert speaker.feed(quiet, 320, -22.0) == []
    assert headset.feed(quiet, 320, -22.0) == [SpeechStarted(at_ms=2016 - 300)]


PLAYOUT = -20.0
UNDER = (0.95, PLAYOUT - 11)  # a soft word, too soft to be told from our echo


def test_a_first_word_under_the_bar_for_our_echo_was_cut_off() -> None:
    feed = Input(TurnDetector())
    assert feed.feed(SILENCE, 640, PLAYOUT) == []
    assert feed.feed(UNDER, 192, PLAYOUT) == []
    assert feed.feed(SILENCE, 256, PLAYOUT) == []
    assert feed.feed((0.95, PLAYOUT), 192, PLAYOUT) == [SpeechStarted(at_ms=640 - 300)]


def test_a_word_under_the_bar_is_no_first_word_behind_a_pause_that_ends_a_turn() -> None:
    feed = Input(TurnDetector(TurnDetection(silence_duration_ms=200)))
    feed.feed(SILENCE, 640, PLAYOUT)
    feed.feed(UNDER, 192, PLAYOUT)
    feed.feed(SILENCE, 256, PLAYOUT)
    onset = feed.now
    assert feed.feed((0.95, PLAYOUT), 192, PLAYOUT) == [SpeechStarted(at_ms=onset - 300)]


def test_fault_8_single_peaks_of_our_echo_are_no_first_word() -> None:
    feed = Input(TurnDetector())
    for _ in range(10):
        feed.feed((0.99, PLAYOUT - 12), 32, PLAYOUT)
        feed.feed((0.99, PLAYOUT - 22), 576, PLAYOUT)
    onset = feed.now
    assert feed.feed((0.95, PLAYOUT), 192, PLAYOUT) == [SpeechStarted(at_ms=onset - 300)]


def test_words_under_the_bar_reach_back_a_bounded_time_and_are_forgotten_with_the_rest() -> None:
    feed = Input(TurnDetector())
    feed.feed(UNDER, 9600, PLAYOUT)
    onset = feed.now
    (started,) = feed.feed((0.95, PLAYOUT), 192, PLAYOUT)
    assert isinstance(started, SpeechStarted)
    assert onset - REACH_MS <= started.at_ms + 300 <= onset - REACH_MS + 192
    feed.feed(SILENCE, 960)
    feed.feed(UNDER, 320, PLAYOUT)
    feed.detector.reset()
    onset = feed.now
    assert feed.feed((0.95, PLAYOUT), 192, PLAYOUT) == [SpeechStarted(at_ms=onset - 300)]


def test_the_echo_is_not_measured_from_silence_of_ours() -> None:
    feed = Input(TurnDetector())
    feed.feed(SILENCE, 3200, -70.0)
    assert feed.detector.echo_db is None


def test_an_unsure_probability_does_not_act_while_we_play() -> None:
    assert Input(TurnDetector()).feed((0.65, -20.0), 960, -22.0) == []
    assert Input(TurnDetector()).feed((0.65, -20.0), 960) == [SpeechStarted(at_ms=0)]


def test_fault_15_input_that_stalls_in_mid_speech_ends_the_turn() -> None:
    feed = Input(TurnDetector(stall_timeout_ms=1500))
    feed.feed(SILENCE, 320)
    assert feed.detector.stall_timeout_ms is None
    feed.feed(SPEECH, 640)
    assert feed.detector.stall_timeout_ms == 1500
    assert feed.detector.stalled(feed.now) == [SpeechStopped(at_ms=960)]
    assert feed.detector.stall_timeout_ms is None
    assert feed.detector.stalled(feed.now) == []


def test_a_stall_during_an_onset_settles_it() -> None:
    feed = Input(TurnDetector())
    feed.feed(SPEECH, 32)
    assert feed.detector.stall_timeout_ms is not None
    assert feed.detector.stalled(feed.now) == []
    assert feed.detector.stall_timeout_ms is None


def test_finish_counts_a_short_word_at_the_end() -> None:
    feed = Input(TurnDetector())
    feed.feed(SILENCE, 320)
    feed.feed(SPEECH, 96)
    assert feed.detector.finish(feed.now) == [SpeechStarted(at_ms=20), SpeechStopped(at_ms=416)]
    assert feed.detector.finish(feed.now) == []


def test_a_turn_has_a_greatest_length_and_the_next_one_follows_on() -> None:
    feed = Input(TurnDetector(max_turn_ms=1600))
    feed.feed(SPEECH, 4800)
    assert feed.events[:3] == [SpeechStarted(at_ms=0), SpeechStopped(at_ms=1600), SpeechStarted(at_ms=1600)]


def test_an_open_ended_turn_is_ended_by_finish_alone() -> None:
    feed = Input(TurnDetector(open_ended=True))
    feed.feed(SPEECH, 640)
    feed.feed(SILENCE, 9600)
    assert feed.events == [SpeechStarted(at_ms=0), SpeechPaused(at_ms=640)]
    assert feed.detector.finish(feed.now) == [SpeechStopped(at_ms=640)]


def test_settings_can_change_in_a_turn() -> None:
    feed = Input(TurnDetector())
    feed.feed(SPEECH, 640)
    feed.detector.settings = TurnDetection(silence_duration_ms=96)
    assert feed.feed(SILENCE, 96) == [SpeechStopped(at_ms=640)]


FRAMES = st.tuples(
    st.floats(0, 1),
    st.floats(-90, 0),
    st.none() | st.floats(-80, 0),
    st.integers(1, 12),
)
SETTINGS = st.builds(
    TurnDetection,
    threshold=st.floats(0, 1),
    prefix_padding_ms=st.integers(0, 2000),
    silence_duration_ms=st.integers(0, 2000),
    min_speech_ms=st.integers(0, 500),
)


@settings(deadline=None)
@given(
    turns=SETTINGS,
    frame_ms=st.sampled_from([10.0, 20.0, 32.0]),
    steps=st.lists(FRAMES | st.sampled_from(["finish", "stall"]), max_size=60),
    open_ended=st.booleans(),
)
def test_starts_and_stops_alternate_in_order(
    turns: TurnDetection, frame_ms: float, steps: list[object], open_ended: bool
) -> None:
    detector = TurnDetector(turns, max_turn_ms=3000, open_ended=open_ended)
    now = 0.0
    speaking = False
    last_start = last_stop = 0.0
    for step in steps:
        for _ in range(step[3] if isinstance(step, tuple) else 1):
            if isinstance(step, tuple):
                events = detector.feed(step[0], frame_ms, step[1], step[2], now)
                now += frame_ms
            else:
                events = detector.finish(now) if step == "finish" else detector.stalled(now)
            for event in events:
                match event:
                    case SpeechStarted(at_ms=at):
                        assert not speaking
                        assert last_stop <= at <= now
                        speaking, last_start = True, at
                    case SpeechStopped(at_ms=at):
                        assert speaking
                        assert last_start <= at <= now
                        speaking, last_stop = False, at
                    case SpeechPaused(at_ms=at):
                        assert speaking
                        assert last_start <= at <= now
            assert detector.speaking == speaking
            if speaking:
                assert now - last_start <= 3000 + turns.prefix_padding_ms + frame_ms
    detector.finish(now)
    assert not detector.speaking


@settings(deadline=None)
@given(
    level=st.floats(-40, 0),
    frames=st.integers(1, 20),
    min_speech_ms=st.integers(100, 400),
)
def test_only_speech_of_the_minimum_acts(level: float, frames: int, min_speech_ms: int) -> None:
    feed = Input(TurnDetector(TurnDetection(min_speech_ms=min_speech_ms)))
    feed.feed(SILENCE, 320)
    feed.feed((0.9, level), frames * FRAME)
    feed.feed(SILENCE, 96)
    started = any(isinstance(event, SpeechStarted) for event in feed.events)
    assert started == ((frames - 1) * FRAME >= min_speech_ms)


@settings(deadline=None)
@given(
    playout=st.floats(-45, -5),
    frames=st.lists(st.tuples(st.floats(0.5, 1), st.floats(-60, -11)), max_size=30),
)
def test_echo_below_the_margin_never_acts_before_it_is_measured(
    playout: float, frames: list[tuple[float, float]]
) -> None:
    detector = TurnDetector()
    for index, (probability, echo_db) in enumerate(frames):
        assert detector.feed(probability, FRAME, playout + echo_db, playout, index * FRAME) == []


def test_the_pause_comes_before_the_default_end() -> None:
    assert TurnDetection().silence_duration_ms > PAUSE_MS
