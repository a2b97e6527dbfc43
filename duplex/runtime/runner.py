"""The session runner: one client session with its adapter session, whatever socket it has at the moment.

It carries out the core's effects, in order, on the loop's thread and without waiting; the adapter's own work
runs in tasks: its calls, its signals and the response that is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec

from duplex.adapters.base import AdapterSession
from duplex.config import ServerConfig
from duplex.core.commands import CancelResponse, Command, PlaybackAck, ResumeSession
from duplex.core.effects import (
    AbortResponse,
    AppendInput,
    ClearTimer,
    CloseTransport,
    CommitInput,
    Effect,
    FinishInput,
    ForgetInput,
    ReleaseSlot,
    Send,
    SetTimer,
    StartResponse,
    TimerName,
    UpdateAdapter,
)
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import (
    ErrorEvent,
    Event,
    ResponseAudio,
    ResponseCancelled,
    ResponseFailed,
    SessionUpdated,
)
from duplex.core.session import Session
from duplex.core.types import Delivery
from duplex.dialects.base import Dialect, Frame
from duplex.runtime.adapter_input import AdapterInput
from duplex.runtime.attachment import Attachment, Connection
from duplex.runtime.clock import Clock, Handle
from duplex.runtime.encoding import EncoderPool
from duplex.runtime.leases import Lease
from duplex.runtime.metrics import Metrics
from duplex.runtime.outbound import OutboundLimits, OutboundQueue
from duplex.runtime.responder import Responder
from duplex.runtime.socket import Socket
from duplex.runtime.tasks import Tasks, bounded

log = logging.getLogger("duplex.session")

P = ParamSpec("P")

INTERNAL = ErrorCode.INTERNAL_ERROR.traits.close_code, ErrorCode.INTERNAL_ERROR.value


class Services:
    """What all sessions of a gateway share."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        metrics: Metrics,
        encoders: EncoderPool,
        stray: set[asyncio.Task[Any]],
    ) -> None:
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self.encoders = encoders
        self.stray = stray
        self.outbound = OutboundLimits(
            max_bytes=config.max_queue_bytes,
            max_audio_s=config.max_queue_audio_s,
            slow_reader_timeout_s=config.slow_reader_timeout_s,
            journal_bytes=config.journal_bytes,
            journal_s=config.journal_s,
        )


class SessionRunner:
    """Drives one session from its opening to its end. `run` is its main task; all else returns at once."""

    def __init__(
        self, session: Session, adapter_session: AdapterSession, lease: Lease, services: Services
    ) -> None:
        config = services.config
        self.session = session
        self._adapter = adapter_session
        self._lease = lease
        self._services = services
        self._clock = services.clock
        self.now = services.clock.now
        self._config = config
        self._metrics = services.metrics
        self._tasks = Tasks(services.stray)
        self._timers: dict[TimerName, Handle] = {}
        self._input = AdapterInput(adapter_session, self, self._clock, config.response_stall_s)
        self._responder = Responder(
            adapter_session,
            self,
            clock=self._clock,
            encoders=services.encoders,
            tasks=self._tasks,
            abort_timeout_s=config.abort_timeout_s,
            queue=lambda: self.queue,
        )
        self._attachment = Attachment(
            self,
            self._queue,
            self._metrics,
            resume_token=lease.resume_token if config.resume_grace_s > 0 else None,
            hold_s=config.resume_hold_s,
        )
        self._effects: deque[tuple[Effect, str | None]] = deque()
        self._performing = False
        self._releasing = False
        """`ReleaseSlot` is being carried out: the effects behind it wait."""
        self._broken = False
        self._release = asyncio.Event()
        self._tied_to: str | None = None
        """Id of the message that is being fed: what the adapter says to its input carries it."""
        self._cancelled_at: float | None = None
        self._started_at = 0.0
        self._first_audio = False

    # --- life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until the session has ended, its adapter session is closed and its slot is free."""
        self._tasks.start(self._input.run_calls(), f"calls {self.session.id}")
        self._tasks.start(self._input.run_signals(), f"signals {self.session.id}")
        try:
            await self._release.wait()
        finally:
            if not self._releasing:  # cancelled from outside: the process is going down
                self.end(1012, "server stopped")
            timeout_s = self._config.abort_timeout_s
            self._input.close()
            self._responder.close()
            try:
                await self._tasks.stop(timeout_s)
                await bounded(
                    self._adapter.close(),
                    timeout_s,
                    f"closing the adapter session {self.session.id}",
                    self._services.stray,
                )
            finally:
                self._metrics.dropped_deltas += self.session.dropped_deltas
                self._lease.release()
                self._releasing = False
                self._perform()
                for name in TimerName:
                    self._clear_timer(name)

    @property
    def connection(self) -> Connection | None:
        """The socket that the client has; None while it is away."""
        return self._attachment.connection

    @property
    def queue(self) -> OutboundQueue | None:
        """What is on its way to the client, or waits for it."""
        return self._attachment.queue

    @property
    def detached_since(self) -> float | None:
        """When the client vanished; None while one is attached."""
        return self._attachment.since

    def open(self, socket: Socket, dialect: Dialect) -> Connection:
        """The first socket. Tells the client that the session is there."""
        return self._attachment.open(socket, dialect)

    def take_over(self, socket: Socket, dialect: Dialect, last_seq: int | None = None) -> Connection:
        """Another socket of the same client: see `Attachment.take_over`."""
        return self._attachment.take_over(socket, dialect, last_seq)

    def detach(self, connection: Connection) -> None:
        """This socket is gone."""
        self._attachment.detach(connection)

    def leave(self, connection: Connection) -> None:
        """The client closed this socket in good order: the session is over, its slot and id are free."""
        if connection is self.connection:
            self._attachment.detach(connection, keep=False)
            self.end(1000, "closed by the client")

    def forsake(self, connection: Connection) -> None:
        """The client goes on with another session on this socket: this one is over."""
        self._attachment.let_go(connection)
        self.end(1000, "another session was resumed")

    def evict(self) -> None:
        """A newcomer needs the slot of this detached session."""
        self.end(1013, "the slot was needed")

    def drain(self, grace_s: float) -> None:
        """The server is going away."""
        self.step(self.session.drain, grace_s, self.now())

    def end(self, code: int, reason: str, error: DuplexError | None = None) -> None:
        """End at once."""
        self.step(self.session.end, code, reason, self.now(), error=error)

    def _queue(self, socket: Socket, dialect: Dialect) -> OutboundQueue:
        return OutboundQueue(
            socket,
            dialect,
            self,
            limits=self._services.outbound,
            clock=self._clock,
            traffic=self._metrics,
        )

    # --- from the client ----------------------------------------------------------------------------

    def received(self, connection: Connection, frame: Frame) -> ResumeSession | None:
        """One message of the client. Returns what is not for this session: the wish to have another one."""
        if connection is not self.connection:
            return None
        self._attachment.received += 1
        self._metrics.bytes_in += len(frame)
        limit = self._config.max_message_bytes
        # a character has at most four bytes: most messages need no count
        if len(frame) > limit or (
            isinstance(frame, str) and len(frame) * 4 > limit and len(frame.encode()) > limit
        ):
            self.too_large(connection)
            return None
        try:
            commands = connection.dialect.decode(frame)
        except DuplexError as error:
            self.step(self.session.reject, error, self.now())
            return None
        except Exception:
            log.exception("cannot decode a message")
            self._internal_error()
            return None
        for command in commands:
            if isinstance(command, ResumeSession):
                return command
            self._take(command)
        return None

    def refuse(self, error: DuplexError) -> None:
        """A message could not be carried out; the session ends if the fault is fatal."""
        self.step(self.session.fail, error, self.now())

    def too_large(self, connection: Connection) -> None:
        """A message over the limit came, or began to come."""
        if connection is self.connection:
            limit = self._config.max_message_bytes
            error = DuplexError(ErrorCode.MESSAGE_TOO_LARGE, f"a message may have at most {limit} bytes")
            self.step(self.session.reject, error, self.now())

    def _take(self, command: Command) -> None:
        now = self.now()
        if isinstance(command, CancelResponse):
            self._cancelled_at = now
        self._tied_to = command.event_id
        self.step(self.session.feed, command, now)
        self._tied_to = None
        if isinstance(command, PlaybackAck):
            self._playback_changed()

    def _playback_changed(self) -> None:
        if self.connection is not None:
            self.connection.queue.release_held()

    # --- driving the core ---------------------------------------------------------------------------

    def step(self, step: Callable[P, list[Effect]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a method of the core and carry out its effects, behind those that are being carried out."""
        try:
            effects: Sequence[Effect] = step(*args, **kwargs)
        except Exception:
            log.exception("the session core failed")
            effects = self._collapse()
        if not effects:
            return
        tied_to = self._tied_to
        for effect in effects:
            self._effects.append((effect, tied_to))
        self._perform()

    def deliver(self, epoch: int, delta: Delivery) -> None:
        """`step` for what a response yields. A frame of audio goes straight to the queue: it is the one
        effect of its step, and needs no place behind others unless there are some."""
        connection = self.connection
        if self._performing or self._effects or connection is None:
            self.step(self.session.deliver, epoch, delta, self.now())
            return
        self._performing = True
        try:
            for effect in self.session.deliver(epoch, delta, self.now()):
                if type(effect) is Send and type(effect.event) is ResponseAudio:
                    connection.queue.put(effect.event)
                else:
                    self._carry_out(effect, None)
        except Exception:
            log.exception("cannot deliver a delta")
            self._effects.extend((effect, None) for effect in self._collapse())
        finally:
            self._performing = False
        if self._effects:
            self._perform()

    def _perform(self) -> None:
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects and not self._releasing:
                effect, tied_to = self._effects.popleft()
                try:
                    self._carry_out(effect, tied_to)
                except Exception:
                    log.exception("cannot carry out %s", type(effect).__name__)
                    self._effects.extend((effect, None) for effect in self._collapse())
        finally:
            self._performing = False

    def _collapse(self) -> Sequence[Effect]:
        """A fault of ours must not leave a session that neither lives nor ends: end it, by force if the core
        cannot."""
        if self._broken:
            return ()
        self._broken = True
        fault = DuplexError(ErrorCode.INTERNAL_ERROR, "a fault of the gateway")
        try:
            effects = self.session.end(*INTERNAL, self.now(), error=fault)
        except Exception:
            log.exception("the session core cannot end the session")
            effects = []
        return effects or (ReleaseSlot(), CloseTransport(code=INTERNAL[0], reason=INTERNAL[1]))

    def _internal_error(self) -> None:
        self.end(*INTERNAL, DuplexError(ErrorCode.INTERNAL_ERROR, "a fault of the gateway"))

    # --- effects ------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect, tied_to: str | None) -> None:
        match effect:
            case Send():
                self._send(effect.event)
            case AppendInput():
                self._input.append(effect.window, tied_to)
            case AbortResponse():
                if (queue := self.queue) is not None:
                    queue.purge(effect.response_id)
                self._responder.abort(effect.response_id)
            case StartResponse():
                self._started_at = self.now()
                self._first_audio = True
                self._input.behind_input(partial(self._responder.start, effect.turn))
            case SetTimer():
                self._clear_timer(effect.name)
                self._timers[effect.name] = self._clock.call_at(
                    effect.at, partial(self._on_timer, effect.name)
                )
            case ClearTimer():
                self._clear_timer(effect.name)
            case CommitInput():
                self._input.commit(effect.event_id)
            case ForgetInput():
                self._input.forget()
            case UpdateAdapter():
                self._input.update(effect)
            case FinishInput():
                self._input.finish()
            case ReleaseSlot():
                self._releasing = True
                self._release.set()
            case CloseTransport():
                self._attachment.close(effect.code, effect.reason, flush=effect.flush)

    def _send(self, event: Event) -> None:
        queue = self.queue
        if queue is None:
            return  # it vanished while the session was being ended
        queue.put(event)
        if isinstance(event, ResponseAudio):
            return
        if isinstance(event, ErrorEvent | ResponseFailed):
            self._metrics.errors[event.code] += 1
        elif isinstance(event, ResponseCancelled) and self._cancelled_at is not None:
            self._metrics.cancel_latency.observe(self.now() - self._cancelled_at)
            self._cancelled_at = None
        elif isinstance(event, SessionUpdated):
            self._playback_changed()

    def _clear_timer(self, name: TimerName) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _on_timer(self, name: TimerName) -> None:
        self._timers.pop(name, None)
        self.step(self.session.timer, name, self.now())

    # --- for the outbound queue ---------------------------------------------------------------------

    def run_ahead_ms(self) -> tuple[float, float]:
        session = self.session
        return session.run_ahead_ms(self.now()), session.settings.max_run_ahead_ms

    def audio_written(self, event: ResponseAudio) -> None:
        now = self.now()
        metrics = self._metrics
        metrics.audio_frames_out += 1
        if self._first_audio:
            self._first_audio = False
            metrics.ttfa.observe(now - self._started_at)
        elif event.pts > 0 and self.session.run_ahead_ms(now) <= 0:
            metrics.underruns += 1
        self.session.written(event, now)

    def too_slow(self, words: str) -> None:
        if (queue := self.queue) is not None:
            queue.clear()
        self.step(self.session.fail, DuplexError(ErrorCode.SLOW_READER, words), self.now())

    def cannot_encode(self, event: Event) -> None:
        if not isinstance(event, ErrorEvent):
            self._internal_error()
