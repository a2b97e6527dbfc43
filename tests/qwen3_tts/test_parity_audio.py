"""From a job to samples against `qwen-tts` itself: folder, text, voice, codes and codec in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden_cases import AUDIO_FRAMES, CASES, Case

pytest.importorskip("torch", reason="needs the extra qwen3-tts")
pytest.importorskip("tokenizers", reason="needs the extra qwen3-tts")

from driven import job_of, model_of, speak
from golden_talker import GREEDY, golden

HEARD = [case for case in CASES if case.audio]


@pytest.mark.parametrize("case", HEARD, ids=[case.name for case in HEARD])
def test_the_first_audio_of_a_request_is_that_of_the_package(case: Case, tmp_path: Path) -> None:
    """The package decodes all frames at once, in-context with the reference's before them, and cuts."""
    expected = golden(case.name)["audio"]
    assert len(expected) == AUDIO_FRAMES * 1920
    assert expected.std() > 0.1
    run = speak(model_of(case, tmp_path), job_of(case, max_frames=AUDIO_FRAMES, sampling=GREEDY))
    assert run.finish == "length"
    assert run.samples.shape == expected.shape
    assert float(np.abs(run.samples - expected).max()) <= 1e-4
