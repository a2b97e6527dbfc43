"""One replica: a worker, the requests that run in it, and its next life when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from itertools import count

import msgspec

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
)
from duplex.adapters.engine.model import ModelInfo
from duplex.adapters.engine.process import WorkerProcess
from duplex.adapters.engine.request import EngineRequest, error_of
from duplex.adapters.engine.settings import EngineSettings, WorkerSpec
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.engine")


class Totals(msgspec.Struct, kw_only=True):
    """What a replica has counted over all its lives. `restarts`: lives after the first."""

    frames: int = 0
    launches: int = 0
    late: int = 0
    restarts: int = 0


class Replica:
    """Runs one worker, again and again. `ready` None: it takes nothing at the moment, and `fault` says
    why."""

    def __init__(self, name: str, spec: WorkerSpec, settings: EngineSettings) -> None:
        self.name = name
        self.fault: str | None = "is not started"
        self.ready: Ready | None = None
        self.stats: Stats | None = None
        """The last that its worker told; None: it is down."""
        self.totals = Totals()
        self._spec = spec
        self._settings = settings
        self._process: WorkerProcess | None = None
        self._ids = count(1)
        self._requests: dict[int, EngineRequest] = {}
        self._ending: set[int] = set()  # aborted here, the slot perhaps not yet free
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._life: asyncio.Task[None] | None = None

    @property
    def load(self) -> int:
        """Requests and calls that its worker has to do with."""
        return len(self._requests) + len(self._ending) + len(self._calls)

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the worker for the first time.

        Raises:
            DuplexError: it cannot be started. It is not tried again.
        """
        self.fault = "is being started"
        process = await self._begin()
        self._life = asyncio.get_running_loop().create_task(self._live(process), name=f"engine {self.name}")

    async def stop(self) -> None:
        """End the worker. What runs in it fails."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.wait({life})
        process, self._process = self._process, None
        if process is not None:
            self._down("is stopped")
            await process.stop()

    async def _live(self, process: WorkerProcess) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        pause_s = settings.backoff_s
        while True:
            began = loop.time()
            how = await asyncio.shield(process.ended)
            if loop.time() - began >= settings.stable_s:
                pause_s = settings.backoff_s
            while True:
                log.error("%s %s; it is started again in %g s", self.name, how, pause_s)
                self._down(f"{how}; it is started again")
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, settings.backoff_most_s)
                self.totals.restarts += 1
                try:
                    process = await self._begin()
                    break
                except (DuplexError, OSError) as error:
                    log.error("%s", error)  # what it wrote is for the log, not for clients
                    how = "could not be started again"

    async def _begin(self) -> WorkerProcess:
        process = await WorkerProcess.start(self._spec, self._settings, self._received, name=self.name)
        self._process, self.ready, self.fault = process, process.ready, None
        return process

    def _down(self, fault: str) -> None:
        """The worker is gone: what ran in it fails."""
        self._process, self.ready, self.stats, self.fault = None, None, None, fault
        error = DuplexError(ErrorCode.ADAPTER_FAILED, f"{self.name} {fault}")
        requests, self._requests = self._requests, {}
        calls, self._calls = self._calls, {}
        self._ending.clear()
        for request in requests.values():
            request.fail(error)
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(error)

    # --- work ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def request(
        self, job: bytes, *, window: int | None, first_frames: int, goes_on: bool = False
    ) -> AsyncIterator[EngineRequest]:
        """Run a request in this worker. On leaving it is aborted unless it is over."""
        process, info = self._up()
        id = next(self._ids)
        request = EngineRequest(id, process.send, window=window, frame_samples=info.frame_samples)
        self._requests[id] = request
        process.send(Start(id=id, job=job, credit=window, first_frames=first_frames, goes_on=goes_on))
        try:
            yield request
        finally:
            if self._requests.pop(id, None) is not None:
                self._ending.add(id)
                process.send(Abort(id=id))
            request.close()

    async def call(self, name: str, payload: bytes) -> bytes:
        """A call of this worker's model."""
        process, _ = self._up()
        id = next(self._ids)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[id] = answer
        process.send(Call(id=id, name=name, payload=payload))
        try:
            return await answer
        finally:
            self._calls.pop(id, None)

    def _up(self) -> tuple[WorkerProcess, ModelInfo]:
        if self._process is None or self.ready is None:
            raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self.name} {self.fault}")
        return self._process, self.ready.info

    def _received(self, message: FromWorker) -> None:
        match message:
            case Audio():
                request = self._requests.get(message.id)
                if request is not None:
                    if message.finish is not None:
                        del self._requests[message.id]
                    request.deliver(message)
                elif message.finish is not None:
                    self._ending.discard(
                        message.id
                    )  # it was finished before the worker read that it was aborted
            case Ended():
                self._ending.discard(message.id)
            case Failed():
                self._ending.discard(message.id)
                if (request := self._requests.pop(message.id, None)) is not None:
                    request.fail(error_of(message))
                elif (answer := self._calls.get(message.id)) is not None and not answer.done():
                    answer.set_exception(error_of(message))
            case Answer():
                answer = self._calls.get(message.id)
                if answer is not None and not answer.done():
                    answer.set_result(message.payload)
            case Stats():
                self.stats = message
                self.totals.frames += message.frames
                self.totals.launches += message.launches
                self.totals.late += message.late
