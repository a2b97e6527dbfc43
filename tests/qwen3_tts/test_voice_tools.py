"""`duplex voices`: voices computed ahead, and voices between voices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from duplex.adapters.qwen3_tts.blending import blend
from duplex.adapters.qwen3_tts.tiny import write_tiny_checkpoint
from duplex.adapters.speech import UploadedVoice
from duplex.cli import main
from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.profiles import MANIFEST, load_profiles, save_profile

Capture = pytest.CaptureFixture[str]


# --- blending -----------------------------------------------------------------------------------------


def test_a_blend_keeps_the_length_of_its_voices() -> None:
    left, right = np.array([3.0, 0.0], np.float32), np.array([0.0, 5.0], np.float32)
    middle = blend([left, right], [1, 1])
    assert np.linalg.norm(middle) == pytest.approx(4.0)  # a plain mean would have 2.9
    assert middle[0] == pytest.approx(middle[1])
    assert blend([left, right], [2, 0]) == pytest.approx(left)
    assert blend([left, right], [7, 3]) == pytest.approx(blend([left, right], [0.7, 0.3]))


@given(
    arrays(np.float32, (3, 8), elements=st.floats(0.125, 8, width=32)),
    st.lists(st.floats(0.01, 5), min_size=3, max_size=3),
)
def test_a_blend_does_not_depend_on_the_order(
    rows: np.ndarray[tuple[int, int], np.dtype[np.float32]], weights: list[float]
) -> None:
    forth = blend(list(rows), weights)
    back = blend(list(rows[::-1]), weights[::-1])
    assert forth == pytest.approx(back, rel=1e-4)
    lengths = np.linalg.norm(rows, axis=1)
    assert lengths.min() * 0.999 <= np.linalg.norm(forth) <= lengths.max() * 1.001


@pytest.mark.parametrize(
    ("rows", "weights", "words"),
    [
        ([[1.0, 0.0]], [1.0], "two voices or more"),
        ([[1.0, 0.0], [0.0, 1.0]], [1.0], "two voices or more"),
        ([[1.0, 0.0], [0.0, 1.0]], [1.0, -0.5], "weights must be 0 or more"),
        ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], "weights must be 0 or more"),
        ([[1.0, 0.0], [0.0, 1.0]], [1.0, float("nan")], "weights must be 0 or more"),
        ([[1.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 1.0], "embeddings of 2 and 3 numbers"),
        ([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0], "all nought"),
        ([[1.0, 0.0], [-1.0, 0.0]], [1.0, 1.0], "opposites"),
    ],
)
def test_voices_that_do_not_blend(rows: list[list[float]], weights: list[float], words: str) -> None:
    with pytest.raises(DuplexError, match=words) as caught:
        blend([np.array(row, np.float32) for row in rows], weights)
    assert caught.value.code is ErrorCode.INVALID_VALUE


# --- interpolate --------------------------------------------------------------------------------------


@pytest.fixture
def voices(tmp_path: Path) -> Path:
    folder = tmp_path / "voices"
    rng = np.random.default_rng(3)
    codes = (tuple(range(16)),)
    for name in ("Ann", "bob"):
        embedding = tuple(rng.normal(size=1024).astype(np.float32).tolist())
        save_profile(folder, UploadedVoice(name=name, embedding=embedding, codes=codes, text="words"))
    save_profile(folder, UploadedVoice(name="big", embedding=(1.0,) * 2048))
    return folder


def interpolate(folder: Path, *words: str) -> int:
    return main(["voices", "interpolate", "--dir", str(folder), *words])


def test_interpolate_writes_a_voice_that_is_loaded(voices: Path) -> None:
    assert interpolate(voices, "--out-name", "Annabob", "ann=0.7", "bob=0.3") == 0
    known = load_profiles(voices)
    made = known["annabob"]
    assert (made.name, made.codes, made.text) == ("Annabob", None, None)
    rows = [np.asarray(known[name].embedding, np.float32) for name in ("ann", "bob")]
    assert made.embedding == pytest.approx(blend(rows, [0.7, 0.3]).tolist())
    assert json.loads((voices / MANIFEST).read_bytes())["voices"]["Annabob"]["mode"] == "xvec"
    # equal shares need no numbers
    assert interpolate(voices, "--out-name", "middle", "ann", "bob") == 0
    assert load_profiles(voices)["middle"].embedding == pytest.approx(blend(rows, [1, 1]).tolist())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out-name", "x", "ann=1", "eve=1"), "has no voice 'eve'; there are: Ann, big, bob"),
        (("--out-name", "x", "ann=much", "bob=1"), "must be NAME=WEIGHT"),
        (("--out-name", "x", "ann=1", "big=1"), "embeddings of 1024 and 2048 numbers"),
        (("--out-name", "x", "ann=1"), "two voices or more"),
        (("--out-name", "BOB", "ann=1", "bob=1"), "has a voice BOB already: --replace"),
        (("--out-name", "../x", "ann=1", "bob=1"), "name must be 1 to 64 letters"),
    ],
)
def test_what_cannot_be_interpolated(
    voices: Path, capsys: Capture, words: tuple[str, ...], message: str
) -> None:
    before = sorted(path.name for path in voices.iterdir())
    assert interpolate(voices, *words) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in voices.iterdir()) == before


def test_a_voice_is_replaced_when_asked(voices: Path) -> None:
    assert interpolate(voices, "--replace", "--out-name", "bob", "ann=1", "bob=1") == 0
    assert load_profiles(voices)["bob"].codes is None


def test_a_folder_without_voices_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert interpolate(tmp_path, "--out-name", "x", "a=1", "b=1") == 2
    assert "precomputed voices in" in capsys.readouterr().err


# --- precompute ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs the qwen3-tts extra")
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base"), "base")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    wave = 0.3 * np.sin(np.arange(24000) * 0.05)
    path = tmp_path / "a: voice.wav"
    soundfile.write(path, wave, 16000)
    return path


def precompute(base: Path, out: Path, *words: str) -> int:
    return main(["voices", "precompute", "--model", str(base), "--out", str(out), *words])


def test_precompute_writes_voices_that_are_loaded(base: Path, recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "voices"
    words = (f"Ann={recording}: What she: says. ", f"bob={recording}")
    assert precompute(base, out, *words) == 0
    known = load_profiles(out)
    ann, bob = known["ann"], known["bob"]
    assert ann.text == "What she: says."
    assert ann.codes is not None
    assert np.asarray(ann.codes).shape == (19, 16)  # 1.5 s, a frame begun every 80 ms
    assert (bob.text, bob.codes) == (None, None)
    assert ann.embedding == bob.embedding
    assert len(ann.embedding or ()) == 128
    assert len(set(ann.embedding or ())) > 100
    # the embedding alone, in spite of the words
    assert precompute(base, out, "--mode", "xvec", f"cid={recording}:words") == 0
    assert load_profiles(out)["cid"].codes is None
    assert json.loads((out / MANIFEST).read_bytes())["voices"]["Ann"]["mode"] == "icl"


def test_what_cannot_be_precomputed(base: Path, recording: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "voices"
    noise = tmp_path / "noise.wav"
    noise.write_bytes(b"no sound at all")
    click = tmp_path / "click.wav"
    soundfile.write(click, np.zeros(1000), 16000)
    for code, words, message in [
        (2, ("ann",), "must be NAME=FILE"),
        (2, (f"ann={tmp_path / 'gone.wav'}:hello",), "there is no file"),
        (2, ("--mode", "icl", f"ann={recording}"), "mode icl needs what the recording says"),
        (2, (f"ann={recording}", f"ANN={recording}"), "two recordings have one name"),
        (2, (f"a/b={recording}",), "name must be 1 to 64 letters"),
        (1, (f"ann={noise}",), "noise.wav: "),
        (2, (f"ann={click}",), "shorter than 500 ms"),
    ]:
        assert precompute(base, out, *words) == code
        assert message in capsys.readouterr().err
    assert not out.exists() or list(out.iterdir()) == []
    assert precompute(base, out, f"ann={recording}") == 0
    assert precompute(base, out, f"ann={recording}") == 2
    assert "has a voice ann already" in capsys.readouterr().err
    assert precompute(base, out, "--replace", f"ann={recording}") == 0
    assert precompute(base, out, "--device", "cuda:99", f"bob={recording}") == 2
    assert "no device 'cuda:99'" in capsys.readouterr().err


def test_voices_are_cloned_by_a_base_checkpoint(recording: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("torch", reason="needs the qwen3-tts extra")
    other = write_tiny_checkpoint(tmp_path / "other", "custom_voice")
    assert precompute(other, tmp_path / "voices", f"ann={recording}") == 2
    assert "is a custom_voice checkpoint" in capsys.readouterr().err
