"""Streaming-input sessions on vLLM: prompts that grow, with every token counted.

vLLM keeps one request open and is given chunk after chunk. A request that outgrows the context ends the
engine for everyone, so nothing is sent that could.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from duplex.adapters.engine.characters import Characters
from duplex.adapters.engine.language import (
    Finish,
    Sampling,
    TokenDelta,
    TokenPrompt,
    check_ids,
    check_room,
)
from duplex.adapters.engine.vllm_outputs import abort, finish_of
from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    from duplex.adapters.engine.vllm_engine import VllmEngine
    from duplex.adapters.engine.vllm_life import Life

_Said: TypeAlias = tuple[tuple[int, ...], Finish | None] | DuplexError
_READ_AHEAD = Sampling(max_tokens=1)


class VllmSession:
    """A `LanguageSession`: its tokens are here, and what the engine has computed of them is there.

    While the engine has room (see `Parking`) its request stays open between turns. Otherwise, and after a
    turn that was closed early or an engine that died, the next turn sends the whole past again, of which the
    engine's prefix cache may have the most.
    """

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._ids: list[int] = []
        self._request: _OpenRequest | None = None
        self._in_turn = False
        self._closed = False

    @property
    def tokens(self) -> int:
        """Tokens in it, of prompts and answers."""
        return len(self._ids)

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        context = self._engine.info.context_tokens
        assert context is not None
        return context - len(self._ids)

    @property
    def resting(self) -> bool:
        """It is between turns."""
        return not self._in_turn

    async def append(self, ids: Sequence[int]) -> None:
        """More of the prompt: see `LanguageSession.append`."""
        life = self._take(ids)
        # the last token waits for the turn, which has to have one
        if len(self._ids) > 1 and self._open(life, len(self._ids)) and self._request is not None:
            self._request.read_ahead(self._ids, len(self._ids) - 1)

    async def turn(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        """Append and answer: see `LanguageSession.turn`."""
        life = self._take(ids)
        if not self._ids:
            raise DuplexError(ErrorCode.COMMIT_EMPTY, "an empty session has no answer")
        self._in_turn = True
        try:
            most = min(sampling.max_tokens, self.room)
            if self._open(life, len(self._ids) + most) and self._request is not None:
                deltas = self._parked_turn(life, self._request, sampling, most)
            else:
                await self._leave()
                deltas = self._engine.generate(TokenPrompt(ids=tuple(self._ids)), sampling)
            async with contextlib.aclosing(deltas):
                async for delta in deltas:
                    self._ids.extend(delta.ids)
                    yield delta
        finally:
            self._in_turn = False

    async def close(self) -> None:
        """Free its slot and its memory in the engine."""
        self._closed = True
        await self._leave()

    def leave(self) -> None:
        """Its place is needed. See `Parking`."""
        request, self._request = self._request, None
        if request is not None:
            request.drop()

    # ------------------------------------------------------------------------------------------------

    def _take(self, ids: Sequence[int]) -> Life:
        """Count more tokens, or refuse them and leave all as it was."""
        if self._closed or self._in_turn:
            what = "is closed" if self._closed else "has a turn that is not over"
            raise DuplexError(ErrorCode.INVALID_VALUE, f"the session {what}")
        life = self._engine.up()
        check_ids(ids, life.info)
        check_room(len(self._ids) + len(ids), life.info)
        self._ids.extend(ids)
        return life

    def _open(self, life: Life, tokens: int) -> bool:
        """Have a request in the engine that may grow to `tokens`."""
        if not self._engine.parking.enter(self, tokens):
            return False
        if self._request is None or not self._request.takes(life):
            self._request = _OpenRequest(life, self._engine)
        return True

    async def _parked_turn(
        self, life: Life, request: _OpenRequest, sampling: Sampling, most: int
    ) -> AsyncGenerator[TokenDelta, None]:
        characters = Characters(life.tokenizer)
        totals = self._engine.totals
        length, new = len(self._ids), len(self._ids) - request.sent
        finish: Finish | None = None
        failed = False
        self._engine.active += 1
        request.ask(self._ids, life.parameters(sampling, most))
        try:
            async with contextlib.aclosing(request.answer()) as answer:
                async for ids, finish in answer:
                    text = characters.feed(ids[:-1] if finish == "stop" else ids)
                    totals.output_tokens += len(ids)
                    request.sent += len(ids)
                    if finish is not None:
                        request.sent -= 1  # the last token was not computed, and is dropped there
                    yield TokenDelta(ids=ids, text=text, finish=finish, prompt_tokens=length)
        except DuplexError:
            failed = True
            raise
        finally:
            self._engine.active -= 1
            totals.ended(prompt_tokens=new, failed=failed, aborted=finish is None and not failed)
            if finish is None:
                await self._leave()

    async def _leave(self) -> None:
        self._engine.parking.left(self)
        request, self._request = self._request, None
        if request is not None:
            await request.end()


class _OpenRequest:
    """A request of vLLM's that is given its prompt in chunks.

    `sent`: how many of the session's tokens the engine has. A chunk that is only read ahead is asked for one
    token, which is dropped here as it is there.
    """

    def __init__(self, life: Life, engine: VllmEngine) -> None:
        self.sent = 0
        self._life = life
        self._name = engine.name
        self._id = engine.new_id()
        self._chunks: asyncio.Queue[tuple[list[int], Any]] = asyncio.Queue()
        self._said: asyncio.Queue[_Said] = asyncio.Queue()
        self._ahead = 0  # tokens that are due and not wanted
        self._reader = asyncio.get_running_loop().create_task(self._read(), name=f"session {self._id}")

    def takes(self, life: Life) -> bool:
        """It is open, and in this life of the engine."""
        return life is self._life and not self._reader.done()

    def read_ahead(self, ids: list[int], upto: int) -> None:
        """Compute the first `upto` of the session's tokens."""
        if upto > self.sent:
            self._ahead += 1
            self._chunks.put_nowait((ids[self.sent : upto], self._life.parameters(_READ_AHEAD, 1)))
            self.sent = upto

    def ask(self, ids: list[int], parameters: Any) -> None:
        """Compute all of the session's tokens and go on from there."""
        self._chunks.put_nowait((ids[self.sent :], parameters))
        self.sent = len(ids)

    async def answer(self) -> AsyncGenerator[tuple[tuple[int, ...], Finish | None], None]:
        """What is said to the last `ask`, to its end.

        Raises:
            DuplexError: `ADAPTER_FAILED`.
        """
        finish = None
        while finish is None:
            said = await self._said.get()
            if isinstance(said, DuplexError):
                raise said
            ids, finish = said
            yield ids, finish

    def drop(self) -> None:
        """End it soon."""
        self._reader.cancel()

    async def end(self) -> None:
        """End it; within one step of the engine it is gone."""
        self._reader.cancel()
        await asyncio.wait({self._reader})

    async def _read(self) -> None:
        """Take what comes: only an iterated request is one for vLLM."""
        outputs: AsyncGenerator[Any, None] | None = None
        try:
            first = self._life.parameters(_READ_AHEAD, 1)
            outputs = self._life.engine.generate(self._feed(), first, self._id)
            async for output in outputs:
                finish = finish_of(output, self._name)
                ids = tuple(output.outputs[0].token_ids)
                unwanted = min(self._ahead, len(ids))
                self._ahead -= unwanted
                # chunks that were said in one go end as the last of them does
                if len(ids) > unwanted:
                    self._said.put_nowait((ids[unwanted:], finish))
        except Exception as error:
            self._said.put_nowait(await self._life.error_of(error, self._name))
        finally:
            await abort(self._life, outputs, self._id)

    async def _feed(self) -> AsyncGenerator[Any, None]:
        from vllm.engine.protocol import StreamingInput
        from vllm.inputs import tokens_input

        while True:
            ids, parameters = await self._chunks.get()
            yield StreamingInput(prompt=tokens_input(ids), sampling_params=parameters)
