"""A text that arrives in pieces, cut into utterances that a slot has room for.

Most texts are one utterance and go to the model as they come. A text that could run out of its slot's
positions is cut between two sentences, early enough. Joined pieces equal the text, less white space between
utterances.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Final, NamedTuple

from duplex.adapters.text import MAX_UNIT, MIN_CLAUSE, Splitter, has_words
from duplex.core.errors import DuplexError, ErrorCode

WIDE_FRAMES: Final = 5.0
DIGIT_FRAMES: Final = 6.0
NARROW_FRAMES: Final = 1.7
"""Frames of 80 ms that a character is allowed: twice what it takes at an ordinary pace (5 syllables, or 15
letters, a second; digits are read as words). Never fewer than the tokens that it can be, one a byte."""
SMALLEST: Final = 120.0
"""Frames of the shortest utterance worth making: 70 letters."""
_PROMPT_ROWS: Final = 32
"""Positions of an utterance beside its text, its frames and what the request brings: role, tags, speaker."""
LEAST_POSITIONS: Final = int(_PROMPT_ROWS + SMALLEST)
"""With fewer no request could be spoken."""
_FREELY: Final = 0.6
"""Part of an utterance that is passed on as it comes, whatever its sentences are."""


class Piece(NamedTuple):
    """More of an utterance; `last`: all of it has come. The next piece begins another."""

    text: str
    last: bool


def frames_of(text: str) -> float:
    """Frames that the text may take, generously."""
    return sum(map(_frames, text))


def room(
    positions: int, *, instructions: str = "", reference_text: str = "", reference_frames: int = 0
) -> float:
    """Frames that one utterance of a request may be allowed, see `frames_of`. What the request brings is
    taken to have a token for each character of ASCII, CJK and Hangul, and for each byte of others.

    Raises:
        DuplexError: `INVALID_VALUE`: what the request brings fills the slot.
    """
    left = positions - _PROMPT_ROWS - _rows(instructions) - _rows(reference_text) - reference_frames
    if left < SMALLEST:
        what = "the recording and its words leave" if reference_frames else "the instructions leave"
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            f"{what} too few of the model's {positions} positions",
            param="ref_audio" if reference_frames else "instructions",
        )
    return left


class Cutter:
    """The pure part: `put` text, `end` it, `take` pieces."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._max_unit = max(MIN_CLAUSE, min(MAX_UNIT, int(limit * (1 - _FREELY) / NARROW_FRAMES)))
        self._splitter = Splitter(max_unit=self._max_unit)
        self._text = ""
        self._spent = 0.0
        self._ended = False
        self.done = False
        """Everything was taken, and nothing more comes."""

    def put(self, text: str) -> None:
        """More text."""
        self._text += text

    def end(self) -> None:
        """The text has ended."""
        self._ended = True

    def take(self) -> Piece | None:
        """The next piece; None: there is none before more text, or none at all when `done`."""
        if self.done:
            return None
        free = self._free()
        if free:
            self._spent += frames_of(free)
            return self._piece(free)
        self._splitter.put(self._text)
        self._text = ""
        unit = self._splitter.take(final=self._ended)
        if unit is None:
            return self._piece("") if self._ended else None
        frames = frames_of(unit)
        if self._spent and self._spent + frames > self._limit:
            self._put_back(unit)
            self._text = self._text.lstrip()
            self._spent = 0.0
            self.done = self._ended and not self._text
            return Piece("", True)
        if frames > self._limit:  # characters that take long: a number of hundreds of digits
            end = _fitting(unit, self._limit)
            self._put_back(unit[end:])
            unit = unit[:end]
            frames = frames_of(unit)
        self._spent += frames
        return self._piece(unit)

    def _put_back(self, text: str) -> None:
        self._text = text + self._splitter.pending
        self._splitter = Splitter(max_unit=self._max_unit)

    def _piece(self, text: str) -> Piece:
        self.done = self._ended and not self._text and not self._splitter.pending
        return Piece(text, self.done)

    def _free(self) -> str:
        """The text that may go at once, whatever follows it."""
        if self._splitter.pending:
            return ""
        end = _fitting(self._text, self._limit * _FREELY - self._spent)
        free, self._text = self._text[:end], self._text[end:]
        return free


class Utterances:
    """The utterances of one request. `close` it when they are no longer wanted."""

    def __init__(self, text: AsyncIterator[str], limit: float) -> None:
        self._source = text
        self._cutter = Cutter(limit)
        self._pulling: asyncio.Task[str | None] | None = None

    @property
    def done(self) -> bool:
        """All text was taken. False may turn out to be wrong: more text may be awaited, and not come."""
        return self._cutter.done

    async def begin(self, *, whole: bool) -> Piece | None:
        """The beginning of the next utterance: all of it that is there, or with `whole` all of it. It has
        words. None when there is no other utterance."""
        text = ""
        while (piece := await self._next(wait=True)) is not None:
            text += piece.text
            if not has_words(text):
                text = "" if piece.last else text  # a stretch without words is no utterance
                continue
            while not piece.last:
                more = await self._next(wait=whole)
                if more is None:
                    break
                piece = more
                text += piece.text
            return Piece(text, piece.last)
        return None

    async def more(self) -> Piece:
        """More of the utterance that has begun, as it comes. Not to be asked after its last piece."""
        return await self._next(wait=True) or Piece("", True)

    async def close(self) -> None:
        """Wait for no more text."""
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.wait({self._pulling})

    async def _next(self, *, wait: bool) -> Piece | None:
        """The next piece. None at the end of all text; without `wait` also when it is not there yet."""
        while (piece := self._cutter.take()) is None:
            if self._cutter.done or not await self._pull(wait=wait):
                return None
        return piece

    async def _pull(self, *, wait: bool) -> bool:
        """Hand the next text to the cutter. False: it is not there yet."""
        if self._pulling is None:
            self._pulling = asyncio.ensure_future(anext(self._source, None))
            await asyncio.sleep(
                0
            )  # the task's first step: text that need not be waited for is there after it
        pulling = self._pulling
        if not pulling.done():
            if not wait:
                return False
            # whoever gives up waiting leaves the text to come to the next one
            await asyncio.wait({pulling})
        self._pulling = None
        text = pulling.result()
        if text is None:
            self._cutter.end()
        else:
            self._cutter.put(text)
        return True


def _fitting(text: str, frames: float) -> int:
    """How many of the first characters take at most so many frames."""
    for index, character in enumerate(text):
        frames -= _frames(character)
        if frames < 0:
            return index
    return len(text)


@lru_cache(4096)
def _frames(character: str) -> float:
    spoken = DIGIT_FRAMES if character.isdigit() else WIDE_FRAMES if _wide(character) else NARROW_FRAMES
    return max(spoken, _bytes(character))


def _rows(text: str) -> int:
    return sum(1 if _wide(c) and c <= "\uffff" else _bytes(c) for c in text)


def _bytes(character: str) -> int:
    """Of UTF-8, as the tokenizer has it: a few characters are several in NFC."""
    return len(unicodedata.normalize("NFC", character).encode(errors="replace"))


def _wide(character: str) -> bool:
    """Scripts that write a syllable or a word with one character."""
    return "\u2e80" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7af" or character > "\uffff"
