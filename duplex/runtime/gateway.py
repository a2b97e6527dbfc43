"""The gateway: loaded models, slots, and the sessions that run. One a process (or a test)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Literal, Protocol

from duplex.adapters.base import Adapter, AdapterSession
from duplex.adapters.health import Figure, check_health, fault_of, is_healthy
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.facts import ModelFacts, State
from duplex.core.session import Session
from duplex.core.settings import apply_changes
from duplex.core.types import Modality, OpenSession, SessionSettings
from duplex.dialects.base import Dialect, OpenRequest
from duplex.runtime.attachment import Connection
from duplex.runtime.clock import Clock, LoopClock
from duplex.runtime.encoding import EncoderPool
from duplex.runtime.faults import being_cancelled, named
from duplex.runtime.leases import Lease, LeaseRegistry
from duplex.runtime.loop_lag import LoopLagMonitor
from duplex.runtime.metrics import Gauges, Metrics
from duplex.runtime.resume_store import resume_store
from duplex.runtime.runner import Services, SessionRunner
from duplex.runtime.socket import Socket
from duplex.runtime.tasks import bounded, give_up

log = logging.getLogger("duplex.gateway")


_VIDEO_MODEL = "mage-vl"
"""The endpoint for video is named after it."""


class Status(StrEnum):
    """What `/ready` says."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ENGINE_DOWN = "engine_down"


class Drainable(Protocol):
    """A connection beside the sessions."""

    async def drain(self, grace_s: float) -> None:
        """Let what runs finish within the grace, then end; return when ended."""
        ...


class Gateway:
    """Opens, resumes and ends sessions.

    `start` loads the adapters; sessions are refused with `engine_down` until it has. What an adapter may tell
    of its engine's health and figures: see `duplex.adapters.health`.
    """

    def __init__(self, config: ServerConfig, adapters: Sequence[Adapter], clock: Clock | None = None) -> None:
        self.config = config
        self.adapters = {adapter.info.id: adapter for adapter in adapters}
        if len(self.adapters) != len(adapters):
            raise DuplexError(ErrorCode.BAD_CONFIG, "two adapters have the same model id")
        self.clock = clock or LoopClock()
        self.metrics = Metrics(self._gauges, self._figures)
        self.encoders = EncoderPool(config.encoder_threads)
        self.leases = LeaseRegistry(config.max_sessions)
        self.runners: set[SessionRunner] = set()
        self.stray: set[asyncio.Task[Any]] = set()
        """Tasks of adapters that did not stop when they were told to."""
        self.drainables: set[Drainable] = set()
        """Connections of other endpoints, which are told when the server goes away."""
        self._store = resume_store(config)
        self._services = Services(config, self.clock, self.metrics, self.encoders, self.stray)
        self._lag = LoopLagMonitor(self.clock, self.metrics.loop_lag.observe)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started: list[Adapter] = []
        self._loaded = False
        self._check_defaults()

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the adapters, all at the same time. Raises what the first of them to fail raised."""
        self._lag.start()
        if self._store is not None:
            self._store.start()

        async def load(adapter: Adapter) -> None:
            self._started.append(adapter)
            await adapter.start()
            log.info("model %s is loaded", adapter.info.id)

        try:
            async with asyncio.TaskGroup() as group:
                for adapter in self.adapters.values():
                    group.create_task(load(adapter), name=f"loading {adapter.info.id}")
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self._loaded = True

    async def drain(self) -> None:
        """Take no more sessions, tell the clients, let what runs finish within `drain_grace_s`."""
        self.leases.draining = True
        grace_s = self.config.drain_grace_s
        if self.runners:
            log.info("draining %d sessions, for at most %g s", len(self.runners), grace_s)
        for runner in list(self.runners):
            runner.drain(grace_s)
        others = asyncio.gather(*(other.drain(grace_s) for other in list(self.drainables)))
        if self._tasks:
            # the sessions end themselves at the end of the grace; closing their models takes its own time
            await asyncio.wait(self._tasks, timeout=grace_s + 2 * self.config.abort_timeout_s)
        await others

    async def stop(self) -> None:
        """End what still runs and unload the adapters."""
        self.leases.draining = True
        for runner in list(self.runners):
            runner.end(1012, "server stopped")
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=3 * self.config.abort_timeout_s)
            for task in stuck:
                task.cancel()
        for adapter in self._started:
            name = f"stopping {adapter.info.id}"
            await bounded(adapter.stop(), max(10.0, self.config.abort_timeout_s), name, self.stray)
        self._started.clear()
        if self._store is not None:
            await self._store.stop()
        self._lag.stop()
        self.encoders.close()

    def check_open(self) -> None:
        """Let new work in, or raise `DuplexError`: `DRAINING`, or `ENGINE_DOWN` while the models are loaded.
        One that is down later refuses its own work alone."""
        match self.status:
            case Status.DRAINING:
                raise DuplexError(ErrorCode.DRAINING, "the server is draining: try another one")
            case Status.LOADING:
                raise DuplexError(ErrorCode.ENGINE_DOWN, "the models are still being loaded")

    @property
    def status(self) -> Status:
        if self.leases.draining:
            return Status.DRAINING
        if not self._loaded:
            return Status.LOADING
        if not all(is_healthy(adapter) for adapter in self.adapters.values()):
            return Status.ENGINE_DOWN
        return Status.READY

    @property
    def reason(self) -> str | None:
        """Why an engine is down, in words; None when none is."""
        down = [adapter for adapter in self.adapters.values() if not is_healthy(adapter)]
        return "; ".join(fault_of(adapter) for adapter in down) or None

    # --- sessions -----------------------------------------------------------------------------------

    async def join(
        self,
        socket: Socket,
        dialect: Dialect,
        request: OpenRequest,
        *,
        default_model: str | None = None,
        while_active: Literal["supersede", "refuse"] = "supersede",
    ) -> tuple[SessionRunner, Connection]:
        """Open a session for this socket, or take one up again. Cancelling it leaves nothing behind.

        Raises:
            DuplexError: why there is no session for it.
        """
        if request.resume_token is not None:
            return await self._resume(socket, dialect, request)
        adapter = self._adapter(request.model or default_model)
        info = adapter.info
        facts = ModelFacts(
            id=info.id,
            input_modalities=info.input_modalities,
            output_modalities=info.output_modalities,
            default_output_modalities=info.default_output_modalities,
            proactive=info.proactive,
            voices=info.voices,
        )
        with _as_bad_config():
            settings = apply_changes(SessionSettings(), request.settings)
            facts.check_output(settings.output_modalities)
        lease = await self.leases.acquire(request.session_id, adapter.info.id, adapter.info.max_sessions)
        try:
            with _as_bad_config():
                adapter_session = await self._open(
                    adapter, OpenSession(session_id=lease.session_id, settings=settings)
                )
        except BaseException:
            lease.release()
            raise
        session = Session(
            session_id=lease.session_id,
            model=facts,
            settings=settings,
            limits=self.config.session_limits(),
            while_active=while_active,
        )
        runner = SessionRunner(session, adapter_session, lease, self._services)
        lease.holder = runner
        self._run(runner, lease)
        self.metrics.sessions_opened += 1
        connection = runner.open(socket, dialect)
        if self.leases.draining:  # it began while this session was being opened
            runner.drain(self.config.drain_grace_s)
        return runner, connection

    async def _resume(
        self, socket: Socket, dialect: Dialect, request: OpenRequest
    ) -> tuple[SessionRunner, Connection]:
        token = request.resume_token or ""
        try:
            lease = self.leases.resume(token, request.session_id)
        except DuplexError as error:
            if error.code is not ErrorCode.RESUME_REJECTED or self._store is None:
                raise
            owner = await self._store.owner(token)
            if owner is None:
                raise
            words = "another gateway has the session"
            raise DuplexError(ErrorCode.RESUME_ELSEWHERE, words, param="resume", owner=owner) from None
        runner = lease.holder
        ending = (State.CLOSING, State.CLOSED)
        if (
            not isinstance(runner, SessionRunner)
            or runner.session.state in ending
            or self.config.resume_grace_s <= 0
        ):
            raise DuplexError(ErrorCode.RESUME_REJECTED, "the session is over", param="resume")
        return runner, runner.take_over(socket, dialect, request.last_seq)

    def _run(self, runner: SessionRunner, lease: Lease) -> None:
        task = asyncio.get_running_loop().create_task(runner.run(), name=f"session {runner.session.id}")
        self.runners.add(runner)
        self._tasks.add(task)
        store = self._store if self.config.resume_grace_s > 0 else None
        if store is not None:
            store.opened(lease.resume_token)

        def done(task: asyncio.Task[None]) -> None:
            self.runners.discard(runner)
            self._tasks.discard(task)
            if store is not None:
                store.closed(lease.resume_token)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s failed", task.get_name(), exc_info=error)

        task.add_done_callback(done)

    async def _open(self, adapter: Adapter, request: OpenSession) -> AdapterSession:
        """The adapter's `open`, bounded. A session that comes out of it too late is closed."""
        check_health(adapter)
        task = asyncio.get_running_loop().create_task(
            adapter.open(request), name=f"opening {request.session_id}"
        )
        try:
            done, _ = await asyncio.wait({task}, timeout=self.config.open_timeout_s)
        except asyncio.CancelledError:
            await self._abandon(task)
            raise
        if not done:
            await self._abandon(task)
            raise DuplexError(
                ErrorCode.ADAPTER_STUCK,
                f"the model did not open a session within {self.config.open_timeout_s:g} s",
            )
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            raise named(error, "opening the session") from None
        except Exception as error:
            raise named(error, "opening the session") from None

    async def _abandon(self, task: asyncio.Task[AdapterSession]) -> None:
        """Cancel an `open` and wait for it: the slot is not given away while the model still has it."""

        def close(task: asyncio.Task[AdapterSession]) -> None:
            if not task.cancelled() and task.exception() is None:
                name = f"closing what opened too late: {task.get_name()}"
                closing = asyncio.get_running_loop().create_task(task.result().close(), name=name)
                give_up(closing, self.stray)

        if not task.done():
            task.cancel()
        task.add_done_callback(close)
        await asyncio.wait({task}, timeout=self.config.abort_timeout_s)
        if not task.done():
            give_up(task, self.stray)

    # --- models -------------------------------------------------------------------------------------

    @property
    def default_model(self) -> str | None:
        """The model of `/v1/duplex` when the client names none: as configured, else the first that hears, if
        any does."""
        hears = (
            id for id, adapter in self.adapters.items() if Modality.AUDIO in adapter.info.input_modalities
        )
        return self.config.default_model or next(hears, None) or next(iter(self.adapters), None)

    @property
    def default_video_model(self) -> str | None:
        """The model of `/v1/mage-vl/duplex`: as configured, else the one that it is named after, else the
        first that takes video."""
        takes_video = [
            id for id, adapter in self.adapters.items() if Modality.VIDEO in adapter.info.input_modalities
        ]
        named = _VIDEO_MODEL if _VIDEO_MODEL in takes_video else next(iter(takes_video), None)
        return self.config.default_video_model or named

    def _check_defaults(self) -> None:
        for key in ("default_model", "default_video_model"):
            model = getattr(self.config, key)
            if model is not None and model not in self.adapters:
                raise DuplexError(
                    ErrorCode.BAD_CONFIG,
                    f"{key}: no model {model!r}; there are: {', '.join(self.adapters) or 'none'}",
                    param=key,
                )

    def _adapter(self, model: str | None) -> Adapter:
        if not self._loaded and not self.leases.draining:
            raise DuplexError(ErrorCode.ENGINE_DOWN, "the models are still being loaded")
        adapter = self.adapters.get(model) if model is not None else None
        if adapter is None:
            name = "for this endpoint" if model is None else repr(model[:128])
            raise DuplexError(ErrorCode.MODEL_NOT_FOUND, f"there is no model {name}", param="model")
        return adapter

    # --- metrics ------------------------------------------------------------------------------------

    def _gauges(self) -> Gauges:
        gauges = Gauges(
            sessions=len(self.leases),
            sessions_detached=self.leases.detached,
            encoder_depth=self.encoders.depth,
            stray_tasks=len(self.stray),
        )
        for runner in self.runners:
            gauges.dropped_deltas += runner.session.dropped_deltas
            if (queue := runner.queue) is not None:
                gauges.queue_bytes += queue.bytes
                gauges.queue_audio_s += queue.audio_s
                gauges.journal_bytes += queue.journal.bytes if queue.journal is not None else 0
        return gauges

    def _figures(self) -> Iterator[tuple[str, Figure]]:
        """What the models tell of themselves. One that cannot is left out."""
        for adapter in self._started:
            try:
                figures = list(getattr(adapter, "figures", tuple)())
            except Exception:
                log.exception("model %s cannot tell its figures", adapter.info.id)
                continue
            for figure in figures:
                yield adapter.info.id, figure


@contextmanager
def _as_bad_config() -> Iterator[None]:
    """A setting of the handshake that cannot be used refuses the session: there is none that could go on with
    its settings as they were."""
    try:
        yield
    except DuplexError as error:
        if error.fatal or error.code is ErrorCode.ADAPTER_FAILED:
            raise
        raise DuplexError(ErrorCode.BAD_CONFIG, error.message, param=error.param) from None
