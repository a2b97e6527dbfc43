"""Mel filter banks, for models that hear log mel spectrograms."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def mel_filters(sample_rate: int, fft: int, bands: int) -> NDArray[np.float32]:
    """Slaney's mel filter bank from 0 Hz to half the sample rate, each triangle of area 2 / its width in Hz:
    (bands, fft // 2 + 1). The same numbers as librosa.filters.mel with its defaults."""
    edges = _from_mel(np.linspace(0.0, _to_mel(sample_rate / 2), bands + 2))
    bins = np.linspace(0.0, sample_rate / 2, fft // 2 + 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    bank = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
    return bank.astype(np.float32)


# Slaney's scale: 3 mels are 200 Hz up to 1 kHz, 27 mels are a factor of 6.4 above
_MELS_A_HZ = 3 / 200
_KNEE_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27


def _to_mel(hz: float) -> float:
    if hz < _KNEE_HZ:
        return hz * _MELS_A_HZ
    return _KNEE_HZ * _MELS_A_HZ + math.log(hz / _KNEE_HZ) / _LOG_STEP


def _from_mel(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    knee = _KNEE_HZ * _MELS_A_HZ
    return np.where(
        mels < knee, mels / _MELS_A_HZ, _KNEE_HZ * np.exp(_LOG_STEP * np.maximum(mels - knee, 0.0))
    )
