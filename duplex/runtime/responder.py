"""The output side of an adapter session: one response at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from duplex.adapters.base import AdapterSession
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Turn
from duplex.runtime.clock import Clock, Handle
from duplex.runtime.driver import Driver
from duplex.runtime.encoding import EncoderPool
from duplex.runtime.outbound import OutboundQueue
from duplex.runtime.pump import ResponsePump
from duplex.runtime.tasks import Tasks


class Responder:
    """Starts responses and stops them. The next one starts when the one before has stopped; a model that does
    not stop in time costs its session (`adapter_stuck`)."""

    def __init__(
        self,
        adapter: AdapterSession,
        driver: Driver,
        *,
        clock: Clock,
        encoders: EncoderPool,
        tasks: Tasks,
        abort_timeout_s: float,
        queue: Callable[[], OutboundQueue | None],
    ) -> None:
        self._adapter = adapter
        self._driver = driver
        self.deliver = driver.deliver
        self._clock = clock
        self._encoders = encoders
        self._tasks = tasks
        self._abort_timeout_s = abort_timeout_s
        self._queue = queue
        self._pump: ResponsePump | None = None
        self._task: asyncio.Task[Any] | None = None
        self._next: Turn | None = None
        self._timer: Handle | None = None
        self._closed = False

    def start(self, turn: Turn) -> None:
        """Run a response, unless it has ended before it began."""
        if self._closed or not self.is_active(turn):
            return
        if self._pump is not None:
            self._next = turn
            return
        self._pump = ResponsePump(turn, self._adapter, self._encoders, self)
        self._task = self._tasks.start(self._pump.run(), f"response {turn.response_id}")
        self._task.add_done_callback(self._stopped)

    def abort(self, response_id: str) -> None:
        """Stop the adapter's work on a response."""
        if self._next is not None and self._next.response_id == response_id:
            self._next = None
        pump = self._pump
        if pump is None or self._task is None or pump.ended or pump.turn.response_id != response_id:
            return
        self._task.cancel()
        self.stopping()

    def close(self) -> None:
        """Start nothing more. The task that runs is its owner's to stop."""
        self._closed = True
        self._next = None
        self._clear_timer()

    def _stopped(self, _: asyncio.Task[Any]) -> None:
        self._pump = self._task = None
        self._clear_timer()
        turn, self._next = self._next, None
        if turn is not None:
            self.start(turn)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_stuck(self) -> None:
        self._timer = None
        words = f"the model did not stop within {self._abort_timeout_s:g} s"
        error = DuplexError(ErrorCode.ADAPTER_STUCK, words)
        self._driver.step(self._driver.session.fail, error, self._driver.now())

    # --- for the pump -------------------------------------------------------------------------------

    def is_active(self, turn: Turn) -> bool:
        return self._driver.session.active_response == turn.response_id

    @property
    def crowded(self) -> bool:
        queue = self._queue()
        return queue is not None and queue.full

    async def room(self) -> None:
        queue = self._queue()
        if queue is not None and queue.full:
            await queue.room()

    async def all_written(self) -> None:
        queue = self._queue()
        if queue is not None:
            await queue.drained()

    def finished(self, turn: Turn) -> None:
        self._driver.step(self._driver.session.response_finished, turn.epoch, self._driver.now())

    def failed(self, turn: Turn, error: DuplexError) -> None:
        self._driver.step(self._driver.session.response_failed, turn.epoch, error, self._driver.now())

    def stopping(self) -> None:
        if self._timer is None and not self._closed:
            at = self._clock.now() + self._abort_timeout_s
            self._timer = self._clock.call_at(at, self._on_stuck)
