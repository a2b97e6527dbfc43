"""Words on the screen, by RapidOCR (extra `ocr`), on one CPU thread.

Measured here: 0.2 to 0.4 s a picture, so it is asked once a shot, away from the thread that follows the
video.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from duplex.codecs.video_frame import Pixels

SURE: Final = 0.98
"""Score from which a word is believed: on the test clips all words over it were right; `BBG` got 0.96."""

MOST_PIXELS: Final = 960 * 540
"""Larger pictures need not be given: words that small are not said."""
_SIDE: Final = 736  # of the picture in which words are looked for; RapidOCR enlarges small ones by itself
_SHORTEST: Final = 2  # letters; a bare number is not said: "1 2" is read as 12


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    left: float
    right: float
    top: float
    bottom: float

    @property
    def height(self) -> float:
        return self.bottom - self.top


class TextReader:
    """The reader, loaded once and shared by all sessions; one picture at a time.

    Raises:
        ModuleNotFoundError: The extra `ocr` is not installed.
    """

    def __init__(self) -> None:
        from rapidocr_onnxruntime import RapidOCR

        self._engine: Any = RapidOCR(
            intra_op_num_threads=1, inter_op_num_threads=1, det_limit_side_len=_SIDE, det_limit_type="max"
        )
        self._lock = threading.Lock()
        self.read(np.zeros((360, 640, 3), np.uint8))  # the first picture would take twice as long

    def read(self, pixels: Pixels) -> tuple[str, ...]:
        """Lines of words that are surely in an RGB picture, (height, width, 3), from top to bottom."""
        bgr = np.ascontiguousarray(pixels[..., ::-1])
        with self._lock:
            found, _ = self._engine(bgr)
        words = []
        for corners, text, score in found or ():
            text = " ".join(text.split())
            if float(score) < SURE or sum(c.isalpha() for c in text) < _SHORTEST:
                continue
            xs, ys = [p[0] for p in corners], [p[1] for p in corners]
            words.append(_Word(text, min(xs), max(xs), min(ys), max(ys)))
        return lines_of(words)


def lines_of(words: list[_Word]) -> tuple[str, ...]:
    """Words that stand side by side, joined into lines, from top to bottom."""
    rows: list[list[_Word]] = []
    for word in sorted(words, key=lambda w: (w.left, w.top)):
        for row in rows:
            last = row[-1]
            shared = min(last.bottom, word.bottom) - max(last.top, word.top)
            near = word.left - last.right < max(last.height, word.height)
            if near and shared > 0.5 * min(last.height, word.height):
                row.append(word)
                break
        else:
            rows.append([word])
    rows.sort(key=lambda row: row[0].top)
    return tuple(dict.fromkeys(" ".join(word.text for word in row) for row in rows))
