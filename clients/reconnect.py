"""Coming back to a session: what was sent and may not have arrived, and trying until it is there again."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from duplex.clients.buffers import Outbox
from duplex.clients.errors import ConnectionLost, ResumeElsewhere

T = TypeVar("T")

BACKOFF_S: Final = (0.05, 2.0)
"""First and longest wait between two attempts to reconnect."""


class Sent:
    """The last messages that were sent, at most `bound` bytes of them, by their number in the session."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._frames: deque[str | bytes] = deque()
        self._bytes = 0
        self._count = 0

    def add(self, frame: str | bytes, *, keep: bool = True) -> None:
        """It is being sent. Without `keep` it is only counted, and nothing before it need be kept."""
        self._count += 1
        if not keep:
            self._frames.clear()
            self._bytes = 0
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        while self._bytes > self._bound:
            self._bytes -= len(self._frames.popleft())

    def reset(self) -> None:
        """The server counts anew."""
        self._frames.clear()
        self._bytes = self._count = 0

    def after(self, received: int) -> tuple[list[str | bytes], int]:
        """What the server has not got, and how many more it has not got that are not kept any more."""
        missing = max(0, self._count - received)
        kept = min(missing, len(self._frames))
        return list(self._frames)[len(self._frames) - kept :], missing - kept


async def send_kept(
    socket: ClientConnection,
    again: Iterable[str | bytes],
    outbox: Outbox,
    sent: Sent,
    *,
    keep: bool = True,
) -> None:
    """Send what had not arrived, then what was kept meanwhile: what is put into the outbox now queues behind.
    When the connection breaks, the rest is still kept."""
    waiting: Iterator[str | bytes] = iter(())
    try:
        for frame in again:
            await socket.send(frame)
        waiting = outbox.drain()
        for frame in waiting:
            sent.add(frame, keep=keep)
            await socket.send(frame)
    except ConnectionClosed:  # the reader will notice
        if keep:
            next(waiting, None)  # the one that failed is among those that were sent


async def connect_again(
    connect: Callable[[str], Awaitable[T]], url: str, *, within_s: float
) -> tuple[T, int]:
    """What `connect` returns for the address, or for that of the gateway that has the session; and the
    number of attempts.

    Raises:
        ConnectionLost: it did not come about in that time (seconds).
        SessionOver: a server gave another reason.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    wait_s, longest_s = BACKOFF_S
    attempts = 0
    target = url
    while True:
        attempts += 1
        try:
            return await connect(target), attempts
        except ResumeElsewhere as elsewhere:
            if target == url:
                target = _moved(url, elsewhere)
                continue
            words = str(elsewhere)  # two gateways that name each other: it has just moved, or ended
        except ConnectionLost as error:
            words = str(error)
        target = url
        if loop.time() + wait_s > deadline:
            raise ConnectionLost(f"the session could not be resumed: {words}")
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        wait_s = min(2 * wait_s, longest_s)


def _moved(url: str, elsewhere: ResumeElsewhere) -> str:
    """The same address at another gateway. From an encrypted one there is no way to one that is not."""
    here, there = urlsplit(url), urlsplit(elsewhere.owner)
    if not there.netloc or there.scheme not in ("ws", "wss") or (here.scheme, there.scheme) == ("wss", "ws"):
        raise elsewhere
    return urlunsplit(here._replace(scheme=there.scheme, netloc=there.netloc))
