"""A frame engine without a model: one frame a character, its samples say which request it is of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.model import Finish
from duplex.adapters.qwen3_tts.job import EncodeReference, Job, Reference
from duplex.core.errors import DuplexError, ErrorCode

FRAME = 1920


class FakeChunk(msgspec.Struct, frozen=True, kw_only=True):
    samples: NDArray[np.float32]
    finish: Finish | None = None


class FakeStream:
    """`job` as it was started, `sent` what came after, `first_frames` and `goes_on` as asked, `over` when it
    was left."""

    def __init__(self, engine: FakeEngine, job: Job, first_frames: int, goes_on: bool) -> None:
        self.engine = engine
        self.goes_on = goes_on
        self.job = job
        self.first_frames = first_frames
        self.sent: list[tuple[str, bool]] = []
        self.over = False
        self.made = 0
        self.moved = asyncio.Event()

    @property
    def text(self) -> str:
        """All that it was given."""
        return self.job.text + "".join(text for text, _ in self.sent)

    @property
    def ended(self) -> bool:
        return self.job.ended or any(ended for _, ended in self.sent)

    def send_text(self, text: str, *, ended: bool = False) -> None:
        assert not self.ended, "text behind the end of the text"
        self.sent.append((text, ended))
        self.moved.set()

    async def __aiter__(self) -> AsyncIterator[FakeChunk]:
        """A frame for each character, chunks of 1, 2, 4 … frames; ends with the text, or at `max_frames`."""
        size = self.first_frames
        ceiling = self.job.max_frames or self.engine.ceiling
        while True:
            if self.engine.fault is not None:
                raise self.engine.fault
            if self.engine.gate is not None:
                await self.engine.gate.acquire()
            frames = min(size, len(self.text) - self.made, ceiling - self.made)
            if not self.made and frames < size and not self.ended:
                frames = 0
            finish: Finish | None = None
            if self.made + frames >= ceiling:
                finish = "length"
            elif self.ended and self.made + frames >= len(self.text):
                finish = "stop"
            if frames or finish:
                self.made += frames
                size = min(2 * size, 16)
                yield FakeChunk(samples=self.engine.samples(self, frames), finish=finish)
                if finish is not None:
                    return
                await asyncio.sleep(0)
            else:
                self.moved.clear()
                await self.moved.wait()


class FakeEngine:
    """`streams` that were begun; `calls` that were made. `gate`: a chunk waits for a `release()` of it.
    `fault` is raised in place of the next chunk."""

    def __init__(self, *, gate: asyncio.Semaphore | None = None, ceiling: int = 4096) -> None:
        self.gate = gate
        self.ceiling = ceiling
        self.fault: Exception | None = None
        self.healthy = True
        self.streams: list[FakeStream] = []
        self.calls: list[EncodeReference] = []
        self.call_gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        self.called = asyncio.Event()

    async def start(self) -> None:
        self.healthy = True

    async def stop(self) -> None:
        self.healthy = False

    @property
    def running(self) -> list[FakeStream]:
        return [stream for stream in self.streams if not stream.over]

    def samples(self, stream: FakeStream, frames: int) -> NDArray[np.float32]:
        value = (self.streams.index(stream) + 1) / 100
        return np.full(frames * FRAME, value, np.float32)

    @contextlib.asynccontextmanager
    async def request(
        self, job: bytes, *, first_frames: int = 1, goes_on: bool = False
    ) -> AsyncIterator[FakeStream]:
        if not self.healthy:
            raise DuplexError(ErrorCode.ENGINE_DOWN, "no worker runs")
        stream = FakeStream(self, msgspec.msgpack.decode(job, type=Job), first_frames, goes_on)
        self.streams.append(stream)
        self.begun.set()
        try:
            yield stream
        finally:
            stream.over = True

    async def call(self, name: str, payload: bytes) -> bytes:
        """An embedding of the recording's length; two frames of codes."""
        assert name == "encode_reference"
        asked = msgspec.msgpack.decode(payload, type=EncodeReference)
        self.calls.append(asked)
        self.called.set()
        if self.call_gate is not None:
            await self.call_gate.wait()
        if self.fault is not None:
            raise self.fault
        embedding = np.full(128, len(asked.samples) // 4, "<f4").tobytes()
        codes = np.arange(32, dtype="<i2").tobytes() if asked.codes else b""
        return msgspec.msgpack.encode(Reference(embedding=embedding, codes=codes))
