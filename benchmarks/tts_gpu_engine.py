"""The worker without a gateway: aborts, and the same seed alone and in company.

    python benchmarks/tts_gpu_engine.py engine SPEC.json > RESULTS.jsonl

*cancel*: every slot speaks and one more request waits. A running request is aborted at a random moment;
`freed_ms` is the worker's own time from reading the abort until the slot is free, `answered_ms` the time
until the answer is here, `next_ms` the time until the first audio of the request that got the slot.

*exact*: one utterance alone, then alone again and among others that have other seeds: its audio, byte for
byte, sampled and greedy.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tts_gpu_common import as_part, spread, tell, time_left
from tts_gpu_model import worker_spec
from tts_gpu_sizes import LANGUAGE, SPEAKER

from duplex.adapters.engine.messages import Abort, Audio, Ended, Failed, FromWorker, Start, Stats
from duplex.adapters.engine.process import WorkerProcess
from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.qwen3_tts.job import Job, Sampling


class Request:
    """What has come of one."""

    __slots__ = ("aborted", "audio", "over", "stale", "started")

    def __init__(self) -> None:
        self.audio: list[bytes] = []
        self.started: asyncio.Event = asyncio.Event()
        self.over: asyncio.Future[tuple[float, Audio | Ended]] = asyncio.get_running_loop().create_future()
        self.aborted = False
        self.stale = 0


class Desk:
    """The gateway's end of one worker."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.requests: dict[int, Request] = {}
        self.frame_ms: list[float] = []
        self.memory = 0
        self.last = 0
        self.worker: WorkerProcess

    async def open(self, folder: Path) -> None:
        self.worker = await WorkerProcess.start(
            worker_spec(self.orders, folder), EngineSettings(), self.received, name="worker"
        )

    def received(self, message: FromWorker) -> None:
        now = time.perf_counter()
        if isinstance(message, Stats):
            if message.launches:
                self.frame_ms.append(message.frame_ms)
            self.memory = message.memory_bytes
        elif isinstance(message, Audio):
            request = self.requests[message.id]
            if request.over.done():
                request.stale += len(message.samples)
            request.audio.append(message.samples)
            request.started.set()
            if message.finish is not None and not request.over.done():
                request.over.set_result((now, message))
        elif isinstance(message, Ended):
            self.requests[message.id].over.set_result((now, message))
        elif isinstance(message, Failed):
            request = self.requests[message.id]
            request.started.set()
            request.over.set_exception(RuntimeError(f"{message.code}: {message.message}"))

    def start(self, *, frames: int, seed: int, sampling: Sampling | None = None) -> int:
        job = Job(
            text=self.orders["text"],
            ended=True,
            whole=True,
            language=LANGUAGE,
            speaker=SPEAKER,
            seed=seed,
            sampling=sampling or Sampling(),
            max_frames=frames,
        )
        self.last += 1
        self.requests[self.last] = Request()
        self.worker.send(Start(id=self.last, job=msgspec.msgpack.encode(job)))
        return self.last

    async def abort(self, id: int) -> tuple[float, float, bool]:
        """ms until the slot was free by the worker's clock, ms until the answer, and whether it still ran."""
        request = self.requests[id]
        began = time.perf_counter()
        self.worker.send(Abort(id=id))
        at, answer = await request.over
        ran = isinstance(answer, Ended)
        return (answer.waited_ms if isinstance(answer, Ended) else 0.0), (at - began) * 1000, ran

    async def audio(self, id: int) -> bytes:
        await self.requests[id].over
        return b"".join(self.requests[id].audio)


async def cancel(desk: Desk, slots: int, aborts: int, left_s: float) -> None:
    """Aborts while every slot speaks."""
    dice = random.Random(5)
    left = time_left(left_s)
    frames = 600 if slots > 8 else 120
    speaking = [desk.start(frames=frames, seed=index) for index in range(slots)]
    for id in speaking:
        await desk.requests[id].started.wait()
    desk.frame_ms.clear()
    freed, answered, following = [], [], []
    stale = 0
    while len(freed) < aborts and left() > 0:
        speaking = [id for id in speaking if not desk.requests[id].over.done()]
        while len(speaking) < slots:
            speaking.append(desk.start(frames=frames, seed=desk.last))
            await desk.requests[speaking[-1]].started.wait()
        waiting = desk.start(frames=frames, seed=desk.last)
        await asyncio.sleep(0.02 + 0.02 * dice.random())
        victim = speaking.pop(dice.randrange(len(speaking)))
        began = time.perf_counter()
        freed_ms, answered_ms, ran = await desk.abort(victim)
        await desk.requests[waiting].started.wait()
        if ran and not desk.requests[waiting].over.done():
            freed.append(freed_ms)
            answered.append(answered_ms)
            following.append((time.perf_counter() - began) * 1000)
            stale += desk.requests[victim].stale
        speaking.append(waiting)
    for id in speaking:
        if not desk.requests[id].over.done():
            await desk.abort(id)
    tell(
        "cancel",
        slots=slots,
        aborts=len(freed),
        freed_ms=spread(freed),
        answered_ms=spread(answered),
        next_ms=spread(following),
        frame_ms=sorted(desk.frame_ms)[len(desk.frame_ms) // 2] if desk.frame_ms else None,
        stale_bytes=stale,
        memory_bytes=desk.memory,
    )


def difference(one: bytes, other: bytes) -> float | None:
    """Largest between two takes of float32 samples; None: of different lengths."""
    if len(one) != len(other):
        return None
    return float(np.max(np.abs(np.frombuffer(one, "<f4") - np.frombuffer(other, "<f4")), initial=0.0))


async def exact(desk: Desk, batches: Sequence[int], frames: int) -> None:
    for greedy in (False, True):
        sampling = Sampling(temperature=0.0, predictor_temperature=0.0) if greedy else None
        alone = await desk.audio(desk.start(frames=frames, seed=1234, sampling=sampling))
        for batch in (1, *batches):
            ids = [
                desk.start(frames=frames, seed=1234 if index == batch // 2 else index, sampling=sampling)
                for index in range(batch)
            ]
            takes = [await desk.audio(id) for id in ids]
            again = takes[batch // 2]
            tell(
                "audio",
                batch=batch,
                greedy=greedy,
                frames=len(alone) // (4 * 1920),
                identical=again == alone,
                same_16_bit=_int16(again) == _int16(alone),
                difference=difference(again, alone),
                others_differ=all(take != alone for take in takes[: batch // 2]) or greedy,
            )


def _int16(samples: bytes) -> bytes:
    return np.round(np.frombuffer(samples, "<f4") * 32767).astype("<i2").tobytes()


async def engine(orders: dict[str, Any]) -> None:
    left = time_left(orders["budget_s"])
    desk = Desk(orders)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        await desk.open(Path(folder))
        try:
            tell(
                "started", seconds=time.perf_counter() - began, worker=msgspec.to_builtins(desk.worker.ready)
            )
            if "cancel" in orders["sections"]:
                await cancel(desk, orders["slots"], orders["aborts"], left() * 0.6)
            if "exact" in orders["sections"]:
                await exact(desk, orders["exact_batches"], orders["exact_frames"])
        finally:
            await desk.worker.stop()


if __name__ == "__main__":
    asyncio.run(engine(as_part()))
