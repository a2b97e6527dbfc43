"""The worker: in this process behind a socket pair, and as a process that is told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
import pytest
from engine_bench import ENDLESS, SETTINGS, job, spec
from fake_frames import FakeJob, FakeModel, FakeOptions, expected

from duplex.adapters.engine.messages import (
    Abort,
    Answer,
    Audio,
    Call,
    Ended,
    Failed,
    FromWorker,
    Ready,
    Start,
    Stats,
    Stop,
    ToWorker,
)
from duplex.adapters.engine.process import WorkerProcess
from duplex.adapters.engine.settings import WorkerSettings
from duplex.adapters.engine.wire import Unpacker, pack
from duplex.adapters.engine.worker import BROKEN, STOPPED, Worker

M = TypeVar("M")


class Gateway:
    """The other end of a worker that runs in a thread of this process."""

    def __init__(self, model: FakeModel, settings: WorkerSettings | None = None) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(60)
        self._unpacker: Unpacker[FromWorker] = Unpacker(FromWorker)
        self.heard: list[FromWorker] = []
        self.code: int | None = None
        self._worker = Worker(theirs, lambda: model, settings, leave=_leave)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.code = self._worker.run()

    def say(self, *messages: ToWorker) -> None:
        self._socket.sendall(b"".join(map(pack, messages)))

    def hear(self, kind: type[M], condition: Callable[[M], bool] = lambda message: True) -> M:
        """Read until such a message comes."""
        while True:
            for message in self.heard:
                if isinstance(message, kind) and condition(message):
                    return message
            data = self._socket.recv(1 << 16)
            assert data, "the worker hung up"
            self.heard += self._unpacker.feed(data)

    def audio(self, id: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        parts = [np.frombuffer(m.samples, "<f4") for m in self.heard if isinstance(m, Audio) and m.id == id]
        return np.concatenate(parts)

    def close(self) -> None:
        self._socket.close()

    def ended(self) -> int | None:
        self._thread.join(60)
        return self.code


def _leave(code: int) -> NoReturn:
    raise AssertionError(f"left with {code}")


@pytest.fixture
def gateways() -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(model: FakeModel | None = None, **settings: float) -> Gateway:
        made.append(Gateway(model or FakeModel(), WorkerSettings(**settings)))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()
        gateway.ended()


def within(condition: Callable[[], bool]) -> None:
    """Wait for what the worker's threads do without a word."""
    limit = monotonic() + 60
    tick = threading.Event()
    while not condition():
        assert monotonic() < limit
        tick.wait(0.002)


def test_ready_comes_first_and_only_when_the_model_is_warm(gateways: Callable[..., Gateway]) -> None:
    model = FakeModel()
    gateway = gateways(model)
    ready = gateway.hear(Ready)
    assert model.warm
    assert gateway.heard[0] is ready
    assert ready.info == model.info
    assert ready.pid == os.getpid()


def test_gateway_that_does_not_read_holds_the_streams_but_not_the_step_thread(
    gateways: Callable[..., Gateway],
) -> None:
    """Frames of 200 kB: the queue is full after some. An abort is carried out all the same; what was held
    comes when the gateway reads again, exactly."""
    model = FakeModel(FakeOptions(frame_samples=50_000, frames_kept=16, slots=2, max_batch=2))
    gateway = gateways(model)
    gateway.hear(Ready)
    fake = FakeJob(tone=1, tail=60)
    gateway.say(Start(id=1, job=msgspec.json.encode(fake)), Start(id=2, job=job(2, tail=ENDLESS)))
    within(lambda: len(model.slots) == 2)

    def launched() -> list[int]:
        return [slot.launched for slot in list(model.slots.values())]

    before: list[int] = []

    def stands_still() -> bool:
        nonlocal before
        now, before = before, launched()
        threading.Event().wait(0.1)
        return now == before and min(before) >= 16

    within(stands_still)
    assert max(launched()) < 60 + 16
    gateway.say(Abort(id=2))
    within(lambda: len(model.slots) == 1)
    gateway.hear(Audio, lambda audio: audio.id == 1 and audio.finish == "stop")
    np.testing.assert_array_equal(gateway.audio(1), expected(fake, frame_samples=50_000))
    ended = next(i for i, message in enumerate(gateway.heard) if isinstance(message, Ended))
    assert not any(isinstance(m, Audio) and m.id == 2 for m in gateway.heard[ended:])


def test_abort_is_answered_with_how_long_it_took(gateways: Callable[..., Gateway]) -> None:
    gateway = gateways(FakeModel(FakeOptions(frame_s=0.005)))
    gateway.hear(Ready)
    gateway.say(Start(id=1, job=job(1, tail=ENDLESS)))
    gateway.hear(Audio)
    gateway.say(Abort(id=1), Abort(id=1), Abort(id=77))
    assert gateway.hear(Ended).waited_ms > 0
    gateway.say(Start(id=2, job=job(2, tail=3)))
    gateway.hear(Audio, lambda audio: audio.id == 2 and audio.finish is not None)
    assert sum(isinstance(message, Ended) for message in gateway.heard) == 1


def test_counts_are_told_while_nothing_happens_too(gateways: Callable[..., Gateway]) -> None:
    gateway = gateways(stats_s=0.02)
    gateway.hear(Ready)
    gateway.say(Start(id=1, job=job(1, tail=10)), Start(id=2, job=job(2, text="a", ended=False)))
    gateway.hear(Audio, lambda audio: audio.finish is not None)
    gateway.hear(Stats, lambda stats: stats.active == 1 and stats.frames == 0)
    told = [message for message in gateway.heard if isinstance(message, Stats)]
    assert sum(stats.frames for stats in told) == 11
    assert {stats.memory_bytes for stats in told} == {12345}


def test_calls_run_beside_the_streams(gateways: Callable[..., Gateway]) -> None:
    gateway = gateways()
    gateway.hear(Ready)
    gateway.say(Call(id=1, name="echo", payload=b"x"), Call(id=2, name="refuse", payload=b""))
    assert gateway.hear(Answer) == Answer(id=1, payload=b"x")
    assert gateway.hear(Failed).code == "voice_not_found"


def test_stop_and_the_end_of_the_socket_end_the_worker(gateways: Callable[..., Gateway]) -> None:
    for last in (lambda gateway: gateway.say(Stop()), lambda gateway: gateway.close()):
        gateway = gateways()
        gateway.hear(Ready)
        gateway.say(Start(id=1, job=job(1, tail=ENDLESS)))
        gateway.hear(Audio)
        last(gateway)
        assert gateway.ended() == STOPPED


def test_bytes_that_are_no_message_end_the_worker_as_broken(gateways: Callable[..., Gateway]) -> None:
    gateway = gateways()
    gateway.hear(Ready)
    gateway._socket.sendall(b"\0\0\0\1\xc1")
    assert gateway.ended() == BROKEN


def test_fault_of_a_decode_ends_the_worker_as_broken(gateways: Callable[..., Gateway]) -> None:
    class Broken:
        def result(self) -> None:
            raise RuntimeError("out of memory")

    model = FakeModel()
    model.launch_decode = lambda slots, frames: Broken()  # type: ignore[assignment,method-assign,return-value]
    gateway = gateways(model)
    gateway.hear(Ready)
    gateway.say(Start(id=1, job=job(1, tail=5)))
    assert gateway.ended() == BROKEN


async def _process(on_message: Callable[[FromWorker], None] = lambda message: None) -> WorkerProcess:
    return await WorkerProcess.start(spec(), SETTINGS, on_message, name="worker")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_the_process_cleanly(number: signal.Signals) -> None:
    process = await _process()
    assert process.ready is not None
    os.kill(process.ready.pid, number)
    assert await process.ended == "ended with exit status 0"


async def test_process_ends_when_the_gateway_is_gone() -> None:
    heard = asyncio.Event()
    process = await _process(lambda message: heard.set() if isinstance(message, Audio) else None)
    process.send(Start(id=1, job=job(1, tail=ENDLESS)))
    await heard.wait()
    assert process._transport is not None
    process._transport.abort()
    assert await process.ended == "ended with exit status 0"


async def test_process_ends_when_the_gateway_is_gone_before_it_is_loaded() -> None:
    ours, theirs = socket.socketpair()
    slow = spec(fault="slow")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "duplex.adapters.engine.worker"),
        *("--factory", slow.factory, "--fd", str(theirs.fileno())),
        *("--options", msgspec.json.encode(slow.options).decode()),
        pass_fds=(theirs.fileno(),),
        env={**os.environ, **slow.env},
        stderr=asyncio.subprocess.DEVNULL,
    )
    theirs.close()
    ours.close()
    assert await child.wait() == STOPPED
