"""Semantic turn ends: what is complete, how long is waited, and the detector that waits, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.core.endings import (
    COMPLETE,
    INCOMPLETE,
    PATIENCE_MS,
    UNSURE,
    Eagerness,
    completeness,
    patience_ms,
)
from duplex.core.turns import PAUSE_MS, SpeechPaused, TurnDetector, TurnEvent
from duplex.core.types import SpeechContinued, SpeechStarted, SpeechStopped, TurnDetection

FRAME = 32.0
EAGERNESS = st.sampled_from(sorted(PATIENCE_MS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What time is it?", COMPLETE),
        ("What is that?", COMPLETE),
        ("Read me a story.", COMPLETE),
        ("讲个故事。", COMPLETE),
        ('He said "stop!"', COMPLETE),
        ("Read me a", INCOMPLETE),
        ("I would like to.", INCOMPLETE),  # the recogniser's full stop
        ("Well, um…", INCOMPLETE),
        ("First of all,", INCOMPLETE),
        ("Let’s", INCOMPLETE),
        ("Tell me a story about the sea and -", INCOMPLETE),
        ("read me a story", UNSURE),
        ("", UNSURE),
        ("  ", UNSURE),
    ],
)
def test_what_is_complete(text: str, expected: float) -> None:
    assert completeness(text) == expected


@given(text=st.text(max_size=40))
def test_any_text_is_judged(text: str) -> None:
    assert completeness(text) in (COMPLETE, UNSURE, INCOMPLETE)


@given(eagerness=EAGERNESS, one=st.floats(0, 1), other=st.floats(0, 1))
def test_the_more_complete_the_shorter_the_wait(eagerness: Eagerness, one: float, other: float) -> None:
    complete, incomplete = PATIENCE_MS[eagerness]
    low, high = sorted((one, other))
    assert incomplete + 1e-6 >= patience_ms(low, eagerness) >= patience_ms(high, eagerness) >= complete - 1e-6


@given(probability=st.none() | st.floats(0, 1))
def test_the_more_eager_the_shorter_the_wait(probability: float | None) -> None:
    waits = [patience_ms(probability, eagerness) for eagerness in ("low", "medium", "high")]
    assert waits == sorted(waits, reverse=True)
    assert patience_ms(probability, "auto") == waits[1]


class Input:
    """Feeds a detector; speech is loud and sure."""

    def __init__(self, **turns: object) -> None:
        self.detector = TurnDetector(TurnDetection(type="semantic_vad", **turns))  # type: ignore[arg-type]
        self.now = 0.0

    def feed(self, ms: float, *, speech: bool) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for _ in range(round(ms / FRAME)):
            events += self.detector.feed(
                0.95 if speech else 0.02, FRAME, -25.0 if speech else -60.0, None, self.now
            )
            self.now += FRAME
        return events

    def stops_after(self) -> float:
        """Silence until the turn ends."""
        began = self.now
        while not any(isinstance(event, SpeechStopped) for event in self.feed(FRAME, speech=False)):
            assert self.now - began < 60_000
        return self.now - began


@settings(deadline=None)
@given(eagerness=EAGERNESS, probability=st.none() | st.floats(0, 1), judged_after=st.integers(1, 20))
def test_the_turn_ends_when_the_wait_for_what_is_known_is_over(
    eagerness: Eagerness, probability: float | None, judged_after: int
) -> None:
    feed = Input(eagerness=eagerness)
    feed.feed(960, speech=True)
    silence = 0.0
    for _ in range(judged_after):
        if not feed.detector.speaking:
            break
        feed.feed(FRAME, speech=False)
        silence += FRAME
    if feed.detector.speaking:
        if probability is not None:
            feed.detector.judge(960.0, probability)
        silence += feed.stops_after()
        expected = max(patience_ms(probability, eagerness), judged_after * FRAME + FRAME)
    else:
        expected = patience_ms(None, eagerness)
    assert expected <= silence + 1e-6
    assert silence <= expected + FRAME + 1e-6


def test_a_judgement_of_another_pause_has_no_effect() -> None:
    feed = Input()
    feed.feed(960, speech=True)
    assert SpeechPaused(at_ms=960) in feed.feed(PAUSE_MS + FRAME, speech=False)
    feed.feed(320, speech=True)
    feed.detector.judge(960.0, 1.0)  # it came too late: the user has gone on
    assert feed.stops_after() == pytest.approx(patience_ms(None, "auto"), abs=FRAME)


def test_what_was_judged_of_a_pause_is_forgotten_when_the_user_goes_on() -> None:
    feed = Input()
    feed.feed(960, speech=True)
    feed.feed(256, speech=False)
    feed.detector.judge(960.0, 1.0)
    feed.feed(320, speech=True)
    assert feed.stops_after() == pytest.approx(patience_ms(None, "auto"), abs=FRAME)


def test_server_vad_does_not_look_at_what_was_said() -> None:
    detector = TurnDetector()
    feed = Input()
    feed.detector = detector
    feed.feed(960, speech=True)
    detector.judge(960.0, 0.0)
    assert feed.stops_after() == pytest.approx(500, abs=FRAME)


# --- how long speech has lasted -----------------------------------------------------------------------


@settings(deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=6),
    minimum=st.sampled_from([0, 100, 300, 600]),
)
def test_speech_continues_once_when_its_frames_are_so_many(
    parts: list[tuple[int, int]], minimum: int
) -> None:
    feed = Input(interrupt_min_ms=minimum)
    spoken = 0.0
    told: list[SpeechContinued] = []
    for speech, silence in parts:
        for frames, is_speech in ((speech, True), (silence, False)):
            for _ in range(frames):
                for event in feed.feed(FRAME, speech=is_speech):
                    match event:
                        case SpeechStarted():
                            spoken, told = 0.0, []
                        case SpeechContinued():
                            told.append(event)
                if feed.detector.speaking and is_speech:
                    spoken += FRAME
                assert len(told) <= 1
    for event in told:
        assert event.speech_ms >= minimum > 0
        assert event.speech_ms < max(minimum, 160) + FRAME
    if minimum and feed.detector.speaking and spoken >= minimum:
        assert told


# --- noise -------------------------------------------------------------------------------------------


def test_fault_8_after_a_bang_in_a_noisy_room_only_the_noise_goes_on() -> None:
    detector = TurnDetector()
    frames = [(0.02, -45.0)] * 30 + [(0.99, -35.0)] * 3 + [(0.8, -45.0)] * 8 + [(0.02, -45.0)] * 10
    for index, (probability, level) in enumerate(frames):
        assert detector.feed(probability, FRAME, level, None, index * FRAME) == []


def test_a_voice_no_louder_than_the_noise_is_heard_when_the_model_is_sure_for_long() -> None:
    detector = TurnDetector()
    frames = [(0.02, -45.0)] * 30 + [(0.99, -45.0)] * 16
    events = [e for i, (p, db) in enumerate(frames) for e in detector.feed(p, FRAME, db, None, i * FRAME)]
    assert events == [SpeechStarted(at_ms=30 * FRAME - 300)]


def test_a_bang_hides_no_voice_behind_it() -> None:
    detector = TurnDetector()
    frames = [(0.99, -1.0)] * 2 + [(0.99, -30.0)] * 30
    events = [e for i, (p, db) in enumerate(frames) for e in detector.feed(p, FRAME, db, None, i * FRAME)]
    assert events == [SpeechStarted(at_ms=0)]


def test_a_voice_that_dips_between_syllables_is_heard_at_once() -> None:
    detector = TurnDetector()
    levels = [-35.0, -30.0, -33.0, -48.0, -50.0, -30.0]
    events = [e for i, db in enumerate(levels) for e in detector.feed(0.99, FRAME, db, None, i * FRAME)]
    assert events == [SpeechStarted(at_ms=0)]
