"""Tasks that run other people's code.

An `asyncio.TaskGroup` waits for its tasks for ever, and code that swallows its cancellation would keep a
session, its slot and a shutdown waiting with it. These tasks are given up after a bounded time instead; what
was given up is counted and still referred to until it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("duplex.tasks")


class Tasks:
    """The tasks of one owner. After `stop` none is left, but for those in `stray`."""

    def __init__(self, stray: set[asyncio.Task[Any]]) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stray = stray

    def start(self, body: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(body, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def stop(self, timeout_s: float) -> bool:
        """Cancel all and wait. False when some did not stop: they are strays from now on."""
        if not self._tasks:
            return True
        for task in self._tasks:
            if not task.cancelling():  # a second cancel would break off the clean-up that the first began
                task.cancel()
        _, stuck = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in stuck:
            give_up(task, self._stray)
        return not stuck


async def bounded(
    body: Coroutine[Any, Any, Any], timeout_s: float, name: str, stray: set[asyncio.Task[Any]]
) -> bool:
    """Run `body` for at most `timeout_s`; what is not done then is cancelled and given up. True when it ended
    by itself and without an error; errors are logged."""
    task = asyncio.get_running_loop().create_task(body, name=name)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            log.warning("%s took longer than %g s", name, timeout_s)
    finally:
        if not task.done():
            task.cancel()
            give_up(task, stray)
    if not task.done() or task.cancelled():
        return False
    if (error := task.exception()) is not None:
        log.error("%s failed", name, exc_info=error)
        return False
    return True


def give_up(task: asyncio.Task[Any], stray: set[asyncio.Task[Any]]) -> None:
    """Keep a task that does not stop, so that it is known and not collected while it runs."""

    def ended(task: asyncio.Task[Any]) -> None:
        stray.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    stray.add(task)
    task.add_done_callback(ended)
