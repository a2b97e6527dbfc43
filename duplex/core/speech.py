"""The user's speech as the model tells of it: turns that begin and end, and what they do to its own voice.

Speech over the voice is an `Overlap` until it is known to be an interruption; the client is not told of it
before, since many clients stop playing when they learn that the user speaks. Speech that has cut the voice
may still turn out to be nothing: then what it cut is to be resumed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from duplex.core.effects import Effect, Send, SetTimer, TimerName
from duplex.core.events import (
    CancelReason,
    PlaybackDucked,
    PlaybackUnducked,
    UserOverheard,
    UserSpeechStarted,
    UserSpeechStopped,
    UserTranscript,
)
from duplex.core.interruption import Overlap, Verdict, needs_proof, says_nothing
from duplex.core.responses import Responses
from duplex.core.text import well_formed
from duplex.core.types import (
    SpeechContinued,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnDetection,
    TurnEnded,
)

SpeechSignal: TypeAlias = SpeechStarted | SpeechContinued | SpeechStopped | Transcript | TurnEnded


class Then(StrEnum):
    """What follows on the user's speech."""

    NOTHING = "nothing"
    ANSWER = "answer"
    RESUME = "resume"
    """What cut the voice was no speech: the voice goes on."""


Outcome: TypeAlias = tuple[list[Effect], Then]


class UserSpeech:
    """One session's. `input_stall_s`: an open turn is given up after this long without a sign of it."""

    def __init__(self, responses: Responses, *, input_stall_s: float) -> None:
        self.speaking = False
        self.turn_open = False
        """From the first sign of speech until it is known whether that is to be answered."""
        self.heard_at = 0.0
        """When the open turn last gave a sign: audio while the user speaks, else the end of the speech."""
        self._responses = responses
        self._stall_s = input_stall_s
        self._overlap: Overlap | None = None
        self._cut_ms: float | None = None
        """Beginning of the speech that cut the voice and has not proved to be any."""
        self._overheard = False
        """The model has words that are to get no answer."""
        self._words: bool | None = None
        """Words were written down in this turn; None: nothing was said about that."""

    # --- what the model tells -----------------------------------------------------------------------

    def heard(self, signal: SpeechSignal, turns: TurnDetection | None, now: float) -> Outcome:
        """The model noticed something of the user's speech."""
        overlap = self._overlap
        if overlap is None:
            return self._tell(signal, turns, now)
        match overlap.heard(signal, voiced=self._responses.voice(now) is not None):
            case Verdict.OPEN:
                return self._keep(signal, now), Then.NOTHING
            case Verdict.OVERHEARD:
                text = signal.text if isinstance(signal, Transcript) else None
                return self._dismiss(overlap, text, now), Then.NOTHING
        claimed = self.claim(now, but=signal)
        effects, then = self._tell(signal, turns, now)
        return [*claimed, *effects], then

    def stalled(self, turns: TurnDetection | None, now: float) -> Outcome:
        """The open turn gives no sign any more."""
        overlap = self._overlap
        if overlap is not None and self._responses.voice(now) is not None:
            return self._dismiss(overlap, None, now), Then.NOTHING
        effects = self.claim(now)
        if self.speaking:
            return effects, Then.ANSWER
        self.left()
        return effects, self.nothing_said(turns)

    def nothing_said(self, turns: TurnDetection | None) -> Then:
        """The model found nothing in what the user gave."""
        cut, self._cut_ms = self._cut_ms is not None, None
        wanted = turns is not None and turns.resume_interrupted and turns.create_response
        return Then.RESUME if cut and wanted else Then.NOTHING

    def meant(self) -> None:
        """The user has said or asked something: there is nothing to resume, and what is heard is answered."""
        self._overheard = False
        self._cut_ms = None

    def left(self) -> None:
        """No more speech is to be expected."""
        self.speaking = self.turn_open = False
        self._overlap = None

    def forget(self, now: float) -> list[Effect]:
        """What is in no turn yet is forgotten, speech over the voice included."""
        overlap = self._overlap
        self.left()
        return self._unduck(now) if overlap is not None and overlap.ducked else []

    def claim(self, now: float, *, but: SpeechSignal | None = None) -> list[Effect]:
        """Speech over the voice, if there is some, counts: the voice is cut. `but` is told apart."""
        overlap, self._overlap = self._overlap, None
        if overlap is None:
            return []
        ducked = overlap.ducked and self._responses.voice(now) is None
        effects = self._begin(overlap.started, now)
        if overlap.stopped is not None and overlap.stopped is not but:
            effects.append(Send(event=UserSpeechStopped(at_ms=overlap.stopped.at_ms)))
        return [*effects, *(self._unduck(now) if ducked else [])]

    @property
    def stall_at(self) -> float | None:
        """When the open turn is given up (seconds)."""
        return self.heard_at + self._stall_s if self.turn_open else None

    # --- speech that is told ------------------------------------------------------------------------

    def _tell(self, signal: SpeechSignal, turns: TurnDetection | None, now: float) -> Outcome:
        match signal:
            case SpeechStarted():
                return self._started(signal, turns, now), Then.NOTHING
            case SpeechContinued():
                return [], Then.NOTHING
            case SpeechStopped():
                return self._stopped(signal, turns, now), Then.NOTHING
            case Transcript():
                return self._written_down(signal, turns)
            case TurnEnded():
                self.left()
                answers = turns is not None and turns.create_response
                if not answers or (self._overheard and self._words is False):
                    return [], Then.NOTHING
                return [], Then.ANSWER

    def _started(self, signal: SpeechStarted, turns: TurnDetection | None, now: float) -> list[Effect]:
        known = self.speaking
        self.speaking = self.turn_open = True
        self.heard_at = now
        self._words = None
        stall = self._stall_timer(now)
        if turns is None or not turns.interrupt_response:
            return [*([] if known else [Send(event=UserSpeechStarted(at_ms=signal.at_ms))]), stall]
        voice = self._responses.voice(now)
        if voice is None or known or not needs_proof(turns):
            return [*self._begin(signal, now, known=known), stall]
        self._overlap = Overlap(signal, turns, ducked=turns.duck)
        if not turns.duck:
            return [stall]
        return [Send(event=PlaybackDucked(response_id=voice.id, index=voice.index)), stall]

    def _begin(self, signal: SpeechStarted, now: float, *, known: bool = False) -> list[Effect]:
        """The user has the floor: the voice, if there is one, is cut."""
        stopped = self._responses.interrupt(CancelReason.SPEECH, now)
        if stopped:
            self._cut_ms = signal.at_ms
        started: list[Effect] = [] if known else [Send(event=UserSpeechStarted(at_ms=signal.at_ms))]
        # the engine stops first, then the client learns of the speech and of what it cut, in this order
        return [
            *(e for e in stopped if not isinstance(e, Send)),
            *started,
            *(e for e in stopped if isinstance(e, Send)),
        ]

    def _stopped(self, signal: SpeechStopped, turns: TurnDetection | None, now: float) -> list[Effect]:
        """The turn stays open until the model has said what it makes of it, or for the time of a stall."""
        if not self.speaking:
            return []
        self.speaking = False
        self.turn_open = turns is not None and turns.create_response
        self.heard_at = now
        return [Send(event=UserSpeechStopped(at_ms=signal.at_ms)), self._stall_timer(now)]

    def _written_down(self, signal: Transcript, turns: TurnDetection | None) -> Outcome:
        text = well_formed(signal.text)
        item_id = self._responses.conversation.user_said(text) if signal.final and text else ""
        told = UserTranscript(text=text, final=signal.final, started_ms=signal.started_ms, item_id=item_id)
        effects: list[Effect] = [Send(event=told)]
        if not signal.final:
            return effects, Then.NOTHING
        cut_ms = self._cut_ms
        if cut_ms is not None and signal.started_ms is not None and signal.started_ms < cut_ms:
            return effects, Then.NOTHING  # of a turn before the cut
        if cut_ms is None or not says_nothing(text, turns or TurnDetection()):
            self._words = bool(self._words or text.strip())
            if self._words:
                self.meant()
            return effects, Then.NOTHING
        self._words, self._overheard = False, bool(text.strip()) or self._overheard
        if self.speaking:
            return effects, Then.NOTHING  # the user speaks again: it is that speech that decides
        self.turn_open = False
        return effects, self.nothing_said(turns)

    # --- speech over the voice ----------------------------------------------------------------------

    def _keep(self, signal: SpeechSignal, now: float) -> list[Effect]:
        """It goes on being undecided."""
        if isinstance(signal, SpeechStarted | SpeechStopped):
            self.speaking = isinstance(signal, SpeechStarted)
            self.heard_at = now
            return [self._stall_timer(now)]
        return []

    def _dismiss(self, overlap: Overlap, text: str | None, now: float) -> list[Effect]:
        """It was no interruption: the voice goes on."""
        self.left()
        self._overheard = True
        self._words = None if text is None else False
        overheard = UserOverheard(at_ms=overlap.started.at_ms, text=well_formed(text or ""))
        return [*(self._unduck(now) if overlap.ducked else []), Send(event=overheard)]

    def _unduck(self, now: float) -> list[Effect]:
        voice = self._responses.voice(now)
        known = (voice.id, voice.index) if voice is not None else ("", self._responses.index)
        return [Send(event=PlaybackUnducked(response_id=known[0], index=known[1]))]

    def _stall_timer(self, now: float) -> Effect:
        return SetTimer(name=TimerName.INPUT_STALL, at=now + self._stall_s)
