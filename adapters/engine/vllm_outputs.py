"""What vLLM says of a request, and how one is ended."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from duplex.adapters.engine.characters import Characters
from duplex.adapters.engine.language import Finish, TokenDelta
from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    from duplex.adapters.engine.vllm_life import Life


def finish_of(output: Any, name: str) -> Finish | None:
    """Why a chunk of vLLM's is the last, None if it is not.

    Raises:
        DuplexError: `ADAPTER_FAILED`: the engine gave the request up.
    """
    reason = output.outputs[0].finish_reason
    if reason is None or reason in ("stop", "length"):
        return reason  # type: ignore[no-any-return]
    raise DuplexError(ErrorCode.ADAPTER_FAILED, f"{name} ended the answer: {reason}")


def delta_of(output: Any, characters: Characters, prompt_tokens: int, finish: Finish | None) -> TokenDelta:
    """A chunk of vLLM's as ours. The token that stopped it has no text."""
    ids = tuple(output.outputs[0].token_ids)
    text = characters.feed(ids[:-1] if finish == "stop" else ids)
    return TokenDelta(ids=ids, text=text, finish=finish, prompt_tokens=prompt_tokens)


async def abort(life: Life, outputs: AsyncGenerator[Any, None] | None, id: str) -> None:
    """End a request within one step of the engine, wherever it is."""
    if outputs is not None:
        await outputs.aclose()
    if not life.ended.done():
        # vLLM does so too, unless it was left between taking the request and telling the engine
        with contextlib.suppress(Exception):
            await life.engine.abort(id)
