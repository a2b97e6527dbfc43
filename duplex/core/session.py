"""The session state machine: commands, deltas, signals and timers in, effects out.

Sans-I/O: nothing here awaits, reads a clock or knows asyncio. The runtime calls one method at a time and
carries out the effects in order. `now` is seconds of a monotonic clock and never goes back.

States: *idle* (nothing pending), *listening* (input since the last turn), *responding* (a response is
active), *closing* (no more input is taken, what runs may finish), *closed*.

Fencing: each response gets the next epoch, and a cancel raises it too. Whatever arrives of another epoch
than the active response's is dropped here, so that no path around the core can leak a stale delta.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import Literal

import msgspec

from duplex.core.commands import (
    Append,
    CancelResponse,
    CloseSession,
    Command,
    Commit,
    CreateResponse,
    PlaybackAck,
    UpdateSession,
)
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
    CancelReason,
    DrainNotice,
    ErrorEvent,
    Event,
    GateDecided,
    InputLagged,
    PlaybackCleared,
    ResponseAudio,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    ResponseFailed,
    ResponseText,
    SessionCreated,
    SessionEnded,
    SessionUpdated,
    UserSpeechStarted,
    UserSpeechStopped,
    UserTranscript,
)
from duplex.core.history import Conversation, RollingWindows
from duplex.core.playback import PlaybackLedger, PlayoutClock
from duplex.core.settings import apply_changes
from duplex.core.types import (
    AudioFormat,
    AudioWindow,
    EncodedAudio,
    GateScore,
    InputLag,
    InputRejected,
    Modality,
    SessionSettings,
    Signal,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    TextWindow,
    Transcript,
    Trigger,
    Turn,
    TurnEnded,
    WantsToSpeak,
    Window,
)

MAX_QUESTION = 128 * 1024
"""Characters of unanswered text that a session may hold."""
MAX_ANSWERED = 1024
"""Answered proactive event ids that are remembered."""
MAX_INDEX = 2**31


class State(StrEnum):
    IDLE = "idle"
    LISTENING = "listening"
    RESPONDING = "responding"
    CLOSING = "closing"
    CLOSED = "closed"


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one session. Times in seconds."""

    idle_timeout_s: float = 300.0
    close_grace_s: float = 10.0
    resume_grace_s: float = 30.0
    response_stall_s: float = 60.0
    max_errors: int = 16
    window_history: int = 64
    window_history_bytes: int = 32 * 1024 * 1024
    max_message_bytes: int = 8 * 1024 * 1024


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the core has to know of the model that serves the session."""

    id: str
    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]
    proactive: bool = False


class _Response:
    """Book-keeping of one response, alive until its sound is played."""

    __slots__ = ("epoch", "format", "id", "index", "ledger", "modalities", "pts", "reported", "trigger")

    def __init__(
        self,
        *,
        id: str,
        index: int,
        epoch: int,
        trigger: Trigger,
        modalities: tuple[Modality, ...],
        format: AudioFormat,
    ) -> None:
        self.id = id
        self.index = index
        self.epoch = epoch
        self.trigger = trigger
        self.modalities = modalities
        self.format = format
        self.ledger = PlaybackLedger()
        self.pts = 0
        self.reported = False
        """Its history item has been written."""


class Session:
    """One client's conversation. See the module's words for how it is driven."""

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
        self.settings = settings or SessionSettings()
        self.limits = limits or SessionLimits()
        self._proposed = self.settings
        """What updates that are under way will make of the settings."""
        self.while_active = while_active
        self.attached = False
        self.dropped_deltas = 0
        """Deltas of another epoch that were dropped: what would have been stale."""
        self.conversation = Conversation()
        self.windows = RollingWindows(self.limits.window_history, self.limits.window_history_bytes)
        self.playout = PlayoutClock()
        self._epoch = 0
        self._index = 0
        self._active: _Response | None = None
        self._last: _Response | None = None
        self._question: list[str] = []
        self._uncommitted: set[Modality] = set()
        self._user_speaking = False
        self._audio_carry = b""
        self._wanting: WantsToSpeak | None = None
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._closing = False
        self._input_finished = False
        self._closed = False
        self._errors_in_a_row = 0
        self._last_activity = 0.0
        self._last_progress = 0.0
        self._missed: list[Event] = []
        self._resume_token: str | None = None

    # --- what can be asked --------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._closed:
            return State.CLOSED
        if self._closing:
            return State.CLOSING
        if self._active is not None:
            return State.RESPONDING
        if self._uncommitted or self._user_speaking:
            return State.LISTENING
        return State.IDLE

    @property
    def epoch(self) -> int:
        """Raised by every response and every cancel; deltas carry the epoch of their response."""
        return self._epoch

    @property
    def active_response(self) -> str | None:
        """Id of the active response."""
        return self._active.id if self._active else None

    def run_ahead_ms(self, now: float) -> float:
        """How far what was written is ahead of playback."""
        return self.playout.unplayed_ms(now)

    # --- life ---------------------------------------------------------------------------------------

    def opened(
        self, now: float, *, resume_token: str | None = None, expires_at: float | None = None
    ) -> list[Effect]:
        """The adapter session exists and a client is attached."""
        self.attached = True
        self._resume_token = resume_token
        self._last_activity = now
        return [
            Send(event=self._created_event(resumed=False, expires_at=expires_at)),
            SetTimer(name=TimerName.IDLE, at=now + self.limits.idle_timeout_s),
        ]

    def detach(self, now: float) -> list[Effect]:
        """The client vanished. Its response ends; the session waits for it until the grace is over."""
        if self._closed or not self.attached:
            return []
        effects = self._interrupt(CancelReason.CLIENT_GONE, now)
        self.attached = False
        self._user_speaking = False
        self._audio_carry = b""
        # what ended unheard is told on the next socket; what was queued for this one is lost with it
        self._missed = [e.event for e in effects if isinstance(e, Send)]
        effects = [e for e in effects if not isinstance(e, Send)]
        if self._closing or self.limits.resume_grace_s <= 0:
            return effects + self.end(1006, "client gone", now)
        effects.append(SetTimer(name=TimerName.RESUME_GRACE, at=now + self.limits.resume_grace_s))
        effects.append(ClearTimer(name=TimerName.IDLE))
        return effects

    def attach(
        self, now: float, *, resume_token: str | None = None, expires_at: float | None = None
    ) -> list[Effect]:
        """The client is back on another socket."""
        self.attached = True
        self._resume_token = resume_token
        self._last_activity = now
        self._errors_in_a_row = 0
        missed, self._missed = self._missed, []
        effects: list[Effect] = [
            ClearTimer(name=TimerName.RESUME_GRACE),
            SetTimer(name=TimerName.IDLE, at=now + self.limits.idle_timeout_s),
            Send(event=self._created_event(resumed=True, expires_at=expires_at)),
        ]
        effects += [Send(event=event) for event in missed]
        return effects + self._speak_if_wanted(now)

    def drain(self, grace_s: float, now: float) -> list[Effect]:
        """The server is going away: tell the client, let the running response finish."""
        if self._closed:
            return []
        notice: list[Effect] = [Send(event=DrainNotice(grace_ms=grace_s * 1000))]
        if not self.attached:
            return self.end(1012, "server draining", now)
        return notice + self._begin_closing(now, grace_s)

    def end(self, code: int, reason: str, now: float, *, error: DuplexError | None = None) -> list[Effect]:
        """End at once. The response gets its terminal event, the slot is free before the last event."""
        if self._closed:
            return []
        stopped = self._interrupt(CancelReason.CLOSING, now)
        self._closed = True
        self._closing = True
        self.windows.clear()
        effects: list[Effect] = [e for e in stopped if not isinstance(e, Send)]
        effects.append(ReleaseSlot())
        effects += [e for e in stopped if isinstance(e, Send)]
        if error is not None:
            effects.append(Send(event=_error_event(error, fatal=True)))
        effects.append(Send(event=SessionEnded(code=code, reason=reason)))
        effects += [ClearTimer(name=name) for name in TimerName]
        effects.append(CloseTransport(code=code, reason=reason))
        return effects

    def fail(self, error: DuplexError, now: float) -> list[Effect]:
        """A fault that is not tied to a response: told to the client; ends the session if fatal."""
        if self._closed:
            return []
        if error.fatal:
            return self.end(error.code.traits.close_code, error.code.value, now, error=error)
        return [Send(event=_error_event(error))]

    # --- commands -----------------------------------------------------------------------------------

    def reject(self, error: DuplexError, now: float) -> list[Effect]:
        """A message that the dialect could not decode."""
        self._last_activity = now
        self._errors_in_a_row += 1
        if error.fatal or self._errors_in_a_row < self.limits.max_errors:
            return self.fail(error, now)
        many = DuplexError(
            ErrorCode.TOO_MANY_ERRORS, f"{self._errors_in_a_row} bad messages in a row; the last: {error}"
        )
        return self.fail(error, now) + self.fail(many, now)

    def feed(self, command: Command, now: float) -> list[Effect]:
        """Carry out a client's command. Never raises: what is refused becomes an error event."""
        self._last_activity = now
        if self._closed:
            return []
        self._errors_in_a_row = 0
        try:
            return self._dispatch(command, now)
        except DuplexError as error:
            error.event_id = error.event_id or command.event_id
            return self.fail(error, now)

    def _dispatch(self, command: Command, now: float) -> list[Effect]:
        match command:
            case PlaybackAck():
                return self._playback_ack(command, now)
            case CancelResponse():
                return self._cancel(command, now)
            case CloseSession():
                return self._begin_closing(now, self.limits.close_grace_s)
            case _ if self._closing:
                raise DuplexError(ErrorCode.DRAINING, "the session is closing")
            case Append():
                return self._append(command.window, now)
            case Commit():
                return self._commit(command, now)
            case CreateResponse():
                return self._create(command, now)
            case UpdateSession():
                after = apply_changes(self._proposed, command.changes, event_id=command.event_id)
                self._check_output(after.output_modalities)
                self._proposed = after
                return [UpdateAdapter(settings=after, event_id=command.event_id)]

    def settings_applied(
        self, settings: SessionSettings, now: float, *, event_id: str | None = None
    ) -> list[Effect]:
        """The adapter took the new settings."""
        if self._closed:
            return []
        self.settings = settings
        return [Send(event=SessionUpdated(settings=settings, event_id=event_id))]

    def settings_refused(
        self, error: DuplexError, now: float, *, event_id: str | None = None
    ) -> list[Effect]:
        """The adapter refused them: the old ones stay."""
        self._proposed = self.settings
        error.event_id = error.event_id or event_id
        return self.fail(error, now)

    def _append(self, window: Window, now: float) -> list[Effect]:
        modality = window.modality
        if modality not in self.model.input_modalities:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_MODALITY, f"unsupported input modality: {modality}", param="modality"
            )
        if isinstance(window, AudioWindow):
            whole = self._whole_samples(window, now)
            return [AppendInput(window=whole)] if whole is not None else []
        self._uncommitted.add(modality)
        if isinstance(window, TextWindow):
            if sum(map(len, self._question)) + len(window.text) > MAX_QUESTION:
                raise DuplexError(
                    ErrorCode.INPUT_OVERFLOW, f"more than {MAX_QUESTION} characters of unanswered text"
                )
            self._question.append(window.text)
            return [AppendInput(window=window)]
        self.windows.add(window)
        effects: list[Effect] = [AppendInput(window=window)]
        if self._question and modality in (Modality.VIDEO, Modality.CODEC_WINDOW):
            effects += self._respond(Trigger.QUESTION, now)
        return effects

    def _whole_samples(self, window: AudioWindow, now: float) -> AudioWindow | None:
        """The window with the half sample before it, less the half sample at its end."""
        if not window.pcm:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "audio without samples")
        self._uncommitted.add(Modality.AUDIO)
        pcm = self._audio_carry + window.pcm if self._audio_carry else window.pcm
        if len(pcm) % 2:
            self._audio_carry = pcm[-1:]
            pcm = pcm[:-1]
        else:
            self._audio_carry = b""
        if not pcm:
            return None
        level = self.playout.level_dbfs(now)
        if pcm is window.pcm and level is None:
            return window
        return AudioWindow(pcm=pcm, sample_rate=window.sample_rate, playout_dbfs=level)

    def _commit(self, command: Commit, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._audio_carry:
            self._audio_carry = b""
            effects += self.fail(
                DuplexError(
                    ErrorCode.ODD_AUDIO_BYTES,
                    "the turn's audio ended in half a sample (odd byte count); its last byte was dropped",
                    event_id=command.event_id,
                ),
                now,
            )
        if not self._uncommitted:
            if self._active is not None and self._active.trigger is Trigger.QUESTION:
                return effects  # the video window that followed the question has committed it already
            raise DuplexError(ErrorCode.COMMIT_EMPTY, "nothing was appended since the last turn")
        return [*effects, CommitInput(event_id=command.event_id)]

    def committed(self, has_input: bool, now: float, *, event_id: str | None = None) -> list[Effect]:
        """The adapter's answer to `CommitInput`."""
        if self._closed:
            return []
        if not has_input and not self._question:
            self._uncommitted.clear()
            return self.fail(
                DuplexError(
                    ErrorCode.COMMIT_EMPTY, "nothing to respond to in what was appended", event_id=event_id
                ),
                now,
            )
        return self._respond(Trigger.COMMIT, now)

    def _create(self, command: CreateResponse, now: float) -> list[Effect]:
        if self._active is not None and self.while_active == "refuse":
            raise DuplexError(
                ErrorCode.RESPONSE_ALREADY_ACTIVE,
                f"response {self._active.id} is in progress",
            )
        self._check_output(command.modalities)
        return self._respond(
            Trigger.CREATE, now, speak_text=command.speak_text, modalities=command.modalities
        )

    def _check_output(self, modalities: tuple[Modality, ...] | None) -> None:
        for modality in modalities or ():
            if modality not in self.model.output_modalities:
                raise DuplexError(
                    ErrorCode.UNSUPPORTED_MODALITY,
                    f"unsupported output modality: {modality}",
                    param="output_modalities",
                )

    def _cancel(self, command: CancelResponse, now: float) -> list[Effect]:
        index = command.response_index
        active = self._active
        if index is not None and not 1 <= index <= self._index:
            raise DuplexError(ErrorCode.RESPONSE_NOT_FOUND, f"no response with index {index}")
        if active is not None and index in (None, active.index):
            return self._interrupt(CancelReason.CLIENT, now, event_id=command.event_id)
        # idle, or a response that has ended: the answer says so; sound that is unplayed counts as unheard
        effects: list[Effect] = []
        last = self._last
        if active is None and last is not None and index in (None, last.index):
            effects += [e for e in self._clear_playback(now) if not isinstance(e, Send)]
        heard = last is not None and index in (None, last.index)
        answer = ResponseCancelled(
            response_id="",
            index=index or self._index,
            reason=CancelReason.CLIENT,
            heard_ms=last.ledger.heard_ms(0.0) if heard and last else 0.0,
            event_id=command.event_id,
        )
        return [*effects, Send(event=answer)]

    def _playback_ack(self, command: PlaybackAck, now: float) -> list[Effect]:
        response = self._active if self._active and self._active.ledger.sent_ms else self._last
        index = command.response_index
        if index is not None:
            if not 1 <= index <= self._index:
                raise DuplexError(ErrorCode.RESPONSE_NOT_FOUND, f"no response with index {index}")
            response = next((r for r in (self._active, self._last) if r and r.index == index), None)
            if response is None:
                return []  # of a response long gone: late, but no fault
        if response is None:
            raise DuplexError(ErrorCode.INVALID_PLAYBACK_CURSOR, "no audio has been sent")
        cursor = command.cursor_ms
        if not 0 <= cursor < float("inf"):
            raise DuplexError(ErrorCode.INVALID_PLAYBACK_CURSOR, f"cursor {cursor} is not a time in ms")
        ledger = response.ledger
        ledger.acked_ms = max(min(cursor, ledger.sent_ms), ledger.acked_ms or 0.0)
        newest = self._active if self._active and self._active.ledger.sent_ms else self._last
        if response is newest:
            self.playout.acknowledged(ledger.sent_ms - ledger.acked_ms, now)
        self._last_progress = now
        return []

    def _begin_closing(self, now: float, grace_s: float) -> list[Effect]:
        if self._closing:
            return []
        self._closing = True
        return [FinishInput(), SetTimer(name=TimerName.CLOSE_GRACE, at=now + grace_s)]

    def input_finished(self, now: float) -> list[Effect]:
        """The adapter has signalled all that it had to: close when nothing runs."""
        self._input_finished = True
        return self._close_if_done(now)

    def _close_if_done(self, now: float) -> list[Effect]:
        if self._closed or not self._closing or not self._input_finished or self._active is not None:
            return []
        if self._wanting is not None:
            return self._speak_if_wanted(now)
        return self.end(*self.closing_code, now)

    closing_code: tuple[int, str] = (1000, "closed by the client")
    """Close code and reason of a graceful end; the runtime sets (1012, …) when it drains."""

    # --- responses ----------------------------------------------------------------------------------

    def _respond(
        self,
        trigger: Trigger,
        now: float,
        *,
        speak_text: str | None = None,
        modalities: tuple[Modality, ...] | None = None,
        event_id: str | None = None,
    ) -> list[Effect]:
        """Begin a response; the one before it, if any, is superseded."""
        # a response whose sound is still being played is no obstacle: the new sound queues behind it
        effects = self._interrupt(CancelReason.SUPERSEDED, now) if self._active else []
        self._epoch += 1
        self._index += 1
        wanted = modalities or self.settings.output_modalities or self.model.output_modalities
        response = _Response(
            id=f"resp_{self.id}_{self._index}",
            index=self._index,
            epoch=self._epoch,
            trigger=trigger,
            modalities=wanted,
            format=self.settings.output_format,
        )
        question = "\n".join(self._question) or None
        if question:
            self.conversation.user_said(question)
        turn = Turn(
            response_id=response.id,
            index=response.index,
            epoch=response.epoch,
            trigger=trigger,
            settings=self.settings,
            modalities=wanted,
            question=question,
            speak_text=speak_text,
            event_id=event_id,
            history=self.conversation.items,
            windows=self.windows.items,
        )
        self._question.clear()
        self._uncommitted.clear()
        self._active = response
        self._last_progress = now
        created = ResponseCreated(response_id=response.id, index=response.index, modalities=wanted)
        return [
            *effects,
            Send(event=created),
            StartResponse(turn=turn),
            SetTimer(name=TimerName.RESPONSE_WATCHDOG, at=now + self.limits.response_stall_s),
        ]

    def deliver(self, epoch: int, delta: TextDelta | EncodedAudio, now: float) -> list[Effect]:
        """A delta of the response of that epoch; of any other epoch it is dropped and counted."""
        response = self._active
        if response is None or response.epoch != epoch:
            self.dropped_deltas += 1
            return []
        self._last_progress = now
        if isinstance(delta, TextDelta):
            if not delta.text:
                return []
            response.ledger.add_text(delta.text)
            if Modality.TEXT not in response.modalities:
                return []
            return [Send(event=ResponseText(response_id=response.id, index=response.index, text=delta.text))]
        duration_ms = delta.samples / delta.sample_rate * 1000
        response.ledger.add_audio(duration_ms, delta.text)
        event = ResponseAudio(
            response_id=response.id,
            index=response.index,
            payload=delta.payload,
            format=response.format,
            pts=response.pts,
            duration_ms=duration_ms,
            level_dbfs=delta.level_dbfs,
            text=delta.text,
        )
        response.pts += delta.samples
        return [Send(event=event)]

    def written(self, event: ResponseAudio, now: float) -> None:
        """An audio event reached the socket: from now on it counts as sent, and plays."""
        self._last_progress = now
        for response in (self._active, self._last):
            if response is not None and response.index == event.index:
                response.ledger.sent_ms += event.duration_ms
                self.playout.written(event.duration_ms, event.level_dbfs, now)
                return

    def response_finished(self, epoch: int, now: float) -> list[Effect]:
        """The adapter's `respond` came to its end and all that it yielded was written to the socket.

        Until then the response is active and can be cut: its terminal event is decided once, here or there.
        """
        response = self._take(epoch)
        if response is None:
            return []
        done = ResponseDone(
            response_id=response.id,
            index=response.index,
            text=response.ledger.text,
            audio_ms=response.ledger.generated_ms,
        )
        self.conversation.assistant_said(response.index, response.ledger.text)
        return [
            ClearTimer(name=TimerName.RESPONSE_WATCHDOG),
            Send(event=done),
            *self._after_response(now),
        ]

    def response_failed(self, epoch: int, error: DuplexError, now: float) -> list[Effect]:
        """The adapter's `respond` raised. The response ends with its name; the session lives on unless the
        error is fatal."""
        response = self._take(epoch)
        if response is None:
            return []
        self._heard_so_far(response, now)
        failed = ResponseFailed(
            response_id=response.id, index=response.index, code=error.code, message=error.message
        )
        effects: list[Effect] = [
            AbortResponse(response_id=response.id, reason=CancelReason.CLOSING),
            ClearTimer(name=TimerName.RESPONSE_WATCHDOG),
            Send(event=failed),
        ]
        if error.fatal:
            return effects + self.end(error.code.traits.close_code, error.code.value, now, error=error)
        return effects + self._after_response(now)

    def _take(self, epoch: int) -> _Response | None:
        response = self._active
        if response is None or response.epoch != epoch:
            return None
        self._active = None
        self._last = response
        return response

    def _after_response(self, now: float) -> list[Effect]:
        if self._closing:
            return self._close_if_done(now)
        return self._speak_if_wanted(now)

    def _interrupt(self, reason: CancelReason, now: float, *, event_id: str | None = None) -> list[Effect]:
        """Stop the active response, or the sound of the last one: abort first, then tell."""
        response = self._active
        if response is None:
            return self._clear_playback(now) if reason is not CancelReason.CLOSING else []
        self._active = None
        self._last = response
        self._epoch += 1
        heard_ms, heard_text = self._heard_so_far(response, now)
        self.playout.cleared(now)
        cancelled = ResponseCancelled(
            response_id=response.id,
            index=response.index,
            reason=reason,
            heard_ms=heard_ms,
            heard_text=heard_text,
            event_id=event_id,
        )
        effects: list[Effect] = [
            AbortResponse(response_id=response.id, reason=reason),
            ClearTimer(name=TimerName.RESPONSE_WATCHDOG),
            Send(event=cancelled),
        ]
        if self._closing and reason is CancelReason.CLIENT:
            effects += self._close_if_done(now)
        return effects

    def _clear_playback(self, now: float) -> list[Effect]:
        """A response has ended but is still being played: cut it, and its place in history."""
        last = self._last
        unplayed = self.playout.unplayed_ms(now)
        if last is None or unplayed <= 0 or last.reported:
            return []
        heard_ms, heard_text = self._heard_so_far(last, now)
        last.reported = True
        self.playout.cleared(now)
        cleared = PlaybackCleared(
            response_id=last.id, index=last.index, heard_ms=heard_ms, heard_text=heard_text
        )
        return [AbortResponse(response_id=last.id, reason=CancelReason.SPEECH), Send(event=cleared)]

    def _heard_so_far(self, response: _Response, now: float) -> tuple[float, str]:
        """Write into history what was heard of a response that is being cut."""
        ledger = response.ledger
        heard_ms = ledger.heard_ms(self.playout.unplayed_ms(now))
        heard_text = ledger.heard_text(heard_ms)
        self.conversation.assistant_said(response.index, heard_text, interrupted=heard_text != ledger.text)
        ledger.acked_ms = heard_ms
        return heard_ms, heard_text

    # --- signals and timers -------------------------------------------------------------------------

    def signal(self, signal: Signal, now: float) -> list[Effect]:
        """Something that the model noticed by itself."""
        if self._closed:
            return []
        match signal:
            case SpeechStarted():
                return self._speech_started(signal, now)
            case SpeechStopped():
                self._user_speaking = False
                stopped: list[Effect] = [Send(event=UserSpeechStopped(at_ms=signal.at_ms))]
                turns = self.settings.turn_detection
                responds = turns is not None and turns.create_response
                return stopped if responds else stopped + self._speak_if_wanted(now)
            case Transcript():
                if signal.final and signal.text:
                    self.conversation.user_said(signal.text)
                return [Send(event=UserTranscript(text=signal.text, final=signal.final))]
            case TurnEnded():
                self._user_speaking = False
                turns = self.settings.turn_detection
                if self._closing or not self.attached or turns is None or not turns.create_response:
                    return []
                return self._respond(Trigger.SPEECH, now)
            case WantsToSpeak():
                if signal.event_id not in self._answered:
                    self._wanting = signal
                return self._speak_if_wanted(now)
            case GateScore():
                return [
                    Send(
                        event=GateDecided(
                            score=signal.score,
                            speak=signal.score >= self.settings.gate_threshold,
                            pts_ms=signal.pts_ms,
                            segment_id=signal.segment_id,
                        )
                    )
                ]
            case InputLag():
                return [Send(event=InputLagged(lag_ms=signal.lag_ms, coalesced=signal.coalesced))]
            case InputRejected():
                return self.fail(DuplexError(signal.code, signal.message), now)

    def _speech_started(self, signal: SpeechStarted, now: float) -> list[Effect]:
        self._user_speaking = True
        self._last_activity = now
        turns = self.settings.turn_detection
        stopped: list[Effect] = []
        if turns is not None and turns.interrupt_response:
            stopped = self._interrupt(CancelReason.SPEECH, now)
        # the engine stops first, then the client learns of the speech and of what it cut, in this order
        return [
            *(e for e in stopped if not isinstance(e, Send)),
            Send(event=UserSpeechStarted(at_ms=signal.at_ms)),
            *(e for e in stopped if isinstance(e, Send)),
        ]

    def _speak_if_wanted(self, now: float) -> list[Effect]:
        """Start the proactive response that is waiting, when nothing is in its way."""
        wanting = self._wanting
        if wanting is None or self._active is not None or not self.attached or self._user_speaking:
            return []
        self._wanting = None
        self._answered[wanting.event_id] = None
        while len(self._answered) > MAX_ANSWERED:
            self._answered.popitem(last=False)
        return self._respond(Trigger.PROACTIVE, now, event_id=wanting.event_id)

    def timer(self, name: TimerName, now: float) -> list[Effect]:
        """A timer came due."""
        if self._closed:
            return []
        match name:
            case TimerName.IDLE:
                return self._idle_timer(now)
            case TimerName.RESPONSE_WATCHDOG:
                return self._watchdog(now)
            case TimerName.CLOSE_GRACE:
                return self.end(*self.closing_code, now)
            case TimerName.RESUME_GRACE:
                return [] if self.attached else self.end(1006, "client did not come back", now)

    def _idle_timer(self, now: float) -> list[Effect]:
        """Lazily: activity moves a number, not a timer, so that a frame costs no timer."""
        busy = self._active is not None or self.playout.unplayed_ms(now) > 0
        quiet_since = now if busy else self._last_activity
        due = quiet_since + self.limits.idle_timeout_s
        if due > now:
            return [SetTimer(name=TimerName.IDLE, at=due)]
        return self.fail(DuplexError(ErrorCode.IDLE_TIMEOUT, "idle timeout"), now)

    def _watchdog(self, now: float) -> list[Effect]:
        response = self._active
        if response is None:
            return []
        due = self._last_progress + self.limits.response_stall_s
        if due > now:
            return [SetTimer(name=TimerName.RESPONSE_WATCHDOG, at=due)]
        stall = DuplexError(
            ErrorCode.ADAPTER_FAILED,
            f"the model yielded nothing for {self.limits.response_stall_s:g} s",
        )
        return self.response_failed(response.epoch, stall, now)

    def _created_event(self, *, resumed: bool, expires_at: float | None) -> SessionCreated:
        limits = self.limits
        return SessionCreated(
            session_id=self.id,
            model=self.model.id,
            input_modalities=self.model.input_modalities,
            output_modalities=self.model.output_modalities,
            proactive=self.model.proactive,
            settings=self.settings,
            resume_token=self._resume_token,
            resumed=resumed,
            limits={
                "max_message_bytes": limits.max_message_bytes,
                "idle_timeout_s": limits.idle_timeout_s,
                "resume_grace_s": limits.resume_grace_s,
                "window_history": limits.window_history,
            },
            expires_at=expires_at,
        )


def _error_event(error: DuplexError, *, fatal: bool = False) -> ErrorEvent:
    return ErrorEvent(
        code=error.code,
        message=error.message,
        event_id=error.event_id,
        param=error.param,
        fatal=fatal or error.fatal,
    )
