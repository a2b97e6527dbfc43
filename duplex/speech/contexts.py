"""One line of speech on a socket: its utterances, and the text of each on its way into units."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Final

from duplex.adapters.text import Splitter
from duplex.speech.effects import Accepted

_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class Utterance:
    """The text up to one `input.done`. It is cut into units when they are wanted, one at a time."""

    __slots__ = ("_half", "_splitter", "count", "deaf", "ended", "index", "streams", "terms", "waiting")

    def __init__(self, index: int, terms: Accepted) -> None:
        config = terms.config
        self.index = index
        self.terms = terms
        self.streams = config.split_granularity == "none" and config.stream_text
        """One unit, spoken while its text is written."""
        self.count = 0
        """Units begun."""
        self.ended = False
        """`input.done` came."""
        self.deaf = False
        """Its one unit is over before its text is: what still comes of it is not spoken."""
        self.waiting = 0
        """Characters that were fed to a running unit and that the model has not taken."""
        self._splitter = Splitter(config.split_granularity)
        self._half = ""

    @property
    def pending(self) -> int:
        """Characters that wait to be spoken."""
        return len(self._splitter.pending) + self.waiting

    @property
    def starves(self) -> bool:
        """Its unit, if it runs, has nothing to say before more text comes."""
        return self.streams and not self.ended and not self.waiting

    def whole_characters(self, text: str) -> str:
        """`text` without halves of characters: clients that count in UTF-16 may cut one in the middle, and
        its first half then waits for the second."""
        if self._half or _SURROGATES.search(text):
            text = self._half + text
            self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
            text = text.removesuffix(self._half) if self._half else text
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text

    def put(self, text: str) -> None:
        self._splitter.put(text)

    def next_unit(self) -> str | None:
        """The next text to speak; None when there is none yet. White space alone is not worth a unit."""
        if self.deaf:
            return None
        if self.streams and not self._splitter.pending.strip():
            return None
        final = self.ended or self.streams
        while (unit := self._splitter.take(final=final)) is not None:
            if unit.strip():
                return unit
        return None


class Context:
    """One line of speech. Its utterances are spoken one after another."""

    __slots__ = ("chunk", "id", "next_index", "running", "sentence", "terms", "utterances")

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.terms: Accepted | None = None
        """Its own configuration; None: the socket's."""
        self.utterances: deque[Utterance] = deque()
        self.next_index = 0
        self.running: int | None = None
        """The unit that is being spoken, of the first utterance."""
        self.sentence = 0
        self.chunk = 0

    @property
    def open_utterance(self) -> Utterance | None:
        """The utterance that still takes text."""
        last = self.utterances[-1] if self.utterances else None
        return last if last is not None and not last.ended else None

    @property
    def tag(self) -> dict[str, Any]:
        return {} if self.id is None else {"context_id": self.id}
