"""What waits in a client: events to be taken, and messages to be sent when the connection is back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from duplex.clients.errors import ReconnectBufferFull
from duplex.clients.events import ClientEvent
from duplex.clients.protocol import Frame


class Inbox:
    """Events in order. `stale` tells what has become worthless while it waited.

    Args:
        bound: events that may wait; `room` waits while there are more.
    """

    def __init__(self, bound: int, stale: Callable[[ClientEvent], bool]) -> None:
        self._bound = bound
        self._stale = stale
        self._events: deque[ClientEvent] = deque()
        self._ready = asyncio.Event()
        self._taken = asyncio.Event()
        self._over: Exception | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Iterable[ClientEvent]) -> None:
        self._events.extend(events)
        self._ready.set()

    def end(self, over: Exception) -> None:
        """No more events come: `get` raises this after the last one."""
        self._over = over
        self._ready.set()

    def unbound(self) -> None:
        """Let any number of events wait: nobody may be taking them any more."""
        self._bound = 2**62
        self._taken.set()

    async def room(self) -> None:
        """Wait until there are fewer events than the bound."""
        while len(self._events) >= self._bound:
            self._taken.clear()
            await self._taken.wait()

    async def get(self) -> ClientEvent:
        while True:
            while self._events:
                event = self._events.popleft()
                self._taken.set()
                if not self._stale(event):
                    return event
            if self._over is not None:
                raise self._over
            self._ready.clear()
            await self._ready.wait()


class Outbox:
    """Messages that wait for the connection, at most `bound` bytes of them."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._frames: deque[Frame] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Frame, *, urgent: bool = False) -> None:
        """Keep a message; an `urgent` one whatever the bound.

        Raises:
            ReconnectBufferFull: it would be too much. The message is not kept.
        """
        if not urgent and self._bytes + len(frame) > self._bound:
            raise ReconnectBufferFull(
                f"the connection is down and {self._bytes} bytes of input are kept; no more are taken"
            )
        self._frames.append(frame)
        self._bytes += len(frame)

    def drain(self) -> Iterator[Frame]:
        """The messages in order, each kept until the next one is asked for. More may be put meanwhile."""
        while self._frames:
            yield self._frames[0]
            self._bytes -= len(self._frames.popleft())
