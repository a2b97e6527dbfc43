"""Sample conversion, byte carry-over, resampling, G.711."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import soxr
from audio_signals import cuts, snr_db, voice
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.codecs import SAMPLE_RATES, PcmBytes, Resampler, resample_chunks, to_float32, to_int16
from duplex.codecs.g711 import decode_g711, encode_g711
from duplex.core.errors import DuplexError, ErrorCode

ALL_INT16 = np.arange(-32768, 32768).astype(np.int16)


def test_int16_survives_the_way_through_float_unchanged():
    assert np.array_equal(to_int16(to_float32(ALL_INT16)), ALL_INT16)


def test_floats_saturate_and_never_wrap():
    floats = np.array([1.0, 1.5, 3e38, -1.0, -1.5, -3e38, 0.9999847], np.float32)
    assert to_int16(floats).tolist() == [32767, 32767, 32767, -32768, -32768, -32768, 32767]
    assert np.abs(to_float32(floats)).max() == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("convert", [to_int16, to_float32, lambda x: Resampler(24000, 16000).feed(x)])
def test_samples_that_are_not_finite_are_refused_by_name(convert, bad):
    with pytest.raises(DuplexError) as caught:
        convert(np.array([0.0, bad], np.float32))
    assert caught.value.code is ErrorCode.INVALID_AUDIO


@pytest.mark.parametrize(
    "bad",
    [np.zeros((2, 2), np.int16), np.zeros(3, np.float64), np.zeros(3, np.int32), np.zeros(3, ">i2"), [0, 1]],
)
def test_samples_of_another_kind_are_refused_by_name(bad):
    with pytest.raises(DuplexError) as caught:
        to_int16(bad)
    assert caught.value.code is ErrorCode.INVALID_AUDIO


@given(st.binary(max_size=200), st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any))
def test_odd_bytes_are_carried_over(data, sizes):
    """Fault 18: an odd byte count in a chunk made white noise of all that followed."""
    stream = PcmBytes()
    parts = []
    for piece in cuts(len(data), sizes):
        parts.append(stream.feed(data[piece]))
        assert stream.pending == min(piece.stop, len(data)) % 2
    joined = b"".join(part.tobytes() for part in parts)
    assert joined == data[: len(data) // 2 * 2]


def test_a_stream_that_ends_inside_a_sample_is_named():
    stream = PcmBytes("float32")
    assert len(stream.feed(bytes(7))) == 1
    assert stream.pending == 3
    with pytest.raises(DuplexError) as caught:
        stream.flush()
    assert caught.value.code is ErrorCode.ODD_AUDIO_BYTES
    stream.flush()  # said once


# --- resampling ------------------------------------------------------------------------------------

PAIRS = list(itertools.permutations(SAMPLE_RATES, 2))


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(max_examples=6, deadline=None)
@given(
    length=st.integers(1, 9000),
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=8).filter(any),
)
def test_chunks_resample_like_the_whole(source, target, length, sizes):
    """Fault 19: a resampler without state clicks at each chunk (39.6 dB SNR was seen)."""
    samples = voice(length, source)
    stream = Resampler(source, target)
    parts = [stream.feed(samples[piece]) for piece in cuts(length, sizes)]
    parts.append(stream.flush())  # fault 20: without it the tail is lost
    whole = soxr.resample(samples.astype(np.float32) / 32768, source, target)
    expected = np.rint(whole.clip(-1, 32767 / 32768) * 32768)
    joined = np.concatenate(parts).astype(np.int64)
    assert len(joined) == len(expected) == stream.samples_out
    assert np.abs(joined - expected).max(initial=0) <= 2
    assert stream.samples_in == length


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_two_streams_cut_differently_agree_to_the_bit(dtype):
    samples = voice(40_000)
    chunked = np.concatenate(
        list(resample_chunks((samples[p] for p in cuts(40_000, (1, 77, 480))), 24000, 44100, dtype=dtype))
    )
    whole = np.concatenate(list(resample_chunks([samples], 24000, 44100, dtype=dtype)))
    assert np.array_equal(chunked, whole)
    assert chunked.dtype == np.dtype(dtype)


def test_resampled_chunks_are_never_empty():
    tiny = (voice(600)[p] for p in cuts(600, (1, 0)))
    assert all(len(chunk) for chunk in resample_chunks(tiny, 24000, 8000))
    assert list(resample_chunks([], 24000, 8000)) == []
    assert list(resample_chunks([np.empty(0, np.int16)], 24000, 8000)) == []


def test_a_full_scale_square_wave_saturates_when_the_filter_overshoots():
    square = np.where(np.arange(4800) // 37 % 2, 32767, -32768).astype(np.int16)
    out = np.concatenate(list(resample_chunks([square], 24000, 48000)))
    # a wrapped sample would stand between neighbours of the other sign
    held = np.repeat(square, 2)
    inner = np.ones(len(held), bool)
    for edge in np.flatnonzero(np.diff(held.astype(int))):
        inner[max(0, edge - 4) : edge + 6] = False
    assert (np.sign(out[inner]) == np.sign(held[inner])).all()
    assert out.max() == 32767


def test_loudness_is_kept():
    tone = (np.sin(2 * np.pi * 440 * np.arange(24000) / 24000) * 16000).astype(np.int16)
    for target in SAMPLE_RATES:
        out = np.concatenate(list(resample_chunks([tone], 24000, target)))[200:-200]
        level = 20 * np.log10(np.sqrt(np.mean(out.astype(float) ** 2)) / (16000 / np.sqrt(2)))
        assert abs(level) < 0.01


def test_an_hour_in_chunks_keeps_the_sample_clock_exact():
    stream = Resampler(24000, 44100)
    chunk = voice(24000 * 10)
    for _ in range(360):
        stream.feed(chunk)
    stream.flush()
    assert stream.samples_in == 24000 * 3600
    assert stream.samples_out == 44100 * 3600


def test_a_bad_chunk_leaves_the_stream_usable():
    stream, spared = Resampler(24000, 16000), Resampler(24000, 16000)
    samples = voice(2000)
    first = stream.feed(samples[:1000])
    with pytest.raises(DuplexError):
        stream.feed(np.full(10, np.nan, np.float32))
    joined = np.concatenate([first, stream.feed(samples[1000:]), stream.flush()])
    assert np.array_equal(joined, np.concatenate([spared.feed(samples), spared.flush()]))


@pytest.mark.parametrize("rate", [0, -1, 999, 192_001, 24000.0, True, None])
def test_rates_that_cannot_be_are_refused_by_name(rate):
    with pytest.raises(DuplexError) as caught:
        Resampler(rate, 24000)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FORMAT
    assert caught.value.param == "input_rate"


# --- G.711 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
def test_g711_codes_decode_and_encode_to_themselves(law):
    codes = bytes(range(256))
    again = encode_g711(decode_g711(codes, law), law)
    # µ-law has two zeros; the negative one is coded as the positive
    assert [i for i in range(256) if again[i] != i] == ([127] if law == "ulaw" else [])


@pytest.mark.parametrize(
    ("law", "pairs"),
    [
        # from the tables of ITU-T G.711: positive and negative full scale, zero, small values
        ("ulaw", {0: 0xFF, 32767: 0x80, -32768: 0x00, 8: 0xFE, -9: 0x7E, 124: 0xEF}),
        ("alaw", {8: 0xD5, -8: 0x55, 32767: 0xAA, -32768: 0x2A, 512: 0xF5, 1024: 0xE5}),
    ],
)
def test_g711_codes_are_those_of_the_recommendation(law, pairs):
    samples = np.array(list(pairs), np.int16)
    assert list(encode_g711(samples, law)) == list(pairs.values())


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
def test_g711_error_is_within_half_a_step(law):
    decoded = decode_g711(encode_g711(ALL_INT16, law), law).astype(int)
    error = np.abs(decoded - ALL_INT16)
    # a step is at most 1/16 of the magnitude (with µ-law's bias of 132), or A-law's first one of 16;
    # the last code stands for all above 32,124
    magnitude = np.abs(ALL_INT16.astype(int))
    assert (error <= np.maximum((magnitude + 132) / 32 + 4, np.where(magnitude > 31_600, 650, 16))).all()
    assert snr_db(voice(24000), decode_g711(encode_g711(voice(24000), law), law)) > 33
