"""One run of a model's `synthesise`, in a task of its own, so that no model can hold up its caller.

A model that makes nothing for too long fails by name; one that does not stop when it is told to is given up
and counted; what it raises gets a name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec

from duplex.adapters.speech import SpeechChunk, SpeechFace, SpeechRequest
from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime.faults import being_cancelled, named
from duplex.runtime.tasks import give_up

log = logging.getLogger("duplex.adapter")

AHEAD: Final = 2
"""Chunks that a model may be ahead of whoever takes them."""


class Patience(msgspec.Struct, kw_only=True):
    """How long models may take, seconds: to make the next chunk, and to stop. `stray`: those that did not."""

    stall_s: float = 60.0
    stop_s: float = 5.0
    stray: set[asyncio.Task[Any]] = msgspec.field(default_factory=set)


async def speak(
    face: SpeechFace, request: SpeechRequest, text: AsyncIterator[str], patience: Patience
) -> AsyncGenerator[SpeechChunk, None]:
    """The model's chunks. Closing the iterator stops the model within one step.

    Raises:
        DuplexError: what the model raises; `ADAPTER_FAILED` for anything without a name, and for a model that
            has text and makes nothing of it for `stall_s`.
    """
    run = _Run(face, request, text)
    task = asyncio.get_running_loop().create_task(run.run(), name="speech synthesis")
    try:
        while (chunk := await run.next(patience.stall_s)) is not None:
            yield chunk
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=patience.stop_s)
        if not task.done():
            give_up(task, patience.stray)


class _Run:
    def __init__(self, face: SpeechFace, request: SpeechRequest, text: AsyncIterator[str]) -> None:
        self._face = face
        self._request = request
        self._text = text
        self._chunks: asyncio.Queue[SpeechChunk | DuplexError | None] = asyncio.Queue(AHEAD)
        self._starving = False
        """The model waits for text: then it may take any time."""
        self._limit: asyncio.Timeout | None = None
        self._stall_s = 0.0

    async def run(self) -> None:
        end: DuplexError | None = None
        chunks = None
        try:
            chunks = self._face.synthesise(self._request, self._fed())
            async for chunk in chunks:
                if not isinstance(chunk, SpeechChunk):
                    raise TypeError(f"synthesise() yielded {type(chunk).__name__}, which is no chunk")
                await self._chunks.put(chunk)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            end = named(error, "speaking")
        except Exception as error:
            end = named(error, "speaking")
        finally:
            # a generator that was left in the middle runs its clean-up now, not when it is collected
            await _closed(chunks)
        await self._chunks.put(end)

    async def next(self, stall_s: float) -> SpeechChunk | None:
        self._stall_s = stall_s
        try:
            async with asyncio.timeout(None if self._starving else stall_s) as self._limit:
                chunk = await self._chunks.get()
        except TimeoutError:
            words = f"the model made no audio for {stall_s:g} s"
            raise DuplexError(ErrorCode.ADAPTER_FAILED, words) from None
        finally:
            self._limit = None
        if isinstance(chunk, DuplexError):
            raise chunk
        return chunk

    async def _fed(self) -> AsyncIterator[str]:
        while True:
            self._hunger(True)
            try:
                piece = await anext(self._text, None)
            finally:
                self._hunger(False)
            if piece is None:
                return
            yield piece

    def _hunger(self, starving: bool) -> None:
        self._starving = starving
        if self._limit is not None and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(None if starving else now + self._stall_s)


async def _closed(chunks: object) -> None:
    close = getattr(chunks, "aclose", None)
    try:
        if close is not None:
            await close()
    except Exception:
        log.exception("the model failed while it stopped")
