"""Where the embedded voice gets its words from: a chat endpoint, a small local model, or its own skills."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, TypeAlias

import msgspec

from duplex.core.types import HistoryItem, LengthReached, ToolCallDelta, ToolSpec

DEFAULT_INSTRUCTIONS = (
    "You are a voice assistant. What you write is read aloud: answer in one to three short sentences of "
    "plain spoken English, without lists, markup or emoji. The user's words come from speech recognition "
    "and may hold small errors."
)


SILENCE = (
    "The user has said nothing for a while. In one short sentence, ask whether they are still there, or "
    "offer to go on."
)
"""What a language model is told of a silence."""


class ReplyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to answer. `history` ends with what the user said last; the assistant's items hold only what was
    heard. `silent`: the user has said nothing for a while, and is spoken to."""

    history: tuple[HistoryItem, ...] = ()
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    max_output_tokens: int | None = None
    silent: bool = False

    @property
    def said(self) -> tuple[str, ...]:
        """What the user said since the assistant was last heard, oldest first."""
        said: list[str] = []
        for item in reversed(self.history):
            if item.role != "user":
                break
            said.append(item.text)
        return tuple(reversed(said))


ReplyPart: TypeAlias = str | ToolCallDelta | LengthReached


class Replies(Protocol):
    """A source of replies, shared by all sessions."""

    async def start(self) -> None:
        """Load. Raises `DuplexError` with words that say what is missing."""
        ...

    async def stop(self) -> None: ...

    def reply(self, request: ReplyRequest) -> AsyncGenerator[ReplyPart, None]:
        """The answer in pieces, as it is written, and calls of the request's tools; `LengthReached` at the
        end of one that had no tokens left. Closing the iterator stops the writing."""
        ...
