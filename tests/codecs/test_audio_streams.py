"""Encoders and decoders as streams: any cut gives the same result, and no sample is lost or added."""

from __future__ import annotations

import struct
import tracemalloc
import wave
from io import BytesIO

import numpy as np
import pytest
import soundfile
from audio_signals import FORMS, Form, cuts, decode, encode, form_id, libav_samples, opener, snr_db, voice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex.codecs import CODECS, SAMPLE_RATES, open_encoder, to_float32
from duplex.core.errors import DuplexError, ErrorCode

few = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
pieces = st.lists(st.integers(0, 3000), min_size=1, max_size=6).filter(any)
every_form = pytest.mark.parametrize("form", FORMS, ids=form_id)
every_rate = pytest.mark.parametrize("rate", SAMPLE_RATES)


def lossless(form: Form) -> bool:
    return form.codec in ("pcm_s16le", "pcm_f32le", "wav", "flac")


def test_the_forms_cover_every_codec():
    assert {form.codec for form in FORMS} == set(CODECS)


@every_form
@every_rate
@few
@given(length=st.integers(1, 20_000), sizes=pieces, byte_sizes=pieces)
def test_any_cut_gives_the_same_and_all_samples_come_back(form, rate, length, sizes, byte_sizes):
    """Faults 18-21: the sum of decoded samples is the sum of the input's, whatever the chunks."""
    samples = voice(length, rate)
    encoder, whole = encode(samples, form, rate=rate)
    _, chunked = encode(samples, form, rate=rate, sizes=sizes)
    assert chunked == whole

    coded = round(length * encoder.sample_rate / rate)  # opus has no 22.05 and 44.1 kHz
    once = opener(form, encoder, coded)
    decoded = decode(once, whole)
    assert np.array_equal(decoded, decode(opener(form, encoder, coded), whole, byte_sizes))
    assert once.sample_rate == (48_000 if form.codec == "opus" else rate)
    if form.codec == "mp3":  # its padding cannot be told before the end
        assert len(decoded) == length + encoder.padding_samples
        decoded = decoded[:length]
    assert len(decoded) == round(coded * once.sample_rate / encoder.sample_rate)
    if lossless(form):
        assert np.array_equal(decoded, samples)


@every_form
@few
@given(
    rates=st.tuples(st.sampled_from((16000, 22050, 24000)), st.sampled_from(SAMPLE_RATES)),
    length=st.integers(3, 15_000),  # fewer may be none at 8 kHz, and a stream of no frame is no audio
    sizes=pieces,
)
def test_any_cut_gives_the_same_when_the_encoder_resamples(form, rates, length, sizes):
    source, target = rates
    samples = to_float32(voice(length, source))
    encoder, whole = encode(samples, form, rate=source, output_rate=target)
    _, chunked = encode(samples, form, rate=source, output_rate=target, sizes=sizes)
    assert chunked == whole
    resampled = length * encoder.sample_rate / source
    decoded = decode(opener(form, encoder, None), whole)
    extra = encoder.padding_samples if form.decoder in ("mp3", "aac", "opus_raw") else 0
    scale = 48_000 / encoder.sample_rate if form.codec == "opus" else 1
    assert abs(len(decoded) - (resampled + extra) * scale) <= scale


@every_form
@pytest.mark.parametrize("output_rate", [8000, 16000, 44100])
def test_decoders_resample_like_the_whole(form, output_rate):
    encoder, data = encode(voice(24000), form, rate=24000)
    whole = decode(opener(form, encoder, 24000, output_rate=output_rate), data)
    chunked = decode(opener(form, encoder, 24000, output_rate=output_rate), data, (1, 700, 13))
    assert np.array_equal(whole, chunked)
    if form.codec != "mp3":
        assert len(whole) == output_rate


@pytest.mark.parametrize(
    ("form", "least_db"),
    [(form, 60 if lossless(form) else 33 if "711" in form.codec else 10) for form in FORMS],
    ids=lambda value: form_id(value) if isinstance(value, Form) else "",
)
def test_the_audio_is_where_it_was(form, least_db):
    """An encoder delay that is not removed would leave no likeness at all."""
    samples = voice(48_000, 24000)
    encoder, data = encode(samples, form, rate=24000)
    decoded = decode(opener(form, encoder, 48_000, output_rate=24000), data)[:48_000]
    assert len(decoded) == 48_000
    assert snr_db(samples[2400:-2400], decoded[2400:-2400]) > least_db


@every_form
def test_floats_and_integers_make_the_same_stream(form):
    samples = voice(9000)
    assert encode(samples, form, rate=24000)[1] == encode(to_float32(samples), form, rate=24000)[1]


@every_form
def test_a_bad_chunk_is_named_and_changes_nothing(form):
    samples = voice(6000)
    encoder = open_encoder(form.codec, input_rate=24000, output_rate=24000, container=form.container)
    parts = [encoder.feed(samples[:2000])]
    for bad in (np.array([0.0, np.nan], np.float32), np.zeros((2, 2), np.int16), np.zeros(4, np.float64)):
        with pytest.raises(DuplexError) as caught:
            encoder.feed(bad)
        assert caught.value.code is ErrorCode.INVALID_AUDIO
    parts += [encoder.feed(samples[2000:]), encoder.flush()]
    assert b"".join(parts) == encode(samples, form, rate=24000)[1]


@every_form
def test_a_flushed_encoder_is_over(form):
    encoder = open_encoder(form.codec, input_rate=24000, container=form.container)
    encoder.feed(voice(1000))
    encoder.flush()
    assert encoder.flush() == b""
    with pytest.raises(ValueError):
        encoder.feed(voice(1000))


@every_form
def test_no_audio_is_no_samples_or_no_stream(form):
    encoder, data = encode(np.empty(0, np.int16), form, rate=24000)
    if form.decoder in ("mp3", "aac", "webm"):
        return  # nothing, or a header alone, which no decoder takes for a stream
    assert len(decode(opener(form, encoder, 0), data)) == 0


@pytest.mark.parametrize("form", [form for form in FORMS if form.codec != "mp3"], ids=form_id)
def test_a_long_stream_keeps_memory_flat_and_the_sample_clock_exact(form):
    """Three minutes through encoder and decoder at once; nothing may pile up in either."""
    second = voice(24_000)
    encoder = open_encoder(form.codec, input_rate=24_000, output_rate=16_000, container=form.container)
    decoder = opener(form, encoder, None)
    samples = 0

    def run(seconds: int) -> int:
        return sum(len(decoder.feed(encoder.feed(second))) for _ in range(seconds))

    samples += run(20)
    tracemalloc.start()
    try:
        samples += run(20)
        before = tracemalloc.get_traced_memory()[0]
        samples += run(140)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    samples += len(decoder.feed(encoder.flush())) + len(decoder.flush())
    assert after - before < 100_000
    untold = encoder.padding_samples if form.decoder in ("aac", "opus_raw") else 0
    scale = 3 if form.codec == "opus" else 1
    assert samples == (180 * 16_000 + untold) * scale


# --- what libav, libsndfile and the standard library make of our streams --------------------------------


@every_rate
@pytest.mark.parametrize(
    ("form", "container"),
    [
        (FORMS[2], "wav"),
        (FORMS[3], "flac"),
        (FORMS[4], "mp3"),
        (FORMS[5], "aac"),
        (FORMS[6], "ogg"),
        (FORMS[7], "matroska"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_libav_plays_exactly_the_input(form, container, rate):
    length = 2 * rate + 317
    encoder, data = encode(voice(length, rate), form, rate=rate)
    total, decoded_rate = libav_samples(data, container)
    declared = length
    if form.codec == "aac":
        declared += encoder.delay_samples + encoder.padding_samples
    if form.codec == "mp3":
        declared += encoder.padding_samples
    coded = round(declared * encoder.sample_rate / rate)
    assert total == coded * decoded_rate // encoder.sample_rate


@every_rate
def test_an_mp3_of_known_length_is_trimmed_at_both_ends_by_any_player(rate):
    length = rate + 123
    _, data = encode(voice(length, rate), FORMS[4], rate=rate, total_samples=length)
    assert libav_samples(data, "mp3") == (length, rate)


@pytest.mark.parametrize(("form", "subtype"), [(FORMS[2], "PCM_16"), (FORMS[3], "PCM_16")])
def test_libsndfile_reads_streams_of_unknown_length(form, subtype):
    samples = voice(30_000)
    data = encode(samples, form, rate=24000, total_samples=30_000)[1]
    read, rate = soundfile.read(BytesIO(data), dtype="int16")
    assert rate == 24000
    assert np.array_equal(read, samples)
    assert soundfile.info(BytesIO(data)).subtype == subtype


def test_the_standard_library_reads_a_wav_of_known_length():
    samples = voice(1000)
    with wave.open(BytesIO(encode(samples, FORMS[2], rate=16000, total_samples=1000)[1])) as file:
        assert (file.getnframes(), file.getframerate(), file.getnchannels()) == (1000, 16000, 1)
        assert file.readframes(1000) == samples.tobytes()


# --- shape of the streams ----------------------------------------------------------------------------


def test_the_wav_header_is_sent_once_and_says_that_the_length_is_unknown():
    encoder = open_encoder("wav", input_rate=24000)
    first = encoder.feed(voice(10))
    assert struct.unpack_from("<4sI", first) == (b"RIFF", 0xFFFFFFFF)
    assert struct.unpack_from("<4sI", first, 36) == (b"data", 0xFFFFFFFF)
    assert len(first) == 44 + 20
    assert encoder.feed(voice(10)) == voice(10).tobytes()
    assert encoder.flush() == b""


@every_form
def test_chunks_leave_as_they_are_made(form):
    """Fault 24: audio that comes in one burst at the end is no stream."""
    encoder = open_encoder(form.codec, input_rate=24000, container=form.container)
    samples = voice(48_000)
    sent = [len(encoder.feed(samples[piece])) for piece in cuts(48_000, (480,))]
    first = next(index for index, size in enumerate(sent) if size)
    assert first <= 9  # 200 ms: MP3's and AAC's frames and look-ahead are the longest
    longest = max(len(gap) for gap in "".join("1" if size else "0" for size in sent[first:]).split("1"))
    assert longest <= (3 if form.codec == "flac" else 2)  # three FLAC blocks of 24 ms go together


def test_flac_waits_for_no_second_block_at_first_nor_when_there_is_enough():
    encoder = open_encoder("flac", input_rate=24000)
    block = 576
    assert encoder.feed(np.zeros(block - 1, np.int16)) == b""
    assert encoder.feed(np.zeros(1, np.int16)) != b""
    assert encoder.feed(np.zeros(3 * block - 1, np.int16)) == b""
    assert encoder.feed(np.zeros(1, np.int16)) != b""
    for _ in range(20):  # 80 ms at a time
        assert encoder.feed(np.zeros(1920, np.int16)) != b""


@pytest.mark.parametrize("container", ["ogg", "webm", "raw"])
def test_opus_goes_at_the_next_rate_that_it_has(container):
    for asked, given_rate in ((22050, 24000), (44100, 48000), (8000, 8000)):
        assert open_encoder("opus", input_rate=24000, output_rate=asked, container=container).sample_rate == (
            given_rate
        )


def test_raw_opus_is_packets_after_their_lengths():
    _, data = encode(voice(24000), Form("opus", "raw", "opus_raw"), rate=24000)
    at = packets = 0
    while at < len(data):
        at += 2 + struct.unpack_from(">H", data, at)[0]
        packets += 1
    assert at == len(data)
    assert packets == 51  # 50 of 20 ms, and the look-ahead's


def test_only_copies_run_on_the_event_loop():
    for codec in CODECS:
        equal = open_encoder(codec, input_rate=24000, output_rate=24000)
        assert equal.inline == (codec in ("pcm_s16le", "pcm_f32le", "wav", "g711_ulaw", "g711_alaw"))
        assert not open_encoder(codec, input_rate=24000, output_rate=16000).inline


def test_int16_at_the_same_rate_is_passed_through_untouched():
    samples = voice(480)
    assert open_encoder("pcm_s16le", input_rate=24000).feed(samples) == samples.tobytes()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"codec": "mp2"}, "codec"),
        ({"codec": ""}, "codec"),
        ({"output_rate": 11025}, "sample_rate"),
        ({"input_rate": 0, "output_rate": 24000}, "input_rate"),
        ({"codec": "mp3", "bit_rate": 1}, "bit_rate"),
        ({"codec": "mp3", "bit_rate": "64000"}, "bit_rate"),
        ({"codec": "flac", "bit_rate": 64000}, "bit_rate"),
        ({"codec": "opus", "container": "mp4"}, "container"),
        ({"codec": "wav", "container": "ogg"}, "container"),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_name(options, param):
    asked = {"codec": "pcm_s16le", "input_rate": 24000} | options
    with pytest.raises(DuplexError) as caught:
        open_encoder(asked.pop("codec"), **asked)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FORMAT
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("codec", "rates"), [("mp3", (8000, 320_000)), ("aac", (8000, 288_000)), ("opus", (6000, 256_000))]
)
@every_rate
def test_every_bit_rate_in_range_opens(codec, rates, rate):
    for bit_rate in (*rates, None):
        encoder = open_encoder(codec, input_rate=rate, bit_rate=bit_rate)
        assert encoder.feed(voice(rate, rate)) + encoder.flush()
