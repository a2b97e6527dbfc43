"""A request as the gateway's code sees it: text in, audio out, at the pace of whoever takes the audio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.messages import Audio, Credit, Failed, Text
from duplex.adapters.engine.model import Finish
from duplex.core.errors import DuplexError, ErrorCode

Send: TypeAlias = Callable[[Text | Credit], None]


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True):
    """More audio: `samples` float32 mono, shape (n,), whole frames, perhaps none. `finish` is set on the
    last."""

    samples: NDArray[np.float32]
    finish: Finish | None = None


class EngineRequest:
    """One request. Iterating it gives its audio and ends after the chunk with `finish`.

    The worker may be `window` frames ahead of what was taken (None: any number), so that is also the most
    that waits here. Credit is given a quarter of the window at a time, so that frames are made in runs.
    """

    def __init__(self, id: int, send: Send, *, window: int | None, frame_samples: int) -> None:
        self.id = id
        self.finish: Finish | None = None
        """Why it ended, once its last chunk is here."""
        self._send = send
        self._window = window
        self._granted = window or 0
        self._taken = 0
        self._frame_bytes = 4 * frame_samples
        self._chunks: deque[Audio] = deque()
        self._error: DuplexError | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    def send_text(self, text: str, *, ended: bool = False) -> None:
        """More text; `ended`: the last of it. Void when the request is over."""
        if not self.over:
            self._send(Text(id=self.id, text=text, ended=ended))

    @property
    def over(self) -> bool:
        """The worker has nothing more to do for it, or it was closed."""
        return self._over or self.finish is not None or self._error is not None

    def __aiter__(self) -> EngineRequest:
        return self

    async def __anext__(self) -> AudioChunk:
        """The next chunk.

        Raises:
            DuplexError: the request's own fault by its name; `ADAPTER_FAILED` when its worker died.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.finish is not None or self._over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        audio = self._chunks.popleft()
        self._taken += len(audio.samples) // self._frame_bytes
        self._grant()
        return AudioChunk(samples=np.frombuffer(audio.samples, dtype="<f4"), finish=audio.finish)

    # --- the worker's side --------------------------------------------------------------------------

    def deliver(self, audio: Audio) -> None:
        """Audio has come."""
        self._chunks.append(audio)
        self.finish = audio.finish
        self._wake()

    def fail(self, error: DuplexError) -> None:
        """It ends here, after the audio that has come."""
        self._error = error
        self._wake()

    def close(self) -> None:
        """Nobody wants it any more: what has come is dropped."""
        self._over = True
        self._chunks.clear()
        self._wake()

    def _grant(self) -> None:
        if self._window is None or self.over:
            return
        due = self._taken + self._window
        if due - self._granted >= max(1, self._window // 4):
            self._granted = due
            self._send(Credit(id=self.id, frames=due))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def error_of(failed: Failed) -> DuplexError:
    """What a worker's `Failed` means."""
    known = failed.code in ErrorCode._value2member_map_
    code = ErrorCode(failed.code) if known else ErrorCode.ADAPTER_FAILED
    return DuplexError(code, failed.message, param=failed.param)
