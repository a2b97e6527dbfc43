"""A worker, and its next life when it dies."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from duplex.adapters.engine.process import WorkerKind, WorkerProcess
from duplex.adapters.engine.settings import EngineSettings, WorkerSpec
from duplex.core.errors import DuplexError

log = logging.getLogger("duplex.engine")

R = TypeVar("R")


class Lives(ABC, Generic[R]):
    """Runs one worker, again and again. What is said to it and what becomes of its answers is a subclass's.

    `R` is the message that says that it is ready (`kind.ready`). `ready` None: it takes nothing at the
    moment, and `fault` says why. `restarts` counts lives after the first.
    """

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        settings: EngineSettings,
        *,
        kind: WorkerKind,
        fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.fault: str | None = "is not started"
        self.ready: R | None = None
        self.restarts = 0
        self._spec = spec
        self._settings = settings
        self._kind = kind
        self._fds = tuple(fds)
        self._process: WorkerProcess | None = None
        self._life: asyncio.Task[None] | None = None

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
        process = self._process
        if process is not None:
            self._lose("is stopped")
            await process.stop()

    # --- what a subclass does -----------------------------------------------------------------------

    @abstractmethod
    def _received(self, message: Any) -> None:
        """The worker says something, of type `kind.incoming`."""

    @abstractmethod
    def _down(self, fault: str) -> None:
        """The worker is gone: what ran in it fails. Perhaps told again while it is down."""

    def _begun(self, ready: R) -> None:
        """A worker is ready, the first one too. What is raised here ends it; `OSError` and `DuplexError`
        are tried again."""
        return

    # --- lives --------------------------------------------------------------------------------------

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
                self._lose(f"{how}; it is started again")
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, settings.backoff_most_s)
                self.restarts += 1
                try:
                    process = await self._begin()
                    break
                except (DuplexError, OSError) as error:
                    log.error("%s", error)  # what it wrote is for the log, not for clients
                    how = "could not be started again"

    async def _begin(self) -> WorkerProcess:
        process = await WorkerProcess.start(
            self._spec, self._settings, self._received, name=self.name, kind=self._kind, fds=self._fds
        )
        try:
            self._begun(process.ready)
        except BaseException:
            await process.stop()
            raise
        self._process, self.ready, self.fault = process, process.ready, None
        return process

    def _lose(self, fault: str) -> None:
        self._process, self.ready, self.fault = None, None, fault
        self._down(fault)
