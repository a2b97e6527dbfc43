"""A reply and its speech side by side: the first sentence sounds while the rest is still being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import numpy as np

from duplex.adapters.embedded.speech import SAMPLE_RATE, Piece, cut
from duplex.adapters.text import Granularity, Splitter
from duplex.core.types import AudioDelta, Delta, TextDelta

AHEAD: Final = 8
"""Deltas that may wait to be taken. Whoever takes them paces the writing and the speaking."""

Say: TypeAlias = Callable[[str], Awaitable[Piece]]
"""Speaks one short unit off the event loop."""


async def speak_while_written(
    text: AsyncGenerator[str, None], say: Say, granularity: Granularity = "sentence"
) -> AsyncGenerator[Delta, None]:
    """Text deltas as they are written, and audio deltas, sentence by sentence, that say what they speak.

    The audio deltas' texts, joined, are the text, provided that there is anything to speak in it. Closing the
    iterator stops the writing at once and the speaking within one step.
    """
    deltas: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue(AHEAD)
    units: asyncio.Queue[str | None] = asyncio.Queue(AHEAD)
    tasks = [
        asyncio.ensure_future(_guarded(_write(text, granularity, units, deltas), deltas)),
        asyncio.ensure_future(_guarded(_speak(say, units, deltas), deltas)),
    ]
    try:
        while (delta := await deltas.get()) is not None:
            if isinstance(delta, BaseException):
                raise delta
            yield delta
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def spoken(
    text: AsyncIterator[str], say: Say, granularity: Granularity = "sentence"
) -> AsyncGenerator[Piece, None]:
    """Speech alone, for text that arrives in pieces."""
    splitter = Splitter(granularity)
    async for piece in text:
        splitter.put(piece)
        # one unit at a time: a long text that is there at once must not keep the event loop
        while (unit := splitter.take(final=False)) is not None:
            for part in cut(unit):
                yield await say(part)
    while (unit := splitter.take(final=True)) is not None:
        for part in cut(unit):
            yield await say(part)


async def _write(
    text: AsyncGenerator[str, None],
    granularity: Granularity,
    units: asyncio.Queue[str | None],
    deltas: asyncio.Queue[Delta | BaseException | None],
) -> None:
    splitter = Splitter(granularity)
    async with aclosing(text) as pieces:
        async for piece in pieces:
            if piece:
                await deltas.put(TextDelta(text=piece))
                splitter.put(piece)
                while (unit := splitter.take(final=False)) is not None:
                    await units.put(unit)
    while (unit := splitter.take(final=True)) is not None:
        await units.put(unit)
    await units.put(None)


async def _speak(
    say: Say, units: asyncio.Queue[str | None], deltas: asyncio.Queue[Delta | BaseException | None]
) -> None:
    silent = ""  # text without sound goes with the sound after it
    anything = False
    while (unit := await units.get()) is not None:
        for part in cut(unit):
            piece = await say(part)
            silent += piece.text
            if len(piece.samples):
                await deltas.put(AudioDelta(samples=piece.samples, sample_rate=SAMPLE_RATE, text=silent))
                silent, anything = "", True
    if silent and anything:
        hush = np.zeros(SAMPLE_RATE // 100, np.float32)
        await deltas.put(AudioDelta(samples=hush, sample_rate=SAMPLE_RATE, text=silent))
    await deltas.put(None)


async def _guarded(work: Awaitable[None], deltas: asyncio.Queue[Delta | BaseException | None]) -> None:
    """What fails is raised where the deltas are taken, behind those that were made before it."""
    try:
        await work
    except Exception as error:
        await deltas.put(error)
