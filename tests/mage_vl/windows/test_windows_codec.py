"""The backend `codec`: canvases from libav's side information, live, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from video_clips import SHARED, encode, still
from window_pieces import busy_square, cut_from, live, moving_square, patches, texture, whole

from duplex.adapters.mage_vl.windows.backends import CANVAS_PIXELS, WindowOptions, open_windows
from duplex.adapters.mage_vl.windows.codec import MOST_GROUPS, CodecWindows
from duplex.adapters.mage_vl.windows.selection import GROUP_FRAMES, GROUP_IMAGES
from duplex.adapters.mage_vl.windows.types import MOST_PATCHES, VisualInput
from duplex.codecs.video import VideoFrame, VideoStream
from duplex.codecs.video_split import split_clip
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import ImageWindow, VideoWindow

CLIP = SHARED / "media" / "soccer-broadcast.mp4"


def backend(fps: float | None = None, max_pixels: int = CANVAS_PIXELS) -> CodecWindows:
    return CodecWindows(fps=fps, max_pixels=max_pixels, image_max_pixels=768 * 768)


def watch(watching: CodecWindows, pieces: list[VideoWindow]) -> list[VisualInput]:
    seen = [*map(watching.see, pieces), watching.finish()]
    return [segment for segment in seen if segment is not None]


# --- what is selected ------------------------------------------------------------------------------


def test_blocks_that_change_are_chosen() -> None:
    seen = backend().see(whole(busy_square(25)))
    assert seen is not None
    assert seen.images.shape == (GROUP_IMAGES, 128, 192, 3)
    chosen = seen.positions[1:].reshape(-1, 3)
    frames = set(chosen[:, 0].tolist())
    changing = {t for t, row, column in chosen.tolist() if (row // 2, column // 2) == (1, 2)}
    assert len(frames) >= 20
    assert len(changing) >= 20, "the block that changes is shown of nearly every frame"


def test_key_frames_are_not_shown_while_others_are_there() -> None:
    clip = encode(busy_square(25), options={"g": "8", "sc_threshold": "0", "bf": "0", "preset": "veryfast"})
    window = VideoWindow(kind="video/mp4", data=clip)
    keys = {f.index for f in VideoStream().decode(clip, "video/mp4") if f.key}
    assert {0, 8, 16, 24} <= keys
    seen = backend().see(window)
    assert seen is not None
    assert keys.isdisjoint(seen.positions[..., 0].ravel().tolist())


def test_a_cut_is_seen_although_its_key_frame_is_not_shown() -> None:
    before, after = texture(128, 192, seed=1), texture(128, 192, seed=2)
    clip = encode([before] * 12 + [after] * 12, options={"g": "12", "bf": "0", "preset": "veryfast"})
    seen = backend().see(VideoWindow(kind="video/mp4", data=clip))
    assert seen is not None
    assert (seen.positions[1:, ..., 0] == 13).sum() == 8 * 12, "the frame after the key frame, whole"


@pytest.mark.parametrize("codec", ["libx265", "libvpx-vp9", "mpeg4", "intra"])
def test_codecs_that_export_no_vectors_or_predict_nothing(codec: str) -> None:
    options = {"intra": {"g": "1"}, "libx265": {"preset": "ultrafast"}}.get(codec, {})
    name = "libx264" if codec == "intra" else codec
    clip = encode(busy_square(20), container="matroska", codec=name, options=options)
    seen = backend().see(VideoWindow(kind="video/x-matroska", data=clip))
    assert seen is not None
    assert len(seen.images) == GROUP_IMAGES
    chosen = seen.positions[1:].reshape(-1, 3).tolist()
    assert len({t for t, row, column in chosen if (row // 2, column // 2) == (1, 2)}) >= 12


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(1, 70),
    height=st.integers(3, 12),
    width=st.integers(3, 12),
    most=st.integers(4_000, 40_000),
    fps=st.none() | st.sampled_from([2.0, 5.0, 12.5]),
    seed=st.integers(0, 100),
)
def test_any_clip(count: int, height: int, width: int, most: int, fps: float | None, seed: int) -> None:
    scenes = [texture(height * 16, width * 16, seed=seed + i) for i in range(4)]
    window = whole([scenes[i // 20] if i % 3 else scenes[3] for i in range(count)])
    seen = backend(fps, most).see(window)
    assert seen is not None
    n, rows, columns, _ = seen.images.shape
    assert rows % 32 == columns % 32 == 0
    assert rows * columns <= most
    considered = count if fps is None else max(1, -(-count * fps // 25))
    groups = -(-considered // GROUP_FRAMES)
    assert 1 <= n <= groups * GROUP_IMAGES
    assert seen.visual_tokens == n * rows * columns // 1024
    assert seen.visual_tokens <= considered * rows * columns // 1024, "never more than the frames themselves"
    assert len(seen.frame_times_s) == count
    np.testing.assert_allclose(seen.frame_times_s, np.arange(count) * 0.04, atol=2e-3)
    assert (seen.positions[..., 0] < count).all()
    decoded = VideoStream().decode(window.data, window.kind)
    frames = np.stack([frame.scaled_rgb(columns, rows) for frame in decoded])
    np.testing.assert_array_equal(patches(seen), cut_from(seen, frames))


# --- live ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.5, 1, 2])
def test_a_stream_in_windows_of_which_only_the_first_has_a_key_frame(seconds: float) -> None:
    pieces = live(moving_square(100), seconds=seconds)
    seen = watch(backend(), pieces)
    assert [segment.segment_id for segment in seen] == [*(piece.segment_id for piece in pieces), ""]
    assert all(len(segment.images) <= GROUP_IMAGES * (1 + int(seconds > 1)) for segment in seen)
    # each source frame is in one window, once
    shown = np.concatenate([segment.frame_times_s for segment in seen])
    np.testing.assert_allclose(shown, np.arange(100) * 0.04, atol=2e-3)
    assert all((np.diff(segment.times_s) >= 0).all() for segment in seen)


def test_selection_looks_back_over_the_window_s_edge() -> None:
    pieces = live(busy_square(50), seconds=1)
    going_on, afresh = backend(), backend()
    first = going_on.see(pieces[0])
    second = going_on.see(pieces[1])
    assert first is not None
    assert second is not None
    anchor = second.positions[0, 0, 0, 0]
    assert anchor == 0, "not a key frame, so its window begins with it"
    with pytest.raises(DuplexError) as refused:  # without what came before, it cannot even be decoded
        afresh.see(pieces[1])
    assert refused.value.code is ErrorCode.INVALID_MEDIA


def test_a_lost_window_is_one_window_lost() -> None:
    pieces = [
        VideoWindow(kind=w.kind, data=w.data, pts_ms=w.pts_ms, duration_ms=w.duration_ms)
        for w in split_clip(
            encode(moving_square(100), options={"g": "25", "bf": "0", "preset": "veryfast"}), window_ms=1000
        )
    ]
    watching = backend()
    assert watching.see(pieces[0]) is not None
    with pytest.raises(DuplexError):
        watching.see(VideoWindow(kind=pieces[1].kind, data=b"\x47" * 188 * 4, pts_ms=1000.0))
    seen = watching.see(pieces[2])
    assert seen is not None
    assert seen.pts_ms == pytest.approx(2000, abs=1)
    watching.reset()
    assert watching.see(pieces[3]) is not None


LIVE = live(busy_square(30, height=64, width=96), seconds=0.4)
WHOLE = whole(moving_square(10, height=64, width=96))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_damaged_windows_are_used_or_refused_by_name_and_lose_nothing_else(data: st.DataObject) -> None:
    watching = backend()
    for piece in [*LIVE, WHOLE]:
        broken = bytearray(piece.data)
        for _ in range(data.draw(st.integers(0, 6))):
            broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
        broken = broken[: data.draw(st.sampled_from([len(broken), len(broken) // 2]))]
        with suppress(DuplexError):
            watching.see(VideoWindow(kind=piece.kind, data=bytes(broken), duration_ms=400.0))
    seen = watching.see(WHOLE)
    assert seen is not None
    assert seen.images.shape == (GROUP_IMAGES, 64, 96, 3)
    assert len(seen.frame_times_s) == 10


def test_windows_longer_than_the_most_groups_are_thinned_out() -> None:
    scenes = [texture(64, 64, seed=i) for i in range(16)]
    seen = backend().see(whole([scenes[i % 16] for i in range(600)]))
    assert seen is not None
    assert len(seen.images) == MOST_GROUPS * GROUP_IMAGES
    anchors = seen.positions[::GROUP_IMAGES, 0, 0, 0]
    np.testing.assert_allclose(np.diff(anchors), 75, atol=3)  # evenly, but no key frame
    assert seen.positions[..., 0].max() > 580


@pytest.mark.parametrize("name", ["frames", "codec"])
def test_no_segment_has_more_patches_than_the_eye_takes(name: str) -> None:
    options = WindowOptions(backend=name, num_frames=64, max_pixels=4_000_000, codec_max_pixels=4_000_000)
    picture = still(moving_square(1, height=1080, width=1920)[0], "mjpeg")
    seen = open_windows(options).see(VideoWindow(kind="", frames=(picture,) * 40))
    assert seen is not None
    assert seen.images.shape[1:3] == (1088, 1920)
    assert MOST_PATCHES / 4 < seen.visual_tokens * 4 <= MOST_PATCHES


def test_stills_and_lone_images() -> None:
    pictures = tuple(still(p) for p in busy_square(10))
    watching = backend()
    seen = watching.see(VideoWindow(kind="", frames=pictures, segment_id="x", duration_ms=5000.0))
    assert seen is not None
    assert len(seen.images) == GROUP_IMAGES
    chosen = seen.positions[1:].reshape(-1, 3).tolist()
    assert len({t for t, row, column in chosen if (row // 2, column // 2) == (1, 2)}) == 9
    few = watching.see(VideoWindow(kind="", frames=pictures[:2]))
    assert few is not None
    assert len(few.images) == 2, "no canvas is padded"
    alone = watching.see(ImageWindow(data=still(texture(540, 960))))
    assert alone is not None
    assert alone.images.shape == (1, 544, 960, 3)
    assert not len(alone.frame_times_s)


def test_a_change_of_resolution_in_mid_session_and_in_mid_window() -> None:
    small, tall = moving_square(25), moving_square(25, height=160, width=96)
    watching = backend()
    for pictures, shape in ((small, (96, 160)), (tall, (160, 96)), (small, (96, 160))):
        seen = watching.see(whole(pictures))
        assert seen is not None
        assert seen.images.shape == (GROUP_IMAGES, *shape, 3)
    annex_b = encode(small[:12], container="h264") + encode(tall[:12], container="h264")
    seen = watching.see(VideoWindow(kind="video/h264", data=annex_b, duration_ms=960.0))
    assert seen is not None
    assert seen.images.shape == (GROUP_IMAGES, 96, 160, 3)


@pytest.mark.parametrize("name", ["frames", "codec"])
def test_closing_gives_up_the_window_that_is_being_decoded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = open_windows(WindowOptions(backend=name))
    given: list[int] = []
    decode = VideoStream.decode

    def close_after_two(*args: object, **kwargs: object) -> Iterator[VideoFrame]:
        for frame in decode(*args, **kwargs):
            given.append(frame.index)
            if len(given) == 2:
                watching.close()
            yield frame

    monkeypatch.setattr(VideoStream, "decode", close_after_two)
    window = whole(moving_square(50))
    for _ in range(2):
        with pytest.raises(DuplexError) as refused:
            watching.see(window)
        assert refused.value.code is ErrorCode.SESSION_CLOSING
    assert given == [0, 1]


def test_memory_stays_flat_over_hours() -> None:
    """What a session keeps is as large after 150 windows as after 30."""
    import tracemalloc

    pieces = live(moving_square(20, height=64, width=64, step=1), seconds=0.4)
    watching = backend()
    sizes = []
    tracemalloc.start()
    try:
        for number in range(151):
            watching.see(pieces[number % 2])
            if number in (30, 150):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 30_000


# --- tokens ----------------------------------------------------------------------------------------


def tokens(options: WindowOptions, pieces: list[VideoWindow]) -> int:
    backend = open_windows(options)
    seen = [*map(backend.see, pieces), backend.finish()]
    return sum(segment.visual_tokens for segment in seen if segment is not None)


@pytest.mark.parametrize("fps", [2, 8, 25])
def test_a_third_of_the_tokens_at_the_same_rate_and_size_on_a_synthetic_clip(fps: int) -> None:
    pictures = busy_square(600)
    frames = WindowOptions(backend="frames", target_fps=fps, max_pixels=CANVAS_PIXELS)
    canvas = WindowOptions(backend="codec", codec_fps=fps)
    # the frames backend gives at most 64 images a window: windows of a second keep it from thinning them out
    every = tokens(frames, live(pictures, seconds=1))
    assert every >= 24 * fps * (128 * 192 // 1024)
    assert every >= 3 * tokens(canvas, live(pictures, seconds=8))


@pytest.mark.skipif(not CLIP.exists(), reason="the football clip is not here")
@pytest.mark.parametrize(("fps", "window_s"), [(2, 8), (24, 8), (24, 1)])
def test_a_third_of_the_tokens_at_the_same_rate_and_size_on_the_football_clip(
    fps: int, window_s: int
) -> None:
    def first_8_s(seconds: int) -> list[VideoWindow]:
        return [
            VideoWindow(kind=w.kind, data=w.data, pts_ms=w.pts_ms, duration_ms=w.duration_ms)
            for w in islice(split_clip(CLIP, window_ms=seconds * 1000), 8 // seconds)
        ]

    frames = tokens(WindowOptions(backend="frames", target_fps=fps, max_pixels=CANVAS_PIXELS), first_8_s(1))
    assert frames >= 8 * fps * 144, "every source frame on the beat, at 512 × 288"
    canvas = tokens(WindowOptions(backend="codec", codec_fps=fps), first_8_s(window_s))
    assert frames >= 3 * canvas
