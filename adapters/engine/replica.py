"""One replica: a worker and the requests that run in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count

import msgspec

from duplex.adapters.engine.lives import Lives
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
from duplex.adapters.engine.process import FRAMES, WorkerProcess
from duplex.adapters.engine.request import EngineRequest, error_of
from duplex.adapters.engine.settings import EngineSettings, WorkerSpec
from duplex.core.errors import DuplexError, ErrorCode


class Totals(msgspec.Struct, kw_only=True):
    """What a replica has counted over all its lives. `restarts`: lives after the first."""

    frames: int = 0
    launches: int = 0
    late: int = 0
    restarts: int = 0


class Replica(Lives[Ready]):
    """One worker of a frame model. `ready` None: it takes nothing at the moment, and `fault` says why."""

    def __init__(self, name: str, spec: WorkerSpec, settings: EngineSettings) -> None:
        super().__init__(name, spec, settings, kind=FRAMES)
        self.stats: Stats | None = None
        """The last that its worker told; None: it is down."""
        self._totals = Totals()
        self._ids = count(1)
        self._requests: dict[int, EngineRequest] = {}
        self._ending: set[int] = set()  # aborted here, the slot perhaps not yet free
        self._calls: dict[int, asyncio.Future[bytes]] = {}

    @property
    def totals(self) -> Totals:
        """What it has counted until now."""
        return msgspec.structs.replace(self._totals, restarts=self.restarts)

    @property
    def load(self) -> int:
        """Requests and calls that its worker has to do with."""
        return len(self._requests) + len(self._ending) + len(self._calls)

    # --- life ---------------------------------------------------------------------------------------

    def _down(self, fault: str) -> None:
        self.stats = None
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
                self._totals.frames += message.frames
                self._totals.launches += message.launches
                self._totals.late += message.late
