"""The input side of an adapter session: what it is told, and what it notices by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from duplex.adapters.base import AdapterSession
from duplex.core.effects import UpdateAdapter
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioWindow, ImageWindow, TextWindow, VideoWindow, Window
from duplex.runtime.calls import AdapterCalls
from duplex.runtime.clock import Clock
from duplex.runtime.driver import Driver
from duplex.runtime.faults import being_cancelled, named

BREATH = 16
"""Signals after which the loop gets a turn, for adapters that yield without ever waiting."""


class AdapterInput:
    """Calls in the order of the client's messages, and the signals. `run_calls` and `run_signals` are bodies
    of tasks; everything else returns at once. What an adapter raises becomes an error that is tied to the
    message that it was about."""

    def __init__(self, adapter: AdapterSession, driver: Driver, clock: Clock, stall_s: float) -> None:
        self._adapter = adapter
        self._driver = driver
        self._stall_s = stall_s
        self._calls = AdapterCalls(clock, stall_s, self._on_stuck)
        self.run_calls = self._calls.run
        self.close = self._calls.close

    # --- what the core asks for ---------------------------------------------------------------------

    def append(self, window: Window, event_id: str | None) -> None:
        """Hand over a window; one too many is refused by name."""
        try:
            self._calls.put(partial(self._append, window, event_id), size=_size(window))
        except DuplexError as error:
            error.event_id = event_id
            self._fail(error)

    def commit(self, event_id: str | None) -> None:
        self._calls.put(partial(self._commit, event_id))

    def forget(self) -> None:
        self._calls.put(self._forget)

    def update(self, change: UpdateAdapter) -> None:
        self._calls.put(partial(self._update, change))

    def finish(self) -> None:
        self._calls.put(self._finish)

    def behind_input(self, do: Callable[[], None]) -> None:
        """Do this when all that was asked for before is done: now, if that is so."""
        if self._calls.idle:
            do()
            return

        async def call() -> None:
            do()

        self._calls.put(call)

    # --- the calls ----------------------------------------------------------------------------------

    async def _append(self, window: Window, event_id: str | None) -> None:
        error = await _guarded(self._adapter.append(window), "taking input")
        if error is not None:
            error.event_id = error.event_id or event_id
            self._fail(error)

    async def _commit(self, event_id: str | None) -> None:
        has_input = False

        async def commit() -> None:
            nonlocal has_input
            has_input = await self._adapter.commit()

        error = await _guarded(commit(), "ending the turn")
        if error is not None:
            error.event_id = error.event_id or event_id
        driver = self._driver
        driver.step(driver.session.committed, has_input, driver.now(), event_id=event_id, error=error)

    async def _forget(self) -> None:
        clear = getattr(self._adapter, "clear_input", None)
        if clear is None:
            return  # it keeps no input of its own
        error = await _guarded(clear(), "forgetting input")
        if error is not None:
            self._fail(error)

    async def _update(self, change: UpdateAdapter) -> None:
        error = await _guarded(self._adapter.update(change.settings), "changing its settings")
        driver, event_id = self._driver, change.event_id
        if error is None:
            driver.step(driver.session.settings_applied, change.settings, driver.now(), event_id=event_id)
        else:
            driver.step(driver.session.settings_refused, error, driver.now(), event_id=event_id)

    async def _finish(self) -> None:
        error = await _guarded(self._adapter.finish(), "finishing")
        if error is not None:
            self._fail(error)
        self._driver.step(self._driver.session.input_finished, self._driver.now())

    def _fail(self, error: DuplexError) -> None:
        self._driver.step(self._driver.session.fail, error, self._driver.now())

    def _on_stuck(self) -> None:
        words = f"the model did not take input for {self._stall_s:g} s"
        self._fail(DuplexError(ErrorCode.ADAPTER_STUCK, words))

    # --- signals ------------------------------------------------------------------------------------

    async def run_signals(self) -> None:
        """What the model says by itself. Without it a session is deaf, so a failure ends it."""
        error = await _guarded(self._signals(), "listening")
        if error is not None:
            driver, code = self._driver, error.code
            end = driver.session.end
            driver.step(end, code.traits.close_code, code.value, driver.now(), error=error)

    async def _signals(self) -> None:
        driver = self._driver
        count = 0
        async for signal in self._adapter.signals():
            driver.step(driver.session.signal, signal, driver.now())
            count += 1
            if count % BREATH == 0:
                await asyncio.sleep(0)


async def _guarded(call: Awaitable[None], doing: str) -> DuplexError | None:
    """What the adapter raised, by name. Our own cancellation goes through."""
    try:
        await call
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        return named(error, doing)
    except Exception as error:
        return named(error, doing)
    return None


def _size(window: Window) -> int:
    """Bytes of media, at least 1."""
    match window:
        case AudioWindow():
            return len(window.pcm) + 1
        case TextWindow():
            return len(window.text) + 1
        case ImageWindow():
            return len(window.data) + 1
        case VideoWindow():
            return len(window.data) + sum(map(len, window.frames)) + 1
        case _:
            return 4096
