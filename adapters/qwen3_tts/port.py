"""What the adapter needs of the frame engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from duplex.adapters.engine.messages import Audio


class Stream(Protocol):
    """A running request: iterate over its audio. The last message has `finish`."""

    def __aiter__(self) -> AsyncIterator[Audio]: ...

    def send_text(self, text: str, *, ended: bool = False) -> None:
        """More of its text."""
        ...

    def send_credit(self, frames: int) -> None:
        """It may make that many frames in all."""
        ...


class Engine(Protocol):
    """Workers, as one."""

    @property
    def healthy(self) -> bool:
        """At least one worker takes requests."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def request(self, job: bytes, *, credit: int | None = None) -> AbstractAsyncContextManager[Stream]:
        """Begin a request. Leaving the context aborts what still runs.

        Raises:
            DuplexError: what is wrong with the job; `ENGINE_DOWN`, also in the middle.
        """
        ...

    async def call(self, name: str, payload: bytes) -> bytes:
        """A job that is no stream. Raises as `request` does."""
        ...
