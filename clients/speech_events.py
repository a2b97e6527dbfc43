"""What the speech stream tells: the server's messages as types, with their audio decoded."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
import pybase64

from duplex.adapters.speech import WordTime
from duplex.clients.events import UnknownEvent


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """`context_id` None: the context without a name."""

    context_id: str | None = None


class SpeechUnitStarted(_Told, frozen=True, kw_only=True):
    """A unit of the utterance is being spoken. `sample_rate` is that of its audio, Hz."""

    utterance_index: int
    sentence_index: int
    sentence_text: str
    format: str
    sample_rate: int


class SpeechAudio(_Told, frozen=True, kw_only=True):
    """More of a unit's audio. `timestamps`: words that begin in it, ms from the unit's start; empty: silence;
    None: not asked for, or not known."""

    utterance_index: int
    sentence_index: int
    data: bytes
    timestamps: tuple[WordTime, ...] | None = None


class SpeechUnitDone(_Told, frozen=True, kw_only=True):
    """A unit is over; `error`: it failed. `finish_reason` "length": a bound cut it."""

    utterance_index: int
    sentence_index: int
    total_bytes: int
    error: bool
    finish_reason: str | None = None


class SpeechDone(_Told, frozen=True, kw_only=True):
    """An utterance that was flushed is over."""

    utterance_index: int
    total_sentences: int


class SpeechCancelled(_Told, frozen=True, kw_only=True):
    """An utterance is over because of a cancel; index None: there was none. `more`: another one of the same
    cancel follows."""

    utterance_index: int | None
    sentence_index: int | None = None
    more: bool = False


class SpeechFault(_Told, frozen=True, kw_only=True):
    """An error that the connection outlives."""

    message: str
    code: str
    param: str | None = None


class SpeechDraining(_Told, frozen=True, kw_only=True):
    """The server goes away within `grace_ms`: no new utterance is taken."""

    grace_ms: int


SpeechEvent: TypeAlias = (
    SpeechUnitStarted
    | SpeechAudio
    | SpeechUnitDone
    | SpeechDone
    | SpeechCancelled
    | SpeechFault
    | SpeechDraining
    | UnknownEvent
)

_TYPES: Final[dict[str, type[SpeechEvent]]] = {
    "audio.start": SpeechUnitStarted,
    "audio.chunk": SpeechAudio,
    "audio.done": SpeechUnitDone,
    "audio.cancelled": SpeechCancelled,
    "session.done": SpeechDone,
    "server.draining": SpeechDraining,
    "error": SpeechFault,
}


class SpeechEvents:
    """Frames in, events out. From a cancel on, audio of what it cancels is not told."""

    def __init__(self) -> None:
        self._unit = SpeechUnitStarted(
            utterance_index=0, sentence_index=0, sentence_text="", format="", sample_rate=0
        )
        """The unit of the context without a name: binary frames are its audio."""
        self._cancels: dict[str | None, int] = {}
        """Cancels by context that the server has not answered."""

    def cancelled(self, context_id: str | None) -> None:
        """A cancel is being sent."""
        self._cancels[context_id] = self._cancels.get(context_id, 0) + 1

    def receive(self, frame: str | bytes) -> SpeechEvent | None:
        """What a frame tells; None for what a cancel has made stale."""
        event = self._decode(frame)
        if isinstance(event, UnknownEvent):
            return event
        context = event.context_id
        if isinstance(event, SpeechCancelled) and not event.more and context in self._cancels:
            self._cancels[context] -= 1
            if not self._cancels[context]:
                del self._cancels[context]
        stale = isinstance(event, SpeechUnitStarted | SpeechAudio | SpeechUnitDone)
        return None if stale and context in self._cancels else event

    def _decode(self, frame: str | bytes) -> SpeechEvent:
        if isinstance(frame, bytes):
            unit = self._unit
            return SpeechAudio(
                utterance_index=unit.utterance_index, sentence_index=unit.sentence_index, data=frame
            )
        fields: dict[str, Any] = msgspec.json.decode(frame)
        kind = fields.pop("type", "")
        if kind not in _TYPES:
            return UnknownEvent(type=kind, fields=fields)
        if kind == "audio.chunk":
            fields["data"] = pybase64.b64decode(fields.pop("audio_b64"))
        event: SpeechEvent = msgspec.convert(fields, _TYPES[kind])
        if isinstance(event, SpeechUnitStarted) and event.context_id is None:
            self._unit = event
        return event
