"""The playback buffer: what a sound card gets, sample by sample."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.clients import AudioDelta, PlaybackBuffer, PlaybackClock
from duplex.clients.playback import DUCK_DB

RATE = 24000
MS = RATE // 1000
FADE = 15 * MS
LEVEL = 10_000


def tone(ms: float) -> np.ndarray:
    """Constant, so that fades and gaps show."""
    return np.full(round(ms * MS), LEVEL, np.int16)


def buffer(**options) -> PlaybackBuffer:
    return PlaybackBuffer(RATE, **{"cushion_ms": 60, "fade_ms": 15} | options)


def pull_all(playback: PlaybackBuffer, block: int = 480) -> np.ndarray:
    """What plays until silence."""
    parts = []
    while (played := playback.pull(block)).any():
        parts.append(played)
    return np.concatenate(parts) if parts else np.empty(0, np.int16)


def steps(samples: np.ndarray) -> int:
    """The largest step from one sample to the next, silence before and after: a click."""
    padded = np.concatenate([[0], samples.astype(int), [0]])
    return int(np.abs(np.diff(padded)).max())


CLICK = LEVEL // FADE * 2
"""A fade's own step, doubled for rounding."""


def test_silence_until_the_cushion_is_there():
    playback = buffer()
    playback.push(1, tone(59))
    assert not playback.pull(480).any()
    playback.push(1, tone(1))
    assert playback.pull(480).any()


def test_a_short_response_does_not_wait_for_the_cushion():
    playback = buffer()
    playback.push(1, tone(20))
    playback.finish(1)
    assert len(np.trim_zeros(pull_all(playback))) == pytest.approx(20 * MS, abs=2)


def test_both_ends_are_faded_and_the_middle_is_untouched():
    """Fault 10: hard cuts pop."""
    playback = buffer()
    playback.push(1, tone(200))
    playback.finish(1)
    played = pull_all(playback)
    assert steps(played) <= CLICK
    assert (played[FADE : 200 * MS - FADE] == LEVEL).all()
    assert playback.underruns == 0


def test_a_stall_fades_out_and_goes_on_with_a_larger_cushion():
    """Fault 43: a stall splits a word."""
    playback = buffer(grow_ms=40)
    playback.push(1, tone(100))
    first = pull_all(playback)
    assert steps(first) <= CLICK
    assert np.count_nonzero(first) == pytest.approx(100 * MS, abs=2)
    assert playback.underruns == 1
    assert playback.cushion_ms == 100
    playback.push(1, tone(99))
    assert not playback.pull(480).any()
    playback.push(1, tone(1))
    playback.finish(1)
    second = pull_all(playback)
    assert steps(second) <= CLICK
    assert np.count_nonzero(second) == pytest.approx(100 * MS, abs=2)


def test_the_cushion_stops_growing():
    playback = buffer(grow_ms=40, max_cushion_ms=120)
    for _ in range(5):
        playback.push(1, tone(150))
        pull_all(playback)
    assert playback.underruns == 5
    assert playback.cushion_ms == 120


def test_a_cancel_fades_out_at_once_and_drops_the_rest():
    playback = buffer()
    playback.push(1, tone(1000))
    before = playback.pull(480)
    playback.cancel(1)
    after = pull_all(playback)
    assert steps(np.concatenate([before, after])) <= CLICK
    assert np.count_nonzero(after) <= FADE
    assert playback.position() == (1, pytest.approx(20 + 15))
    assert playback.unplayed_ms() == 0


def test_a_ducked_voice_is_softer_and_comes_back_without_a_click():
    playback = buffer()
    playback.push(1, tone(400))
    playback.finish(1)
    loud = playback.pull(50 * MS)
    playback.duck(True)
    soft = playback.pull(100 * MS)
    playback.duck(False)
    again = playback.pull(100 * MS)
    assert loud[-1] == again[-1] == LEVEL
    assert soft[-1] == pytest.approx(LEVEL * 10 ** (DUCK_DB / 20), abs=1)
    assert np.abs(np.diff(np.concatenate([loud, soft, again]).astype(int))).max() <= CLICK
    assert len(pull_all(playback)) >= 150 * MS  # nothing is lost by it


def test_what_comes_of_a_cancelled_response_is_dropped():
    """Fault 42: the queue is cleared, then the same utterance's next frame restarts it."""
    playback = buffer()
    playback.push(1, tone(100))
    playback.cancel(1)
    playback.push(1, tone(1000))
    playback.finish(1)
    assert not playback.pull(4800).any()
    assert playback.dropped_samples == 1100 * MS
    playback.push(2, tone(100))
    assert playback.pull(480).any()


def test_a_cancel_of_what_waits_leaves_what_sounds():
    playback = buffer()
    playback.push(1, tone(100))
    playback.finish(1)
    playback.push(2, tone(100))
    playback.pull(480)
    playback.cancel(2)
    rest = pull_all(playback)
    assert np.count_nonzero(rest) == pytest.approx(80 * MS, abs=2)
    assert playback.position() == (1, pytest.approx(100))


def test_responses_play_one_after_the_other():
    playback = buffer()
    for index in (1, 2):
        playback.push(index, tone(100))
        playback.finish(index)
    played = pull_all(playback)
    assert steps(played) <= CLICK
    assert np.count_nonzero(played) == pytest.approx(200 * MS, abs=4)
    assert playback.position() == (2, pytest.approx(100))


def test_position_says_what_was_played():
    playback = buffer()
    assert playback.position() is None
    playback.push(7, tone(200))
    playback.pull(480)
    assert playback.position() == (7, pytest.approx(20))
    playback.pull(960)
    assert playback.position() == (7, pytest.approx(60))
    assert playback.unplayed_ms() == pytest.approx(140)


def test_audio_of_another_rate_keeps_its_length():
    """Fault 41: a sound card that is not at the audio's rate."""
    playback = PlaybackBuffer(48000)
    for _ in range(10):
        playback.push(1, tone(20), RATE)
    playback.finish(1)
    played = pull_all(playback)
    assert len(np.trim_zeros(played)) == pytest.approx(200 * 48, abs=50)
    assert playback.position() == (1, pytest.approx(200, abs=1))


def test_the_buffer_is_bounded():
    playback = buffer(max_buffer_ms=1000)
    playback.push(1, tone(900))
    with pytest.raises(BufferError, match="1000 ms"):
        playback.push(1, tone(101))
    playback.push(1, tone(100))


def test_deltas_of_other_codecs_are_refused():
    delta = AudioDelta(response_index=1, data=b"x", codec="mp3", sample_rate=24000)
    with pytest.raises(ValueError, match="mp3"):
        buffer().receive(delta)


blocks = st.integers(1, 64) | st.integers(64, 2000)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=12), st.integers(50, 2000), st.data())
def test_nothing_clicks_and_nothing_is_lost_however_it_comes(chunks, block, data):
    """Any chunking, any block size, any pauses: every sample is played once, and no step is audible."""
    playback = buffer(max_cushion_ms=100)
    played = []
    for samples in chunks:
        playback.push(1, np.full(samples, LEVEL, np.int16))
        played += [playback.pull(block) for _ in range(data.draw(st.integers(0, 3)))]
    playback.finish(1)
    while playback.unplayed_ms() or (played and played[-1].any()):
        played.append(playback.pull(block))
    joined = np.concatenate([*played, playback.pull(FADE)])
    assert steps(joined) <= max(CLICK, 2 * LEVEL // min(FADE, sum(chunks)))
    # a fade of n samples begins or ends at zero: each stretch of sound may show up to two samples less
    stretches = playback.underruns + 1
    assert 0 <= sum(chunks) - np.count_nonzero(joined) <= 2 * stretches
    assert playback.position() == (1, pytest.approx(sum(chunks) / MS))


@settings(deadline=None)
@given(st.integers(1, 8000), blocks, st.integers(0, 5), blocks)
def test_a_cancel_at_any_time_never_clicks(samples, block, pulls, after):
    playback = buffer()
    playback.push(1, np.full(samples, LEVEL, np.int16))
    played = [playback.pull(block) for _ in range(pulls)]
    playback.cancel(1)
    played += [playback.pull(after) for _ in range(FADE // after + 1)]
    assert steps(np.concatenate(played)) <= CLICK
    assert not playback.pull(4800).any()


def test_a_sound_card_pulls_from_its_own_thread():
    playback = buffer()
    parts = []
    done = threading.Event()

    def sound_card():
        while not done.is_set() or playback.unplayed_ms():
            parts.append(playback.pull(480))

    thread = threading.Thread(target=sound_card)
    thread.start()
    for index in range(1, 20):
        for _ in range(10):
            playback.push(index, tone(20))
        playback.finish(index)
    done.set()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert np.count_nonzero(np.concatenate(parts)) == pytest.approx(19 * 200 * MS, abs=19 * 22)


# --- the clock --------------------------------------------------------------------------------------


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def delta(index: int, ms: float, codec: str = "pcm_s16le", rate: int = RATE, width: int = 2) -> AudioDelta:
    data = bytes(round(ms * rate / 1000) * width)
    return AudioDelta(response_index=index, data=data, codec=codec, sample_rate=rate)


def test_the_clock_plays_in_real_time():
    time = Time()
    clock = PlaybackClock(time)
    assert clock.position() is None
    clock.receive(delta(1, 100))
    clock.receive(delta(1, 100))
    assert clock.unplayed_ms() == pytest.approx(200)
    time.now += 0.15
    assert clock.position() == (1, pytest.approx(150))
    time.now += 1
    assert clock.position() == (1, pytest.approx(200))
    assert clock.unplayed_ms() == 0
    clock.receive(delta(1, 100))  # after a gap it goes on where it stopped
    time.now += 0.05
    assert clock.position() == (1, pytest.approx(250))


def test_the_clock_stops_a_cancelled_response_and_moves_up_the_next():
    time = Time()
    clock = PlaybackClock(time)
    clock.receive(delta(1, 100))
    clock.receive(delta(2, 100))
    time.now += 0.04
    clock.cancel(1)
    assert clock.position() == (1, pytest.approx(40))
    assert clock.unplayed_ms() == pytest.approx(100)
    time.now += 0.03
    assert clock.position() == (2, pytest.approx(30))
    clock.cancel(2)
    time.now += 5
    assert clock.position() == (2, pytest.approx(30))
    assert clock.unplayed_ms() == 0


def test_the_clock_plays_the_next_response_after_the_one_before():
    time = Time()
    clock = PlaybackClock(time)
    clock.receive(delta(1, 100))
    clock.finish(1)
    clock.receive(delta(2, 100, codec="g711_ulaw", rate=8000, width=1))
    time.now += 0.15
    assert clock.position() == (2, pytest.approx(50))


def test_the_clock_does_not_guess_the_length_of_compressed_audio():
    clock = PlaybackClock(Time())
    clock.receive(delta(1, 100, codec="mp3"))
    assert clock.position() is None
