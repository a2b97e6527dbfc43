"""The backend `frames`."""

from __future__ import annotations

import numpy as np
import pytest
from video_clips import encode, still
from window_pieces import cut_from, live, moving_square, patches, texture, whole

from duplex.adapters.mage_vl.windows.frames import MOST_IMAGES, FrameWindows
from duplex.codecs.video import VideoStream
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import ImageWindow, VideoWindow


def backend(num_frames: int = 8, target_fps: float | None = None, max_pixels: int = 768 * 768):
    return FrameWindows(num_frames=num_frames, target_fps=target_fps, max_pixels=max_pixels)


@pytest.mark.parametrize("count", [8, 16, 32])
def test_so_many_frames_evenly_from_the_first_to_the_last(count: int) -> None:
    seen = backend(count).see(whole(moving_square(50), pts_ms=3000.0))
    assert seen is not None
    assert seen.images.shape == (count, 96, 160, 3)
    assert seen.visual_tokens == count * 3 * 5
    picked = seen.positions[:, 0, 0, 0]
    assert picked.tolist() == np.linspace(0, 49, count).round().astype(int).tolist()
    np.testing.assert_allclose(seen.times_s, picked * 0.04, atol=2e-3)
    assert (seen.pts_ms, seen.duration_ms) == (3000.0, pytest.approx(2000, abs=2))


def test_a_short_window_gives_all_its_frames_once() -> None:
    seen = backend(16).see(whole(moving_square(5)))
    assert seen is not None
    assert seen.positions[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_rate_goes_before_a_number_and_keeps_its_beat_across_windows() -> None:
    watching = backend(num_frames=32, target_fps=2)
    seen = [watching.see(piece) for piece in live(moving_square(100, step=1), seconds=1)]
    seen.append(watching.finish())
    times = np.concatenate([part.times_s for part in seen if part is not None])
    beat = times[:-1]  # the last piece, what the decoder held back, gives one frame at least
    np.testing.assert_allclose(beat, np.arange(len(beat)) * 0.5, atol=0.045)
    assert len(beat) == 8


def test_each_window_gives_a_frame_at_least() -> None:
    watching = backend(target_fps=0.2)
    for piece in live(moving_square(75), seconds=1):
        seen = watching.see(piece)
        assert seen is not None
        assert len(seen.images) == 1


def test_a_long_window_is_thinned_out_evenly() -> None:
    pictures = [texture(64, 64, seed=i) for i in range(8)] * 20
    seen = backend(target_fps=25).see(whole(pictures))
    assert seen is not None
    picked = seen.positions[:, 0, 0, 0]
    assert 16 < len(picked) <= MOST_IMAGES
    assert len(set(np.diff(picked).tolist())) == 1


def test_patches_are_those_of_the_resized_frames() -> None:
    window = whole(moving_square(12, height=270, width=480))
    seen = backend(max_pixels=60_000).see(window)
    assert seen is not None
    _, height, width, _ = seen.images.shape
    assert (height % 32, width % 32) == (0, 0)
    assert height * width <= 60_000
    frames = np.stack(
        [f.scaled_rgb(width, height) for f in VideoStream(motion=False).decode(window.data, window.kind)]
    )
    np.testing.assert_array_equal(patches(seen), cut_from(seen, frames))


@pytest.mark.parametrize("codec", ["png", "mjpeg", "libwebp"])
def test_stills_and_lone_images(codec: str) -> None:
    pictures = tuple(still(p, codec) for p in moving_square(3))
    watching = backend()
    seen = watching.see(
        VideoWindow(kind="", frames=pictures, segment_id="a", pts_ms=500.0, duration_ms=1500.0)
    )
    assert seen is not None
    assert (seen.segment_id, len(seen.images)) == ("a", 3)
    np.testing.assert_allclose(seen.times_s, [0, 0.5, 1.0])
    alone = watching.see(ImageWindow(data=pictures[0], pts_ms=4500.0))
    assert alone is not None
    assert alone.images.shape == (1, 96, 160, 3)
    assert alone.times_s.tolist() == [4.0]


def test_a_still_does_not_end_the_stream_around_it() -> None:
    watching = backend()
    first, second = live(moving_square(50), seconds=1)
    watching.see(first)
    watching.see(ImageWindow(data=still(texture(64, 64))))
    seen = watching.see(second)
    assert seen is not None
    assert seen.images.shape[1:] == (96, 160, 3)


def test_a_change_of_resolution_between_windows_and_within_one() -> None:
    watching = backend(num_frames=4)
    small, tall = moving_square(10), moving_square(10, height=160, width=96)
    for pictures, shape in ((small, (96, 160)), (tall, (160, 96)), (small, (96, 160))):
        seen = watching.see(whole(pictures))
        assert seen is not None
        assert seen.images.shape[1:3] == shape
    # one Annex B stream whose size changes in the middle: the rest keeps its shape, on black
    annex_b = encode(small, container="h264") + encode(tall, container="h264")
    seen = watching.see(VideoWindow(kind="video/h264", data=annex_b, duration_ms=800.0))
    assert seen is not None
    assert seen.images.shape == (4, 96, 160, 3)
    last = seen.images[-1]
    assert last[:, :40].max() == last[:, -40:].max() == 0
    assert last[:, 60:100].std() > 10


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (VideoWindow(kind="video/mp4", data=b"\0\0\0\x18ftypmp42" + b"\0" * 80), ErrorCode.INVALID_MEDIA),
        (VideoWindow(kind="video/mp4", data=b"nonsense"), ErrorCode.INVALID_MEDIA),
        (VideoWindow(kind="video/flv", data=b"FLV"), ErrorCode.UNSUPPORTED_FORMAT),
        (VideoWindow(kind="video/mp4"), ErrorCode.EMPTY_INPUT),
        (VideoWindow(kind="", frames=(b"",)), ErrorCode.EMPTY_INPUT),
        (ImageWindow(data=b""), ErrorCode.EMPTY_INPUT),
        (ImageWindow(data=b"GIF89a" + b"\0" * 20), ErrorCode.UNSUPPORTED_FORMAT),
    ],
)
def test_bad_media_is_refused_by_name_and_loses_nothing_else(bad, code: ErrorCode) -> None:
    watching = backend()
    good = whole(moving_square(8))
    before = watching.see(good)
    with pytest.raises(DuplexError) as refused:
        watching.see(bad)
    assert refused.value.code is code
    assert not refused.value.fatal
    after = watching.see(good)
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before.images, after.images)
