"""The responses of one session: which one runs, what of them was sent and heard, and how they are cut.

Fencing lives here: each response gets the next epoch, and a cancel raises it too. A delta of another epoch
than the active response's is dropped, so that no path around the core can leak a stale one.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from duplex.core.effects import AbortResponse, Effect, Send, StartResponse
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import (
    CancelReason,
    PlaybackCleared,
    ResponseAudio,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    ResponseFailed,
    ResponseText,
    ResponseToolCall,
)
from duplex.core.history import Conversation
from duplex.core.playback import ROUNDING_MS, PlaybackLedger, PlayoutClock
from duplex.core.text import WholeCharacters, well_formed
from duplex.core.types import (
    AudioFormat,
    Delivery,
    EncodedAudio,
    HistoryItem,
    LengthReached,
    Modality,
    SessionSettings,
    TextDelta,
    ToolCallDelta,
    Trigger,
    Turn,
    Window,
)

REMEMBERED = 16
"""Responses whose playback is still followed: more than can sound at once in ordinary talk."""


class Request(NamedTuple):
    """Why and how a response is to start."""

    trigger: Trigger
    question: str | None = None
    speak_text: str | None = None
    modalities: tuple[Modality, ...] | None = None
    event_id: str | None = None
    settings: SessionSettings | None = None
    """The session's at the start, when None."""
    asked: str | None = None
    """The question, when it is in the conversation already."""
    history: tuple[HistoryItem, ...] | None = None
    record: bool = True
    asked_by: str | None = None
    """Id of the client's message."""


class Unsaid(NamedTuple):
    """What an interruption took from the user's ear. `text` None: the answer had not begun."""

    text: str | None
    turn: Turn


class Response:
    """Book-keeping of one response, as long as its sound may be playing."""

    __slots__ = (
        "asked_by",
        "audible",
        "calls",
        "cut",
        "epoch",
        "format",
        "id",
        "incomplete",
        "index",
        "ledger",
        "pts",
        "record",
        "said",
        "sends_text",
        "text",
        "turn",
        "unsent",
    )

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.id = turn.response_id
        self.index = turn.index
        self.epoch = turn.epoch
        self.format: AudioFormat = turn.settings.output_format
        self.audible = Modality.AUDIO in turn.modalities
        self.sends_text = Modality.TEXT in turn.modalities
        self.ledger = PlaybackLedger(audible=self.audible)
        self.text = WholeCharacters()
        self.said = WholeCharacters()
        """Joins the text that comes with audio."""
        self.pts = 0
        self.unsent: EncodedAudio | None = None
        """Audio that its encoder still holds: sent with the next payload."""
        self.calls: dict[str, tuple[str, list[str]]] = {}
        """Calls of the client's functions by their ids: name and pieces of the arguments."""
        self.record = True
        """It belongs into the conversation."""
        self.asked_by: str | None = None
        """Id of the client's message that asked for it."""
        self.incomplete = False
        """Its text has as many tokens as it may have."""
        self.cut = False
        """The client was told to stop its sound."""


class Responses:
    """At most one active response, and those before it that may still sound."""

    def __init__(self, session_id: str) -> None:
        self.active: Response | None = None
        self.epoch = 0
        self.index = 0
        self.dropped_deltas = 0
        self.conversation = Conversation()
        self.playout = PlayoutClock()
        self._session_id = session_id
        self._recent: deque[Response] = deque(maxlen=REMEMBERED)  # oldest first, the active one included
        self._interrupted: list[Response] = []
        """Those that the last interruption cut, oldest first."""

    # --- a response's course ------------------------------------------------------------------------

    def begin(
        self,
        request: Request,
        settings: SessionSettings,
        modalities: tuple[Modality, ...],
        windows: tuple[Window, ...],
        now: float,
    ) -> list[Effect]:
        """Start a response. The active one is superseded; the sound of an ended one is no obstacle, the new
        sound queues behind it."""
        effects = self.stop(CancelReason.SUPERSEDED, now)
        self.epoch += 1
        self.index += 1
        if request.question:
            self.conversation.user_said(request.question)
        turn = Turn(
            response_id=f"resp_{self._session_id}_{self.index}",
            index=self.index,
            epoch=self.epoch,
            trigger=request.trigger,
            settings=settings,
            modalities=modalities,
            question=request.question or request.asked,
            speak_text=request.speak_text,
            event_id=request.event_id,
            history=self.conversation.items if request.history is None else request.history,
            windows=windows,
        )
        self.active = Response(turn)
        self.active.record = request.record
        self.active.asked_by = request.asked_by
        self._recent.append(self.active)
        created = ResponseCreated(
            response_id=turn.response_id,
            index=turn.index,
            modalities=modalities,
            settings=settings,
            event_id=request.asked_by,
        )
        return [*effects, Send(event=created), StartResponse(turn=turn)]

    def deliver(self, epoch: int, delta: Delivery) -> list[Effect]:
        """A delta of the response of that epoch; of any other epoch it is dropped and counted."""
        response = self.active
        if response is None or response.epoch != epoch:
            self.dropped_deltas += 1
            return []
        if isinstance(delta, TextDelta):
            return self._text(response, response.text.push(delta.text))
        if isinstance(delta, ToolCallDelta):
            return self._call(response, delta)
        if isinstance(delta, LengthReached):
            response.incomplete = True
            return []
        if not response.audible:
            return []
        return self._audio(response, delta)

    def _call(self, response: Response, delta: ToolCallDelta) -> list[Effect]:
        arguments = well_formed(delta.arguments)
        name, pieces = response.calls.setdefault(delta.call_id, (well_formed(delta.name), []))
        pieces.append(arguments)
        call = ResponseToolCall(
            response_id=response.id,
            index=response.index,
            call_id=delta.call_id,
            name=name,
            arguments=arguments,
        )
        return [Send(event=call)]

    def _text(self, response: Response, text: str) -> list[Effect]:
        if not text:
            return []
        response.ledger.add_text(text)
        if not response.sends_text:
            return []
        return [Send(event=ResponseText(response_id=response.id, index=response.index, text=text))]

    def _audio(self, response: Response, delta: EncodedAudio) -> list[Effect]:
        text = response.said.push(delta.text)
        duration_ms = delta.samples / delta.sample_rate * 1000
        response.ledger.add_audio(duration_ms, text)
        samples, level = delta.samples, delta.level_dbfs
        before = response.unsent
        if before is not None:
            samples += before.samples
            duration_ms = samples / delta.sample_rate * 1000
            level = max(level, before.level_dbfs)
            text = before.text + text
            response.unsent = None
        if not delta.payload:
            response.unsent = EncodedAudio(
                payload=b"", samples=samples, sample_rate=delta.sample_rate, level_dbfs=level, text=text
            )
            return []
        event = ResponseAudio(
            response_id=response.id,
            index=response.index,
            payload=delta.payload,
            format=response.format,
            pts=response.pts,
            duration_ms=duration_ms,
            level_dbfs=level,
            text=text,
        )
        response.pts += samples
        return [Send(event=event)]

    def written(self, event: ResponseAudio, now: float) -> None:
        """An audio event reached the socket: it counts as sent and, unless the client was told to drop it,
        plays."""
        response = self.active
        if response is None or response.index != event.index:
            response = self._find(event.index)
            if response is None:
                return
        response.ledger.add_sent(event.duration_ms)
        if not response.cut:
            self.playout.written(event.duration_ms, event.level_dbfs, now)

    def finish(self, epoch: int) -> list[Effect]:
        """All of the response was generated and written. Nothing if it is not the active one."""
        response = self._take(epoch)
        if response is None:
            return []
        ledger = response.ledger
        effects = self._text(response, response.text.end())
        ledger.complete = True
        if response.record:
            self.conversation.assistant_said(response.index, ledger.final_text())
            for call_id, (name, pieces) in response.calls.items():
                call = HistoryItem(role="assistant", text="".join(pieces), call_id=call_id, name=name)
                self.conversation.add(call_id, call)
        done = ResponseDone(
            response_id=response.id,
            index=response.index,
            text=ledger.text,
            audio_ms=ledger.generated_ms,
            incomplete=response.incomplete,
        )
        return [*effects, Send(event=done)]

    def fail(self, epoch: int, error: DuplexError) -> list[Effect]:
        """The adapter could not go on. What was sent still plays; it is all that is left of the response.
        Nothing if it is not the active one."""
        response = self._take(epoch)
        if response is None:
            return []
        self._remember(response, response.ledger.sent_ms)
        failed = ResponseFailed(
            response_id=response.id,
            index=response.index,
            code=error.code,
            message=well_formed(error.message),
            event_id=response.asked_by,
        )
        return [
            AbortResponse(response_id=response.id, reason=CancelReason.CLOSING),
            Send(event=failed),
        ]

    def _take(self, epoch: int) -> Response | None:
        response = self.active
        if response is None or response.epoch != epoch:
            return None
        self.active = None
        return response

    # --- cutting ------------------------------------------------------------------------------------

    def interrupt(self, reason: CancelReason, now: float, *, event_id: str | None = None) -> list[Effect]:
        """Stop the active response and all sound, its own and that of ended ones."""
        sounding = self._sounding(now)
        cut = [r for r in self._recent if r is self.active or r in sounding]
        self._interrupted = cut or self._interrupted
        return [*self.stop(reason, now, event_id=event_id), *self._clear(now)]

    def stop(self, reason: CancelReason, now: float, *, event_id: str | None = None) -> list[Effect]:
        """Stop the active response, if any; the sound of ended ones plays on. Abort first, then tell."""
        response = self.active
        if response is None:
            return []
        self.epoch += 1
        heard_ms, heard_text = self._cut(response, now)
        self.active = None
        cancelled = ResponseCancelled(
            response_id=response.id,
            index=response.index,
            reason=reason,
            heard_ms=heard_ms,
            heard_text=heard_text,
            event_id=event_id,
        )
        return [
            AbortResponse(response_id=response.id, reason=reason),
            Send(event=cancelled),
        ]

    def voice(self, now: float) -> Response | None:
        """The response that the user hears now, None when there is no voice to interrupt: an active one that
        has not been heard of yet is none."""
        sounding = self._sounding(now)
        if sounding:
            return sounding[-1]
        return self.active if self.active is not None and self.active.ledger.sent_ms > 0 else None

    def unsaid(self) -> Unsaid | None:
        """What was not heard of the responses that the last interruption cut; None when that is nothing, or
        cannot be told in words. Of an answer that was still being written, what was written by then."""
        cut, self._interrupted = self._interrupted, []
        rest: list[str] = []
        for response in cut:
            ledger = response.ledger
            said, heard = ledger.final_text(), ledger.heard_text(ledger.heard_ms(0.0))
            if response.record and said.startswith(heard):
                rest.append(said[len(heard) :].strip())
        last = cut[-1] if cut else None
        if last is None or not last.record or last.calls:
            return None
        text = " ".join(filter(None, rest))
        if any(character.isalnum() for character in text):
            return Unsaid(text, last.turn)
        begun = last.ledger.complete or last.ledger.generated_ms > 0 or last.ledger.text
        return None if begun else Unsaid(last.turn.speak_text, last.turn)

    def cancel(self, index: int | None, now: float, *, event_id: str | None = None) -> list[Effect]:
        """The client's cancel: of the response with that index alone, or of all that runs and sounds.

        Raises:
            DuplexError: `RESPONSE_NOT_FOUND`.
        """
        if index is not None and not 1 <= index <= self.index:
            raise DuplexError(ErrorCode.RESPONSE_NOT_FOUND, f"no response with index {index}")
        if self.active is not None and index is None:
            return self.interrupt(CancelReason.CLIENT, now, event_id=event_id)
        if self.active is not None and index == self.active.index:
            return self.stop(CancelReason.CLIENT, now, event_id=event_id)
        # it has ended: the answer says what was heard of it; what had not been played is cut now
        latest = next(iter(self._sounding(now)), None) or self._find(self.index)
        ended = self._find(index) if index is not None else latest
        heard_ms, heard_text = self._cut(ended, now) if ended is not None else (0.0, "")
        answer = ResponseCancelled(
            response_id="",
            index=ended.index if ended is not None else index or self.index,
            reason=CancelReason.CLIENT,
            heard_ms=heard_ms,
            heard_text=heard_text,
            event_id=event_id,
        )
        return [Send(event=answer), *(self._clear(now) if index is None else [])]

    def acknowledge(self, cursor_ms: float, index: int | None, now: float) -> None:
        """The client has played `cursor_ms` of a response: of the latest with sound without an index.

        The clock follows it. A response that was cut by our estimate is corrected to the client's word, also
        downwards: 0 means that nothing was heard. A cursor behind an earlier one is late and has no effect.

        Raises:
            DuplexError: `RESPONSE_NOT_FOUND` or `INVALID_PLAYBACK_CURSOR`.
        """
        if not (math.isfinite(cursor_ms) and cursor_ms >= 0):
            raise DuplexError(
                ErrorCode.INVALID_PLAYBACK_CURSOR, f"cursor {cursor_ms} is not a time in ms", param="cursor"
            )
        if index is None:
            response = next((r for r in reversed(self._recent) if r.ledger.sent_ms > 0), None)
            if response is None:
                raise DuplexError(ErrorCode.INVALID_PLAYBACK_CURSOR, "no audio has been sent")
        elif 1 <= index <= self.index:
            response = self._find(index)
        else:
            raise DuplexError(ErrorCode.RESPONSE_NOT_FOUND, f"no response with index {index}")
        if response is None or not response.ledger.acknowledge(cursor_ms):
            return
        heard_ms = response.ledger.acked_ms or 0.0
        if response.cut:
            self._remember(response, heard_ms)
            return
        behind_ms = 0.0
        for other in self._recent:
            if other.index > response.index and not other.cut:
                behind_ms += other.ledger.sent_ms
            elif other.index < response.index and not other.cut and heard_ms > 0:
                other.ledger.acknowledge(other.ledger.sent_ms)
        left_ms = response.ledger.sent_ms - heard_ms
        unplayed_ms = left_ms + behind_ms
        if heard_ms == 0:  # not begun: those before it may have any part left
            unplayed_ms = max(unplayed_ms, self.playout.unplayed_ms(now))
        elif left_ms == 0:  # played to its end: those behind it may have begun
            unplayed_ms = min(unplayed_ms, self.playout.unplayed_ms(now))
        self.playout.acknowledged(unplayed_ms, now)

    def truncate(self, index: int, heard_ms: float, now: float) -> tuple[list[Effect], str]:
        """The client has stopped playing a response, and says what was heard of it: that is the truth,
        whatever was estimated or acknowledged before. One that is still active is stopped. Returns the heard
        text too.

        Raises:
            DuplexError: `RESPONSE_NOT_FOUND` or `INVALID_PLAYBACK_CURSOR`.
        """
        if not (math.isfinite(heard_ms) and heard_ms >= 0):
            raise DuplexError(
                ErrorCode.INVALID_PLAYBACK_CURSOR, f"{heard_ms} is not a time in ms", param="audio_end_ms"
            )
        if not 1 <= index <= self.index:
            raise DuplexError(ErrorCode.RESPONSE_NOT_FOUND, f"no response with index {index}")
        active = self.active is not None and self.active.index == index
        effects = self.stop(CancelReason.CLIENT, now) if active else []
        response = self._find(index)
        if response is None:
            return effects, ""
        self._cut(response, now)
        heard_ms = response.ledger.acked_ms = min(heard_ms, response.ledger.sent_ms)
        self._remember(response, heard_ms)
        return effects, response.ledger.heard_text(heard_ms)

    def forget(self, index: int) -> None:
        """Strike a response out of the conversation."""
        response = self._find(index)
        if response is not None:
            response.record = False
        self.conversation.assistant_said(index, "")

    def _clear(self, now: float) -> list[Effect]:
        """The client is to stop all sound; it learns of what responses that is."""
        effects: list[Effect] = []
        sounding = self._sounding(now)
        for response in reversed(self._recent):
            heard_ms, heard_text = self._cut(response, now)
            if response in sounding:
                cleared = PlaybackCleared(
                    response_id=response.id, index=response.index, heard_ms=heard_ms, heard_text=heard_text
                )
                effects.append(Send(event=cleared))
        self.playout.cleared(now)
        return effects

    def _cut(self, response: Response, now: float) -> tuple[float, str]:
        """The client is to stop a response: drop what is unplayed from the clock and from history.

        What comes of it from now on is not played: a frame may still be on its way to the socket. Returns
        what was heard; of a response that had ended and sounds no more, that is all that was sent.
        """
        ledger = response.ledger
        if not response.cut:
            after_ms, unplayed_ms = self._unplayed(response, now)
            response.cut = True
            if response is self.active or unplayed_ms > ROUNDING_MS:
                ledger.stopped_ms = ledger.heard_ms(unplayed_ms)
                self._remember(response, ledger.stopped_ms)
                self.playout.removed(after_ms, unplayed_ms, now)
            else:
                ledger.acked_ms = None
                ledger.stopped_ms = ledger.sent_ms
        heard_ms = ledger.heard_ms(0.0)
        return heard_ms, ledger.heard_text(heard_ms)

    def _remember(self, response: Response, heard_ms: float) -> None:
        """Write into history what was heard of a response that did not play to its end."""
        if not response.record:
            return
        ledger = response.ledger
        heard = ledger.heard_text(heard_ms)
        interrupted = not ledger.complete or heard.rstrip() != ledger.final_text().rstrip()
        self.conversation.assistant_said(response.index, heard, interrupted=interrupted)

    def _sounding(self, now: float) -> list[Response]:
        """Responses of which the client has something unplayed, newest first."""
        return [r for r in reversed(self._recent) if self._unplayed(r, now)[1] > ROUNDING_MS]

    def _unplayed(self, response: Response, now: float) -> tuple[float, float]:
        """When the client comes to what is unplayed of a response, from now, and how much that is (ms).

        Sound is played in the order of the responses: of all that is unplayed, the newest has its part first.
        """
        left_ms = self.playout.unplayed_ms(now)
        for other in reversed(self._recent):
            part_ms = 0.0 if other.cut else min(left_ms, other.ledger.sent_ms)
            left_ms -= part_ms
            if other is response:
                return left_ms, part_ms
        return 0.0, 0.0

    def _find(self, index: int) -> Response | None:
        return next((r for r in reversed(self._recent) if r.index == index), None)
