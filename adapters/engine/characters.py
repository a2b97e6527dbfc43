"""Tokens to text, as whole characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

_MOST: Final = 32
"""Tokens in a row that each end inside a character. Text has no such runs; bytes that are no text may."""
_BROKEN: Final = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """What is asked of a tokenizer of transformers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


class Characters:
    """The text of one answer, token by token; special tokens have none.

    A token may end inside a character: its last bytes wait for the rest, and are dropped where none comes.
    Bytes that are no text are told as U+FFFD. Without a tokenizer there is no text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # told: the spaces of a token depend on the one before it
        self._held: list[int] = []
        self._told = 0  # characters of both that were told

    def feed(self, ids: Sequence[int]) -> str:
        """The text of so many more tokens, perhaps none yet."""
        return "".join([self._next(id) for id in ids])

    def _next(self, id: int) -> str:
        if self._tokenizer is None:
            return ""
        self._held.append(id)
        text = self._decode([*self._before, *self._held])
        whole = text.rstrip(_BROKEN)
        if len(whole) < len(text):
            if len(self._held) >= _MOST:
                fresh = text[self._told :]
                self._before, self._held, self._told = [], [], 0
                return fresh
            fresh = whole[self._told :]
            self._told = max(self._told, len(whole))
            return fresh
        fresh = text[self._told :]
        if fresh:
            self._before, self._told = self._held, len(self._decode(self._held))
        self._held = []
        return fresh

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(ids, skip_special_tokens=True)
