"""A person at a Realtime client: speaks PCM at 24 kHz, remembers what came back."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from duplex.adapters.embedded.voice import VoiceAdapter

RATE = 24000
CHUNK_MS = 40
PATIENCE_S = 60.0
SILENCE = bytes(2 * RATE)
"""One second."""


def pcm(samples: NDArray[Any], rate: int = RATE) -> bytes:
    wave = np.asarray(samples, np.float32)
    if rate != RATE:
        wave = soxr.resample(wave, rate, RATE)
    return (np.clip(wave, -1, 1) * 32767).astype("<i2").tobytes()


async def spoken(adapter: VoiceAdapter, text: str) -> bytes:
    """`text` as PCM, with a second of silence behind it."""
    piece = await adapter.say(text)
    return pcm(piece.samples) + SILENCE


def chunks(audio: bytes) -> list[str]:
    size = 2 * RATE * CHUNK_MS // 1000
    return [base64.b64encode(audio[i : i + size]).decode() for i in range(0, len(audio), size)]


class Talker:
    """Around one connection of OpenAI's SDK. `log` holds the events that came."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.log: list[Any] = []

    async def say(self, audio: bytes) -> None:
        for chunk in chunks(audio):
            await self.connection.input_audio_buffer.append(audio=chunk)

    async def next(self) -> Any:
        event = await asyncio.wait_for(self.connection.recv(), PATIENCE_S)
        self.log.append(event)
        assert event.type != "error" or event.error.code in EXPECTED, event
        return event

    async def expect(self, type: str) -> Any:
        """Read on until an event of that type."""
        while (event := await self.next()).type != type:
            pass
        return event

    async def until(self, type: str) -> AsyncIterator[Any]:
        while True:
            event = await self.next()
            yield event
            if event.type == type:
                return

    def of(self, type: str, **fields: Any) -> list[Any]:
        return [
            event
            for event in self.log
            if event.type == type and all(getattr(event, k) == v for k, v in fields.items())
        ]

    def audio(self, response_id: str) -> bytes:
        deltas = self.of("response.output_audio.delta", response_id=response_id)
        return b"".join(base64.b64decode(event.delta) for event in deltas)


EXPECTED = frozenset({"response_cancel_not_active", "conversation_already_has_active_response"})
"""Errors that a test may ask for."""
