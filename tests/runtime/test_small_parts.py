"""Calls, tasks, faults and the loop's lag."""

from __future__ import annotations

import asyncio
import logging

import pytest
from runtime_fakes import ManualClock

from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime.calls import MAX_CALL_BYTES, MAX_CALLS, AdapterCalls
from duplex.runtime.faults import named
from duplex.runtime.loop_lag import INTERVAL_S, LoopLagMonitor
from duplex.runtime.tasks import Tasks, bounded


async def test_calls_run_one_after_the_other_in_order() -> None:
    calls = AdapterCalls(ManualClock(), 60, lambda: None)
    done: list[int] = []
    running = 0
    finished = asyncio.Event()

    async def call(number: int) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        done.append(number)
        running -= 1
        if number == 99:
            finished.set()

    task = asyncio.ensure_future(calls.run())
    assert calls.idle
    for number in range(100):
        calls.put(lambda number=number: call(number))
    assert not calls.idle
    await finished.wait()
    await asyncio.sleep(0)
    assert done == list(range(100))
    assert calls.idle
    task.cancel()


async def test_call_queue_is_bounded_in_number_and_bytes() -> None:
    async def call() -> None: ...

    many = AdapterCalls(ManualClock(), 60, lambda: None)
    for _ in range(MAX_CALLS):
        many.put(call, size=1)
    with pytest.raises(DuplexError) as caught:
        many.put(call, size=1)
    assert caught.value.code is ErrorCode.INPUT_OVERFLOW
    many.put(call)  # what is no input always finds room

    large = AdapterCalls(ManualClock(), 60, lambda: None)
    large.put(call, size=MAX_CALL_BYTES)
    with pytest.raises(DuplexError):
        large.put(call, size=1)


async def test_call_that_takes_too_long_is_reported_once() -> None:
    clock = ManualClock()
    stuck: list[float] = []
    calls = AdapterCalls(clock, 60, lambda: stuck.append(clock.now()))
    gates = [asyncio.Event() for _ in range(2)]
    task = asyncio.ensure_future(calls.run())
    for gate in gates:

        async def call(gate: asyncio.Event = gate) -> None:
            await gate.wait()

        calls.put(call)
    await asyncio.sleep(0)
    clock.advance(50)
    gates[0].set()
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(50)
    assert stuck == []
    clock.advance(50)
    assert len(stuck) == 1
    calls.close()
    assert clock.pending == 0
    task.cancel()


async def test_stop_gives_up_what_does_not_stop() -> None:
    stray: set[asyncio.Task[object]] = set()
    tasks = Tasks(stray)
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def good() -> None:
        await asyncio.Event().wait()

    tasks.start(deaf(), "deaf")
    tasks.start(good(), "good")
    await asyncio.sleep(0)
    assert not await tasks.stop(0.02)
    assert [task.get_name() for task in stray] == ["deaf"]
    release.set()
    await asyncio.wait(set(stray))
    await asyncio.sleep(0)
    assert not stray


async def test_bounded_tells_how_it_went(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="duplex")  # another test may have run a quieter server
    stray: set[asyncio.Task[object]] = set()

    async def quick() -> None: ...

    async def fails() -> None:
        raise ValueError("no")

    async def hangs() -> None:
        await asyncio.Event().wait()

    assert await bounded(quick(), 1, "quick", stray)
    assert not await bounded(fails(), 1, "fails", stray)
    assert not await bounded(hangs(), 0.01, "hangs", stray)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "fails failed",
        "hangs took longer than 0.01 s",
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not stray


def test_only_the_class_of_a_fault_is_told() -> None:
    error = named(RuntimeError("password=hunter2"), "responding")
    assert error.code is ErrorCode.ADAPTER_FAILED
    assert error.message == "the model failed while responding: RuntimeError"
    own = DuplexError(ErrorCode.INVALID_MEDIA, "broken")
    assert named(own, "taking input") is own


def test_lag_is_what_a_call_came_too_late() -> None:
    clock = ManualClock()
    lags: list[float] = []
    monitor = LoopLagMonitor(clock, lags.append)
    monitor.start()
    clock.advance(INTERVAL_S)
    clock.time += 0.25  # the loop was busy
    clock.advance(INTERVAL_S - 0.2)
    assert lags == pytest.approx([0.0, 0.15])
    monitor.stop()
    assert clock.pending == 0
