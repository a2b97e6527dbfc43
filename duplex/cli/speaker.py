"""Where the agent's voice goes: a sound card, or a stand-in that plays by the clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duplex.cli.timeline import Timeline, level_dbfs, levels_dbfs
from duplex.clients import AudioDelta, PlaybackBuffer
from duplex.codecs import Resampler

SAMPLE_RATE: Final = 24000
STEP_MS: Final = 20
"""How much is played at once, as sound cards do."""


class Speaker:
    """A player for `AsyncDuplexClient`: a `PlaybackBuffer`, and a log of all that went in and came out.

    `heard` is what a listener got from the begin of playing on, silence included, if the timeline keeps rows.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._buffer = PlaybackBuffer(SAMPLE_RATE)
        self._received: dict[int, list[NDArray[np.int16]]] = {}
        self._heard: list[NDArray[np.int16]] = []
        self._at: tuple[int, float] | None = None
        self.started_ms: float | None = None
        """When the first of `heard` sounded, by the timeline."""
        self.on_played: Callable[[], None] = lambda: None
        """Called after each step that something sounded in."""

    # --- the client's player ------------------------------------------------------------------------

    def receive(self, delta: AudioDelta) -> None:
        self._buffer.receive(delta)
        samples = _at_our_rate(delta)
        if delta.response_index not in self._received:
            # what is neither sounding nor waiting behind it is done with
            for index in [i for i in self._received if i < delta.response_index - 1]:
                del self._received[index]
        self._received.setdefault(delta.response_index, []).append(samples)
        self._timeline.record(
            "audio.received",
            response_index=delta.response_index,
            ms=round(len(samples) / SAMPLE_RATE * 1000, 3),
            bytes=len(delta.data),
            unplayed_ms=round(self._buffer.unplayed_ms(), 3),
        )

    def finish(self, response_index: int) -> None:
        self._buffer.finish(response_index)

    def cancel(self, response_index: int) -> None:
        self._buffer.cancel(response_index)
        pieces = self._received.pop(response_index, None)
        if not pieces:
            return
        samples = np.concatenate(pieces)
        position = self._buffer.position()
        played_ms = position[1] if position is not None and position[0] == response_index else 0.0
        rest = samples[round(played_ms * SAMPLE_RATE / 1000) :]
        if len(rest):
            self._timeline.record(
                "audio.cancelled",
                response_index=response_index,
                ms=round(len(rest) / SAMPLE_RATE * 1000, 3),
                levels_dbfs=levels_dbfs(rest, SAMPLE_RATE),
            )

    def position(self) -> tuple[int, float] | None:
        return self._buffer.position()

    def unplayed_ms(self) -> float:
        return self._buffer.unplayed_ms()

    # --- what sounds --------------------------------------------------------------------------------

    @property
    def heard(self) -> NDArray[np.int16]:
        """All that was played, shape (n,), at `SAMPLE_RATE`."""
        return np.concatenate(self._heard) if self._heard else np.zeros(0, np.int16)

    def upcoming(self, response_index: int) -> tuple[float, NDArray[np.int16]]:
        """How much of a response was played (ms), and what of it is here and still to be played."""
        position = self._buffer.position()
        played_ms = position[1] if position is not None and position[0] == response_index else 0.0
        pieces = self._received.get(response_index, [])
        samples = np.concatenate(pieces) if pieces else np.zeros(0, np.int16)
        return played_ms, samples[round(played_ms * SAMPLE_RATE / 1000) :]

    def pull(self, n: int) -> NDArray[np.int16]:
        """The next `n` samples for the sound card."""
        samples = self._buffer.pull(n)
        if self.started_ms is None:
            self.started_ms = self._timeline.now_ms
        if self._timeline.keep:
            self._heard.append(samples)
        position = self._buffer.position()
        if position is not None and position != self._at:
            self._at = position
            index = position[0]
            self._timeline.record(
                "audio.heard",
                response_index=index,
                ms=round(n / SAMPLE_RATE * 1000, 3),
                level_dbfs=level_dbfs(samples),
            )
            self.on_played()
        return samples

    @contextlib.asynccontextmanager
    async def by_the_clock(self) -> AsyncIterator[None]:
        """Play nowhere, at the pace of a sound card."""
        playing = asyncio.create_task(self._play(), name="speaker")
        try:
            yield
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _play(self) -> None:
        n = SAMPLE_RATE * STEP_MS // 1000
        due = time.monotonic()
        while True:
            self.pull(n)
            due += STEP_MS / 1000
            # a step that comes late is made good by the next ones: a sound card does not stop either
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def _at_our_rate(delta: AudioDelta) -> NDArray[np.int16]:
    if delta.sample_rate == SAMPLE_RATE:
        return delta.samples
    resampler = Resampler(delta.sample_rate, SAMPLE_RATE)
    parts = [resampler.feed(delta.samples), resampler.flush()]
    return np.concatenate(parts).astype(np.int16, copy=False)
