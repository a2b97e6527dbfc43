"""The session runner: one client session with its adapter session, whatever socket it has at the moment.

It carries out the core's effects, in order, on the loop's thread and without waiting; the adapter's own work
runs in tasks: the calls, the signals and the response that is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from duplex.adapters.base import AdapterSession
from duplex.config import ServerConfig
from duplex.core.commands import CancelResponse, Command, PlaybackAck
from duplex.core.effects import (
    AbortResponse,
    AppendInput,
    ClearTimer,
    CloseTransport,
    CommitInput,
    Effect,
    FinishInput,
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
)
from duplex.core.session import Session
from duplex.core.types import (
    AudioWindow,
    EncodedAudio,
    ImageWindow,
    TextDelta,
    TextWindow,
    Turn,
    VideoWindow,
    Window,
)
from duplex.dialects.base import Dialect, Frame
from duplex.runtime.calls import AdapterCalls
from duplex.runtime.clock import Clock, Handle
from duplex.runtime.encoding import EncoderPool
from duplex.runtime.faults import being_cancelled, named
from duplex.runtime.leases import Lease
from duplex.runtime.metrics import Metrics
from duplex.runtime.outbound import OutboundLimits, OutboundQueue
from duplex.runtime.pump import ResponsePump
from duplex.runtime.socket import Socket
from duplex.runtime.tasks import Tasks, bounded

log = logging.getLogger("duplex.session")


class Connection:
    """One socket of a session, with its dialect and what is on its way out."""

    __slots__ = ("dialect", "queue", "socket")

    def __init__(self, socket: Socket, dialect: Dialect, queue: OutboundQueue) -> None:
        self.socket = socket
        self.dialect = dialect
        self.queue = queue


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
        )


class SessionRunner:
    """Drives one session from its opening to its end. `run` is its main task; all else returns at once."""

    def __init__(
        self, session: Session, adapter_session: AdapterSession, lease: Lease, services: Services
    ) -> None:
        self.session = session
        self.connection: Connection | None = None
        self.detached_since: float | None = None
        self._adapter = adapter_session
        self._lease = lease
        self._services = services
        self._clock = services.clock
        self._config = services.config
        self._metrics = services.metrics
        self._tasks = Tasks(services.stray)
        self._timers: dict[TimerName, Handle] = {}
        self._calls = AdapterCalls(self._clock, self._config.response_stall_s, self._on_stuck_call)
        self._pump: ResponsePump | None = None
        self._pump_task: asyncio.Task[Any] | None = None
        self._next_turn: Turn | None = None
        self._abort_timer: Handle | None = None
        self._effects: deque[tuple[Effect, str | None]] = deque()
        self._performing = False
        self._releasing = False
        """`ReleaseSlot` is being carried out: the effects behind it wait."""
        self._release = asyncio.Event()
        self._cancelled_at: float | None = None
        self._started_at: float | None = None
        self._first_audio = False

    # --- life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until the session has ended, its adapter session is closed and its slot is free."""
        start = self._tasks.start
        start(self._calls.run(), f"calls {self.session.id}")
        start(self._read_signals(), f"signals {self.session.id}")
        try:
            await self._release.wait()
        finally:
            if not self._releasing:  # cancelled from outside: the process is going down
                self._apply(self.session.end(1012, "server stopped", self._clock.now()))
            timeout_s = self._config.abort_timeout_s
            self._calls.close()
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
                self._stop_timers()

    def open(self, socket: Socket, dialect: Dialect) -> Connection:
        """The first socket. Tells the client that the session is there."""
        connection = self._connect(socket, dialect)
        token = self._lease.resume_token if self._config.resume_grace_s > 0 else None
        self._apply(self.session.opened(self._clock.now(), resume_token=token))
        return connection

    def take_over(self, socket: Socket, dialect: Dialect) -> Connection:
        """Another socket of the same client. One that is still there was half open: it is closed by name."""
        old = self.connection
        if old is not None:
            self.detach(old)
            taken = DuplexError(ErrorCode.TAKEN_OVER, "the session goes on over another connection")
            queue = self._queue(old.socket, old.dialect)
            queue.put(ErrorEvent(code=taken.code, message=taken.message, fatal=True))
            queue.close(taken.code.traits.close_code, taken.code.value)
        self._metrics.resumed += 1
        connection = self._connect(socket, dialect)
        self.detached_since = None
        self._apply(self.session.attach(self._clock.now(), resume_token=self._lease.resume_token))
        return connection

    def detach(self, connection: Connection) -> None:
        """This socket is gone."""
        connection.queue.detach()
        if connection is not self.connection:
            return
        self.connection = None
        self.detached_since = self._clock.now()
        self._apply(self.session.detach(self.detached_since))

    def evict(self) -> None:
        """A newcomer needs the slot of this detached session."""
        self.end(1013, "the slot was needed")

    def drain(self, grace_s: float) -> None:
        """The server is going away."""
        self._apply(self.session.drain(grace_s, self._clock.now()))

    def end(self, code: int, reason: str, error: DuplexError | None = None) -> None:
        """End at once."""
        self._apply(self.session.end(code, reason, self._clock.now(), error=error))

    def _connect(self, socket: Socket, dialect: Dialect) -> Connection:
        self.connection = Connection(socket, dialect, self._queue(socket, dialect))
        return self.connection

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

    def received(self, connection: Connection, frame: Frame) -> None:
        """One message of the client."""
        if connection is not self.connection:
            return
        now = self._clock.now()
        self._metrics.bytes_in += len(frame)
        limit = self._config.max_message_bytes
        # a character has at most four bytes: most messages need no count
        if len(frame) > limit or (
            isinstance(frame, str) and len(frame) * 4 > limit and len(frame.encode()) > limit
        ):
            self.too_large(connection)
            return
        try:
            commands = connection.dialect.decode(frame)
        except DuplexError as error:
            self._apply(self.session.reject(error, now))
            return
        except Exception:
            log.exception("cannot decode a message")
            self._internal_error()
            return
        for command in commands:
            self._take(command, now)

    def too_large(self, connection: Connection) -> None:
        """A message over the limit came, or began to come."""
        if connection is self.connection:
            limit = self._config.max_message_bytes
            error = DuplexError(ErrorCode.MESSAGE_TOO_LARGE, f"a message may have at most {limit} bytes")
            self._apply(self.session.reject(error, self._clock.now()))

    def _take(self, command: Command, now: float) -> None:
        if isinstance(command, CancelResponse):
            self._cancelled_at = now
        self._apply(self.session.feed(command, now), command.event_id)
        if isinstance(command, PlaybackAck):
            self._playback_changed()

    def _playback_changed(self) -> None:
        if self.connection is not None:
            self.connection.queue.release_held()

    # --- effects ------------------------------------------------------------------------------------

    def _apply(self, effects: Sequence[Effect], event_id: str | None = None) -> None:
        """Carry out effects. Those that come up meanwhile queue behind, so that their order holds."""
        if not effects:
            return
        for effect in effects:
            self._effects.append((effect, event_id))
        self._perform()

    def _perform(self) -> None:
        if self._performing:
            return
        self._performing = True
        try:
            while self._effects and not self._releasing:
                effect, event_id = self._effects.popleft()
                self._carry_out(effect, event_id)
        finally:
            self._performing = False

    def _carry_out(self, effect: Effect, event_id: str | None) -> None:
        match effect:
            case Send():
                self._send(effect.event)
            case AppendInput():
                self._append(effect.window, event_id)
            case AbortResponse():
                self._abort(effect.response_id)
            case StartResponse():
                self._started_at = self._clock.now()
                self._first_audio = True
                if self._calls.idle:
                    self._start(effect.turn)
                else:  # after the input that came before it
                    self._calls.put(partial(self._call_start, effect.turn))
            case SetTimer():
                self._set_timer(effect.name, effect.at)
            case ClearTimer():
                self._clear_timer(effect.name)
            case CommitInput():
                self._calls.put(partial(self._call_commit, effect.event_id))
            case UpdateAdapter():
                self._calls.put(partial(self._call_update, effect))
            case FinishInput():
                self._calls.put(self._call_finish)
            case ReleaseSlot():
                self._releasing = True
                self._release.set()
            case CloseTransport():
                connection, self.connection = self.connection, None
                if connection is not None:
                    connection.queue.close(effect.code, effect.reason, flush=effect.flush)

    def _send(self, event: Event) -> None:
        connection = self.connection
        if connection is None:
            return  # it vanished while the session was being ended
        connection.queue.put(event)
        if isinstance(event, ResponseAudio):
            return
        if isinstance(event, ErrorEvent | ResponseFailed):
            self._metrics.errors[event.code] += 1
        elif isinstance(event, ResponseCancelled) and self._cancelled_at is not None:
            self._metrics.cancel_latency.observe(self._clock.now() - self._cancelled_at)
            self._cancelled_at = None

    def _set_timer(self, name: TimerName, at: float) -> None:
        self._clear_timer(name)
        self._timers[name] = self._clock.call_at(at, partial(self._on_timer, name))

    def _clear_timer(self, name: TimerName) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _on_timer(self, name: TimerName) -> None:
        self._timers.pop(name, None)
        self._apply(self.session.timer(name, self._clock.now()))

    def _stop_timers(self) -> None:
        for name in list(self._timers):
            self._clear_timer(name)
        self._clear_abort_timer()

    def _internal_error(self) -> None:
        self.end(
            ErrorCode.INTERNAL_ERROR.traits.close_code,
            ErrorCode.INTERNAL_ERROR.value,
            DuplexError(ErrorCode.INTERNAL_ERROR, "a fault of the gateway"),
        )

    # --- calls to the adapter -----------------------------------------------------------------------

    def _append(self, window: Window, event_id: str | None) -> None:
        try:
            self._calls.put(partial(self._call_append, window, event_id), size=_size(window))
        except DuplexError as error:
            error.event_id = event_id
            self._apply(self.session.fail(error, self._clock.now()))

    async def _call_append(self, window: Window, event_id: str | None) -> None:
        error = await self._guarded(self._adapter.append(window), "taking input")
        if error is not None:
            error.event_id = error.event_id or event_id
            self._apply(self.session.fail(error, self._clock.now()))

    async def _call_commit(self, event_id: str | None) -> None:
        has_input = False

        async def commit() -> None:
            nonlocal has_input
            has_input = await self._adapter.commit()

        error = await self._guarded(commit(), "ending the turn")
        if error is not None:
            error.event_id = error.event_id or event_id
        now = self._clock.now()
        self._apply(self.session.committed(has_input, now, event_id=event_id, error=error))

    async def _call_update(self, effect: UpdateAdapter) -> None:
        error = await self._guarded(self._adapter.update(effect.settings), "changing its settings")
        now = self._clock.now()
        if error is None:
            self._apply(self.session.settings_applied(effect.settings, now, event_id=effect.event_id))
            self._playback_changed()
        else:
            self._apply(self.session.settings_refused(error, now, event_id=effect.event_id))

    async def _call_finish(self) -> None:
        error = await self._guarded(self._adapter.finish(), "finishing")
        if error is not None:
            self._apply(self.session.fail(error, self._clock.now()))
        self._apply(self.session.input_finished(self._clock.now()))

    async def _call_start(self, turn: Turn) -> None:
        if self.is_active(turn):
            self._start(turn)

    async def _guarded(self, call: Awaitable[None], doing: str) -> DuplexError | None:
        try:
            await call
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            return named(error, doing)
        except Exception as error:
            return named(error, doing)
        return None

    def _on_stuck_call(self) -> None:
        self._stuck(f"the model did not take input for {self._config.response_stall_s:g} s")

    async def _read_signals(self) -> None:
        """What the model says by itself. Without it a session is deaf, so a failure ends it."""
        try:
            count = 0
            async for signal in self._adapter.signals():
                self._apply(self.session.signal(signal, self._clock.now()))
                count += 1
                if count % 16 == 0:
                    await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            self._signals_failed(error)
        except Exception as error:
            self._signals_failed(error)

    def _signals_failed(self, error: BaseException) -> None:
        fault = named(error, "listening")
        self.end(fault.code.traits.close_code, fault.code.value, fault)

    # --- responses ----------------------------------------------------------------------------------

    def _start(self, turn: Turn) -> None:
        """Run a response, after the one before it has stopped."""
        if self._pump is not None:
            self._next_turn = turn
            return
        self._pump = ResponsePump(turn, self._adapter, self._services.encoders, self)
        self._pump_task = self._tasks.start(self._pump.run(), f"response {turn.response_id}")
        self._pump_task.add_done_callback(self._pump_stopped)

    def _pump_stopped(self, _: asyncio.Task[Any]) -> None:
        self._pump = self._pump_task = None
        self._clear_abort_timer()
        turn, self._next_turn = self._next_turn, None
        if turn is not None and self.is_active(turn) and not self._releasing:
            self._start(turn)

    def _abort(self, response_id: str) -> None:
        if self.connection is not None:
            self.connection.queue.purge(response_id)
        if self._next_turn is not None and self._next_turn.response_id == response_id:
            self._next_turn = None
        pump = self._pump
        if pump is None or self._pump_task is None or pump.ended or pump.turn.response_id != response_id:
            return
        self._pump_task.cancel()
        self.stopping()

    def stopping(self) -> None:
        if self._abort_timer is None:
            self._abort_timer = self._clock.call_at(
                self._clock.now() + self._config.abort_timeout_s, self._on_stuck_abort
            )

    def _clear_abort_timer(self) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None

    def _on_stuck_abort(self) -> None:
        self._abort_timer = None
        self._stuck(f"the model did not stop within {self._config.abort_timeout_s:g} s")

    def _stuck(self, words: str) -> None:
        self._apply(self.session.fail(DuplexError(ErrorCode.ADAPTER_STUCK, words), self._clock.now()))

    # --- for the pump -------------------------------------------------------------------------------

    def deliver(self, epoch: int, delta: TextDelta | EncodedAudio) -> None:
        self._apply(self.session.deliver(epoch, delta, self._clock.now()))

    def is_active(self, turn: Turn) -> bool:
        return self.session.active_response == turn.response_id

    async def room(self) -> None:
        connection = self.connection
        if connection is not None and connection.queue.full:
            await connection.queue.room()

    async def all_written(self) -> None:
        if self.connection is not None:
            await self.connection.queue.drained()

    def finished(self, turn: Turn) -> None:
        self._apply(self.session.response_finished(turn.epoch, self._clock.now()))

    def failed(self, turn: Turn, error: DuplexError) -> None:
        self._apply(self.session.response_failed(turn.epoch, error, self._clock.now()))

    # --- for the outbound queue ---------------------------------------------------------------------

    def run_ahead_ms(self) -> float:
        return self.session.run_ahead_ms(self._clock.now())

    def max_run_ahead_ms(self) -> float:
        return self.session.settings.max_run_ahead_ms

    def audio_written(self, event: ResponseAudio) -> None:
        now = self._clock.now()
        metrics = self._metrics
        metrics.audio_frames_out += 1
        if self._first_audio:
            self._first_audio = False
            if self._started_at is not None:
                metrics.ttfa.observe(now - self._started_at)
        elif event.pts > 0 and self.session.run_ahead_ms(now) <= 0:
            metrics.underruns += 1
        self.session.written(event, now)

    def too_slow(self, words: str) -> None:
        if self.connection is not None:
            self.connection.queue.clear()
        self._apply(self.session.fail(DuplexError(ErrorCode.SLOW_READER, words), self._clock.now()))

    def cannot_encode(self, event: Event) -> None:
        if not isinstance(event, ErrorEvent):
            self._internal_error()


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
