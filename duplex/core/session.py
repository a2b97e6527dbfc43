"""The session state machine: commands, deltas, signals and timers in, effects out.

Sans-I/O: nothing here awaits, reads a clock or knows asyncio. The runtime calls one method at a time and
carries out the effects in order. `now` is seconds of a monotonic clock and never goes back.

States: *idle* (nothing pending), *listening* (input since the last turn), *responding* (a response is
active), *closing* (no more input is taken, what runs may finish), *closed*.

Here is what drives it; `life` begins and ends it, `floor` decides who speaks, `responses` fences and cuts
what is said.
"""

from __future__ import annotations

from duplex.core.commands import (
    AddItem,
    Append,
    CancelResponse,
    ClearInput,
    ClearOutput,
    CloseSession,
    Command,
    Commit,
    CreateResponse,
    Note,
    PlaybackAck,
    RemoveItem,
    TruncateResponse,
    UpdateSession,
)
from duplex.core.effects import (
    Effect,
    Send,
)
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import (
    Acknowledged,
    CancelReason,
    ErrorEvent,
    GateDecided,
    InputLagged,
    ResponseAudio,
    SessionUpdated,
)
from duplex.core.facts import ModelFacts, SessionLimits, State
from duplex.core.life import SessionLife
from duplex.core.outbox import error_event
from duplex.core.text import well_formed
from duplex.core.types import (
    Delivery,
    GateScore,
    InputLag,
    InputRejected,
    SessionSettings,
    Signal,
    SpeechContinued,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnEnded,
    WantsToSpeak,
)

__all__ = ["ModelFacts", "Session", "SessionLimits", "State"]


class Session(SessionLife):
    """One client's conversation. See the module's words for how it is driven."""

    # --- commands -----------------------------------------------------------------------------------

    def reject(self, error: DuplexError, now: float) -> list[Effect]:
        """A message that the dialect could not decode."""
        self._last_activity = now
        self._errors_in_a_row += 1
        if error.fatal or self._errors_in_a_row < self.limits.max_errors:
            return self.fail(error, now)
        words = f"{self._errors_in_a_row} bad messages in a row; the last: {error.message}"
        many = DuplexError(ErrorCode.TOO_MANY_ERRORS, words)
        refused = Send(event=error_event(error))
        return self._end([refused], many.code.traits.close_code, many.code.value, now, many)

    def feed(self, command: Command, now: float) -> list[Effect]:
        """Carry out a client's command. Never raises: what is refused becomes an error event."""
        if self._closed:
            return []
        self._last_activity = now
        self._errors_in_a_row = 0
        try:
            effects = self._dispatch(command, now)
        except DuplexError as error:
            error.event_id = error.event_id or command.event_id
            effects = self._fail(error, now)
        return self._settle(effects, now)

    def _dispatch(self, command: Command, now: float) -> list[Effect]:
        floor = self._floor
        match command:
            case Append() if not self._closing:
                return floor.append(command.window, now)
            case PlaybackAck():
                floor.progress_at = now
                self._responses.acknowledge(command.cursor_ms, command.response_index, now)
                return []
            case CancelResponse():
                return floor.cancel(command, now)
            case ClearOutput():
                cut = self._responses.interrupt(CancelReason.CLIENT, now, event_id=command.event_id)
                return [*cut, Send(event=Acknowledged(command=command))]
            case TruncateResponse():
                cut, heard = self._responses.truncate(command.response_index, command.heard_ms, now)
                return [*cut, Send(event=Acknowledged(command=command, heard_text=heard))]
            case Note():
                return [Send(event=Acknowledged(command=command))]
            case CloseSession():
                return self._begin_closing(self.limits.close_grace_s, now)
            case Append() if self._told_closing:
                return []  # a microphone does not stop at once, and the client knows
            case _ if self._closing:
                self._told_closing = True
                raise DuplexError(ErrorCode.SESSION_CLOSING, "the session is closing: no more input is taken")
            case Commit():
                return floor.commit(command, now)
            case CreateResponse():
                return floor.create(command, now)
            case UpdateSession():
                return floor.updates.ask(command)
            case ClearInput():
                return floor.clear_input(command, now)
            case AddItem():
                return floor.add(command)
            case RemoveItem():
                self.conversation.remove(command.item_id)
                if command.response_index is not None:
                    self._responses.forget(command.response_index)
                return [Send(event=Acknowledged(command=command))]
        raise AssertionError(command)

    def committed(
        self,
        has_input: bool,
        now: float,
        *,
        event_id: str | None = None,
        error: DuplexError | None = None,
    ) -> list[Effect]:
        """The adapter's answer to the `CommitInput` with that event id, in the order of these effects.

        `error`: what it raised instead; the turn gets no response.
        """
        if self._closed:
            return []
        if error is not None and error.fatal:
            return self.fail(error, now)
        return self._settle(self._floor.committed(has_input, now, event_id=event_id, error=error), now)

    def settings_applied(
        self, settings: SessionSettings, now: float, *, event_id: str | None = None
    ) -> list[Effect]:
        """The adapter took the new settings."""
        if self._closed:
            return []
        updated = Send(event=SessionUpdated(settings=settings, event_id=event_id))
        return self._settle([updated, *self._floor.updates.decided(settings)], now)

    def settings_refused(
        self, error: DuplexError, now: float, *, event_id: str | None = None
    ) -> list[Effect]:
        """The adapter refused them: the old ones stay."""
        error.event_id = error.event_id or event_id
        effects = self._fail(error, now)
        if not self._closed:
            effects = [*effects, *self._floor.updates.decided()]
        return self._settle(effects, now)

    # --- responses ----------------------------------------------------------------------------------

    def deliver(self, epoch: int, delta: Delivery, now: float) -> list[Effect]:
        """A delta of the response of that epoch; of any other epoch it is dropped and counted."""
        self._floor.progress_at = now
        return self._responses.deliver(epoch, delta)

    def written(self, event: ResponseAudio, now: float) -> None:
        """An audio event reached the socket: from now on it counts as sent, and plays."""
        self._floor.progress_at = now
        self._responses.written(event, now)

    def response_finished(self, epoch: int, now: float) -> list[Effect]:
        """The adapter's `respond` came to its end and all that it yielded was written to the socket.

        Until then the response is active and can be cut: its terminal event is decided once, here or there.
        """
        effects = self._responses.finish(epoch)
        if effects:
            self._floor.voice_ended(now)
        return self._settle(effects, now)

    def response_failed(self, epoch: int, error: DuplexError, now: float) -> list[Effect]:
        """The adapter's `respond` raised. The response ends with its name; the session lives on unless the
        error is fatal."""
        effects = self._responses.fail(epoch, error)
        if effects and error.fatal:
            return self._end(effects, error.code.traits.close_code, error.code.value, now, error)
        return self._settle(effects, now)

    # --- signals ------------------------------------------------------------------------------------

    def signal(self, signal: Signal, now: float) -> list[Effect]:
        """Something that the model noticed by itself."""
        if self._closed:
            return []
        return self._settle(self._notice(signal, now), now)

    def _notice(self, signal: Signal, now: float) -> list[Effect]:
        match signal:
            case SpeechStarted():
                if not self.attached or self._input_finished:
                    return []  # of what was heard before; nobody speaks any more
                self._last_activity = now
                return self._floor.speech(signal, now)
            case SpeechContinued() | SpeechStopped() | Transcript() | TurnEnded():
                return self._floor.speech(signal, now)
            case WantsToSpeak():
                self._floor.wish(signal)
                return []
            case GateScore():
                decided = GateDecided(
                    score=signal.score,
                    speak=signal.score >= self.settings.gate_threshold,
                    pts_ms=signal.pts_ms,
                    segment_id=signal.segment_id,
                )
                return [Send(event=decided)]
            case InputLag():
                return [Send(event=InputLagged(lag_ms=signal.lag_ms, coalesced=signal.coalesced))]
            case InputRejected():
                # one bad window is no reason to end, whatever the fault's name
                words = well_formed(signal.message)
                return [Send(event=ErrorEvent(code=signal.code, message=words, param=signal.param))]
