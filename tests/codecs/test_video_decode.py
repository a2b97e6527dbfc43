"""Video windows: what comes out of each container and codec, whole and cut into pieces."""

from __future__ import annotations

import io
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from video_clips import SHARED, encode, moving_square, still, texture

from duplex.codecs.video import VideoStream, decode_images, decode_window
from duplex.codecs.video_frame import fit
from duplex.codecs.video_split import split_clip
from duplex.core.errors import DuplexError, ErrorCode

FORMATS = [
    ("mp4", "libx264", "video/mp4"),
    ("matroska", "libx264", "video/x-matroska"),
    ("mpegts", "libx264", "video/mp2t"),
    ("h264", "libx264", "video/h264"),
    ("hevc", "libx265", "video/hevc"),
    ("mp4", "libx265", "mp4"),
    ("webm", "libvpx", "video/webm; codecs=vp8"),
    ("webm", "libvpx-vp9", "webm"),
    ("webm", "libsvtav1", "video/webm"),
    ("mp4", "mpeg4", "video/quicktime"),
    ("mpegts", "mpeg2video", "mpeg-ts"),
]


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    return moving_square(12)


@pytest.mark.parametrize(("container", "codec", "kind"), FORMATS)
def test_every_format_gives_its_frames_at_their_times(pictures, container, codec, kind):
    data = encode(pictures, container=container, codec=codec)
    window = decode_window(data, kind, pts_ms=5000.0, duration_ms=480.0)
    assert len(window.frames) == len(pictures)
    np.testing.assert_allclose(window.pts_ms, 5000 + 40 * np.arange(12), atol=1)
    assert window.duration_ms == pytest.approx(480, abs=1)
    assert (window.width, window.height) == (160, 96)
    for got, sent in zip(window.frames, pictures, strict=True):
        assert got.shape == sent.shape
        assert np.corrcoef(got.ravel(), sent.ravel())[0, 1] > 0.9
    assert window.codec.key[0]
    assert window.codec.types[0] == "I"
    assert (window.codec.packet_bytes > 0).all()


@pytest.mark.parametrize("codec", ["png", "mjpeg", "libwebp"])
def test_stills_are_spread_over_the_window(pictures, codec):
    images = [still(p, codec) for p in pictures[:4]]
    window = decode_images(images, pts_ms=100.0, duration_ms=2000.0)
    np.testing.assert_allclose(window.pts_ms, [100, 600, 1100, 1600])
    assert window.codec.key.all()
    assert list(window.codec.packet_bytes) == [len(i) for i in images]
    assert np.corrcoef(window.frames[3].ravel(), pictures[3].ravel())[0, 1] > 0.9


def test_target_rate_and_size(pictures):
    data = encode(moving_square(50))
    window = decode_window(data, "video/mp4", target_fps=5, max_pixels=3000)
    np.testing.assert_allclose(window.pts_ms, np.arange(10) * 200, atol=1)
    height, width, _ = window.frames[0].shape
    assert height * width <= 3000
    assert width / height == pytest.approx(160 / 96, rel=0.05)
    assert len(window.codec.pts_ms) == 50, "side information covers the frames that were not kept"


@pytest.mark.parametrize("size", [(1920, 1080), (160, 96), (3, 5000)])
def test_fit_keeps_the_shape(size):
    width, height = fit(*size, 10_000)
    assert width * height <= 10_000 or min(width, height) == 2


def test_motion_vectors_show_where_and_how_far_content_moved(pictures):
    data = encode(moving_square(12, step=4), options={"bf": "0", "refs": "1"})
    codec = decode_window(data, "video/mp4").codec
    assert codec.motion_start[-1] == len(codec.motion)
    assert len(codec.vectors(0)) == 0, "a key frame has none"
    vectors = codec.vectors(6)
    assert (vectors["source"] == -1).all()
    on_square = (abs(vectors["x"] - (8 + 6 * 4 + 16)) <= 8) & (abs(vectors["y"] - 48) <= 8)
    elsewhere = vectors["y"] > 80
    assert np.median(vectors["dx"][on_square]) == pytest.approx(4, abs=0.5)
    assert np.median(vectors["dy"][on_square]) == pytest.approx(0, abs=0.5)
    assert abs(vectors["dx"][elsewhere]).max() < 0.5


def test_asking_for_motion_does_not_keep_the_picture():
    """A picture that waited for the garbage collector cost a session hundreds of megabytes."""
    frame = list(VideoStream().decode(encode(moving_square(6)), "mp4"))[3]
    before = sys.getrefcount(frame.picture)
    vectors = frame.motion()
    after = sys.getrefcount(frame.picture)
    assert after == before
    assert len(vectors) > 0


def test_residual_is_high_where_motion_explains_nothing():
    still_then_new = [texture(96, 160, seed=1)] * 8 + [texture(96, 160, seed=2)] * 4
    data = encode(still_then_new, options={"bf": "0", "sc_threshold": "0"})
    residual = decode_window(data, "video/mp4").codec.residual
    assert residual[8] > 20 * max(residual[2:8].max(), 0.01)


@pytest.mark.parametrize(("angle", "turns"), [("90", 1), ("180", 2), ("270", 3)])
def test_rotated_video_comes_out_upright(angle, turns):
    pictures = moving_square(8, step=4)
    plain = encode(pictures, options={"bf": "0", "refs": "1"})
    turned = bytearray(plain)
    at = turned.find(b"tkhd") + 4 + 40
    matrix = {"90": (0, -1, 1, 0), "180": (-1, 0, 0, -1), "270": (0, 1, -1, 0)}[angle]
    for offset, value in zip((0, 4, 12, 16), matrix, strict=True):
        turned[at + offset : at + offset + 4] = (value * 65536).to_bytes(4, "big", signed=True)
    a, b = decode_window(plain, "mp4"), decode_window(bytes(turned), "mp4")
    np.testing.assert_array_equal(b.frames[5], np.rot90(a.frames[5], turns))
    assert (b.width, b.height) == (a.height, a.width) if turns % 2 else (a.width, a.height)
    dx, dy = np.float32(4), np.float32(0)
    for _ in range(turns):
        dx, dy = dy, -dx
    moving = abs(b.codec.vectors(5)["dx"]) + abs(b.codec.vectors(5)["dy"]) > 3
    assert np.median(b.codec.vectors(5)["dx"][moving]) == pytest.approx(dx, abs=0.5)
    assert np.median(b.codec.vectors(5)["dy"][moving]) == pytest.approx(dy, abs=0.5)
    assert b.codec.vectors(5)["x"].max() <= b.width


def _pixels(frames):
    return [f.luma(32, 24).tobytes() for f in frames]


@pytest.mark.parametrize("bframes", ["0", "3"])
def test_a_clip_cut_into_windows_equals_the_clip(bframes):
    data = encode(moving_square(40), options={"bf": bframes, "g": "16"})
    whole = list(VideoStream().decode(data, "video/mp4"))
    stream, pieces = VideoStream(), []
    windows = list(split_clip(data, window_ms=160))
    assert len(windows) == 10
    for window in windows:
        pieces += stream.decode(window.data, window.kind, pts_ms=window.pts_ms)
    pieces += stream.finish()
    np.testing.assert_allclose([f.pts_ms for f in pieces], [f.pts_ms for f in whole], atol=0.1)
    assert _pixels(pieces) == _pixels(whole)
    assert [f.type for f in pieces] == [f.type for f in whole]


@pytest.mark.parametrize("bframes", ["0", "3"])
def test_the_key_frame_of_matroska_which_has_no_dts_is_not_lost(bframes):
    data = encode(moving_square(40), container="matroska", options={"bf": bframes, "g": "250"})
    whole = list(VideoStream().decode(data, "video/x-matroska"))
    stream, pieces = VideoStream(), []
    for window in split_clip(data, window_ms=160):
        pieces += stream.decode(window.data, window.kind, pts_ms=window.pts_ms)
    pieces += stream.finish()
    assert len(pieces) == len(whole) == 40
    assert _pixels(pieces) == _pixels(whole)
    np.testing.assert_allclose([f.pts_ms for f in pieces], [f.pts_ms for f in whole], atol=1.5)


def test_a_clip_with_a_long_gap_is_not_cut_into_single_frames():
    times_ms = [*range(0, 1000, 40), *range(20_000, 21_000, 40)]
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as muxer:
        track = muxer.add_stream("libx264", rate=25)
        track.height, track.width, track.pix_fmt = 96, 160, "yuv420p"
        track.codec_context.time_base = Fraction(1, 1000)
        for at, picture in zip(times_ms, moving_square(len(times_ms), step=1), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 1000)
            muxer.mux(track.encode(frame))
        muxer.mux(track.encode(None))
    stream, pieces = VideoStream(), []
    windows = list(split_clip(out.getvalue(), window_ms=500))
    assert len(windows) <= 6
    assert max(window.pts_ms + window.duration_ms for window in windows) < 21_100
    for window in windows:
        pieces += stream.decode(window.data, window.kind, pts_ms=window.pts_ms)
    pieces += stream.finish()
    np.testing.assert_allclose([f.pts_ms for f in pieces], times_ms, atol=0.1)


def test_a_photograph_with_exif_is_decoded_and_has_no_motion():
    photo = still(texture(64, 96), "mjpeg")
    tags = (
        b"MM\x00*\x00\x00\x00\x08"
        + b"\x00\x01"
        + b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"
        + b"\x00" * 4
    )
    exif = b"Exif\x00\x00" + tags
    photo = photo[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + photo[2:]
    decoded = decode_images([photo])
    assert decoded.frames[0].shape == (96, 64, 3)  # it was taken with the camera on its side
    assert len(decoded.codec.motion) == 0


def test_annex_b_cut_at_any_frame_equals_the_stream():
    data = encode(moving_square(40), options={"bf": "3"})
    whole = list(VideoStream().decode(data, "video/mp4"))
    with av.open(io.BytesIO(data)) as source:
        track = source.streams.video[0]
        to_annex_b = BitStreamFilterContext("h264_mp4toannexb", track)
        coded = [bytes(q) for p in source.demux(track) for q in to_annex_b.filter(p if p.size else None)]
    stream, pieces = VideoStream(), []
    for start in range(0, 40, 7):
        part = coded[start : start + 7]
        pieces += stream.decode(b"".join(part), "h264", pts_ms=start * 40.0, duration_ms=len(part) * 40.0)
    pieces += stream.finish()
    assert _pixels(pieces) == _pixels(whole)
    np.testing.assert_allclose([f.pts_ms for f in pieces], np.arange(40) * 40, atol=0.1)


@pytest.mark.parametrize(
    ("container", "codec", "kind", "mark"),
    [("mp4", "libx264", "video/mp4", b"moof"), ("webm", "libvpx", "video/webm", b"\x1fC\xb6u")],
)
def test_fragments_without_their_header_go_on_from_the_window_before(container, codec, kind, mark):
    fragmented = {
        "mp4": {"movflags": "frag_keyframe+empty_moov+default_base_moof"},
        "webm": {"cluster_time_limit": "320"},
    }[container]
    data = encode(
        moving_square(24),
        container=container,
        codec=codec,
        options={"g": "8", "bf": "0"},
        container_options=fragmented,
    )
    offset = 4 if container == "mp4" else 0
    starts = [i - offset for i in range(len(data)) if data.startswith(mark, i)]
    assert len(starts) >= 3
    stream = VideoStream()
    first = list(stream.decode(data[: starts[1]], kind))
    rest = list(stream.decode(data[starts[1] : starts[2]], kind))
    assert first
    assert rest
    assert rest[0].pts_ms > first[-1].pts_ms
    whole = list(VideoStream().decode(data, kind))
    assert _pixels(first + rest) == _pixels(whole[: len(first) + len(rest)])


def test_a_fragment_alone_is_refused():
    data = encode(moving_square(16), container_options={"movflags": "frag_keyframe+empty_moov"})
    with pytest.raises(DuplexError, match="header") as caught:
        list(VideoStream().decode(data[data.find(b"moof") - 4 :], "video/mp4"))
    assert caught.value.code is ErrorCode.INVALID_MEDIA


def test_after_a_gap_the_stream_waits_for_a_key_frame():
    data = encode(moving_square(48), options={"bf": "0", "g": "24", "sc_threshold": "0"})
    windows = list(split_clip(data, window_ms=320))
    stream = VideoStream()
    list(stream.decode(windows[0].data, windows[0].kind, pts_ms=windows[0].pts_ms))
    stream.reset()  # window 1 was dropped
    with pytest.raises(DuplexError, match="key frame"):
        list(stream.decode(windows[2].data[:], windows[1].kind, pts_ms=windows[1].pts_ms))
    got = list(stream.decode(windows[3].data, windows[3].kind, pts_ms=windows[3].pts_ms))
    assert got
    assert got[0].key
    assert got[0].pts_ms == pytest.approx(24 * 40)


def test_windows_without_times_follow_each_other():
    data = encode(moving_square(10))
    stream = VideoStream()
    first, second = list(stream.decode(data, "mp4")), list(stream.decode(data, "mp4"))
    assert first[0].pts_ms == 0
    assert second[0].pts_ms == pytest.approx(400)
    assert [f.index for f in first + second] == list(range(20))


def test_the_shared_broadcast_clip_splits_without_loss():
    clip = SHARED / "media" / "soccer-broadcast.mp4"
    if not clip.exists():
        pytest.skip(f"{clip} is not there")
    stream, frames = VideoStream(), 0
    for number, window in enumerate(split_clip(clip)):
        frames += sum(1 for _ in stream.decode(window.data, window.kind, pts_ms=window.pts_ms))
        if number == 5:
            break
    assert frames == 70  # two frames are still held back
