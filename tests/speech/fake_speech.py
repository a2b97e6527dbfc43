"""A speech model for tests: a tone whose length follows the text, step by step where a test wants it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import numpy as np

from duplex.adapters.base import AdapterInfo, AdapterSession
from duplex.adapters.speech import SpeechChunk, SpeechRequest, SpeechVoice, WordTime
from duplex.adapters.text import has_words
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, OpenSession

RATE = 24000
MS_PER_CHARACTER = 20


class FakeFace:
    """Speaks each piece of text as a 440 Hz tone, `MS_PER_CHARACTER` ms a character.

    `gate`: when given, each chunk waits for one `release()` of it. `fail_on`: text that breaks the model.
    Text without a letter or digit makes no sound. `touched` is set when text was taken, `stopped` when a run
    is over; `closed` counts those.
    """

    sample_rate = RATE

    def __init__(self, *, gate: asyncio.Semaphore | None = None, fail_on: str = "\0") -> None:
        self.gate = gate
        self.fail_on = fail_on
        self.validated: list[SpeechRequest] = []
        self.started: list[str] = []
        self.closed = 0
        self.touched = asyncio.Event()
        self.stopped = asyncio.Event()

    @property
    def voices(self) -> tuple[SpeechVoice, ...]:
        return (SpeechVoice(id="tone", aliases=("alloy",), languages=("English",)),)

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        self.validated.append(request)
        known = request.stored_voice is not None or request.voice in (None, "tone", "alloy")
        if not known:
            raise DuplexError(ErrorCode.INVALID_VALUE, f"unknown voice {request.voice}", param="voice")
        if request.task_type == "Base":
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                "CustomVoice checkpoint does not support task_type='Base'",
                param="task_type",
            )
        return msgspec.structs.replace(request, voice=request.voice or "tone")

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        position = 0.0
        try:
            async for piece in text:
                self.started.append(piece)
                self.touched.set()
                if self.fail_on in piece:
                    raise RuntimeError("the model broke: secret path /etc")
                if self.gate is not None:
                    await self.gate.acquire()
                else:
                    await asyncio.sleep(0)
                count = len(piece) * MS_PER_CHARACTER * RATE // 1000 if has_words(piece) else 0
                time = np.arange(count) / RATE
                samples = (0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
                length = count / RATE * 1000
                words = self.words(piece, position) if request.word_timestamps else None
                position += length
                yield SpeechChunk(samples=samples, sample_rate=RATE, text=piece, words=words)
        finally:
            self.closed += 1
            self.stopped.set()

    def words(self, piece: str, start_ms: float) -> tuple[WordTime, ...] | None:
        """The whole piece as one word."""
        length_ms = len(piece) * MS_PER_CHARACTER
        return (WordTime(word=piece.strip(), start_ms=start_ms, end_ms=start_ms + length_ms),)


class WordyFace(FakeFace):
    """Tells each word's time by the place of its characters."""

    def words(self, piece: str, start_ms: float) -> tuple[WordTime, ...] | None:
        return tuple(
            WordTime(
                word=match.group(),
                start_ms=start_ms + match.start() * MS_PER_CHARACTER,
                end_ms=start_ms + match.end() * MS_PER_CHARACTER,
            )
            for match in re.finditer(r"\S+", piece)
        )


class EndlessFace(FakeFace):
    """Says 100 ms of silence again and again."""

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        try:
            self.touched.set()
            while True:
                await asyncio.sleep(0)
                yield SpeechChunk(samples=np.zeros(RATE // 10, np.int16), sample_rate=RATE)
        finally:
            self.closed += 1
            self.stopped.set()


class FakeSpeechAdapter:
    """The adapter around it."""

    info = AdapterInfo(id="fake-tts", input_modalities=(Modality.TEXT,), output_modalities=(Modality.AUDIO,))

    def __init__(self, face: FakeFace) -> None:
        self.speech = face

    async def start(self) -> None:
        return None

    async def open(self, request: OpenSession) -> AdapterSession:
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, "speech only")

    async def stop(self) -> None:
        return None


def create(options: Mapping[str, Any]) -> FakeSpeechAdapter:
    return FakeSpeechAdapter(FakeFace())
