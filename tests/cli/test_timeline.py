"""The timeline: rows, their file, their picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from duplex.cli.plot import plot_timeline
from duplex.cli.timeline import LEVEL_MS, SILENCE_DBFS, Timeline, level_dbfs, levels_dbfs


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_rows_carry_the_step_and_the_time_since_the_beginning() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.begin("one", "The first")
    clock.s += 1.5
    timeline.record("mark", name="here")
    timeline.begin("two", "The second")
    timeline.record("mark", t_ms=1700.0, name="there")
    assert [row["t_ms"] for row in timeline.rows] == [0, 1500, 1500, 1700]
    assert [row["name"] for row in timeline.of("mark", "one")] == ["here"]
    assert [row["name"] for row in timeline.of("mark")] == ["there"]


def test_the_file_is_json_lines_by_time(tmp_path: Path) -> None:
    timeline = Timeline(Clock())
    timeline.begin("one", "Ärger")
    timeline.record("mark", t_ms=30.0, name="b")
    timeline.record("mark", t_ms=10.0, name="a")
    timeline.save(tmp_path / "t.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text("utf-8").splitlines()]
    assert [row.get("name", row.get("title")) for row in rows] == ["Ärger", "a", "b"]


def test_levels_are_rms_in_dbfs() -> None:
    full = np.full(480, 32767, np.int16)
    assert level_dbfs(full) == pytest.approx(0, abs=0.1)
    assert level_dbfs(np.full(480, 0.5, np.float32)) == pytest.approx(-6.0, abs=0.1)
    assert level_dbfs(np.zeros(480, np.int16)) == SILENCE_DBFS
    assert level_dbfs(np.zeros(0, np.int16)) == SILENCE_DBFS
    levels = levels_dbfs(np.concatenate([full, np.zeros(240, np.int16)]), 24000)
    assert levels == [pytest.approx(0, abs=0.1), SILENCE_DBFS]


def timeline_with_a_cut() -> list[dict[str, Any]]:
    timeline = Timeline(Clock())
    timeline.begin("one", "A cut")
    timeline.record("text.sent", t_ms=0, text="Say something, and go on and on and on about it for a while.")
    for number in range(50):
        at = number * LEVEL_MS
        timeline.record("audio.sent", t_ms=at, ms=LEVEL_MS, level_dbfs=-20.0)
        if at < 600:
            timeline.record("audio.heard", t_ms=at, response_index=1, ms=LEVEL_MS, level_dbfs=-20.0)
    timeline.record("audio.received", t_ms=0, response_index=1, ms=1500, bytes=1, unplayed_ms=1500)
    timeline.record("audio.cancelled", t_ms=600, response_index=1, ms=900, levels_dbfs=[-20.0] * 45)
    timeline.record("event", t_ms=600, type="response.cancelled", response_index=1)
    return timeline.rows


def colours(path: Path) -> dict[str, int]:
    """How many pixels are blue (sent), green (heard) and red (cancelled)."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    found = {}
    for name, colour in (("sent", (37, 99, 168)), ("heard", (31, 138, 91)), ("cancelled", (201, 52, 60))):
        found[name] = int((np.abs(pixels - colour).sum(axis=2) < 40).sum())
    return found


def test_the_picture_shows_what_was_sent_heard_and_cancelled(tmp_path: Path) -> None:
    rows = timeline_with_a_cut()
    plot_timeline(rows, tmp_path / "all.png")
    everything = colours(tmp_path / "all.png")
    plot_timeline([r for r in rows if r["kind"] != "audio.cancelled"], tmp_path / "uncut.png")
    plot_timeline([r for r in rows if r["kind"] != "audio.heard"], tmp_path / "unheard.png")
    assert everything["sent"] > 5000
    assert everything["heard"] > colours(tmp_path / "unheard.png")["heard"] + 5000
    assert everything["cancelled"] > colours(tmp_path / "uncut.png")["cancelled"] + 1000


def test_a_film_is_drawn_above_its_step(tmp_path: Path) -> None:
    timeline = Timeline(Clock())
    timeline.begin("watch", "A clip")
    timeline.record("video.sent", t_ms=4000, pts_ms=0, duration_ms=500, bytes=10)
    timeline.record("event", t_ms=2000, type="comment", text="A magenta picture.")
    magenta = np.full((36, 64, 3), (255, 0, 255), np.uint8)
    plot_timeline(timeline.rows, tmp_path / "film.png", films={"watch": [(0.0, magenta), (2.0, magenta)]})
    pixels = np.asarray(Image.open(tmp_path / "film.png").convert("RGB"))
    assert int((pixels == (255, 0, 255)).all(axis=2).sum()) > 5000
