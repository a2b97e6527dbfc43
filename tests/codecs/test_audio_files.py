"""Files that others wrote: every container, layout and sample type, in any pieces."""

from __future__ import annotations

import gc
import struct
import threading

import numpy as np
import pytest
from audio_signals import FORMS, SHARED, cuts, decode, encode, mux, snr_db, voice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex.codecs.decoders import decode_audio, format_of_media_type, open_decoder, sniff_audio
from duplex.core.errors import DuplexError

RATE = 24_000
LENGTH = 50_001

FRAGMENTED = {"movflags": "frag_keyframe+delay_moov", "frag_duration": "200000"}
# name, decoder, libav's muxer and codec, options, samples that come out for LENGTH that went in
FILES = [
    ("m4a, index behind", "mp4", "ipod", "aac", {}, LENGTH),
    ("mp4, fragmented", "mp4", "mp4", "aac", FRAGMENTED, LENGTH),
    ("mp4, flac", "mp4", "mp4", "flac", {}, LENGTH),
    ("mp4, mp3", "mp4", "mp4", "libmp3lame", {}, None),
    ("ogg, opus", "ogg", "ogg", "libopus", {}, 2 * LENGTH),
    ("ogg, opus, many packets a page", "ogg", "ogg", "libopus", {"page_duration": "600000"}, 2 * LENGTH),
    ("ogg, flac", "ogg", "ogg", "flac", {}, LENGTH),
    ("webm, opus", "webm", "webm", "libopus", {}, 2 * LENGTH),
    ("webm, opus, live", "webm", "webm", "libopus", {"live": "1"}, 2 * LENGTH),
    ("mkv, aac", "webm", "matroska", "aac", {}, 50_176),
    ("mkv, flac", "webm", "matroska", "flac", {}, LENGTH),
    ("mkv, mp3", "webm", "matroska", "libmp3lame", {}, LENGTH),
    ("mp3", "mp3", "mp3", "libmp3lame", {}, LENGTH),
    ("mp3 with tags", "mp3", "mp3", "libmp3lame", {"write_id3v1": "1", "id3v2_version": "4"}, LENGTH),
    ("adts", "aac", "adts", "aac", {}, 51_200),
    ("flac", "flac", "flac", "flac", {}, LENGTH),
    ("wav, 8 bits", "wav", "wav", "pcm_u8", {}, LENGTH),
    ("wav, 16 bits", "wav", "wav", "pcm_s16le", {}, LENGTH),
    ("wav, 24 bits", "wav", "wav", "pcm_s24le", {}, LENGTH),
    ("wav, 32 bits", "wav", "wav", "pcm_s32le", {}, LENGTH),
    ("wav, floats", "wav", "wav", "pcm_f32le", {}, LENGTH),
    ("wav, doubles", "wav", "wav", "pcm_f64le", {}, LENGTH),
    ("wav, µ-law", "wav", "wav", "pcm_mulaw", {}, LENGTH),
    ("wav, A-law", "wav", "wav", "pcm_alaw", {}, LENGTH),
    ("rf64", "wav", "wav", "pcm_s16le", {"rf64": "always"}, LENGTH),
]
every_file = pytest.mark.parametrize("file", FILES, ids=[name for name, *_ in FILES])


@pytest.fixture(scope="module")
def signal():
    return voice(LENGTH, RATE)


@pytest.fixture(scope="module")
def muxed(signal):
    made: dict[tuple[str, str], bytes] = {}

    def make(file, layout: str = "mono") -> bytes:
        name, _, container, codec, options, _ = file
        if (name, layout) not in made:
            made[name, layout] = mux(
                signal, RATE, container=container, codec=codec, layout=layout, options=options
            )
        return made[name, layout]

    return make


@every_file
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=6).filter(any))
def test_any_cut_of_a_file_gives_its_samples(muxed, signal, file, sizes):
    _, form, _, codec, _, samples = file
    data = muxed(file)
    decoder = open_decoder(form)
    whole = decode(decoder, data)
    assert np.array_equal(whole, decode(open_decoder(form), data, sizes))
    rate = 48_000 if codec == "libopus" else RATE
    assert decoder.sample_rate == rate
    if samples is not None:
        assert len(whole) == samples
    if codec not in ("libopus", "libmp3lame", "aac"):
        least = {"pcm_u8": 28, "pcm_mulaw": 33, "pcm_alaw": 33}.get(codec, 90)
        assert snr_db(signal, whole) > least


@every_file
def test_stereo_is_mixed_down(muxed, file):
    """Both channels carry the signal at -3 dB each, as libav pans a mono input."""
    name, form, _, codec, *_ = file
    if "mp4, flac" in name or codec == "libmp3lame":
        pytest.skip("the same path as another file")
    mixed = decode(open_decoder(form), muxed(file, "stereo"))
    mono = decode(open_decoder(form), muxed(file))
    assert len(mixed) == len(mono)
    gain = np.sqrt(np.mean(mixed.astype(float) ** 2) / np.mean(mono.astype(float) ** 2))
    assert gain == pytest.approx(1, abs=0.02) or gain == pytest.approx(np.sqrt(0.5), abs=0.02)


@every_file
def test_a_file_is_recognised_by_its_first_bytes(muxed, file):
    data = muxed(file)
    assert sniff_audio(data[:16]) == file[1]
    samples, rate = decode_audio(data, output_rate=16_000)
    assert rate == 16_000
    assert abs(len(samples) / rate - LENGTH / RATE) < 0.06


def test_audio_comes_before_the_file_is_whole(muxed):
    for file in FILES:
        name, form, *_ = file
        if "behind" in name or name.startswith("mp4, m") or name in ("mp4, flac", "ogg, flac", "flac"):
            continue  # an index behind the audio, or libav's look-ahead of a few blocks
        data = muxed(file)
        decoder = open_decoder(form)
        at = next(p.stop for p in cuts(len(data), (500,)) if len(decoder.feed(data[p])))
        assert at < len(data) / 2, name
        decoder.close()


def test_an_mp4_with_pictures_gives_its_sound():
    path = SHARED / "media" / "bigbuckbunny.mp4"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    samples, rate = decode_audio(path.read_bytes(), "mp4", output_rate=16_000)
    assert rate == 16_000
    assert len(samples) > 16_000


def test_a_recording_in_the_wild():
    path = SHARED / "media" / "two_cities.wav"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    samples, rate = decode_audio(path.read_bytes())
    assert len(samples) / rate > 1
    assert np.abs(samples).max() > 1000


# --- particular fields of particular formats --------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF - 36, 0xFFFFFFFF - 44])
def test_wav_lengths_that_mean_until_the_end(size):
    samples = voice(1000)
    head = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", size, b"WAVEfmt ", 16, 1, 1, 8000, 16000, 2, 16, b"data", size
    )
    assert np.array_equal(decode(open_decoder("wav"), head + samples.tobytes(), (7,)), samples)


def test_wav_chunks_before_and_after_the_audio_are_passed_over():
    samples = voice(500)
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    data = struct.pack("<4sI", b"data", 1000) + samples.tobytes()
    junk = struct.pack("<4sI", b"LIST", 5) + b"abcde\0"
    file = b"RIFF" + struct.pack("<I", 9999) + b"WAVE" + junk + fmt + junk + data + junk
    for sizes in ((), (1,), (3, 50)):
        assert np.array_equal(decode(open_decoder("wav"), file, sizes), samples)


def test_stereo_of_opposite_channels_is_silence():
    frames = np.stack([voice(400), -voice(400)], axis=1)
    head = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 0, b"WAVEfmt ", 16, 1, 2, 8000, 32000, 4, 16, b"data", 0)
    assert not decode(open_decoder("wav"), head + frames.tobytes(), (5,)).any()


def test_ogg_streams_one_after_the_other_join_without_a_gap():
    """Fault 21: a gap of 5.33 ms at each seam."""
    parts = [voice(24_000 * k // 4, seed=k) for k in (1, 2, 3)]
    streams = []
    for serial, part in enumerate(parts):
        stream = bytearray(encode(part, FORMS[6], rate=24_000)[1])
        streams.append(_with_serial(bytes(stream), serial))
    decoded = decode(open_decoder("ogg"), b"".join(streams), (100, 3000))
    alone = [decode(open_decoder("ogg"), stream) for stream in streams]
    assert np.array_equal(decoded, np.concatenate(alone))
    assert len(decoded) == 2 * sum(map(len, parts))


def _with_serial(stream: bytes, serial: int) -> bytes:
    """The Ogg stream under another serial number."""
    from duplex.codecs.framing import ogg_crc

    out, at = [], 0
    while at < len(stream):
        segments = stream[at + 26]
        size = 27 + segments + sum(stream[at + 27 : at + 27 + segments])
        page = bytearray(stream[at : at + size])
        page[14:18] = serial.to_bytes(4, "little")
        page[22:26] = bytes(4)
        page[22:26] = ogg_crc(bytes(page)).to_bytes(4, "little")
        out.append(bytes(page))
        at += size
    return b"".join(out)


def test_ogg_joined_in_the_middle_waits_for_the_next_stream():
    """Fault 22: what went on before is passed over; the stream that begins is decoded whole."""
    first = _with_serial(encode(voice(24_000), FORMS[6], rate=24_000)[1], 1)
    second = _with_serial(encode(voice(24_000, seed=1), FORMS[6], rate=24_000)[1], 2)
    expected = decode(open_decoder("ogg"), second)
    for start in (1, 900, first.find(b"OggS", 2000)):
        for sizes in ((), (1, 333)):
            assert np.array_equal(decode(open_decoder("ogg"), first[start:] + second, sizes), expected)


@pytest.mark.parametrize("form", [FORMS[4], FORMS[5]], ids=["mp3", "aac"])
def test_self_framed_streams_may_be_joined_anywhere(form):
    data = encode(voice(48_000), form, rate=24_000)[1]
    for start in (1001, 3333):
        whole = decode(open_decoder(form.decoder), data[start:])
        assert np.array_equal(whole, decode(open_decoder(form.decoder), data[start:], (1, 90)))
        assert 30_000 < len(whole) < 50_000


@pytest.mark.parametrize("lacing", [1, 2, 3])
def test_laced_matroska_blocks(lacing):
    from duplex.codecs.webm_decoder import _laced

    frames = [b"a" * 300, b"b" * 7, b"c" * 600] if lacing != 2 else [b"a" * 5, b"b" * 5, b"c" * 5]
    head = {
        1: bytes([2, 255, 45, 7]),
        2: bytes([2]),
        3: bytes([2]) + (0x4000 | 300).to_bytes(2, "big") + (0x4000 | (7 - 300 + 0x1FFF)).to_bytes(2, "big"),
    }[lacing]
    assert _laced(head + b"".join(frames), lacing) == frames


@pytest.mark.parametrize(
    ("media_type", "name"),
    [
        ("audio/webm;codecs=opus", "webm"),
        ("audio/ogg; codecs=opus", "ogg"),
        ("Audio/MPEG", "mp3"),
        ("audio/x-wav", "wav"),
        ("audio/mp4", "mp4"),
        ("audio/x-m4a", "mp4"),
        ("application/ogg", "ogg"),
        ("text/plain", None),
        ("", None),
    ],
)
def test_media_types_name_decoders(media_type, name):
    assert format_of_media_type(media_type) == name


def _demux_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("duplex-demux")]


@pytest.mark.parametrize("leave", ["close", "forget", "fail", "flush"])
def test_a_decoder_that_is_left_leaves_no_thread(muxed, leave):
    data = muxed(FILES[1])
    decoder = open_decoder("mp4")
    decoder.feed(data[: len(data) // 2])
    (thread,) = _demux_threads()
    if leave == "close":
        decoder.close()
        decoder.close()
    elif leave == "flush":
        decoder.feed(data[len(data) // 2 :])
        decoder.flush()
    elif leave == "fail":
        with pytest.raises(DuplexError):
            decoder.flush()
    del decoder
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
