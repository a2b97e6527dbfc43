"""Cutting a stream of text into units to speak: sentences, clauses, or nothing at all.

Pure, sans-I/O. Text may arrive in any pieces: a boundary is decided only when enough of what follows is
known, so the units do not depend on how the text was cut on its way. Joined units equal the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

Granularity: TypeAlias = Literal["sentence", "clause", "none"]

MAX_UNIT = 400
"""Characters. A run without punctuation is cut before here, at a space if it has one."""
MIN_CLAUSE = 20
"""Characters. A shorter clause is spoken with the one after it: alone it would sound chopped."""

_STOPS = frozenset(".!?…‼⁇⁈⁉؟۔।॥。！？｡．")
_WIDE = frozenset("。！？｡．，、；：､")
"""Marks of scripts that put no space after them."""
_CLAUSE_MARKS = frozenset(",;:—–،؛，、；：､")
_CLOSERS = frozenset("\"”’'»›)]}」』）】〉》＂＇")
_OPENERS = frozenset("\"“‘'«‹([{「『（【〈《¿¡")
_LIST_MARKER = re.compile(r"(?:[-*•–·]|\d{1,3}[.)])[ \t]")
_LIST_MARKER_BEGUN = re.compile(r"(?:[-*•–·]|\d{1,3}[.)]?)?$")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Before a name or a number, and at the end of no sentence.
_TITLES = _words(
    "mr mrs ms mx dr prof rev fr hon gen col maj capt cmdr lt sgt cpl gov sen rep pres amb supt messrs "
    "mme mlle st mt e.g i.e eg ie cf viz vs eds approx ca"
)
# Numbers follow them; before anything else they are words or ends of sentences.
_NUMBERED = _words("fig figs vol vols ch chap sec secs p pp para art eq ed ext tel apt no nos")
# Capitalised they are dates: a number or a name may follow.
_DATES = _words(
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun"
)
# They also end sentences: the next word decides.
_EITHER = _words("inc ltd co corp llc plc bros jr sr esq dept univ assn ave blvd rd hwy sq al pm ft")
_STARTERS = _words(
    "a after all although an and are as at because before but by can could did do does during every for "
    "from had has have he her here hers his how however i if in is it its just later let many maybe "
    "meanwhile more most my no nobody not now of oh on once one or other our perhaps please she should "
    "since so some still such that the their them then there therefore these they this those though thus "
    "to today tomorrow under unless until was we well were what when where whether which while who whose "
    "why will with would yes yesterday yet you your"
)
_VOWELS = frozenset("aeiouy")


class _Verdict(NamedTuple):
    """`cut`: a unit ends at `position`. Otherwise the search goes on there."""

    cut: bool
    position: int


class Splitter:
    """Feed text as it comes, get whole units; `flush` gives the rest.

    Args:
        granularity: sentence, clause (sentences, and clauses of at least `MIN_CLAUSE` characters), or none
            (one unit, at the flush).
        max_unit: longest unit in characters where the text has no punctuation (at least `MIN_CLAUSE`).
    """

    def __init__(self, granularity: Granularity = "sentence", *, max_unit: int = MAX_UNIT) -> None:
        if granularity not in ("sentence", "clause", "none"):
            raise ValueError(f"granularity must be sentence, clause or none, not {granularity!r}")
        if max_unit < MIN_CLAUSE:
            raise ValueError(f"max_unit must be at least {MIN_CLAUSE} characters")
        self.granularity = granularity
        self._max_unit = max_unit
        marks = _STOPS | {"\n"} | (_CLAUSE_MARKS if granularity == "clause" else frozenset())
        self._mark = re.compile("[" + "".join(map(re.escape, sorted(marks))) + "]")
        self._buffer = ""
        self._scanned = 0

    @property
    def pending(self) -> str:
        """Text that belongs to no finished unit yet."""
        return self._buffer

    def feed(self, text: str) -> list[str]:
        """More text; the units that it finished."""
        self.put(text)
        return list(self._units(final=False))

    def flush(self) -> list[str]:
        """The text has ended: what is left, in units. The splitter can then take another text."""
        return list(self._units(final=True))

    def put(self, text: str) -> None:
        """More text, whose units `take` gives one by one: a long text need not be cut all at once."""
        self._buffer += text

    def take(self, *, final: bool) -> str | None:
        """The next unit; None when there is none yet. `final`: the text has ended."""
        if not self._buffer:
            return None
        if self.granularity == "none":
            return self._cut(len(self._buffer)) if final else None
        # A unit is judged by a window of bounded length, so that no input makes it wait for ever.
        window = 2 * self._max_unit
        view = self._buffer[:window]
        end = self._end(view, known=final or len(view) == window)
        if end is None:
            return self._cut(len(self._buffer)) if final else None
        return self._cut(end)

    def _cut(self, end: int) -> str:
        unit, self._buffer = self._buffer[:end], self._buffer[end:]
        self._scanned = 0
        return unit

    def _units(self, *, final: bool) -> Iterator[str]:
        while (unit := self.take(final=final)) is not None:
            yield unit

    def _end(self, view: str, *, known: bool) -> int | None:
        """Where the unit at the start of `view` ends, None when it goes on or that cannot be said yet.

        `known`: what follows the view does not matter any more.
        """
        position = self._scanned
        while (mark := self._mark.search(view, position, self._max_unit)) is not None:
            verdict = _judge(view, mark.start(), known)
            if verdict is None:
                self._scanned = mark.start()
                return None
            if verdict.cut:
                return verdict.position
            position = verdict.position
        self._scanned = position
        return _forced_cut(view, self._max_unit) if len(view) > self._max_unit else None


def split(text: str, granularity: Granularity = "sentence", *, max_unit: int = MAX_UNIT) -> list[str]:
    """The units of a whole text, in order; joined they equal it."""
    splitter = Splitter(granularity, max_unit=max_unit)
    return splitter.feed(text) + splitter.flush()


def has_words(text: str) -> bool:
    """True when there is a letter or a digit to speak."""
    return any(c.isalnum() for c in text)


def _judge(view: str, at: int, known: bool) -> _Verdict | None:
    """What the mark at `at` means; None when the text after it must be known first."""
    if view[at] == "\n":
        return _judge_newline(view, at, known)
    end = at + 1
    while end < len(view) and view[end] in _STOPS:
        end += 1
    marks = view[at:end]
    closed = end
    while closed < len(view) and view[closed] in _CLOSERS:
        closed += 1
    after = _skip_space(view, closed)
    if after == len(view) and not known:
        return None
    if not _STOPS.intersection(marks):
        return _judge_clause(view, closed, after)
    if after < len(view) and _is_emoji(view[after]):
        return _with_emoji(view, after, known)
    if _WIDE.intersection(marks):
        return _judge_wide(view, end, closed, after)
    if after == len(view):
        return _Verdict(True, after)
    if after == closed:
        return _Verdict(False, closed)
    begins_item = _begins_paragraph(view, closed, after, known)
    if begins_item is None:
        return None
    if begins_item:
        return _Verdict(True, after)
    ends = _ends_sentence(view, at, marks, closed > end, after, known)
    return None if ends is None else _Verdict(ends, after if ends else closed)


def _judge_newline(view: str, at: int, known: bool) -> _Verdict | None:
    """A blank line or a list item ends a unit, and so does a line that ends in a colon."""
    after = _skip_space(view, at)
    if after == len(view):
        return _Verdict(True, after) if known else None
    begins = _begins_paragraph(view, at, after, known)
    if begins is None:
        return None
    before = view[:at].rstrip()
    return _Verdict(True, after) if begins or before.endswith((":", "：")) else _Verdict(False, after)


def _begins_paragraph(view: str, space: int, after: int, known: bool) -> bool | None:
    """Whether the white space from `space` to `after` has a blank line, or a newline before a list item."""
    newlines = view.count("\n", space, after)
    if newlines != 1:
        return newlines > 1
    if _LIST_MARKER.match(view, after):
        return True
    return None if not known and _LIST_MARKER_BEGUN.match(view, after) else False


def _judge_clause(view: str, closed: int, after: int) -> _Verdict:
    mark = view[closed - 1]
    separates = after > closed or mark in _WIDE or mark == "—"
    return _Verdict(True, after) if separates and closed >= MIN_CLAUSE else _Verdict(False, closed)


def _judge_wide(view: str, end: int, closed: int, after: int) -> _Verdict:
    following = view[after] if after < len(view) else ""
    number = view[end - 1] == "．" and following.isdigit()
    quoted_by = closed > end and following in ("と", "っ")  # 「…。」と言った: the sentence goes on
    return _Verdict(False, closed) if number or quoted_by else _Verdict(True, after)


def _with_emoji(view: str, at: int, known: bool) -> _Verdict | None:
    """Emoji after the end of a sentence belong to it."""
    while at < len(view) and (_is_emoji(view[at]) or view[at] == " "):
        at += 1
    after = _skip_space(view, at)
    return None if after == len(view) and not known else _Verdict(True, after)


def _ends_sentence(view: str, at: int, marks: str, quoted: bool, after: int, known: bool) -> bool | None:
    """Whether the stop `marks` at `at`, with white space up to `after`, ends a sentence."""
    following = after
    while following < len(view) and view[following] in _OPENERS:
        following += 1
    if following == len(view):
        return True if known else None
    letter = view[following]
    if letter.islower() and quoted:
        return False  # "Stop!" he said.
    if marks != ".":
        ellipsis = "!" not in marks and "?" not in marks
        return not (ellipsis and letter.islower())
    return _period_ends_sentence(view, at, following, known)


def _period_ends_sentence(view: str, at: int, following: int, known: bool) -> bool | None:
    """The hard case: a period, white space, and the character at `following`."""
    token_start = at
    while token_start > 0 and not view[token_start - 1].isspace():
        token_start -= 1
    while token_start < at and view[token_start] in _OPENERS:
        token_start += 1
    token = view[token_start:at]
    word = token.lower()
    before = view[:token_start].rstrip()
    letter = view[following]
    date = word in _DATES and token[:1].isupper()
    if token.isdigit() and len(token) <= 3 and not before:
        return False  # "1. First": the number of a list item
    if word in _TITLES:
        return False
    if letter.isdigit():
        return not (date or word in _NUMBERED)
    initial = len(token) == 1 and token.isalpha()
    if token == "I" and before and before.split()[-1].islower():
        initial = False  # "So do I. Bob left."
    dotted = "." in token and all(len(part) <= 2 and part.isalpha() for part in token.split("."))
    if letter.islower():
        consonants = word.isalpha() and not _VOWELS.intersection(word)
        return not (initial or dotted or consonants or date or word in _EITHER or word == "etc")
    if not (initial or dotted or date or word in _EITHER):
        return True
    word_end = following
    while word_end < len(view) and (view[word_end].isalpha() or view[word_end] in "'’"):
        word_end += 1
    if word_end == len(view) and not known:
        return None
    next_word = re.split("['’]", view[following:word_end].lower())[0]
    return next_word in _STARTERS


def _skip_space(view: str, position: int) -> int:
    while position < len(view) and view[position].isspace():
        position += 1
    return position


def _is_emoji(character: str) -> bool:
    code = ord(character)
    return (
        0x1F000 <= code <= 0x1FAFF
        or 0x2600 <= code <= 0x27BF
        or 0x2B00 <= code <= 0x2BFF
        or code in (0xFE0F, 0x200D, 0x20E3)
    )


def _forced_cut(view: str, limit: int) -> int:
    """A cut before `limit` characters: after the last space, or at least not inside a character."""
    for position in range(limit, 0, -1):
        if view[position - 1].isspace():
            return position
    position = limit
    while position > 1 and (
        unicodedata.combining(view[position]) or _joins(view[position]) or view[position - 1] == "\u200d"
    ):
        position -= 1
    return position if position > 1 else limit


def _joins(character: str) -> bool:
    """Characters that belong to the one before: variation selectors, joiners, skin tones, keycaps."""
    return character in "\ufe0e\ufe0f\u200d\u20e3" or 0x1F3FB <= ord(character) <= 0x1F3FF
