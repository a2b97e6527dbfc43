"""A session's life: opened, left and found again, drained, ended; its faults and its timers.

Whatever happens, `_settle` then looks what has become possible: a response that had to wait, or the end of a
session that is closing. So nothing that waits depends on who wakes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from duplex.core.effects import (
    ClearTimer,
    CloseTransport,
    Effect,
    FinishInput,
    ReleaseSlot,
    Send,
    SetTimer,
    TimerName,
)
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import CancelReason, DrainNotice, Event, SessionCreated, SessionEnded
from duplex.core.facts import ModelFacts, SessionLimits, State
from duplex.core.floor import Floor
from duplex.core.history import Conversation, RollingWindows
from duplex.core.outbox import Outbox, error_event
from duplex.core.playback import PlayoutClock
from duplex.core.types import SessionSettings


class SessionLife:
    """What `Session` is apart from its input and its output."""

    def __init__(
        self,
        *,
        session_id: str,
        model: ModelFacts,
        settings: SessionSettings | None = None,
        limits: SessionLimits | None = None,
        while_active: Literal["supersede", "refuse"] = "supersede",
    ) -> None:
        self.id = session_id
        self.model = model
        self.limits = limits or SessionLimits()
        self.attached = False
        self.closing_code = (1000, "closed by the client")
        """Close code and reason of a graceful end."""
        self._floor = Floor(
            session_id=session_id,
            model=model,
            settings=settings or SessionSettings(),
            limits=self.limits,
            while_active=while_active,
        )
        self._responses = self._floor.responses
        self._outbox = Outbox()
        self._closing = False
        self._input_finished = False
        self._closed = False
        self._told_closing = False
        self._errors_in_a_row = 0
        self._last_activity = 0.0
        self._close_at = 0.0
        self._left_at = 0.0
        self._hold_until: float | None = None
        """What was being said waits this long for the client that left (seconds)."""

    # --- what can be asked --------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._closed:
            return State.CLOSED
        if self._closing:
            return State.CLOSING
        if self._responses.active is not None:
            return State.RESPONDING
        return State.LISTENING if self._floor.listening else State.IDLE

    @property
    def epoch(self) -> int:
        """Raised by every response and every cancel; deltas carry the epoch of their response."""
        return self._responses.epoch

    @property
    def active_response(self) -> str | None:
        """Id of the active response."""
        active = self._responses.active
        return active.id if active else None

    @property
    def settings(self) -> SessionSettings:
        """The settings that the adapter has taken."""
        return self._floor.updates.settings

    @property
    def conversation(self) -> Conversation:
        """What was said and heard."""
        return self._responses.conversation

    @property
    def windows(self) -> RollingWindows:
        """The last media windows."""
        return self._floor.input.windows

    @property
    def playout(self) -> PlayoutClock:
        """What the client has still to play."""
        return self._responses.playout

    @property
    def dropped_deltas(self) -> int:
        """Deltas of another epoch that were dropped: what would have been stale."""
        return self._responses.dropped_deltas

    def run_ahead_ms(self, now: float) -> float:
        """How far what was written is ahead of playback."""
        return self._responses.playout.unplayed_ms(now)

    # --- life ---------------------------------------------------------------------------------------

    def opened(
        self, now: float, *, resume_token: str | None = None, expires_at: float | None = None
    ) -> list[Effect]:
        """The adapter session exists and a client is attached."""
        if self._closed:
            return []
        self.attached = True
        self._last_activity = now
        created = self._created_event(resume_token, expires_at, resumed=False)
        return [Send(event=created), SetTimer(name=TimerName.IDLE, at=now + self.limits.idle_timeout_s)]

    def detach(self, now: float, *, hold_s: float | None = None) -> list[Effect]:
        """The client vanished; the session waits for it until the grace is over.

        Its response ends, and it is told on return what it must know. With `hold_s` the client can be given
        what it missed: the runtime keeps its events, and what was being said waits that long for it.
        """
        if self._closed or not self.attached:
            return []
        self.attached = False
        self._left_at = now
        self._floor.away = True
        self._floor.left()
        effects: list[Effect] = []
        if hold_s is None or self._closing or self.limits.resume_grace_s <= 0:
            self._outbox.leave()
            self._floor.input.drop_half_sample()
            effects += self._responses.interrupt(CancelReason.CLIENT_GONE, now)
        else:
            self._hold_until = now + hold_s
            effects.append(SetTimer(name=TimerName.RESPONSE_HOLD, at=self._hold_until))
        if self._closing or self.limits.resume_grace_s <= 0:
            return self._end(effects, 1006, "client gone", now)
        effects.append(SetTimer(name=TimerName.RESUME_GRACE, at=now + self.limits.resume_grace_s))
        effects.append(ClearTimer(name=TimerName.IDLE))
        return self._settle(effects, now)

    def attach(
        self,
        now: float,
        *,
        resume_token: str | None = None,
        expires_at: float | None = None,
        unsent: Iterable[Event] = (),
    ) -> list[Effect]:
        """The client is back on another socket; one that was still attached is left for it.

        It is told how its responses ended, of those that are `unsent` too, and a turn that it committed
        before it left is answered now.
        """
        left = self.detach(now)
        if self._closed:
            return left
        self._outbox.leave(unsent)
        self._floor.input.drop_half_sample()
        left = [*left, *self.let_go(now)]
        self.attached = True
        self._last_activity = now
        self._errors_in_a_row = 0
        self._floor.away = False
        effects: list[Effect] = [
            *left,
            ClearTimer(name=TimerName.RESUME_GRACE),
            SetTimer(name=TimerName.IDLE, at=now + self.limits.idle_timeout_s),
            Send(event=self._created_event(resume_token, expires_at, resumed=True)),
            *self._outbox.come_back(),
        ]
        return self._settle(effects, now)

    def let_go(self, now: float, *, unheard_ms: float | None = None) -> list[Effect]:
        """What was being said when the client left is stale: it is cut as of then. `unheard_ms`: sound that
        was sent and did not reach the client, where that is known."""
        if self.attached or self._hold_until is None:
            return []
        self._hold_until = None
        at = self._left_at if unheard_ms is None else self.playout.dry_at - unheard_ms / 1000
        cut = self._responses.interrupt(CancelReason.CLIENT_GONE, min(at, now))
        return self._settle([ClearTimer(name=TimerName.RESPONSE_HOLD), *cut], now)

    def rejoin(self, now: float, *, unheard_ms: float = 0.0) -> list[Effect]:
        """The client is back on another socket, and is sent what it missed: `unheard_ms` of that is sound.
        What was being said goes on."""
        if self._closed or self.attached:
            return []
        self.attached = True
        self._hold_until = None
        self._last_activity = self._floor.progress_at = now
        self._errors_in_a_row = 0
        self._floor.away = False
        if unheard_ms > 0:
            self.playout.acknowledged(max(self.playout.unplayed_ms(now), unheard_ms), now)
        return self._settle(
            [
                ClearTimer(name=TimerName.RESUME_GRACE),
                ClearTimer(name=TimerName.RESPONSE_HOLD),
                SetTimer(name=TimerName.IDLE, at=now + self.limits.idle_timeout_s),
            ],
            now,
        )

    def drain(self, grace_s: float, now: float) -> list[Effect]:
        """The server is going away: tell the client, let the running response finish."""
        if self._closed:
            return []
        if not self.attached:
            return self._end([], 1012, "server draining", now)
        if not self._closing:
            self.closing_code = (1012, "server draining")
        notice = Send(event=DrainNotice(grace_ms=grace_s * 1000))
        return self._settle([notice, *self._begin_closing(grace_s, now)], now)

    def end(self, code: int, reason: str, now: float, *, error: DuplexError | None = None) -> list[Effect]:
        """End at once. The response gets its terminal event, the slot is free before the last events."""
        return self._end([], code, reason, now, error)

    def fail(self, error: DuplexError, now: float) -> list[Effect]:
        """A fault that is not tied to a response: told to the client; ends the session if fatal."""
        return self._settle(self._fail(error, now), now)

    def input_finished(self, now: float) -> list[Effect]:
        """The adapter has signalled all that it had to: close when nothing runs."""
        if self._closing:
            self._input_finished = True
            self._floor.left()
        return self._settle([], now)

    def _begin_closing(self, grace_s: float, now: float) -> list[Effect]:
        """Take no more input and let what runs finish, until the earliest of the deadlines that were set."""
        close_at = now + grace_s
        if self._closing and close_at >= self._close_at:
            return []
        effects: list[Effect] = [] if self._closing else [FinishInput()]
        self._closing = self._floor.closing = True
        self._close_at = close_at
        return [*effects, SetTimer(name=TimerName.CLOSE_GRACE, at=close_at)]

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        """What has become possible, whatever has just happened; then what of it the client is told."""
        if self._closed:
            return effects
        effects = effects + self._floor.next(now)
        if self._input_finished and not self._floor.pending:
            return self._end(effects, *self.closing_code, now)
        return self._outbox.post(effects + self._floor.watch_idle(now))

    def _fail(self, error: DuplexError, now: float) -> list[Effect]:
        if self._closed:
            return []
        if error.fatal:
            return self._end([], error.code.traits.close_code, error.code.value, now, error)
        return [Send(event=error_event(error))]

    def _end(
        self,
        before: list[Effect],
        code: int,
        reason: str,
        now: float,
        error: DuplexError | None = None,
    ) -> list[Effect]:
        """End after `before`: its work first, then the slot, then all that the client is told."""
        if self._closed:
            return []
        before = before + self._responses.stop(CancelReason.CLOSING, now)
        self._closed = self._closing = True
        self._floor.clear()
        told = [effect for effect in before if isinstance(effect, Send)]
        if error is not None:
            told.append(Send(event=error_event(error, fatal=True)))
        told.append(Send(event=SessionEnded(code=code, reason=reason)))
        return self._outbox.post(
            [
                *(effect for effect in before if not isinstance(effect, Send)),
                ReleaseSlot(),
                *told,
                *(ClearTimer(name=name) for name in TimerName),
                CloseTransport(code=code, reason=reason),
            ]
        )

    def _created_event(
        self, resume_token: str | None, expires_at: float | None, *, resumed: bool
    ) -> SessionCreated:
        limits = self.limits
        return SessionCreated(
            session_id=self.id,
            model=self.model.id,
            input_modalities=self.model.input_modalities,
            output_modalities=self.model.output_modalities,
            proactive=self.model.proactive,
            settings=self.settings,
            resume_token=resume_token,
            resumed=resumed,
            limits={
                "max_message_bytes": limits.max_message_bytes,
                "idle_timeout_s": limits.idle_timeout_s,
                "resume_grace_s": limits.resume_grace_s,
                "window_history": limits.window_history,
            },
            expires_at=expires_at,
            voices=self.model.voices,
            default_output=self.model.default_output(speak=False),
        )

    # --- timers -------------------------------------------------------------------------------------

    def timer(self, name: TimerName, now: float) -> list[Effect]:
        """A timer came due. It is asked whether it still is: activity moves a number, not the timer, so that
        an audio frame costs none."""
        if name is TimerName.USER_IDLE:
            self._floor.idle_timer_fired()
        due = None if self._closed else self._deadline(name, now)
        if due is None:
            return []
        if due > now:
            return [SetTimer(name=name, at=due)]
        match name:
            case TimerName.IDLE:
                effects = self._fail(DuplexError(ErrorCode.IDLE_TIMEOUT, "idle timeout"), now)
            case TimerName.RESPONSE_WATCHDOG:
                effects = self._stuck()
            case TimerName.INPUT_STALL:
                effects = self._floor.stalled(now)
            case TimerName.USER_IDLE:
                effects = self._floor.user_idle(now)
            case TimerName.CLOSE_GRACE:
                effects = self._end([], *self.closing_code, now)
            case TimerName.RESPONSE_HOLD:
                effects = self.let_go(now)
            case TimerName.RESUME_GRACE:
                effects = self._end([], 1006, "client did not come back", now)
        return self._settle(effects, now)

    def _deadline(self, name: TimerName, now: float) -> float | None:
        """When a timer is really due; None when there is nothing to wait for any more."""
        limits = self.limits
        match name:
            case TimerName.IDLE if self.attached:
                spoke_at = max(self._floor.progress_at, self.playout.dry_at)
                quiet_since = now if self._responses.active else max(self._last_activity, spoke_at)
                return quiet_since + limits.idle_timeout_s
            case TimerName.RESPONSE_WATCHDOG if self._responses.active is not None:
                return self._floor.progress_at + limits.response_stall_s
            case TimerName.INPUT_STALL:
                return self._floor.user.stall_at
            case TimerName.USER_IDLE:
                return self._floor.idle_at
            case TimerName.CLOSE_GRACE if self._closing:
                return self._close_at
            case TimerName.RESPONSE_HOLD:
                return self._hold_until
            case TimerName.RESUME_GRACE if not self.attached:
                return self._left_at + limits.resume_grace_s
        return None

    def _stuck(self) -> list[Effect]:
        """The active response stalls: it fails, alone."""
        active = self._responses.active
        if active is None:
            return []
        words = f"the model yielded nothing for {self.limits.response_stall_s:g} s"
        return self._responses.fail(active.epoch, DuplexError(ErrorCode.ADAPTER_FAILED, words))
