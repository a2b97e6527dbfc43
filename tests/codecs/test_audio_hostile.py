"""Damaged and hostile audio: each ends in a named error, and none costs memory or opens a file."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from audio_signals import FORMS, Form, decode, encode, form_id, mux, opener, voice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex.codecs.decoders import (
    DECODE_FORMATS,
    DecodeLimits,
    decode_audio,
    open_decoder,
)
from duplex.codecs.framing import EBML_UNKNOWN, ebml, ebml_id, flac_header
from duplex.core.errors import DuplexError, ErrorCode

NAMED = {ErrorCode.INVALID_MEDIA, ErrorCode.MEDIA_TOO_LARGE, ErrorCode.UNSUPPORTED_FORMAT}
FRAMED = tuple(name for name in DECODE_FORMATS if not name.startswith(("pcm", "g711")))


def code_of(data: bytes, form: str, sizes=(), **options) -> ErrorCode:
    with pytest.raises(DuplexError) as caught:
        decode(open_decoder(form, **options), data, sizes)
    assert caught.value.message
    return caught.value.code


@pytest.fixture(scope="module")
def good() -> dict[str, bytes]:
    """A sound stream of each format."""
    samples = voice(24_000)
    streams = {form.decoder: encode(samples, form, rate=24_000)[1] for form in FORMS}
    streams["mp4"] = mux(samples, 24_000, container="ipod", codec="aac")
    streams["mp4, fragmented"] = mux(
        samples, 24_000, container="mp4", codec="aac", options={"movflags": "frag_keyframe+delay_moov"}
    )
    streams["ogg, flac"] = mux(samples, 24_000, container="ogg", codec="flac")
    return streams


@pytest.mark.parametrize("name", FRAMED)
@pytest.mark.parametrize("data", [b"", b"\0", b"hello, this is no audio at all" * 50, bytes(100_000)])
def test_what_is_no_audio_is_named(name, data):
    if name == "opus_raw" and not data:
        return  # no packets are a sound stream of none
    assert code_of(data, name) in NAMED
    assert code_of(data, name, (1000, 1)) in NAMED


@pytest.mark.parametrize("name", FRAMED)
@pytest.mark.parametrize("other", FRAMED)
def test_the_wrong_container_is_named(good, name, other):
    if name == other or {name, other} == {"mp3", "aac"}:
        return
    assert code_of(good[other], name) in NAMED


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["flac", "mp3", "aac", "ogg", "webm", "opus_raw", "mp4", "mp4, fragmented"])
def test_a_stream_that_is_cut_off_is_named(good, name, share):
    data = good[name][: int(len(good[name]) * share) + 1]
    assert code_of(data, name.split(",")[0]) is ErrorCode.INVALID_MEDIA


def test_a_wav_that_is_cut_off_is_named():
    data = encode(voice(1000), FORMS[2], rate=8000, total_samples=1000)[1]
    for size in (4, 20, 44, 45, 100, len(data) - 1):
        assert code_of(data[:size], "wav") is ErrorCode.INVALID_MEDIA
    streamed = encode(voice(1000), FORMS[2], rate=8000)[1]
    assert code_of(streamed[:-1], "wav") is ErrorCode.INVALID_MEDIA  # inside a sample


@pytest.mark.parametrize("name", ["mp3", "aac", "flac", "ogg", "ogg, flac", "webm", "opus_raw", "wav", "mp4"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_anywhere_is_survived_or_named(good, name, data):
    """Whatever bytes are changed: samples, or a `DuplexError`; nothing else, and never without end."""
    stream = bytearray(good[name])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    for sizes in ((), (777, 3)):
        result = outcome(bytes(stream), name.split(",")[0], sizes)
        assert isinstance(result, bytes) or result in NAMED | {ErrorCode.INVALID_AUDIO}


def outcome(data: bytes, form: str, sizes) -> bytes | ErrorCode:
    decoder = open_decoder(form)
    try:
        return decode(decoder, data, sizes).tobytes()
    except DuplexError as error:
        return error.code
    finally:
        decoder.close()


def test_a_failed_decoder_stays_failed(good):
    decoder = open_decoder("wav")
    with pytest.raises(DuplexError):
        decoder.feed(good["flac"])
    for call in (lambda: decoder.feed(good["wav"]), decoder.flush):
        with pytest.raises(DuplexError) as caught:
            call()
        assert caught.value.code is ErrorCode.INVALID_MEDIA


# --- joined in the middle ----------------------------------------------------------------------------


def test_ogg_joined_in_the_middle_says_so():
    """Fault 22."""
    data = encode(voice(24_000 * 30), FORMS[6], rate=24_000)[1]
    middle = data[data.find(b"OggS", 5000) :]
    with pytest.raises(DuplexError, match="joined in the middle"):
        open_decoder("ogg").feed(middle)
    decoder = open_decoder("ogg")
    decoder.feed(middle[:5000])
    with pytest.raises(DuplexError, match="no beginning of a stream"):
        decoder.flush()


def test_webm_joined_in_the_middle_says_so(good):
    data = good["webm"]
    with pytest.raises(DuplexError, match="joined in the middle"):
        open_decoder("webm").feed(data[data.find(b"\x1f\x43\xb6\x75") :])


# --- limits ------------------------------------------------------------------------------------------


def test_ten_hours_in_a_header_are_refused_before_the_audio(good):
    hours = DecodeLimits(max_seconds=9 * 3600)
    rate, size = 8000, 8000 * 2 * 36_000
    wav = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", size, b"WAVEfmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", size
    )
    info = good["flac"][8:42]
    flac = flac_header(info, 24_000 * 36_000) + good["flac"][42:100]
    webm = good["webm"]
    start = webm.find(ebml(0x2AD7B1, 1_000_000))
    # the Info element's size stands in the 8 bytes before its first child
    body = ebml(0x4489, 36_000_000.0)
    size_at = start - 8
    grown = (int.from_bytes(webm[size_at:start], "big") + len(body)).to_bytes(8, "big")
    webm = webm[:size_at] + grown + body + webm[start:]
    for data, form in ((wav, "wav"), (flac, "flac"), (webm, "webm")):
        decoder = open_decoder(form, limits=hours)
        with pytest.raises(DuplexError) as caught:
            decoder.feed(data)
        assert caught.value.code is ErrorCode.MEDIA_TOO_LARGE


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_more_audio_than_allowed_is_refused_while_it_is_decoded(form):
    encoder, data = encode(voice(48_000), form, rate=24_000)
    limits = DecodeLimits(max_seconds=1.5)
    with pytest.raises(DuplexError) as caught:
        decode(opener(form, encoder, None, limits=limits), data)
    assert caught.value.code is ErrorCode.MEDIA_TOO_LARGE


@pytest.mark.parametrize(
    "limits",
    [DecodeLimits(max_decoded_bytes=10_000), DecodeLimits(max_input_bytes=1000)],
    ids=["decoded", "input"],
)
@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "ogg", "webm", "mp4", "opus_raw"])
def test_bytes_are_limited(good, name, limits):
    assert code_of(good[name], name, limits=limits) is ErrorCode.MEDIA_TOO_LARGE


def test_channels_are_limited():
    for channels in (9, 300, 65_535):
        wav = struct.pack(
            "<4sI8sIHHIIHH4sI",
            *(b"RIFF", 0, b"WAVEfmt ", 16, 1, channels, 8000, 0, channels * 2 % 65_536, 16, b"data", 0),
        )
        assert code_of(wav, "wav") in (ErrorCode.MEDIA_TOO_LARGE, ErrorCode.INVALID_MEDIA)
    opus = bytearray(encode(voice(2400), FORMS[7], rate=24_000)[1])
    opus[opus.find(b"\x9f" + bytes([1, 0, 0, 0, 0, 0, 0, 1])) + 9] = 255
    assert code_of(bytes(opus), "webm") is ErrorCode.MEDIA_TOO_LARGE


@pytest.mark.parametrize("rate", [0, 1, 4_000_000_000])
def test_impossible_rates_are_named(rate):
    wav = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 0, b"WAVEfmt ", 16, 1, 1, rate, 0, 2, 16, b"data", 0)
    assert code_of(wav, "wav") is ErrorCode.INVALID_MEDIA


def test_a_small_file_that_unpacks_to_hours_costs_no_memory():
    """FLAC codes silence in a few bytes a block."""
    silence = np.zeros(48_000 * 60, np.int16)
    data = encode(silence, FORMS[3], rate=48_000)[1]
    header = data[:42]
    bomb = header + data[42:] * 200  # 200 minutes in about 300 kB
    tracemalloc.start()
    try:
        with pytest.raises(DuplexError) as caught:
            decode_audio(bomb, limits=DecodeLimits(max_seconds=60))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MEDIA_TOO_LARGE
    assert peak < 40 << 20


@pytest.mark.parametrize(
    ("form", "head"),
    [
        ("wav", b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\x7f"),
        ("webm", ebml(0x1A45DFA3, ebml(0x4282, "webm")) + ebml_id(0x1654AE6B) + b"\x08\x7f\xff\xff\xff"),
        ("webm", ebml(0x1A45DFA3, ebml(0x4282, "webm")) + ebml_id(0x1654AE6B) + EBML_UNKNOWN),
        ("webm", ebml(0x1A45DFA3, ebml(0x4282, "html"))),
        ("mp4", b"\x7f\xff\xff\xffmoov"),
        ("mp4", b"\0\0\0\x01moov\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("mp4", b"\0\0\0\0moov"),
        ("mp4", b"\0\0\0\x04moov"),
        ("opus_raw", b"\0\0"),
        ("ogg", b"OggS\0\x02" + bytes(20) + b"\xff" + b"\xff" * 255 + bytes(65_025)),
    ],
)
def test_headers_that_ask_for_too_much_are_named(form, head):
    data = head + bytes(4 << 20)
    tracemalloc.start()
    try:
        assert code_of(data, form, (len(head), 64 << 10)) in NAMED
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


def test_nested_elements_do_not_recurse():
    group = ebml_id(0xA0) + EBML_UNKNOWN
    data = ebml(0x1A45DFA3, ebml(0x4282, "webm")) + (ebml_id(0x18538067) + EBML_UNKNOWN) * 5000 + group * 5000
    assert code_of(data, "webm") is ErrorCode.INVALID_MEDIA
    box = b""
    for _ in range(3000):
        box = struct.pack(">I4s", len(box) + 8, b"trak") + box
    assert code_of(struct.pack(">I4s", len(box) + 8, b"moov") + box, "mp4") in NAMED


def test_an_mp4_that_names_other_files_opens_none(good, tmp_path):
    """A data reference of an MP4 may be a path or an address."""
    secret = tmp_path / "secret.wav"
    secret.write_bytes(encode(voice(24_000), FORMS[2], rate=24_000)[1])
    data = good["mp4"]
    at = data.find(b"url \0\0\0\x01")
    assert at > 0
    for name in (str(secret), f"file:{secret}", "http://127.0.0.1:9/x.wav"):
        entry = struct.pack(">I4sI", 12 + len(name) + 1, b"url ", 0) + name.encode() + b"\0"
        hostile = data[: at - 4] + entry + data[at + 8 :]
        # all boxes around it grow
        grown = bytearray(hostile)
        for kind in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
            box = grown.rfind(kind, 0, at) - 4
            size = int.from_bytes(grown[box : box + 4], "big") + len(entry) - 12
            grown[box : box + 4] = size.to_bytes(4, "big")
        assert code_of(bytes(grown), "mp4") in NAMED


def test_playlists_are_no_audio(tmp_path):
    for text in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/a.ts\n",
        "ffconcat version 1.0\n",
    ):
        with pytest.raises(DuplexError):
            decode_audio(text.encode())
        for name in FRAMED:
            assert code_of(text.encode(), name) in NAMED


def test_an_empty_file_and_an_unknown_one_are_named():
    with pytest.raises(DuplexError) as caught:
        decode_audio(b"")
    assert caught.value.code is ErrorCode.EMPTY_INPUT
    with pytest.raises(DuplexError) as caught:
        decode_audio(b"GIF89a" + bytes(100))
    assert caught.value.code is ErrorCode.INVALID_MEDIA


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"format": "midi"}, "format"),
        ({"format": "pcm_s16le"}, "input_rate"),
        ({"format": "pcm_s16le", "input_rate": -5}, "input_rate"),
        ({"format": "wav", "output_rate": 7}, "output_rate"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(options, param):
    with pytest.raises(DuplexError) as caught:
        open_decoder(**options)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FORMAT
    assert caught.value.param == param


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_floats_that_are_no_numbers_are_named(value):
    floats = np.array([0, value, 0], "<f4").tobytes()
    assert code_of(floats, "pcm_f32le", input_rate=8000) is ErrorCode.INVALID_AUDIO
    wav = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 0, b"WAVEfmt ", 16, 3, 1, 8000, 0, 4, 32, b"data", 0)
    assert code_of(wav + floats, "wav") is ErrorCode.INVALID_AUDIO


def test_raw_audio_that_ends_inside_a_sample_is_named():
    form = Form("pcm_s16le", None, "pcm_s16le")
    assert code_of(b"abc", form.decoder, input_rate=8000) is ErrorCode.ODD_AUDIO_BYTES
