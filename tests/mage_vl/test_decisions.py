"""The gate's word as signals."""

from __future__ import annotations

from mage_fakes import glance

from duplex.adapters.mage_vl.decisions import MOST_REMEMBERED, Decisions
from duplex.core.types import GateScore, WantsToSpeak


def wishes(decisions: Decisions, name: str, score: float | None, *, pts_ms: float = 0.0) -> list[str]:
    told = decisions.decide(glance(name, score=score, pts_ms=pts_ms), 0.5)
    return [signal.event_id for signal in told if isinstance(signal, WantsToSpeak)]


def test_each_window_tells_its_score_and_one_above_the_threshold_asks_to_speak() -> None:
    told = Decisions().decide(glance("a", score=0.7, pts_ms=1000), 0.6)
    assert told[0] == GateScore(score=0.7, pts_ms=1000, segment_id="a")
    assert isinstance(told[1], WantsToSpeak)
    assert told[1].score == 0.7
    assert len(Decisions().decide(glance("a", score=0.7), 0.8)) == 1


def test_the_threshold_itself_speaks() -> None:
    assert wishes(Decisions(), "a", 0.5)


def test_without_a_gate_nothing_is_told() -> None:
    assert Decisions().decide(glance("a", score=None), 0.0) == []


def test_a_window_that_is_sent_again_does_not_ask_again() -> None:
    decisions = Decisions()
    assert wishes(decisions, "a", 0.9, pts_ms=500) == ["a@500"]
    assert wishes(decisions, "a", 0.9, pts_ms=500) == []
    assert wishes(decisions, "b", 0.9, pts_ms=500) == ["b@500"]


def test_a_window_that_was_silent_the_first_time_may_ask_the_second() -> None:
    decisions = Decisions()
    assert wishes(decisions, "a", 0.1) == []
    assert wishes(decisions, "a", 0.9) == ["a@0"]


def test_windows_without_a_name_or_with_one_name_for_all_are_told_apart() -> None:
    decisions = Decisions()
    unnamed = [wishes(decisions, "", 0.9) for _ in range(5)]
    alike = [wishes(decisions, "camera", 0.9, pts_ms=1000 * n) for n in range(5)]
    assert all(len(ids) == 1 for ids in unnamed + alike)
    assert len({ids[0] for ids in unnamed + alike}) == 10


def test_what_is_remembered_is_bounded() -> None:
    decisions = Decisions()
    for number in range(3 * MOST_REMEMBERED):
        assert wishes(decisions, f"w{number}", 1.0)
    assert len(decisions._asked) == MOST_REMEMBERED
    assert wishes(decisions, f"w{3 * MOST_REMEMBERED - 1}", 1.0) == []
