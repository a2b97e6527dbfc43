"""Hostile and broken video: each ends in a named error, and costs little memory."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from video_clips import SHARED, box, encode, moving_square, still

from duplex.codecs.video import VideoLimits, VideoStream, decode_images, decode_window
from duplex.core.errors import DuplexError, ErrorCode


@pytest.fixture(scope="module")
def clip() -> bytes:
    return encode(moving_square(12))


def refused(data: bytes, kind: str = "video/mp4", limits: VideoLimits | None = None) -> ErrorCode:
    with pytest.raises(DuplexError) as caught:
        decode_window(data, kind, limits=limits)
    return caught.value.code


@pytest.mark.parametrize("keep", [0, 4, 11, 40, 200, 0.3, 0.6, 0.95])
def test_truncated_mp4(clip, keep):
    size = keep if isinstance(keep, int) else int(len(clip) * keep)
    assert refused(clip[:size]) is ErrorCode.INVALID_MEDIA


def test_truncated_mp4_with_its_header_first():
    clip = encode(moving_square(12), container_options={"movflags": "frag_keyframe+empty_moov"})
    for keep in (0.5, 0.9):
        assert refused(clip[: int(len(clip) * keep)]) is ErrorCode.INVALID_MEDIA
    assert refused(clip[: clip.find(b"mdat") - 4]) is ErrorCode.INVALID_MEDIA


@pytest.mark.parametrize(
    "data",
    [b"hello, this is no video at all" * 20, b"RIFF\x24\0\0\0WAVEfmt " + bytes(200), b"\0" * 5000, b"{}"],
)
def test_bytes_that_are_no_video(data):
    assert refused(data) is ErrorCode.INVALID_MEDIA


def test_a_container_other_than_declared(clip):
    webm = encode(moving_square(4), container="webm", codec="libvpx")
    assert refused(webm, "video/mp4") is ErrorCode.INVALID_MEDIA
    assert refused(clip, "video/webm") is ErrorCode.INVALID_MEDIA
    assert refused(clip, "video/h264") is ErrorCode.INVALID_MEDIA


@pytest.mark.parametrize("kind", ["video/avi", "application/x-mpegurl", "", "audio/wav", "x" * 5000])
def test_unknown_kinds(clip, kind):
    assert refused(clip, kind) is ErrorCode.UNSUPPORTED_FORMAT


def test_a_codec_that_is_not_served():
    clip = encode(moving_square(3), container="matroska", codec="ffv1")
    assert refused(clip, "video/x-matroska") is ErrorCode.UNSUPPORTED_FORMAT


def test_sound_alone():
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as muxer:
        track = muxer.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), "fltp", "mono")
        frame.rate = 48000
        muxer.mux(track.encode(frame))
        muxer.mux(track.encode(None))
    assert refused(out.getvalue()) is ErrorCode.INVALID_MEDIA


def _patched(clip: bytes, name: bytes, offset: int, value: bytes) -> bytes:
    at = clip.rindex(name, 0, clip.rindex(b"udta")) + 4 + offset
    return clip[:at] + value + clip[at + len(value) :]


def test_a_header_of_100000_by_100000_pixels(clip):
    size = struct.pack(">HH", 65535, 65535)
    assert refused(_patched(clip, b"avc1", 24, size)) is ErrorCode.MEDIA_TOO_LARGE
    assert refused(_patched(clip, b"tkhd", 76, size[:2] + b"\0\0" + size[2:] + b"\0\0")) is (
        ErrorCode.MEDIA_TOO_LARGE
    )


def test_a_header_of_ten_hours(clip):
    timescale = int.from_bytes(clip[clip.index(b"mvhd") + 16 :][:4], "big")
    long = _patched(clip, b"mvhd", 16, struct.pack(">I", 36_000 * timescale))
    assert refused(long) is ErrorCode.MEDIA_TOO_LARGE


def test_time_stamps_of_ten_hours():
    clip = encode(moving_square(3), container="matroska", fps=25)
    webm = bytearray(encode(moving_square(3), container="matroska"))
    del clip
    # one millisecond a tick becomes ten million times as long
    at = webm.index(b"\x2a\xd7\xb1\x83") + 4
    webm[at : at + 3] = b"\xff\xff\xff"
    codes = {refused(bytes(webm), "video/x-matroska", VideoLimits(max_duration_ms=500.0))}
    assert codes == {ErrorCode.MEDIA_TOO_LARGE}


def _mp4(stbl: bytes) -> bytes:
    mvhd = box(b"mvhd", bytes(12) + struct.pack(">II", 1000, 1000) + bytes(76))
    minf = box(b"minf", box(b"stbl", stbl))
    trak = box(b"trak", box(b"mdia", box(b"mdhd", bytes(24)) + minf))
    return box(b"ftyp", b"isom\0\0\0\0isom") + box(b"moov", mvhd + trak) + box(b"mdat", bytes(64))


@pytest.mark.parametrize(
    ("name", "payload", "code"),
    [
        (b"stsz", struct.pack(">III", 0, 1, 0xFFFFFFFF), ErrorCode.MEDIA_TOO_LARGE),
        (b"stsz", struct.pack(">III", 0, 0, 0xFFFFFF), ErrorCode.INVALID_MEDIA),
        (b"stts", struct.pack(">IIII", 0, 1, 0x7FFFFFFF, 1), ErrorCode.MEDIA_TOO_LARGE),
        (b"ctts", struct.pack(">IIII", 0, 1, 0x7FFFFFFF, 1), ErrorCode.MEDIA_TOO_LARGE),
        (b"stco", struct.pack(">II", 0, 0x10000000), ErrorCode.INVALID_MEDIA),
        (b"stsz", b"\0\0", ErrorCode.INVALID_MEDIA),
    ],
)
def test_sample_tables_that_claim_billions(name, payload, code):
    assert refused(_mp4(box(name, payload))) is code


def test_fragments_that_claim_billions():
    trun = box(b"trun", struct.pack(">II", 0, 0xFFFFFFFF))
    data = box(b"ftyp", b"isom\0\0\0\0isom") + box(b"moov", b"") + box(b"moof", box(b"traf", trun))
    assert refused(data) is ErrorCode.MEDIA_TOO_LARGE
    hidden = box(b"ftyp", b"isom\0\0\0\0isom") + box(b"moov", box(b"udta", box(b"traf", trun)))
    assert refused(hidden) is ErrorCode.INVALID_MEDIA


def test_compressed_headers():
    moov = zlib.compress(bytes(10_000_000))
    cmov = box(b"cmov", box(b"dcom", b"zlib") + box(b"cmvd", struct.pack(">I", 10_000_000) + moov))
    data = box(b"ftyp", b"qt  \0\0\0\0qt  ") + box(b"moov", cmov)
    assert refused(data, "video/quicktime") is ErrorCode.UNSUPPORTED_FORMAT


def test_boxes_nested_without_end():
    data = b""
    for _ in range(200):
        data = box(b"moov", data)
    assert refused(data) is ErrorCode.INVALID_MEDIA


@pytest.mark.parametrize("url", [b"file:///etc/passwd", b"http://127.0.0.1:9/secret.mp4"])
def test_references_to_files_and_addresses(url):
    dref = box(b"dref", struct.pack(">II", 0, 1) + box(b"url ", bytes(4) + url + b"\0"))
    assert refused(_mp4(box(b"dinf", dref))) is ErrorCode.INVALID_MEDIA
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + url + b"\n#EXT-X-ENDLIST\n"
    for kind in ("video/mp4", "video/mp2t", "video/webm", "video/h264"):
        assert refused(playlist, kind) is ErrorCode.INVALID_MEDIA
    concat = b"ffconcat version 1.0\nfile '" + url + b"'\n"
    assert refused(concat, "video/mp4") is ErrorCode.INVALID_MEDIA


@pytest.mark.parametrize(
    ("container", "codec", "kind"),
    [
        ("mp4", "libx264", "video/mp4"),
        ("mpegts", "libx264", "video/mp2t"),
        ("h264", "libx264", "video/h264"),
        ("webm", "libvpx-vp9", "video/webm"),
    ],
)
def test_limits_hold_in_every_container(container, codec, kind):
    data = encode(moving_square(12), container=container, codec=codec)
    for limits in (
        VideoLimits(max_pixels=160 * 96 - 1),
        VideoLimits(max_side=159),
        VideoLimits(max_frames=11),
        VideoLimits(max_decoded_pixels=5 * 160 * 96),
        VideoLimits(max_output_bytes=100_000),
        VideoLimits(max_bytes=1000),
        VideoLimits(max_decode_s=0.0),
    ):
        assert refused(data, kind, limits) is ErrorCode.MEDIA_TOO_LARGE, limits
    if container != "h264":
        assert refused(data, kind, VideoLimits(max_duration_ms=300.0)) is ErrorCode.MEDIA_TOO_LARGE


def _png_header(width: int, height: int, rest: bytes = b"") -> bytes:
    def chunk(name: bytes, payload: bytes) -> bytes:
        return (
            struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))
        )

    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = zlib.compress(bytes((width * 3 + 1) * height) if width * height < 1e6 else b"\0" * 1000)
    extra = chunk(b"zTXt", b"a\0\0" + rest) if rest else b""
    return b"\x89PNG\r\n\x1a\n" + ihdr + extra + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def refused_image(data: bytes, limits: VideoLimits | None = None) -> ErrorCode:
    with pytest.raises(DuplexError) as caught:
        decode_images([data], limits=limits)
    return caught.value.code


def test_hostile_stills():
    good = still(moving_square(1)[0])
    assert refused_image(b"") is ErrorCode.INVALID_MEDIA
    assert refused_image(b"GIF89a" + bytes(50)) is ErrorCode.UNSUPPORTED_FORMAT
    assert refused_image(good[: len(good) // 2]) is ErrorCode.INVALID_MEDIA
    assert refused_image(good[:20]) is ErrorCode.INVALID_MEDIA
    assert refused_image(_png_header(100_000, 100_000)) is ErrorCode.MEDIA_TOO_LARGE
    assert refused_image(good, VideoLimits(max_pixels=1000)) is ErrorCode.MEDIA_TOO_LARGE
    for codec in ("mjpeg", "libwebp"):
        picture = still(moving_square(1)[0], codec)
        assert refused_image(picture, VideoLimits(max_pixels=1000)) is ErrorCode.MEDIA_TOO_LARGE
        assert refused_image(picture[:30]) is ErrorCode.INVALID_MEDIA


_UNDER_A_MEMORY_LIMIT = """
import resource, sys, pathlib
from duplex.codecs.video import decode_images, decode_window
from duplex.core.errors import DuplexError
data, kind = pathlib.Path(sys.argv[1]).read_bytes(), sys.argv[2]
used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)
try:
    done = decode_images([data]) if kind == 'image' else decode_window(data, kind)
    print('decoded', len(done.frames))
except DuplexError as error:
    print(error.code.value)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs an address space limit")
@pytest.mark.parametrize("bomb", ["png text", "stsz", "huge h264 in mpeg-ts", "huge h264"])
def test_bombs_cost_no_memory(bomb, tmp_path):
    if bomb == "png text":
        data, kind, answer = _png_header(16, 16, zlib.compress(bytes(600_000_000), 1)), "image", "decoded 1"
    elif bomb == "stsz":
        data = _mp4(box(b"stsz", struct.pack(">III", 0, 1, 0x0AAAAAA0)))
        kind, answer = "video/mp4", "media_too_large"
    else:
        container = "mpegts" if "ts" in bomb else "h264"
        wide = np.zeros((4320, 7680, 3), np.uint8)
        data = encode([wide], container=container, options={"preset": "ultrafast"})
        kind, answer = ("mp2t" if "ts" in bomb else "h264"), "media_too_large"
    (tmp_path / "bomb").write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-c", _UNDER_A_MEMORY_LIMIT, str(tmp_path / "bomb"), kind],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout.strip() == answer, run.stderr[-2000:]


def outcome(data: bytes, kind: str) -> int | ErrorCode:
    """The number of frames, or the code of the fault; any other exception fails the test."""
    try:
        return len(decode_window(data, kind).frames)
    except DuplexError as error:
        return error.code


def test_noise_in_the_middle_is_patched_up_or_refused():
    clip = encode(moving_square(24), options={"g": "8"})
    noise = np.random.default_rng(3)
    begin = clip.index(b"mdat") + 4
    for _ in range(20):
        broken = bytearray(clip)
        for at in noise.integers(begin, clip.index(b"moov") - 4, 30):
            broken[at] = noise.integers(0, 256)
        assert outcome(bytes(broken), "mp4") in {*range(1, 25), ErrorCode.INVALID_MEDIA}


@pytest.mark.parametrize(
    ("container", "codec", "kind"),
    [
        ("mp4", "libx264", "mp4"),
        ("webm", "libvpx", "webm"),
        ("mpegts", "libx264", "ts"),
        ("h264", "libx264", "h264"),
    ],
)
def test_noise_anywhere_never_leaves_the_vocabulary(container, codec, kind):
    noise = np.random.default_rng(4)
    clip = encode(moving_square(6), container=container, codec=codec)
    faults = {ErrorCode.INVALID_MEDIA, ErrorCode.MEDIA_TOO_LARGE, ErrorCode.UNSUPPORTED_FORMAT}
    for _ in range(60):
        broken = bytearray(clip)
        for at in noise.integers(0, len(broken), noise.integers(1, 12)):
            broken[at] = noise.integers(0, 256)
        assert outcome(bytes(broken), kind) in {*range(1, 20), *faults}


def test_a_stream_lives_on_after_a_bad_window(clip):
    stream = VideoStream()
    assert len(list(stream.decode(clip, "mp4"))) == 12
    with pytest.raises(DuplexError):
        list(stream.decode(clip[:500], "mp4"))
    assert len(list(stream.decode(clip, "mp4"))) == 12


def test_bytes_from_the_shared_clip_cut_short():
    path = SHARED / "media" / "bikes.mp4"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert refused(path.read_bytes()[:200_000]) is ErrorCode.INVALID_MEDIA
