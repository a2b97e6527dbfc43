"""Voice activity: the framing that the model needs, and what it makes of the frames of many sessions.

Audio of any rate and chunk size becomes frames of 512 samples at 16 kHz; each frame gets a level and a
probability of speech. Frames of several sessions are heard together: what this costs is calls, not samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.silero import FRAME_SAMPLES, STATE_SIZE
from duplex.codecs.resample import Resampler, check_rate

SAMPLE_RATE: Final = 16000
FRAME_MS: Final = FRAME_SAMPLES / SAMPLE_RATE * 1000
FLOOR_DBFS: Final = -120.0

QUIET_DBFS: Final = -66.0
"""A frame below this level is no speech, whoever speaks how softly: 16 steps of the 16 bit scale."""
_QUIET_AFTER = 10  # frames that the model hears of a silence before it is left alone
_WARM_UP = 2  # frames of the silence that it hears again before what ends it

Frame = NDArray[np.int16]
Floats = NDArray[np.float32]

_NOTHING: Final[Floats] = np.zeros(STATE_SIZE, np.float32)


class Framer:
    """Microphone audio in any pieces, at any rate, as whole frames. One stream resampler a stream."""

    def __init__(self) -> None:
        self._rate = SAMPLE_RATE
        self._resampler: Resampler | None = None
        self._rest: Frame = np.zeros(0, np.int16)

    @property
    def pending_ms(self) -> float:
        """Audio that waits for the rest of its frame."""
        return len(self._rest) / SAMPLE_RATE * 1000

    def feed(self, pcm: bytes, rate: int) -> Iterator[Frame]:
        """The frames that `pcm` (whole int16 samples, `rate` Hz) completes, each of shape (512,)."""
        samples: Any = np.frombuffer(pcm, dtype="<i2")
        if rate != self._rate:
            yield from self._whole(self._tail())
            self._resampler = Resampler(check_rate(rate), SAMPLE_RATE) if rate != SAMPLE_RATE else None
            self._rate = rate
        if self._resampler is not None:
            samples = self._resampler.feed(samples)
        yield from self._whole(samples)

    def flush(self) -> Iterator[Frame]:
        """The input pauses or ends here: what was held back, its last frame filled up with silence."""
        yield from self._whole(self._tail())
        if self._resampler is not None:
            self._resampler = Resampler(self._rate, SAMPLE_RATE)
        if len(self._rest):
            frame, self._rest = self._rest, np.zeros(0, np.int16)
            yield np.pad(frame, (0, FRAME_SAMPLES - len(frame)))

    def _tail(self) -> Any:
        return self._resampler.flush() if self._resampler is not None else self._rest[:0]

    def _whole(self, samples: Frame) -> Iterator[Frame]:
        joined = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        self._rest = joined[whole:].copy()
        for start in range(0, whole, FRAME_SAMPLES):
            yield joined[start : start + FRAME_SAMPLES]


class ActivityModel(Protocol):
    """What `Silero` does."""

    def __call__(self, frames: Floats, states: Floats) -> tuple[Floats, Floats]: ...


class VoiceActivity:
    """What the model remembers of one session, and when it need not be asked: a muted microphone costs next
    to nothing, as in a long silence every frame is no speech. `hear` asks it."""

    def __init__(self) -> None:
        self._state = _NOTHING
        self._quiet = _QUIET_AFTER
        self._kept: deque[Floats] = deque(maxlen=_WARM_UP)

    def reset(self) -> None:
        """The input was interrupted: what comes next does not follow what came before."""
        self._quiet = _QUIET_AFTER + 1
        self._kept.clear()

    def _asks(self, wave: Floats, level_dbfs: float, model: ActivityModel) -> bool:
        """The model has to hear this frame."""
        if level_dbfs < QUIET_DBFS:
            self._quiet += 1
            if self._quiet > _QUIET_AFTER:
                self._kept.append(wave.copy())  # the others' frames need not be kept with it
                return False
        if self._quiet > _QUIET_AFTER:
            self._state = _NOTHING
            for silent in self._kept:
                _, states = model(silent[None], self._state[None])
                self._state = states[0]
            self._kept.clear()
        if level_dbfs >= QUIET_DBFS:
            self._quiet = 0
        return True


def hear(
    model: ActivityModel, sessions: Sequence[VoiceActivity], frames: Sequence[Frame]
) -> list[tuple[float, float]]:
    """The next frame of each of several sessions.

    Args:
        sessions: each at most once.
        frames: one of each session, shape (512,).

    Returns:
        RMS level of each frame, dB of full scale (`FLOOR_DBFS` for silence), and its probability of speech.
    """
    waves = np.array(frames, np.float32)
    waves *= 1 / 32768
    powers = np.einsum("ij,ij->i", waves, waves).tolist()
    levels = [
        max(FLOOR_DBFS, 10 * math.log10(power / FRAME_SAMPLES)) if power > 0 else FLOOR_DBFS
        for power in powers
    ]
    told = [0.0] * len(levels)
    asked = [i for i, session in enumerate(sessions) if session._asks(waves[i], levels[i], model)]
    if asked:
        if len(asked) < len(levels):
            waves = waves[asked]
        probabilities, states = model(waves, np.array([sessions[i]._state for i in asked]))
        for i, probability, state in zip(asked, probabilities.tolist(), states, strict=True):
            told[i] = probability
            sessions[i]._state = state.copy()
    return list(zip(levels, told, strict=True))
