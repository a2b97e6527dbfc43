"""What the adapter needs of the frame engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.model import Finish


class Chunk(Protocol):
    """More audio: float32 mono, shape (n,), whole frames, perhaps none. `finish` is set on the last."""

    @property
    def samples(self) -> NDArray[np.float32]: ...

    @property
    def finish(self) -> Finish | None: ...


class Stream(Protocol):
    """A running request: iterate over its audio."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    def send_text(self, text: str, *, ended: bool = False) -> None:
        """More of its text; void when it is over."""
        ...


class Engine(Protocol):
    """Workers, as one."""

    def request(
        self, job: bytes, *, first_frames: int = 1, goes_on: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        """Begin a request, with `first_frames` frames in its first chunk; `goes_on`: it continues what the
        listener hears already. Leaving the context aborts what still runs.

        Raises:
            DuplexError: what is wrong with the job; `ENGINE_DOWN`; `ADAPTER_FAILED` when its worker dies.
        """
        ...

    async def call(self, name: str, payload: bytes) -> bytes:
        """A job that is no stream. Raises as `request` does."""
        ...
