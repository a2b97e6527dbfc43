"""When each word is said: from the durations that the embedded synthesiser's model computes anyway.

The model predicts a length for each phoneme, rounds it to frames of 25 ms and builds the sound from that. It
does not give the lengths out, so its graph gets one more output here. No audio is analysed; the times are
the synthesiser's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.speech import WordTime
from duplex.core.errors import DuplexError, ErrorCode

FRAME_MS: Final = 25.0
"""One duration unit: 600 samples at 24 kHz (75,000 samples came of durations that sum to 125)."""
_DURATIONS: Final = "/Clip_output_0"
_PAUSES: Final = frozenset(',.;:!?—…"“”() ')
"""Phoneme symbols that are silence."""
_WORD: Final = re.compile(r"\S+")
_STRESS: Final = str.maketrans("", "", "ˈˌ")


class SpokenWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word as it is said: its phonemes, and its place (ms)."""

    phonemes: str
    start_ms: float
    end_ms: float


class TimedModel:
    """One voice's model, with durations. Loaded when word times are first asked for."""

    def __init__(self, path: str, threads: int) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, "word times need onnx: pip install 'duplex-gateway[embedded]'"
            ) from None
        model = onnx.load(path)
        if not any(_DURATIONS in node.output for node in model.graph.node):
            raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, "this voice's model computes no durations")
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(_DURATIONS, onnx.TensorProto.FLOAT, None)
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(
        self, voice: Any, phonemes: str, speed: float, *, seed: int = 0
    ) -> tuple[NDArray[np.float32], list[SpokenWord]]:
        """Samples, the same as the voice alone makes, and its words (times from the samples' start)."""
        from hibari import dsp

        known = [symbol for symbol in phonemes if symbol in voice.vocab]
        ids = [0, *(voice.vocab[symbol] for symbol in known), 0]
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        *spectra, durations = self._session.run(None, inputs)
        samples = dsp.synth(*(out[0] for out in spectra), np.random.default_rng(seed))
        return samples, _spoken(known, durations.reshape(-1))


def _spoken(symbols: Sequence[str], durations: NDArray[np.float32]) -> list[SpokenWord]:
    """Each run of phonemes between pauses and spaces; `durations` has a pad at each end."""
    ends = np.cumsum(durations) * FRAME_MS
    words: list[SpokenWord] = []
    run = ""
    begun = 0.0
    for index, symbol in enumerate([*symbols, " "], start=1):
        if symbol not in _PAUSES:
            begun = begun if run else float(ends[index - 1])
            run += symbol
        elif run:
            words.append(SpokenWord(phonemes=run, start_ms=begun, end_ms=float(ends[index - 1])))
            run = ""
    return words


def phoneme_words(phonemes: str) -> list[str]:
    """The words of a phoneme string, bare."""
    return "".join(" " if symbol in _PAUSES else symbol for symbol in phonemes).split()


def words_of(text: str) -> list[str]:
    """The words that are said, as written, punctuation and all."""
    return [word for word in _WORD.findall(text) if any(c.isalnum() for c in word)]


def align(
    words: Sequence[str], spoken: Sequence[SpokenWord], read: Callable[[str], list[str]]
) -> tuple[WordTime, ...]:
    """Written words on spoken ones. `read` gives the phoneme words of one written word by itself.

    Words that sound alike in both are anchors; what is read otherwise in company ("12 May" as a date) shares
    the time between its anchors in proportion to its spelling.
    """
    if not words or not spoken:
        return ()
    if len(words) == len(spoken):
        return tuple(
            WordTime(word=word, start_ms=said.start_ms, end_ms=said.end_ms)
            for word, said in zip(words, spoken, strict=True)
        )
    alone = [(index, _bare(sound)) for index, word in enumerate(words) for sound in read(word)]
    matcher = SequenceMatcher(
        None, [sound for _, sound in alone], [_bare(said.phonemes) for said in spoken], autojunk=False
    )
    found: dict[int, list[int]] = {}
    for start, at, length in matcher.get_matching_blocks():
        for offset in range(length):
            found.setdefault(alone[start + offset][0], []).append(at + offset)
    times: list[WordTime] = []
    position = 0  # the first spoken word that is not given away
    index = 0
    while index < len(words):
        if index in found and found[index][0] >= position:
            first, last = max(position, found[index][0]), found[index][-1]
            times.append(
                WordTime(word=words[index], start_ms=spoken[first].start_ms, end_ms=spoken[last].end_ms)
            )
            position = last + 1
            index += 1
            continue
        after = index
        while after < len(words) and not (after in found and found[after][0] >= position):
            after += 1
        limit = found[after][0] if after < len(words) else len(spoken)
        times += _shared(words[index:after], spoken[position:limit], _floor(times))
        position = max(position, limit)
        index = after
    return tuple(times)


def _floor(times: Sequence[WordTime]) -> float:
    return times[-1].end_ms if times else 0.0


def _bare(phonemes: str) -> str:
    """Without stress, which company changes."""
    return phonemes.translate(_STRESS)


def _shared(words: Sequence[str], spoken: Sequence[SpokenWord], floor_ms: float) -> list[WordTime]:
    """Words in proportion to their spelling over the time that is spoken; without any, a moment."""
    if not spoken:
        return [WordTime(word=word, start_ms=floor_ms, end_ms=floor_ms) for word in words]
    length = sum(said.end_ms - said.start_ms for said in spoken)
    total = sum(map(len, words))

    def at(moment: float) -> float:
        for said in spoken:
            if moment <= said.end_ms - said.start_ms:
                return said.start_ms + moment
            moment -= said.end_ms - said.start_ms
        return spoken[-1].end_ms

    times = []
    letters = 0
    for word in words:
        start = at(length * letters / total)
        letters += len(word)
        times.append(WordTime(word=word, start_ms=start, end_ms=at(length * letters / total)))
    return times
