"""How long a server's answer may tell nothing, and how much it may say. No I/O but the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Final

from duplex.adapters.engine.remote_wire import Chunk, Usage

if TYPE_CHECKING:
    import httpx

TOKEN_CHARACTERS: Final = 64
"""What a token is taken to be at most, on average: the longest of a vocabulary are some 100 blanks."""
SLACK_CHARACTERS: Final = 1024
"""For short answers, whose average is no average."""
MOST_WHOLE: Final = 16 * 1024 * 1024
"""Bytes of an answer that is not streamed."""
MOST_ERROR: Final = 4096
"""Bytes of an error's body that are read."""
ERROR_S: Final = 5.0
"""How long an error's body may take: its status is known before."""


class Stalled(Exception):
    """Bytes came, but nothing was told for too long."""


class TooMuch(Exception):
    """A whole answer of more than `MOST_WHOLE` bytes."""


class Patience:
    """Time spent waiting for one answer since it last told something; the reader's own time does not count.

    Comments, empty deltas and roles tell nothing. Words, thoughts, token ids, a new count of tokens and the
    first finish do.
    """

    def __init__(self, stalled_s: float) -> None:
        self._stalled_s = self._left = stalled_s
        self._usage: Usage | None = None
        self._finished = False

    def hear(self, chunk: Chunk) -> None:
        """Begin anew where the chunk tells something."""
        told = chunk.usage is not None and chunk.usage != self._usage
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices[:1]:
            ended = choice.finish_reason is not None
            told = told or bool(choice.said or choice.thought or choice.token_ids)
            told = told or (ended and not self._finished)
            self._finished = self._finished or ended
        if told:
            self._left = self._stalled_s

    async def send(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Send it, to the head of its answer. Raises `Stalled`, and what httpx does."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(0.0, self._left)):
                return await client.send(request, stream=True)
        except TimeoutError as error:
            raise Stalled from error
        finally:
            self._left -= loop.time() - began

    async def parts(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The body. Raises `Stalled`, and what httpx does."""
        loop = asyncio.get_running_loop()
        body = aiter(response.aiter_bytes())
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout(max(0.0, self._left)):
                    part = await anext(body)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise Stalled from error
            self._left -= loop.time() - began
            yield part


class Length:
    """What an answer of at most `tokens` may be.

    Its tokens are counted where the server tells their ids. Else they are not known, and characters are
    counted, of thoughts too: `TOKEN_CHARACTERS` for each token and `SLACK_CHARACTERS` more.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._characters = tokens * TOKEN_CHARACTERS + SLACK_CHARACTERS

    def take(self, ids: tuple[int, ...], text: str, thought: str) -> tuple[tuple[int, ...], str, bool]:
        """Ids and text as far as there is room for them, and whether the server wrote more than that."""
        over = len(ids) > self._tokens or len(text) + len(thought) > self._characters
        if over:
            ids = ids[: self._tokens]
            text = text[: self._characters]
        self._tokens -= len(ids)
        self._characters -= len(text) + len(thought)
        return ids, text, over


async def whole_body(parts: AsyncIterator[bytes]) -> bytes:
    """All of them. Raises `TooMuch`, and what they do."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > MOST_WHOLE:
            raise TooMuch
    return bytes(body)


async def error_body(response: httpx.Response, silent_s: float) -> bytes:
    """The beginning of an error's body, as much as came in time: its status is what counts."""
    import httpx

    body = b""
    try:
        async with asyncio.timeout(min(ERROR_S, silent_s)):
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MOST_ERROR:
                    break
    except (TimeoutError, httpx.HTTPError):
        pass
    return body
