"""The engine in the gateway: replicas of one model, requests routed to the least busy.

    engine = Engine("qwen3-tts", [WorkerSpec(factory="package.module:load", options={"device": "cuda:0"})])
    await engine.start()
    async with engine.request(job) as request:
        request.send_text("Hello.", ended=True)
        async for chunk in request:
            play(chunk.samples)

Only asyncio here; no model and no torch are in the gateway's process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from duplex.adapters.engine.model import ModelInfo
from duplex.adapters.engine.replica import Replica
from duplex.adapters.engine.request import AudioChunk, EngineRequest
from duplex.adapters.engine.settings import EngineSettings, WorkerSpec
from duplex.adapters.health import Figure
from duplex.core.errors import DuplexError, ErrorCode

__all__ = ["WINDOW", "AudioChunk", "Engine", "EngineRequest", "EngineSettings", "WorkerSpec"]

WINDOW: Final = 48
"""Frames that a worker may be ahead of whoever takes the audio: 3.84 s of 80 ms frames, 12 at a time."""


class Engine:
    """A model on one or more workers, one each for `workers`.

    A worker that dies or says nothing for `hang_s` fails its requests with `ADAPTER_FAILED`: the response is
    lost, the client's session is not, and asking again is answered by another replica or, in a moment, by the
    worker's next life. While no worker is up, requests fail at once with `ENGINE_DOWN`.
    """

    def __init__(
        self, name: str, workers: Sequence[WorkerSpec], settings: EngineSettings | None = None
    ) -> None:
        if not workers:
            raise DuplexError(ErrorCode.BAD_CONFIG, f"{name} has no workers", param="workers")
        self.name = name
        self.replicas = tuple(
            Replica(f"{name} worker {number}", spec, settings or EngineSettings())
            for number, spec in enumerate(workers)
        )

    async def start(self) -> None:
        """Load the model in every worker, all at the same time.

        Raises:
            DuplexError: one could not start; none is left running.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for replica in self.replicas:
                    group.create_task(replica.start(), name=f"starting {replica.name}")
        except BaseException as error:
            await self.stop()
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None
            raise

    async def stop(self) -> None:
        """End all workers, within `stop_timeout_s`."""
        await asyncio.gather(*(replica.stop() for replica in self.replicas))

    @property
    def info(self) -> ModelInfo:
        """What was loaded. All replicas are the same model; the first that is up tells.

        Raises:
            DuplexError: `ENGINE_DOWN`.
        """
        for replica in self.replicas:
            if replica.ready is not None:
                return replica.ready.info
        raise self._down()

    @property
    def healthy(self) -> bool:
        """A worker is up."""
        return any(replica.ready is not None for replica in self.replicas)

    @property
    def fault(self) -> str | None:
        """What is wrong with the workers that are down, if any is."""
        faults = [f"{replica.name} {replica.fault}" for replica in self.replicas if replica.ready is None]
        return "; ".join(faults) or None

    # --- work ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def request(
        self, job: bytes, *, credit: int | None = WINDOW, first_frames: int = 1, goes_on: bool = False
    ) -> AsyncIterator[EngineRequest]:
        """Run a request; `job` is what the model's `begin` takes. Leaving it early aborts it at once, and
        nothing of it comes any more.

        Args:
            credit: frames that may be made ahead of those taken; None: any number.
            first_frames: frames in the first chunk.
            goes_on: it continues what a listener hears already: it gets a slot before those that begin.

        Raises:
            DuplexError: `ENGINE_DOWN`: no worker is up.
        """
        replica = self._route()
        async with replica.request(job, window=credit, first_frames=first_frames, goes_on=goes_on) as request:
            yield request

    async def call(self, name: str, payload: bytes) -> bytes:
        """A job of the model that is no stream, on the least busy worker. Cancelling it drops the answer.

        Raises:
            DuplexError: the model's own fault by its name; `ADAPTER_FAILED`, `ENGINE_DOWN` as for requests.
        """
        return await self._route().call(name, payload)

    def _route(self) -> Replica:
        up = [replica for replica in self.replicas if replica.ready is not None]
        if not up:
            raise self._down()
        return min(up, key=lambda replica: replica.load)

    def _down(self) -> DuplexError:
        return DuplexError(ErrorCode.ENGINE_DOWN, self.fault or f"{self.name} is down")

    # --- metrics ------------------------------------------------------------------------------------

    def figures(self) -> list[Figure]:
        """What `/metrics` shows: see docs/operations.md."""
        return [
            figure for number, replica in enumerate(self.replicas) for figure in _figures(number, replica)
        ]


def _figures(number: int, replica: Replica) -> list[Figure]:
    labels = {"replica": str(number)}
    stats, totals = replica.stats, replica.totals
    gauges = (
        ("up", replica.ready is not None, "1 while the worker is loaded and answers."),
        ("active", stats.active if stats else 0, "Slots that are taken."),
        ("waiting", stats.waiting if stats else 0, "Requests that wait for a slot."),
        (
            "frame_seconds",
            stats.frame_ms / 1e3 if stats else 0,
            "What a frame took, mean of the last second.",
        ),
        (
            "decode_seconds",
            stats.decode_ms / 1e3 if stats else 0,
            "What a decode took, mean of the last second.",
        ),
        ("memory_bytes", stats.memory_bytes if stats else 0, "Memory that the model holds."),
    )
    counters = (
        ("frames", totals.frames, "Frames made, of all requests."),
        ("launches", totals.launches, "Frames launched, each for a batch of requests."),
        ("late_chunks", totals.late, "Chunks of audio that came after the client had run dry."),
        ("restarts", totals.restarts, "Times that the worker was started again."),
    )
    return [
        *(
            Figure(name=f"engine_{name}", kind="gauge", words=words, value=float(value), labels=labels)
            for name, value, words in gauges
        ),
        *(
            Figure(name=f"engine_{name}", kind="counter", words=words, value=float(value), labels=labels)
            for name, value, words in counters
        ),
    ]
