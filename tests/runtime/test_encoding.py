"""From deltas to bytes."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import numpy as np
import pytest

from duplex.codecs.decoders import decode_audio
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioDelta, AudioFormat
from duplex.runtime.encoding import FLOOR_DBFS, EncoderPool, ResponseEncoder, level_dbfs, pieces


def wave(samples: int, rate: int = 24000) -> np.ndarray:
    return (np.sin(np.arange(samples) * 2 * np.pi * 440 / rate) * 12000).astype(np.int16)


def delta(samples: np.ndarray, rate: int = 24000, text: str = "") -> AudioDelta:
    return AudioDelta(samples=samples, sample_rate=rate, text=text)


async def test_pcm_at_its_own_rate_needs_no_thread() -> None:
    pool = EncoderPool(1)
    pool.close()  # it would raise
    encoder = ResponseEncoder(AudioFormat(), pool)
    sound = wave(480)
    encoded = await encoder.encode(delta(sound, text="hi"))
    assert encoded.payload == sound.tobytes()
    assert (encoded.samples, encoded.sample_rate, encoded.text) == (480, 24000, "hi")
    assert await encoder.flush() is None


async def test_level_follows_the_sound() -> None:
    """Measured from the first frame on, and at least every 60 ms."""
    encoder = ResponseEncoder(AudioFormat(), EncoderPool(1))
    levels = []
    for loud in (True,) * 5 + (False,) * 5 + (True,) * 5:
        encoded = await encoder.encode(delta(wave(480) if loud else np.zeros(480, np.int16)))
        levels.append(encoded.level_dbfs > -20)
    assert levels[0]
    assert levels[:5] == [True] * 5
    assert levels[7:10] == [False] * 3
    assert levels[12:] == [True] * 3


@pytest.mark.parametrize("codec", ["pcm_s16le", "flac", "opus"])
@pytest.mark.parametrize("rate", [22050, 16000])
async def test_counted_samples_do_not_drift(codec: str, rate: int) -> None:
    pool = EncoderPool(2)
    encoder = ResponseEncoder(AudioFormat(codec=codec, sample_rate=48000), pool)  # type: ignore[arg-type]
    sound = wave(rate, rate)
    counted, payload = 0, b""
    for start in range(0, len(sound), 441):
        encoded = await encoder.encode(delta(sound[start : start + 441], rate))
        counted += encoded.samples
        payload += encoded.payload
    tail = await encoder.flush()
    payload += tail.payload if tail else b""
    assert counted == 48000
    if codec == "pcm_s16le":
        assert len(payload) == 96000
    else:
        samples, out_rate = decode_audio(payload)
        assert abs(len(samples) / out_rate - 1) < 0.002
    pool.close()


async def test_changed_sample_rate_is_the_models_fault() -> None:
    encoder = ResponseEncoder(AudioFormat(), EncoderPool(1))
    await encoder.encode(delta(wave(480)))
    with pytest.raises(DuplexError, match="from 24000 to 16000") as caught:
        await encoder.encode(delta(wave(480), 16000))
    assert caught.value.code is ErrorCode.ADAPTER_FAILED


async def test_cancelled_work_is_dropped() -> None:
    """A job that waits behind a busy thread never runs once its response is cancelled."""
    pool = EncoderPool(1)
    gate, ran = threading.Event(), threading.Event()
    blocker = asyncio.ensure_future(pool.run(gate.wait))
    await asyncio.sleep(0)
    job = asyncio.ensure_future(pool.run(ran.set))
    await asyncio.sleep(0)
    assert pool.depth == 2
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    gate.set()
    await blocker
    await pool.run(lambda: None)
    assert not ran.is_set()
    assert pool.depth == 0
    pool.close()


def test_long_deltas_are_cut_into_pieces_that_join() -> None:
    sound = wave(24000 * 3 + 7)
    cut = list(pieces(delta(sound, text="three seconds")))
    assert max(len(piece.samples) for piece in cut) == 4800
    assert np.array_equal(np.concatenate([piece.samples for piece in cut]), sound)
    assert [piece.text for piece in cut if piece.text] == ["three seconds"]
    assert cut[0].text
    short = delta(sound[:4800])
    assert list(pieces(short)) == [short]


def test_levels() -> None:
    full = np.full(480, 32767, np.int16)
    assert level_dbfs(full) == pytest.approx(0, abs=0.001)
    assert level_dbfs(full.astype(np.float32) / 32768) == pytest.approx(0, abs=0.001)
    assert level_dbfs(np.zeros(480, np.int16)) == FLOOR_DBFS
    assert level_dbfs(np.zeros(0, np.int16)) == FLOOR_DBFS
    falling = [level_dbfs((wave(4800) / 2**n).astype(np.int16)) for n in range(4)]
    assert all(a - b == pytest.approx(6.02, abs=0.1) for a, b in pairwise(falling))
