"""The backend `cv-preinfer`: with a program of our own in its place, and with the real one where there is."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from video_clips import encode, still
from window_pieces import cut_from, moving_square, patches, texture, whole

from duplex.adapters.mage_vl.windows.backends import WindowOptions, check, open_windows
from duplex.adapters.mage_vl.windows.cv_preinfer import PROGRAM, PreinferWindows
from duplex.codecs.video import VideoStream
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import ImageWindow, VideoWindow

Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a program of Python code; it knows `args`, cv-preinfer's arguments by name."""

    def make(code: str) -> str:
        path = tmp_path / "cv-preinfer"
        path.write_text(
            f"#!{sys.executable}\nimport json, os, shutil, subprocess, sys, time\n"
            "args = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n" + code
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def result(folder: Path, *, canvases: int = 4, rows: int = 4, columns: int = 6, **meta: Any) -> np.ndarray:
    """What cv-preinfer leaves of 12 frames: the last canvas is padding. Its positions."""
    folder.mkdir()
    for number in range(canvases):
        picture = still(texture(rows * 16, columns * 16, seed=number), "mjpeg")
        (folder / f"canvas_{number:03d}.jpg").write_bytes(picture)
    random = np.random.default_rng(0)
    positions = random.integers(0, (12, rows, columns), (canvases, rows * columns, 3)).astype(np.int32)
    positions[-1] = -1
    np.save(folder / "src_patch_position.npy", positions.reshape(-1, 3))
    np.save(folder / "frame_ids.npy", np.arange(12, dtype=np.int32))
    (folder / "meta.json").write_text(json.dumps({"fps": 25.0} | meta))
    return positions


def copying(folder: Path) -> str:
    return f"shutil.copytree({str(folder)!r}, args['--out_dir'])"


def backend(program: str, **options: Any) -> PreinferWindows:
    return PreinferWindows(program=program, max_pixels=150_000, image_max_pixels=768 * 768, **options)


def test_what_the_program_makes_is_read(program: Program, tmp_path: Path) -> None:
    positions = result(tmp_path / "made")
    note = tmp_path / "arguments"
    path = program(copying(tmp_path / "made") + f"\nopen({str(note)!r}, 'w').write(json.dumps(args))")
    watching = backend(path)
    watching.see(whole(moving_square(12), pts_ms=1000.0))
    seen = watching.see(whole(moving_square(12), pts_ms=3000.0, segment_id="s"))
    assert seen is not None
    assert seen.images.shape == (3, 64, 96, 3), "the canvas of padding is dropped"
    np.testing.assert_array_equal(seen.positions.reshape(3, -1, 3), positions[:3])
    np.testing.assert_allclose(seen.frame_times_s, 2 + np.arange(len(seen.frame_times_s)) / 25)
    np.testing.assert_allclose(seen.times_s, 2 + positions[:3, :, 0].min(1) / 25)
    assert (seen.segment_id, seen.pts_ms, seen.duration_ms) == ("s", 3000.0, 480.0)
    arguments = json.loads(note.read_text())
    video = Path(arguments["--video"])
    assert video.suffix == ".mp4"
    assert not video.parent.exists(), "its folder is gone"
    assert (arguments["--num_sampled_frames"], arguments["--patch"]) == ("12", "16")
    assert watching.finish() is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "meta.json").unlink(), "meta.json"),
        (lambda f: (f / "meta.json").write_text("{"), "cannot be used"),
        (lambda f: (f / "meta.json").write_text('{"fps": 0}'), "frames a second"),
        (lambda f: np.save(f / "src_patch_position.npy", np.zeros((5, 3), np.int32)), "5 patches"),
        (lambda f: np.save(f / "src_patch_position.npy", np.full((96, 3), 99, np.int32)), "outside"),
        (lambda f: np.save(f / "frame_ids.npy", np.zeros(3)), "frame_ids"),
        (lambda f: (f / "canvas_001.jpg").write_bytes(b"\xff\xd8\xff no"), "jpeg"),
        (lambda f: [p.unlink() for p in f.glob("canvas*")], "0 canvases"),
    ],
)
def test_a_result_that_does_not_fit_together_is_a_named_fault(
    program: Program, tmp_path: Path, spoil: Callable[[Path], Any], words: str
) -> None:
    result(tmp_path / "made")
    watching = backend(program(copying(tmp_path / "made")))
    window = whole(moving_square(12))
    assert watching.see(window) is not None
    spoil(tmp_path / "made")
    with pytest.raises(DuplexError, match=words) as failed:
        watching.see(window)
    assert failed.value.code is ErrorCode.ADAPTER_FAILED


def test_half_padding_is_refused(program: Program, tmp_path: Path) -> None:
    positions = result(tmp_path / "made")
    positions[0, 3] = -1
    np.save(tmp_path / "made" / "src_patch_position.npy", positions.reshape(-1, 3))
    with pytest.raises(DuplexError, match="part padding"):
        backend(program(copying(tmp_path / "made"))).see(whole(moving_square(12)))


def test_the_program_s_last_words_are_told_without_its_folder(program: Program) -> None:
    watching = backend(program("sys.exit('RuntimeError: no canvases of ' + args['--video'])"))
    with pytest.raises(DuplexError, match=r"no canvases of …/window\.mp4") as refused:
        watching.see(whole(moving_square(12)))
    assert refused.value.code is ErrorCode.INVALID_MEDIA


def slow(fifo: Path) -> str:
    """Opens the pipe when it runs, in itself and a child, and then does nothing."""
    return f"""
pipe = os.open({str(fifo)!r}, os.O_WRONLY)
os.set_inheritable(pipe, True)
subprocess.Popen(["sleep", "600"], close_fds=False)
time.sleep(600)
"""


def test_it_is_killed_with_its_children_when_it_takes_too_long(program: Program, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    running = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(running, True)
    watching = backend(program(slow(fifo)), timeout_s=1)
    with pytest.raises(DuplexError, match="more than 1 s") as failed:
        watching.see(whole(moving_square(12)))
    assert failed.value.code is ErrorCode.ADAPTER_FAILED
    assert os.read(running, 1) == b"", "nobody holds the pipe any more"
    os.close(running)


def test_closing_kills_it(program: Program, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    watching = backend(program(slow(fifo)))
    window = whole(moving_square(12))
    faults: list[DuplexError] = []

    def see() -> None:
        try:
            watching.see(window)
        except DuplexError as fault:
            faults.append(fault)

    worker = threading.Thread(target=see)
    worker.start()
    with fifo.open("rb") as running:  # opens when the program does
        watching.close()
        assert running.read() == b"", "it and its child are gone"
    worker.join()
    assert [fault.code for fault in faults] == [ErrorCode.SESSION_CLOSING]
    with pytest.raises(DuplexError, match="closed"):
        watching.see(window)


@pytest.mark.parametrize(
    ("window", "code"),
    [
        (VideoWindow(kind="video/mp4", data=b"nonsense"), ErrorCode.INVALID_MEDIA),
        (VideoWindow(kind="video/mp4"), ErrorCode.EMPTY_INPUT),
        (
            VideoWindow(kind="h264", data=encode(moving_square(3), container="h264")),
            ErrorCode.UNSUPPORTED_FORMAT,
        ),
        (
            VideoWindow(kind="video/mp4", data=encode(moving_square(3), codec="mpeg4")),
            ErrorCode.UNSUPPORTED_FORMAT,
        ),
    ],
)
def test_what_it_cannot_read_is_refused_before_it_runs(
    program: Program, window: VideoWindow, code: ErrorCode
) -> None:
    with pytest.raises(DuplexError) as refused:
        backend(program("sys.exit('it ran')")).see(window)
    assert refused.value.code is code
    assert "it ran" not in refused.value.message


def test_stills_need_no_program(program: Program) -> None:
    watching = backend(program("sys.exit('it ran')"))
    picture = still(texture(64, 96))
    alone = watching.see(ImageWindow(data=picture))
    several = watching.see(VideoWindow(kind="", frames=(picture,) * 3))
    assert alone is not None
    assert several is not None
    assert (len(alone.images), len(several.images)) == (1, 3)


# --- at start --------------------------------------------------------------------------------------


def options(program: str | None = None) -> WindowOptions:
    return WindowOptions(backend="cv-preinfer", cv_preinfer=program)


def test_missing_pieces_fail_at_start_with_words_that_say_what_to_install(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = program("sys.exit(0)")
    breaks = tmp_path / "breaks"
    shutil.copy(works, breaks)
    breaks.write_text(breaks.read_text().replace("sys.exit(0)", "import nothing_like_it"))
    empty, probing = tmp_path / "empty", tmp_path / "probing"
    for folder in (empty, probing):
        folder.mkdir()
    (probing / "ffprobe").write_text("#!/bin/sh\n")
    (probing / "ffprobe").chmod(0o755)

    monkeypatch.setenv("PATH", str(empty))
    for name, words in ((None, "not installed.*codec-video-prep"), (works, "ffprobe.*install ffmpeg")):
        with pytest.raises(DuplexError, match=words) as missing:
            check(options(name))
        assert missing.value.code is ErrorCode.BAD_CONFIG
    monkeypatch.setenv("PATH", str(probing))
    with pytest.raises(DuplexError, match=r"does not run .*nothing_like_it.*codec-video-prep"):
        check(options(str(breaks)))
    check(options(works))


@pytest.mark.parametrize("name", ["frames", "codec"])
def test_the_other_backends_need_nothing(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    check(WindowOptions(backend=name))


@pytest.mark.skipif(
    not (shutil.which(PROGRAM) and shutil.which("ffprobe")), reason="codec-video-prep is not installed"
)
def test_the_real_program() -> None:
    check(options())
    watching = open_windows(options())
    window = whole(moving_square(60, height=288, width=512), pts_ms=500.0)
    seen = watching.see(window)
    assert seen is not None
    assert seen.images.shape[1:3] == (288, 512)
    assert len(seen.images) % 4 == 0
    frames = np.stack([f.scaled_rgb(512, 288) for f in VideoStream().decode(window.data, window.kind)])
    theirs, ours = patches(seen).astype(float), cut_from(seen, frames).astype(float)
    assert np.abs(theirs - ours).mean() < 4, "its JPEGs show the places that they name"
