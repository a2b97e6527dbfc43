"""What is said: only what events hold; and answers: only what was seen."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.embedded.answers import answer, describe
from duplex.adapters.embedded.events import SALIENCE, Counted, Event, Kind
from duplex.adapters.embedded.objects import CLASSES
from duplex.adapters.embedded.scene import View
from duplex.adapters.embedded.vision_motion import Motion
from duplex.adapters.embedded.words import clock, counted, one, plural, quoted, sentence


def objects(**counts: int) -> tuple[Counted, ...]:
    return tuple(Counted(label=name.replace("_", " "), count=n) for name, n in counts.items())


def view(**facts) -> View:
    given = {
        "pts_ms": 12_000.0,
        "shot_ms": 8_000.0,
        "shots": 2,
        "objects": (),
        "tag": None,
        "colours": None,
        "motion": Motion(pts_ms=12_000.0, active=0.1, pan=None, flow=None, place=(0.2, 0.5)),
        "lines": (),
        "events": (),
        "detects": frozenset(("objects", "tags", "text")),
        **facts,
    }
    return View(**given)


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0 seconds"), (1000, "1 second"), (4333, "4.3 seconds"), (59_960, "1:00"), (3_725_000, "1:02:05")],
)
def test_times(ms, said):
    assert clock(ms) == said


def test_counts_are_never_exact():
    assert counted(objects(person=3, car=1, bus=2)) == "at least three people, a car and at least two buses"
    assert counted(objects(umbrella=1)) == "an umbrella"
    assert plural("bicycle or motorcycle") == "bicycles or motorcycles"
    assert one("scissors") == "a pair of scissors"


def test_long_texts_on_the_screen_are_cut():
    said = quoted(["x" * 500] * 9)
    assert len(said) < 4 * 90
    assert "…" in said


counted_objects = st.lists(
    st.builds(Counted, label=st.sampled_from(CLASSES), count=st.integers(1, 12)),
    max_size=3,
    unique_by=lambda c: c.label,
).map(tuple)


@given(
    event=st.builds(
        Event,
        number=st.integers(1, 99),
        kind=st.sampled_from(Kind),
        at_ms=st.floats(0, 4e6),
        objects=counted_objects.filter(bool),
        tag=st.sampled_from([None, "a beach"]),
        colours=st.sampled_from([None, "mostly green", "almost black"]),
        returns_to_ms=st.sampled_from([None, 1000.0]),
        direction=st.sampled_from([None, "left", "right", "up", "down"]),
        place=st.sampled_from(["left", "right", "middle"]),
        lines=st.sampled_from([("GOAL",), ("A", "B")]),
        looked=st.booleans(),
    )
)
def test_a_sentence_names_nothing_that_the_event_does_not_hold(event):
    text = sentence(event)
    assert text[0].isupper() or text[0] in "\"'"
    assert text.endswith(".")
    assert 0 <= event.salience <= 1
    words = set(re.findall(r"[a-z]+", text.lower()))
    held = set(re.findall(r"[a-z]+", " ".join(f"{o.label} {plural(o.label)}" for o in event.objects)))
    for label in CLASSES:
        if set(label.split()) <= words and label not in ("tie", "orange", "clock"):
            assert set(label.split()) <= held


def test_every_kind_has_its_worth():
    assert set(SALIENCE) == set(Kind)


def test_a_shot_that_no_detector_looked_at_claims_nothing():
    for number in range(3):
        text = sentence(Event(number=number, kind=Kind.CUT, at_ms=4000.0, looked=False))
        assert "recognise" not in text
        assert "certain" not in text


# --- answers -----------------------------------------------------------------------------------------

SEEN = view(
    objects=objects(person=3, car=1),
    lines=("ENG", "ARG FT"),
    colours="mostly green",
    events=(
        Event(number=1, kind=Kind.OPENING, at_ms=0.0, objects=objects(dog=1)),
        Event(number=2, kind=Kind.CUT, at_ms=8000.0, objects=objects(person=3)),
    ),
)


@pytest.mark.parametrize(
    ("question", "has"),
    [
        ("What do you see?", "at least three people and a car"),
        ("Describe the scene", "at least three people and a car"),
        ("What is in the picture?", "mostly green"),
        ("How many people are there?", "at least three people"),
        ("how many persons do you see", "at least three people"),
        ("How many cars?", "I make out a car"),
        ("Is there a car?", "Yes, I make out a car."),
        ("Are there any vehicles?", "Yes, I make out a car."),
        ("Is anyone there?", "Yes, I make out at least three people."),
        ("Do you see a bicycle?", "I see no bicycle that I am sure of."),
        ("Is there a dog?", "Not now, for certain. I made out a dog at the start."),
        ("When did the dog appear?", "I first made out a dog at the start."),
        ("What text is on screen?", '"ENG" and "ARG FT"'),
        ("What does the scoreboard say?", "I can't tell the score itself."),
        ("What happened?", "8 seconds"),
        ("How many cuts were there?", "one cut, the last at 8 seconds"),
        ("When was the last cut?", "at 8 seconds"),
        ("What colour is the picture?", "The picture is mostly green."),
        ("What is moving?", "on the left"),
        ("Is the camera moving?", "on the left"),
    ],
)
def test_answers_from_what_was_seen(question, has):
    assert has in answer(question, SEEN)


@pytest.mark.parametrize(
    "question",
    [
        "Who is that man?",
        "Which team is winning?",
        "What is he saying?",
        "Why is she angry?",
        "Is there a unicorn?",
        "How many goals?",
        "What colour is his shirt?",
        "Tell me a joke",
        "When does it end?",
        "",
        "¿Qué ves?",
    ],
)
def test_what_the_detectors_cannot_tell_is_said_plainly(question):
    assert "can't tell" in answer(question, SEEN)


def test_sorts_of_people_are_not_told_apart():
    said = answer("How many women are there?", SEEN)
    assert "at least three people" in said
    assert "not who or what they are" in said
    assert answer("Is there a woman?", view()) == "I see nobody that I am sure of."


def test_missing_detectors_are_named():
    blind = view(detects=frozenset())
    assert "no object detector" in answer("Is there a car?", blind)
    assert "no object detector" in answer("How many people?", blind)
    assert "no reader is installed" in answer("What text is on screen?", blind)


def test_before_the_first_picture():
    assert answer("What do you see?", view(pts_ms=None)) == "I have seen no picture yet."
    assert describe(view(pts_ms=None)) == "I have seen no picture yet."


@given(st.text(max_size=80))
def test_any_question_gets_an_answer(question):
    assert answer(question, SEEN).endswith(".")
    assert answer(question, view()).endswith(".")
