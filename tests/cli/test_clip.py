"""A clip is cut into windows that decode to the clip again, whatever its codec."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from duplex.cli.clip import cut, probe
from duplex.cli.errors import UsageError
from duplex.cli.look import whole
from duplex.codecs.video_stream import VideoStream

FRAMES = 60


def make_clip(
    path: Path, codec: str, *, size: tuple[int, int] = (160, 96), frames: int = FRAMES, **options: str
) -> Path:
    """A white square that walks one pixel a frame over grey."""
    width, height = size
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", 300
        stream.thread_count = 1
        if codec.startswith("libvpx"):
            stream.options = {"deadline": "realtime", "cpu-used": "8"}
        stream.options = {**stream.options, **options}
        for number in range(frames):
            pixels = np.full((height, width, 3), 90, np.uint8)
            pixels[20:50, number : number + 30] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("name", "codec", "copied"),
    [
        ("long-gop.mp4", "libx264", True),
        ("mpeg2.ts", "mpeg2video", True),
        ("mpeg4.mkv", "mpeg4", False),
        ("vp8.webm", "libvpx", False),
        ("vp9.webm", "libvpx-vp9", False),
    ],
)
def test_windows_hold_every_frame_once_and_in_time(
    tmp_path: Path, name: str, codec: str, copied: bool
) -> None:
    clip = probe(make_clip(tmp_path / name, codec))
    assert clip.copied is copied
    assert (clip.width, clip.height) == (160, 96)
    decoder = VideoStream()
    times = []
    starts = []
    for window in cut(clip, window_ms=400):
        starts.append(window.pts_ms)
        times += [
            frame.pts_ms
            for frame in decoder.decode(
                window.data, window.kind, pts_ms=window.pts_ms, duration_ms=window.duration_ms
            )
        ]
    times += [frame.pts_ms for frame in decoder.finish()]
    assert len(starts) == 6
    assert times == pytest.approx([40.0 * n for n in range(FRAMES)], abs=1.0)


def test_a_large_clip_that_cannot_be_copied_is_sent_small(tmp_path: Path) -> None:
    clip = probe(make_clip(tmp_path / "large.webm", "libvpx", size=(1280, 720)))
    window = next(cut(clip))
    frame = next(VideoStream().decode(window.data, window.kind, pts_ms=0.0, duration_ms=window.duration_ms))
    assert (frame.width, frame.height) == (640, 360)


def test_a_re_encoded_clip_keeps_its_time_with_an_uneven_rate(tmp_path: Path) -> None:
    """Animated pictures have frames of any length: the square must be where it was at that time."""
    path = tmp_path / "uneven.webm"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libvpx", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        stream.options = {"deadline": "realtime", "cpu-used": "8"}
        for at_ms in (0, 1000, 1040, 1080):
            frame = av.VideoFrame.from_ndarray(np.full((96, 160, 3), at_ms // 8, np.uint8), format="rgb24")
            frame.pts, frame.time_base = at_ms, Fraction(1, 1000)
            stream.codec_context.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    decoder = VideoStream()
    shades = {}
    for window in cut(probe(path)):
        for shown in decoder.decode(
            window.data, window.kind, pts_ms=window.pts_ms, duration_ms=window.duration_ms
        ):
            shades[round(shown.pts_ms)] = float(shown.rgb().mean())
    assert shades[960] < 20
    assert shades[1000] > 100


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "sound", "empty", "cut short"])
def test_what_is_no_clip_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file.mp4"
    words = "not a video"
    if kind == "missing":
        words = "no such file"
    elif kind == "folder":
        path.mkdir()
        words = "is a folder"
    elif kind == "text":
        path.write_text("this is no film\n" * 100)
    elif kind == "sound":
        with av.open(str(path), "w", format="wav") as container:
            stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
        words = "no video"
    elif kind == "empty":
        path.touch()
    else:
        path.write_bytes(make_clip(tmp_path / "whole.mp4", "libx264").read_bytes()[:2000])
    with pytest.raises(UsageError, match=words) as caught:
        list(cut(probe(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def looked_at(clip: Path) -> tuple[set[str], int, int]:
    """Kinds of the windows of a clip that is shown at once, frames that they show, and how many are held back
    until more comes."""
    stream, frames, kinds = VideoStream(), 0, set()
    for window in whole(probe(clip)).windows:
        kinds.add(window.kind)
        decoded = stream.decode(
            window.data, window.kind, pts_ms=window.pts_ms, duration_ms=window.duration_ms
        )
        frames += len(list(decoded))
    return kinds, frames, len(list(stream.finish()))


@pytest.mark.parametrize("name", ["b.mp4", "b.ts", "b.mkv"])
def test_the_last_frames_of_a_clip_shown_at_once_are_not_held_back(tmp_path: Path, name: str) -> None:
    clip = make_clip(tmp_path / name, "libx264", bf="3")
    assert looked_at(clip) == ({"video/mp4"}, FRAMES, 0)


def test_a_clip_of_one_frame_is_shown(tmp_path: Path) -> None:
    assert looked_at(make_clip(tmp_path / "one.mp4", "libx264", frames=1)) == ({"video/mp4"}, 1, 0)


def test_a_clip_in_several_messages_is_cut_at_its_key_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = make_clip(tmp_path / "keys.mp4", "libx264", bf="3", g="10", keyint_min="10")
    monkeypatch.setattr("duplex.cli.look.MOST_BYTES", clip.stat().st_size // 2)
    assert looked_at(clip) == ({"video/mp4"}, FRAMES, 0)
    assert len(whole(probe(clip)).windows) > 1


def test_windows_that_cannot_stand_alone_go_on_with_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = "bframes=3:open-gop=1:keyint=10:min-keyint=10:scenecut=0"
    clip = make_clip(tmp_path / "open.mp4", "libx264", **{"x264-params": params})
    monkeypatch.setattr("duplex.cli.look.MOST_BYTES", clip.stat().st_size // 2)
    kinds, frames, held = looked_at(clip)
    assert (kinds, frames + held) == ({"video/mp2t"}, FRAMES)
