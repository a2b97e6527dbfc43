"""Smart Turn v3: how likely it is, by the sound of the voice, that the user has finished.

The model is a small network over Whisper's log-mel features of the last 8 s, 8.7 MB, by the makers of
Pipecat. It lies inside their package `pipecat-ai`, of which nothing else is used: `pip install --no-deps
pipecat-ai` will do. Where that is not installed, the transcript has to.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.codecs.mel import mel_filters

SAMPLE_RATE: Final = 16000
SECONDS: Final = 8
MEL_BANDS: Final = 80
_WINDOW: Final = 400
_HOP: Final = 160


def find_model() -> Path | None:
    """The newest of the model's files that are installed, None when there is none. Imports nothing."""
    spec = importlib.util.find_spec("pipecat")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    found = [
        file
        for folder in folders
        for file in Path(folder, "audio/turn/smart_turn/data").glob("smart-turn-v3*cpu.onnx")
    ]
    return max(found, key=lambda file: file.name, default=None)


class SmartTurn:
    """The model, shared by all sessions. `start` loads it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._session: Any = None
        self._filters = mel_filters(SAMPLE_RATE, _WINDOW, MEL_BANDS)

    def start(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(self._file), options, providers=["CPUExecutionProvider"]
        )

    def stop(self) -> None:
        self._session = None

    def complete(self, samples: NDArray[np.float32]) -> float:
        """Probability that the turn is complete. `samples`: the turn so far, mono float32 at 16 kHz, shape
        (n,), with a little of the pause; of a longer one the last 8 s count. Takes about 60 ms of a core."""
        features = log_mel(samples, self._filters)[None]
        (logits,) = self._session.run(None, {"input_features": features})
        return float(np.clip(logits.reshape(-1)[0], 0.0, 1.0))


def log_mel(samples: NDArray[np.float32], filters: NDArray[np.float32]) -> NDArray[np.float32]:
    """Whisper's features of the last 8 s, filled up with silence in front: shape (80, 800)."""
    length = SECONDS * SAMPLE_RATE
    wave = np.asarray(samples[-length:], np.float64)
    wave = np.pad(wave, (length - len(wave), 0))
    wave = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
    wave = np.pad(wave, _WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(wave, _WINDOW)[::_HOP][:-1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    logs = np.log10(np.maximum(power @ filters.T, 1e-10)).T
    logs = np.maximum(logs, logs.max() - 8.0)
    scaled: NDArray[np.float32] = ((logs + 4.0) / 4.0).astype(np.float32)
    return scaled
