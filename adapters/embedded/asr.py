"""The embedded recogniser: Moonshine tiny (English) on onnxruntime, and the turn audio that it is given.

Moonshine hears a whole stretch of speech at once. Partials come from decoding the turn so far again and
again; turns that grow long are cut at pauses, so that no decode is given more than `MAX_SEGMENT_MS`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.codecs.pcm import widen
from duplex.core.errors import DuplexError, ErrorCode

SAMPLE_RATE: Final = 16000
MAX_SEGMENT_MS: Final = 28_000
"""Moonshine was trained on stretches of up to 30 s."""
CUT_AFTER_MS: Final = 14_000
"""From this length on a turn is cut at its next pause."""
CUT_PAUSE_MS: Final = 160
"""Silence within a turn that is pause enough to cut at."""

_START, _END = 1, 2
_TOKENS_PER_S = 6.5  # the authors' bound against running on
_MIN_SAMPLES = 3200
_HEADS, _HEAD_DIM = 8, 36  # of the tiny model


class Recognition(msgspec.Struct, frozen=True, kw_only=True):
    """What was heard. `confidence` is the mean probability of its tokens, 0 for nothing."""

    text: str
    confidence: float


class Recogniser:
    """The model, loaded once and shared. `recognise` blocks and is safe to call from several threads."""

    def __init__(self, folder: str | Path | None = None, *, threads: int = 1) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._threads = threads
        self._encoder: Any = None
        self._decoder: Any = None
        self._outputs: list[str] = []
        self._cache_names: list[str] = []
        self._vocabulary: list[bytes] = []

    def start(self) -> None:
        """Load (0.4 s) and warm up.

        Raises:
            DuplexError: `BAD_CONFIG` when a package or its weights are missing.
        """
        folder = self._folder or _weights()
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise _missing("onnxruntime") from error
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        cpu = ["CPUExecutionProvider"]
        self._encoder = ort.InferenceSession(str(folder / "encoder_model.ort"), options, providers=cpu)
        self._decoder = ort.InferenceSession(str(folder / "decoder_model_merged.ort"), options, providers=cpu)
        self._outputs = [output.name for output in self._decoder.get_outputs()]
        self._cache_names = [i.name for i in self._decoder.get_inputs() if i.name.startswith("past")]
        self._vocabulary = _read_vocabulary((folder / "tokenizer.bin").read_bytes())
        self.recognise(np.zeros(SAMPLE_RATE, np.float32))

    def stop(self) -> None:
        """Unload."""
        self._encoder = self._decoder = None

    def recognise(self, samples: NDArray[np.float32]) -> Recognition:
        """The words in `samples`: mono float32 at 16 kHz, up to `MAX_SEGMENT_MS`; about 3 % of their time."""
        if len(samples) == 0:
            return Recognition(text="", confidence=0.0)
        if len(samples) < _MIN_SAMPLES:
            samples = np.pad(samples, (0, _MIN_SAMPLES - len(samples)))
        mask = np.ones((1, len(samples)), np.int64)
        hidden = self._encoder.run(None, {"input_values": samples[None], "attention_mask": mask})[0]
        cache = {
            name: np.zeros((1, _HEADS, hidden.shape[1] if "encoder" in name else 0, _HEAD_DIM), np.float32)
            for name in self._cache_names
        }
        tokens: list[int] = []
        probabilities: list[float] = []
        last = _START
        for step in range(int(len(samples) / SAMPLE_RATE * _TOKENS_PER_S) + 6):
            outputs = self._decoder.run(
                None,
                {
                    "input_ids": np.array([[last]], np.int64),
                    "encoder_hidden_states": hidden,
                    "encoder_attention_mask": mask,
                    "use_cache_branch": np.array([step > 0]),
                    **cache,
                },
            )
            logits = outputs[0][0, -1]
            last = int(logits.argmax())
            probabilities.append(float(1 / np.exp(logits - logits[last]).sum()))
            if last == _END:
                break
            tokens.append(last)
            if (repeated := _loop(tokens)) > 0:
                del tokens[-repeated:]
                break
            for name, value in zip(self._outputs[1:], outputs[1:], strict=True):
                name = name.replace("present", "past_key_values")
                if step == 0 or "encoder" not in name:  # the encoder's part does not change
                    cache[name] = value
        pieces = b"".join(self._vocabulary[token] for token in tokens).replace("▁".encode(), b" ")
        text = " ".join(pieces.decode("utf-8", "replace").replace("\ufffd", "").split())
        return Recognition(text=text, confidence=float(np.mean(probabilities)) if text else 0.0)


class TurnAudio:
    """The audio of one turn that is not yet written down for good: frames of int16 at 16 kHz.

    A frame is speech or not, as the activity model said; that is where a long turn is cut.
    """

    def __init__(self) -> None:
        self._frames: list[NDArray[np.int16]] = []
        self._speech: list[bool] = []
        self._samples = 0

    @property
    def duration_ms(self) -> float:
        return self._samples / SAMPLE_RATE * 1000

    @property
    def has_speech(self) -> bool:
        return any(self._speech)

    def add(self, frame: NDArray[np.int16], *, speech: bool) -> None:
        """The next frame, shape (n,)."""
        self._frames.append(frame)
        self._speech.append(speech)
        self._samples += len(frame)

    def audio(self, *, less_ms: float = 0.0) -> NDArray[np.float32]:
        """What is held, float32 in [-1, 1), without its last `less_ms`."""
        if not self._frames:
            return np.zeros(0, np.float32)
        joined = np.concatenate(self._frames)
        end = len(joined) - max(0, int(less_ms * SAMPLE_RATE / 1000))
        return widen(joined[: max(0, end)])

    def take_segment(self) -> NDArray[np.float32] | None:
        """The part before a cut when the turn is long enough to be cut, else None. It is held no longer.

        What had no speech comes out empty.
        """
        if self.duration_ms < CUT_AFTER_MS:
            return None
        at = self._pause()
        if at is None:
            if self.duration_ms < MAX_SEGMENT_MS:
                return None
            at = self._quietest()
        head, spoken = self._frames[:at], any(self._speech[:at])
        del self._frames[:at], self._speech[:at]
        self._samples = sum(map(len, self._frames))
        if not head or not spoken:
            return np.zeros(0, np.float32)
        return widen(np.concatenate(head))

    def _pause(self) -> int | None:
        """The middle of the longest pause in the last half, in frames."""
        best: tuple[float, int] | None = None
        begin = len(self._frames) // 2
        silence_ms = 0.0
        for index in range(begin, len(self._frames)):
            if self._speech[index]:
                silence_ms, begin = 0.0, index + 1
                continue
            silence_ms += len(self._frames[index]) / SAMPLE_RATE * 1000
            if silence_ms >= CUT_PAUSE_MS and (best is None or silence_ms > best[0]):
                best = silence_ms, (begin + index) // 2 + 1
        return best[1] if best else None

    def _quietest(self) -> int:
        """Somebody speaks without a pause: before the quietest frame of the last third."""
        start = len(self._frames) * 2 // 3
        energy = [float(np.square(frame.astype(np.float32)).mean()) for frame in self._frames[start:]]
        return start + int(np.argmin(energy))


def _loop(tokens: list[int]) -> int:
    """How many tokens at the end only repeat the phrase before them, when the decoder is stuck; else 0."""
    for period in range(1, 9):
        repeats = max(4, 12 // period)
        tail = tokens[-period * repeats :]
        if len(tail) == period * repeats and tail == tail[:period] * repeats:
            return period * (repeats - 1)
    return 0


def _weights() -> Path:
    package = importlib.util.find_spec("moonshine_voice")
    if package is None or package.origin is None:
        raise _missing("moonshine-voice==0.0.73")
    folder = Path(package.origin).parent / "assets" / "tiny-en"
    if not (folder / "encoder_model.ort").is_file():
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            "the installed moonshine-voice has no weights inside: pip install moonshine-voice==0.0.73",
        )
    return folder


def _missing(package: str) -> DuplexError:
    return DuplexError(
        ErrorCode.BAD_CONFIG,
        f"hearing needs the package {package}: pip install 'duplex-gateway[embedded]'",
    )


def _read_vocabulary(data: bytes) -> list[bytes]:
    """Tokens of Moonshine's `tokenizer.bin`: each a length of one byte, or two from 128 on, and its bytes."""
    tokens = []
    position = 0
    while position < len(data):
        length = data[position]
        position += 1
        if length >= 128:
            length += data[position] * 128 - 128
            position += 1
        tokens.append(data[position : position + length])
        position += length
    return tokens
