"""The OpenAI Realtime dialect: `WS /v1/realtime`, in the released names or, on request, those of the beta.

docs/realtime.md is the contract. One object a connection; it keeps the session object, the conversation's
items and the course of the running response as this client sees them, and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from duplex.core.commands import (
    AddItem,
    ClearInput,
    ClearOutput,
    Command,
    Commit,
    Note,
    RemoveItem,
    TruncateResponse,
)
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import (
    Acknowledged,
    CancelReason,
    ErrorEvent,
    Event,
    PlaybackCleared,
    ResponseAudio,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    ResponseFailed,
    ResponseText,
    ResponseToolCall,
    SessionCreated,
    SessionUpdated,
    UserIdle,
    UserSpeechStarted,
    UserSpeechStopped,
    UserTranscript,
)
from duplex.core.types import Modality
from duplex.dialects.base import Frame, OpenRequest
from duplex.dialects.fields import MAX_ID, Fields
from duplex.dialects.native_commands import extensions_of, last_seq_of
from duplex.dialects.native_events import Extension
from duplex.dialects.realtime_beta import from_beta, to_beta
from duplex.dialects.realtime_commands import COMMANDS, PRIVATE
from duplex.dialects.realtime_items import Item
from duplex.dialects.realtime_output import ResponseWriter, Used
from duplex.dialects.realtime_private import private_messages
from duplex.dialects.realtime_query import overlaid, session_of
from duplex.dialects.realtime_session import (
    Voices,
    audio_type,
    changes_of,
    long_format,
    merged,
    new_session,
)
from duplex.dialects.realtime_state import RealtimeState
from duplex.dialects.strict_json import parse_object

Message = dict[str, Any]

MAX_ERROR_MESSAGE: Final = 1000
_CODES: Final = {
    ErrorCode.INVALID_JSON: "invalid_event",
    ErrorCode.NOT_AN_OBJECT: "invalid_event",
    ErrorCode.MISSING_TYPE: "invalid_event",
    ErrorCode.UNKNOWN_TYPE: "invalid_event",
    ErrorCode.INVALID_FRAME: "invalid_event",
    ErrorCode.UNKNOWN_FIELD: "unknown_parameter",
    ErrorCode.COMMIT_EMPTY: "input_audio_buffer_commit_empty",
}
"""Codes that this API's clients know by another name; all others keep theirs."""
_encoder = msgspec.json.Encoder()


class RealtimeDialect:
    """One connection's translation. Call `open` once, first.

    Args:
        models: names of the models that are served; a `gpt-…` that is none of them means the default.
        session: what was asked for when the client's token was made, in the shape of `session.update`.
        tag: part of all ids, for tests.
    """

    def __init__(
        self,
        models: frozenset[str] = frozenset(),
        session: Message | None = None,
        *,
        tag: str | None = None,
    ) -> None:
        self._models = models
        self._asked = from_beta(session or {})
        self._state = RealtimeState(tag)
        self._writer: ResponseWriter | None = None
        self._characters = 0
        """Text of the user since the last response."""

    @property
    def resumable(self) -> bool:
        return Extension.RESUME in self._state.extensions

    # --- handshake ----------------------------------------------------------------------------------

    def open(self, query: Mapping[str, str], headers: Mapping[str, str]) -> OpenRequest:
        """Read the handshake. Raises `DuplexError(BAD_CONFIG)`, with `param`."""
        state = self._state
        beta = [part.strip() for part in headers.get("openai-beta", "").split(",")]
        protocols = [part.strip() for part in headers.get("sec-websocket-protocol", "").split(",")]
        state.beta = "realtime=v1" in beta or "openai-beta.realtime-v1" in protocols
        try:
            state.extensions = extensions_of(query.get("ext", "").split(","), "ext")
            self._asked = overlaid(self._asked, session_of(query))
            private = Extension.SIGNALS in state.extensions
            settings = changes_of(self._asked, state.voices, private=private)
            last_seq = last_seq_of(query)
        except DuplexError as error:
            raise DuplexError(ErrorCode.BAD_CONFIG, error.message, param=error.param) from None
        model = query.get("model") or self._asked.get("model") or None
        if model is not None and model.startswith("gpt-") and model not in self._models:
            model = None
        return OpenRequest(
            session_id=query.get("session_id"),
            model=model,
            resume_token=query.get("resume") or None,
            last_seq=last_seq,
            extensions=frozenset(map(str, state.extensions)),
            settings=settings,
        )

    # --- client to server ---------------------------------------------------------------------------

    def decode(self, frame: Frame) -> list[Command]:
        message = Fields(parse_object(frame))
        event_id = message.values.get("event_id")
        if not isinstance(event_id, str) or not event_id or len(event_id) > MAX_ID:
            event_id = None
        try:
            kind = message.values.get("type")
            if not isinstance(kind, str):
                raise DuplexError(ErrorCode.MISSING_TYPE, "the event must have a string type", param="type")
            handler = COMMANDS.get(kind)
            if handler is None and kind in PRIVATE:
                extension, private = PRIVATE[kind]
                handler = private if extension in self._state.extensions else None
            if handler is None:
                raise DuplexError(ErrorCode.UNKNOWN_TYPE, f"unknown event type: {kind[:64]}", param="type")
            return handler(self._state, message, event_id)
        except DuplexError as error:
            error.event_id = event_id
            raise

    # --- server to client ---------------------------------------------------------------------------

    def encode(self, event: Event) -> list[Frame]:
        state = self._state
        frames: list[Frame] = []
        for message in self._messages(event):
            shown = to_beta(message) if state.beta else message
            if shown is not None:
                named = {"type": shown["type"], "event_id": state.new_id("event"), **shown}
                frames.append(_encoder.encode(named).decode())
        return frames

    def _messages(self, event: Event) -> Iterable[Message]:
        state = self._state
        match event:
            case ResponseAudio() | ResponseText() | ResponseToolCall():
                return self._delta(event)
            case SessionCreated():
                return [self._session_created(event)]
            case SessionUpdated():
                return [self._session_updated(event)]
            case UserSpeechStarted():
                return state.turns.speech_started(event)
            case UserSpeechStopped():
                state.appended_ms = 0.0
                return state.turns.speech_stopped(event)
            case UserIdle():
                state.appended_ms = 0.0
                return state.turns.timed_out(event)
            case UserTranscript():
                if event.final:
                    self._characters += len(event.text)
                return state.turns.transcript(event)
            case ResponseCreated():
                return [self._response_created(event)]
            case ResponseDone() | ResponseCancelled() | ResponseFailed():
                return self._response_ended(event)
            case PlaybackCleared():
                return self._cut(event.index, event.heard_ms, event.heard_text)
            case Acknowledged():
                return self._acknowledged(event)
            case ErrorEvent():
                return [self._error(event)]
        return private_messages(event, state.extensions)

    # --- the session --------------------------------------------------------------------------------

    def _session_created(self, event: SessionCreated) -> Message:
        state = self._state
        state.inputs = event.input_modalities
        state.voices = Voices(event.voices, event.output_modalities)
        session = new_session(
            session_id=event.session_id,
            model=event.model,
            outputs=event.settings.output_modalities or event.default_output or event.output_modalities,
            expires_at=event.expires_at,
        )
        session["instructions"] = event.settings.instructions
        voice = event.settings.voice or next(iter(event.voices), "default")
        session["audio"]["output"]["voice"] = voice
        self._adopt(merged(session, self._asked))
        message: Message = {"type": "session.created", "session": state.session}
        if {Extension.LIFECYCLE, Extension.RESUME} & state.extensions:
            message |= {"resume_token": event.resume_token, "resumed": event.resumed, "limits": event.limits}
        return message

    def _session_updated(self, event: SessionUpdated) -> Message:
        about = self._state.take(event.event_id)
        if about is not None:
            self._adopt(merged(self._state.session, about["patch"]))
        return {"type": "session.updated", "session": self._state.session}

    def _adopt(self, session: Message) -> None:
        state = self._state
        state.session = session
        state.turns.transcribe = session["audio"]["input"]["transcription"] is not None
        state.input_type = audio_type(Fields(session["audio"]["input"]))

    # --- responses ----------------------------------------------------------------------------------

    def _response_created(self, event: ResponseCreated) -> Message:
        state = self._state
        about = state.take(event.event_id) or {}
        state.begin(event.response_id, event.index)
        session = state.session
        asked = {key: value for key, value in (about.get("audio") or {}).items() if value is not None}
        output = {**session["audio"]["output"], **asked}
        recorded = about.get("record", True)
        shown = {
            "conversation_id": f"conv_{session['id']}" if recorded else None,
            "metadata": about.get("metadata"),
            "max_output_tokens": about.get("max_output_tokens") or session["max_output_tokens"],
            "audio": {"output": {"format": long_format(output["format"]), "voice": output["voice"]}},
        }
        self._writer = ResponseWriter(
            event.response_id,
            event.index,
            event.modalities or (Modality.TEXT,),
            shown=shown,
            items=state.items,
            new_id=lambda: state.new_id("item"),
            recorded=recorded,
        )
        return self._writer.created()

    def _delta(self, event: ResponseAudio | ResponseText | ResponseToolCall) -> list[Message]:
        writer = self._writer
        if writer is None or writer.index != event.index:
            return []  # of a response that began before this connection
        match event:
            case ResponseText():
                return writer.text(event.text)
            case ResponseAudio():
                return writer.audio(event)
            case ResponseToolCall():
                return writer.call(event)

    def _response_ended(self, event: ResponseDone | ResponseCancelled | ResponseFailed) -> list[Message]:
        state = self._state
        if isinstance(event, ResponseCancelled) and not event.response_id:
            words = "there is no active response to cancel"
            code = ErrorCode.RESPONSE_CANCEL_NOT_ACTIVE
            return [self._error(ErrorEvent(code=code, message=words, event_id=event.event_id))]
        writer, self._writer = self._writer, None
        state.active = None
        if writer is None or writer.index != event.index:
            return []
        used = Used(self._characters, state.turns.take_heard_ms())
        self._characters = 0
        match event:
            case ResponseDone(incomplete=True):
                left = {"type": "incomplete", "reason": "max_output_tokens"}
                return writer.ended("incomplete", left, used)
            case ResponseDone():
                return writer.ended("completed", None, used)
            case ResponseFailed():
                fault = {"type": _kind(event.code), "code": event.code.value, "message": event.message}
                return writer.ended("failed", {"type": "failed", "error": fault}, used)
            case ResponseCancelled():
                spoken = event.reason in (CancelReason.SPEECH, CancelReason.SUPERSEDED)
                reason = "turn_detected" if spoken else "client_cancelled"
                ended = writer.ended("cancelled", {"type": "cancelled", "reason": reason}, used)
                return [*ended, *self._cut(event.index, event.heard_ms, event.heard_text)]

    def _cut(self, index: int, heard_ms: float, heard_text: str) -> list[Message]:
        """An answer was not played to its end: its item is what was heard."""
        item = self._state.items.of_response(index)
        if item is None or not item.audio_ms:
            return []
        return [self._truncated(item, heard_ms, heard_text)]

    def _truncated(self, item: Item, heard_ms: float, heard_text: str) -> Message:
        for part in item.wire["content"][:1]:
            kind = part["type"]
            name = "transcript" if kind == "output_audio" else "text"
            item.wire["content"] = [{"type": kind, name: heard_text}]
        return {
            "type": "conversation.item.truncated",
            "item_id": item.wire["id"],
            "content_index": 0,
            "audio_end_ms": math.floor(heard_ms),
        }

    # --- what the client asked for ------------------------------------------------------------------

    def _acknowledged(self, event: Acknowledged) -> list[Message]:
        state = self._state
        command = event.command
        about = state.take(command.event_id)
        match command:
            case Commit():
                return self._committed(command, about or {})
            case ClearInput():
                state.turns.cleared()
                return [{"type": "input_audio_buffer.cleared"}]
            case ClearOutput():
                response_id = (about or {}).get("response_id") or next(reversed(state.responses), "")
                return [{"type": "output_audio_buffer.cleared", "response_id": response_id}]
            case AddItem() if about is not None:
                self._characters += len(command.item.text)
                return self._item_added(about, command.item_id)
            case RemoveItem() if about is not None:
                state.items.remove(about["delete"])
                return [{"type": "conversation.item.deleted", "item_id": about["delete"]}]
            case TruncateResponse() if about is not None:
                item = state.items.get(about["truncate"])
                if item is None:
                    return []
                heard_ms = min(command.heard_ms, item.audio_ms) if item.audio_ms else command.heard_ms
                return [self._truncated(item, heard_ms, event.heard_text)]
            case Note(about="item") if about is not None:
                return self._item_added(about, "")
            case Note(about="retrieve"):
                item = state.items.get(command.subject)
                return [] if item is None else [{"type": "conversation.item.retrieved", "item": item.wire}]
            case Note(about="heartbeat"):
                return [{"type": "session.heartbeat"}]
        return []

    def _committed(self, command: Commit, about: Message) -> list[Message]:
        turns = self._state.turns
        if command.silent or turns.committed > about.get("committed", 0):
            return []  # the model ended the turn itself, and told so
        if turns.vad_seen and self._state.session["audio"]["input"]["turn_detection"] is not None:
            words = "the speech in the buffer was committed already"
            return [
                self._error(ErrorEvent(code=ErrorCode.COMMIT_EMPTY, message=words, event_id=command.event_id))
            ]
        return turns.client_committed(about.get("seconds", 0.0))

    def _item_added(self, about: Message, history_id: str) -> list[Message]:
        wire = about["item"]
        previous = self._state.items.add(
            Item(wire=wire, history_id=history_id, size=256 + len(_encoder.encode(wire))), about["after"]
        )
        told = {"previous_item_id": previous, "item": wire}
        return [{"type": f"conversation.item.{what}", **told} for what in ("added", "done")]

    def _error(self, event: ErrorEvent) -> Message:
        state = self._state
        about = state.take(event.event_id)
        if isinstance(about, dict) and "patch" in about and state.session:
            state.input_type = audio_type(Fields(state.session["audio"]["input"]))
        return {
            "type": "error",
            "error": {
                "type": _kind(event.code),
                "code": _CODES.get(event.code, event.code.value),
                "message": event.message[:MAX_ERROR_MESSAGE],
                "param": event.param,
                "event_id": state.client_id(event.event_id),
                **({"owner": event.owner} if event.owner else {}),
            },
        }


def _kind(code: ErrorCode) -> str:
    return "server_error" if code.traits.http_status >= 500 else "invalid_request_error"
