"""Who speaks next: input that waits for an answer, the adapter's decisions, and responses that start or wait.

"The floor" is what speakers take from each other. The user has it from the first sign of speech until it is
known whether that is to be answered; the model takes it with a response. A response that cannot start yet is
held: the client is away, settings are being changed, or the session is closing and another response runs.
"""

from __future__ import annotations

from typing import Literal

from duplex.core.commands import AddItem, CancelResponse, ClearInput, Commit, CreateResponse
from duplex.core.effects import AppendInput, CommitInput, Effect, ForgetInput, Send, SetTimer, TimerName
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import Acknowledged, UserIdle, UserSpeechStopped
from duplex.core.facts import ModelFacts, SessionLimits
from duplex.core.inputs import PendingCommit, TurnInput
from duplex.core.outbox import error_event
from duplex.core.proactive import Wishes
from duplex.core.responses import Request, Responses
from duplex.core.settings import SettingsUpdates, apply_changes
from duplex.core.speech import SpeechSignal, Then, UserSpeech
from duplex.core.types import (
    AudioWindow,
    Modality,
    SessionSettings,
    Trigger,
    TurnDetection,
    WantsToSpeak,
    Window,
)

MAX_ASKED = 16
"""Added texts that count as the question of the next response."""


class Floor:
    """Turn taking of one session. Methods return effects and raise `DuplexError` for what is refused."""

    def __init__(
        self,
        *,
        session_id: str,
        model: ModelFacts,
        settings: SessionSettings,
        limits: SessionLimits,
        while_active: Literal["supersede", "refuse"],
    ) -> None:
        self.responses = Responses(session_id)
        self.input = TurnInput(
            window_history=limits.window_history, window_history_bytes=limits.window_history_bytes
        )
        self.updates = SettingsUpdates(settings, model)
        self.away = False
        """No client is there to speak to."""
        self.closing = False
        """What runs and what was asked may finish, one after the other."""
        self.progress_at = 0.0
        """When the active response last made progress (seconds)."""
        self._model = model
        self._limits = limits
        self._while_active = while_active
        self._wishes = Wishes()
        self._held: Request | None = None
        self.user = UserSpeech(self.responses, input_stall_s=limits.input_stall_s)
        self._asked: list[str] = []
        """Texts of the user that were added as items and are not answered yet."""
        self._video_committed = False
        """The turn was closed by the video behind its question: a commit after it says nothing new."""
        self._input_ms = 0.0
        self._quiet_since: float | None = None
        """When the model had given all of its last response (seconds), if nothing has come of it yet."""
        self._idle_timer: float | None = None
        """When the timer of the user's silence fires, if it is set."""

    @property
    def listening(self) -> bool:
        """The user has given something that is not answered yet."""
        return self.input.open or self._asked_for

    @property
    def _asked_for(self) -> bool:
        """The user has said or written something that is not answered yet, or is about to."""
        waits = self.input.deciding or self.input.has_question or self._held is not None
        return self.user.turn_open or waits

    @property
    def pending(self) -> bool:
        """Something runs or is still to come: a response, a decision, settings, a wish."""
        return bool(
            self.responses.active
            or self._held
            or self.input.deciding
            or self.updates.pending
            or self._wishes.waiting
        )

    # --- input --------------------------------------------------------------------------------------

    def append(self, window: Window, now: float) -> list[Effect]:
        """One window. A video window behind text closes the turn: the text is a question about it."""
        modality = window.modality
        self._model.check_input(modality)
        level = self.responses.playout.level_dbfs(now) if modality is Modality.AUDIO else None
        taken = self.input.append(window, level)
        if taken is None:
            return []
        if isinstance(taken, AudioWindow):
            self._input_ms += taken.duration_ms
            if self.user.speaking:
                self.user.heard_at = now
        effects: list[Effect] = [AppendInput(window=taken)]
        if self.input.has_question and modality in (Modality.VIDEO, Modality.CODEC_WINDOW):
            effects += self._respond(Request(Trigger.QUESTION), now)
        return effects

    def commit(self, command: Commit, now: float) -> list[Effect]:
        """The user's turn is over by the client's word: the adapter is asked what it makes of it."""
        effects = self.user.claim(now)
        event_id = command.event_id
        if self.input.drop_half_sample():
            words = "the turn's audio ended in half a sample (odd byte count); its last byte was dropped"
            odd = DuplexError(ErrorCode.ODD_AUDIO_BYTES, words, event_id=event_id)
            effects.append(Send(event=error_event(odd)))
        if self.input.open:
            self.input.commit(event_id, silent=command.silent, respond=command.respond)
            return [*effects, CommitInput(event_id=event_id)]
        if command.silent:
            return effects
        if self._video_committed:
            self._video_committed = False
            return effects
        words = "nothing was appended since the last turn"
        empty = DuplexError(ErrorCode.COMMIT_EMPTY, words, event_id=event_id)
        return [*effects, Send(event=error_event(empty))]

    def committed(
        self, has_input: bool, now: float, *, event_id: str | None, error: DuplexError | None
    ) -> list[Effect]:
        """The adapter's answer to the oldest commit, or the fault that it had with it."""
        commit = self.input.decided(event_id)
        if commit is not None and not commit.respond and error is None:
            return self._heard(commit, has_input, now)
        if error is not None:
            return [Send(event=error_event(error))]
        if commit is None or not commit.wanted:
            return []
        if has_input or commit.question:
            trigger = Trigger.SPEECH if commit.silent else Trigger.COMMIT
            return self._start(Request(trigger, question=commit.question, asked_by=commit.event_id), now)
        if commit.silent:
            return self._follow([], self.user.nothing_said(self._turns), now)
        words = "nothing to respond to in what was appended"
        empty = DuplexError(ErrorCode.COMMIT_EMPTY, words, event_id=commit.event_id)
        return [Send(event=error_event(empty))]

    def _heard(self, commit: PendingCommit, has_input: bool, now: float) -> list[Effect]:
        """A turn that is not answered by itself has been heard to its end."""
        if commit.wanted and commit.question:
            self.responses.conversation.user_said(commit.question)
        if has_input or commit.question:
            done = Commit(event_id=commit.event_id, respond=False, silent=commit.silent)
            heard: list[Effect] = [Send(event=Acknowledged(command=done))]
            # speech whose end the client declared is answered as if the model had found it
            if self._answers_speech and commit.wanted and self._held is None and not commit.silent:
                heard += self._start(Request(Trigger.SPEECH), now)
            return heard
        if commit.silent:
            return []
        empty = DuplexError(ErrorCode.COMMIT_EMPTY, "nothing was said", event_id=commit.event_id)
        return [Send(event=error_event(empty))]

    def clear_input(self, command: ClearInput, now: float) -> list[Effect]:
        """Forget what the user gave since the last turn, speech that goes on included."""
        self.input.clear()
        return [ForgetInput(), *self.user.forget(now), Send(event=Acknowledged(command=command))]

    def add(self, command: AddItem) -> list[Effect]:
        """An item of the conversation; the user's text waits to be answered."""
        self.responses.conversation.add(command.item_id, command.item, after=command.after)
        if command.item.role == "user":
            self._asked.append(command.item.text)
            del self._asked[:-MAX_ASKED]
        return [Send(event=Acknowledged(command=command))]

    def create(self, command: CreateResponse, now: float) -> list[Effect]:
        """Respond now."""
        active = self.responses.active
        if self._while_active == "refuse" and (active or self._held):
            which = f"response {active.id}" if active else "a response"
            raise DuplexError(ErrorCode.RESPONSE_ALREADY_ACTIVE, f"{which} is in progress")
        settings = None
        if command.changes:
            settings = apply_changes(self.updates.settings, command.changes, event_id=command.event_id)
            self._model.check_output(settings.output_modalities)
        self._model.check_output(command.modalities)
        asked, self._asked = self._asked, []
        request = Request(
            Trigger.CREATE,
            speak_text=command.speak_text,
            modalities=command.modalities,
            settings=settings,
            asked="\n".join(asked) or None,
            history=command.history,
            record=command.record,
            asked_by=command.event_id,
        )
        return self._respond(request, now)

    def cancel(self, command: CancelResponse, now: float) -> list[Effect]:
        """Stop the response that is named, or all that runs, sounds and is about to start."""
        effects = self.responses.cancel(command.response_index, now, event_id=command.event_id)
        if command.response_index is None:
            # what was asked before the cancel gets no answer; it was said all the same
            withdrawn = self.input.withdraw()
            held, self._held = self._held, None
            if held is not None and held.question:
                withdrawn.append(held.question)
            for question in withdrawn:
                self.responses.conversation.user_said(question)
        return effects

    # --- speech -------------------------------------------------------------------------------------

    def speech(self, signal: SpeechSignal, now: float) -> list[Effect]:
        """The model noticed something of the user's speech."""
        return self._follow(*self.user.heard(signal, self._turns, now), now)

    def stalled(self, now: float) -> list[Effect]:
        """Input stopped in mid-speech, or the model makes nothing of the speech: the turn is over."""
        effects, then = self.user.stalled(self._turns, now)
        if then is not Then.ANSWER:
            return self._follow(effects, then, now)
        self.user.left()
        effects.append(Send(event=UserSpeechStopped(at_ms=self._input_ms)))
        if self._answers_speech and not self.input.deciding:
            self.input.commit(silent=True)
            effects.append(CommitInput())
        return effects

    def _follow(self, effects: list[Effect], then: Then, now: float) -> list[Effect]:
        match then:
            case Then.ANSWER:
                return effects + self._respond(Request(Trigger.SPEECH), now)
            case Then.RESUME:
                return effects + self._resume(now)
        return effects

    def _resume(self, now: float) -> list[Effect]:
        """The voice goes on where it stopped."""
        unsaid = self.responses.unsaid()
        if unsaid is None or self.responses.active is not None or self._asked_for:
            return []
        turn = unsaid.turn
        request = Request(
            Trigger.RESUMED, speak_text=unsaid.text, modalities=turn.modalities, settings=turn.settings
        )
        return self._start(request, now)

    @property
    def _turns(self) -> TurnDetection | None:
        return self.updates.settings.turn_detection

    @property
    def _answers_speech(self) -> bool:
        turns = self._turns
        return turns is not None and turns.create_response

    # --- silence ------------------------------------------------------------------------------------

    def watch_idle(self, now: float) -> list[Effect]:
        """Set the timer of the user's silence, if it is to be watched and is not yet."""
        at = self.idle_at
        if at is None or (self._idle_timer is not None and self._idle_timer <= at):
            return []
        self._idle_timer = at
        return [SetTimer(name=TimerName.USER_IDLE, at=at)]

    @property
    def idle_at(self) -> float | None:
        """When the user's silence has lasted long enough (seconds): it is counted from the end of the model's
        voice. None while something else goes on, and before the model has spoken."""
        turns = self._turns
        if turns is None or turns.idle_timeout_ms is None or self._quiet_since is None:
            return None
        if self._asked_for or self.pending or self.away or self.closing:
            return None
        since = max(self._quiet_since, self.responses.playout.dry_at, self.user.heard_at)
        return since + turns.idle_timeout_ms / 1000

    def idle_timer_fired(self) -> None:
        self._idle_timer = None

    def user_idle(self, now: float) -> list[Effect]:
        """The user has said nothing for so long: the model speaks, if it may speak unasked."""
        turns = self._turns
        self._quiet_since = None
        if turns is None or turns.idle_timeout_ms is None:
            return []
        start_ms = max(0.0, self._input_ms - turns.idle_timeout_ms)
        told: list[Effect] = [Send(event=UserIdle(start_ms=start_ms, end_ms=self._input_ms))]
        return [*told, *self._respond(Request(Trigger.IDLE), now)] if turns.create_response else told

    def voice_ended(self, now: float) -> None:
        """A response was written to its end."""
        self._quiet_since = now

    def left(self) -> None:
        """The client is not there, or the session takes no more input."""
        self.user.left()
        self._quiet_since = None

    # --- responses ----------------------------------------------------------------------------------

    def wish(self, signal: WantsToSpeak) -> None:
        """The model wants to speak: it will, as soon as nothing is in its way."""
        self._wishes.ask(signal)

    def next(self, now: float) -> list[Effect]:
        """What can start now: the response that is held, else the one that the model wants."""
        effects: list[Effect] = []
        if self._held is not None and not self._must_wait() and not self._yields(self._held):
            effects = self._start(self._held, now)
        user_first = self.user.turn_open or self.input.deciding or self._held is not None
        if self._wishes.waiting and not user_first and not self.responses.active and not self._must_wait():
            effects = self._start(Request(Trigger.PROACTIVE, event_id=self._wishes.answer()), now)
        return effects

    def clear(self) -> None:
        """The session ends: nothing starts any more, and what it remembers of media is let go."""
        self._held = None
        self.input.windows.clear()

    def _respond(self, request: Request, now: float) -> list[Effect]:
        """Answer the user's turn as it is now, with the commits that the adapter has not decided yet."""
        self._video_committed = request.trigger is Trigger.QUESTION
        self.user.meant()
        return self._start(request._replace(question=self.input.take_turn()), now)

    def _start(self, request: Request, now: float) -> list[Effect]:
        """Begin a response or hold it. A newer one takes the place of one that is held."""
        held, self._held = self._held, None
        if held is not None and held is not request and held.question:
            if request.question:
                self.responses.conversation.user_said(held.question)
            else:
                request = request._replace(question=held.question)
        if self._must_wait() or self._yields(request):
            self._held = request
            return []
        self._quiet_since = None
        settings = request.settings or self.updates.settings
        default = self._model.default_output(speak=request.speak_text is not None)
        wanted = request.modalities or settings.output_modalities or default
        begun = self.responses.begin(request, settings, wanted, self.input.windows.items, now)
        self.progress_at = now
        watchdog = SetTimer(name=TimerName.RESPONSE_WATCHDOG, at=now + self._limits.response_stall_s)
        return [*begun, watchdog]

    def _yields(self, request: Request) -> bool:
        """What is said over a voice that speech may not cut is answered when that has ended."""
        turns = self._turns
        uncut = turns is not None and not turns.interrupt_response
        return uncut and request.trigger is Trigger.SPEECH and self.responses.active is not None

    def _must_wait(self) -> bool:
        behind_another = self.closing and self.responses.active is not None
        return self.away or self.updates.pending or self.input.settling or behind_another
