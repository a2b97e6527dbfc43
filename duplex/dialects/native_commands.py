"""The messages that a client of the native dialect sends, less `input.append`, and its query parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from duplex.core.commands import (
    CancelResponse,
    CloseSession,
    Command,
    Commit,
    CreateResponse,
    PlaybackAck,
    ResumeSession,
    UpdateSession,
)
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality
from duplex.dialects.fields import MAX_ID, Fields
from duplex.dialects.native_events import Extension

MAX_SPEAK: Final = 128 * 1024
"""Characters of `response.speak`."""
MAX_SEQ_DIGITS: Final = 18


def event_id_of(message: Fields) -> str | None:
    if "event_id" not in message:
        return None
    event_id = message.string("event_id")
    if len(event_id) > MAX_ID:
        raise message.refuse("event_id", f"at most {MAX_ID} characters")
    return event_id


def extensions_of(names: Iterable[str], param: str) -> frozenset[Extension]:
    wanted = {name.strip() for name in names} - {""}
    unknown = sorted(wanted - set(Extension))
    if unknown:
        known = ", ".join(Extension)
        raise DuplexError(
            ErrorCode.INVALID_VALUE, f"unknown extension: {unknown[0][:64]} (known are {known})", param=param
        )
    return frozenset(map(Extension, wanted))


def settings_of(query: Mapping[str, str]) -> dict[str, Any]:
    """Session settings that the query names, as `apply_changes` takes them."""
    changes: dict[str, Any] = {name: query[name] for name in ("voice", "instructions") if name in query}
    if "output_modalities" in query:
        changes["output_modalities"] = [m for m in query["output_modalities"].split(",") if m]
    output_format: dict[str, Any] = {}
    if "codec" in query:
        output_format["codec"] = query["codec"]
    if "sample_rate" in query:
        output_format["sample_rate"] = _number(query, "sample_rate", int)
    if output_format:
        changes["output_format"] = output_format
    if "gate_threshold" in query:
        changes["gate_threshold"] = _number(query, "gate_threshold", float)
    if "max_run_ahead_ms" in query:
        changes["max_run_ahead_ms"] = _number(query, "max_run_ahead_ms", int)
    if "turn_detection" in query:
        if query["turn_detection"] != "none":
            raise DuplexError(
                ErrorCode.BAD_CONFIG, "turn_detection must be none or left out", param="turn_detection"
            )
        changes["turn_detection"] = None
    return changes


def _number(query: Mapping[str, str], name: str, kind: Callable[[str], float]) -> float:
    try:
        return kind(query[name])
    except ValueError:
        words = "a whole number in digits" if kind is int else "a number"
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{name} must be {words}", param=name) from None


def _create_response(message: Fields, event_id: str | None) -> Command:
    if "response" not in message:
        return CreateResponse(event_id=event_id)
    response = message.fields("response")
    response.only("speak", "modalities")
    speak = response.string("speak") if "speak" in response else None
    if speak is not None and not 1 <= len(speak) <= MAX_SPEAK:
        raise response.refuse("speak", f"1 to {MAX_SPEAK} characters")
    return CreateResponse(speak_text=speak, modalities=_modalities(response), event_id=event_id)


def _modalities(response: Fields) -> tuple[Modality, ...] | None:
    if "modalities" not in response:
        return None
    names = response.strings("modalities")
    if not names or len(set(names)) != len(names) or not set(names) <= set(Modality):
        raise response.refuse("modalities", "different names out of " + ", ".join(Modality))
    return tuple(map(Modality, names))


def _cancel_response(message: Fields, event_id: str | None) -> Command:
    return CancelResponse(response_index=message.optional_integer("response_index"), event_id=event_id)


def _playback_ack(message: Fields, event_id: str | None) -> Command:
    return PlaybackAck(
        cursor_ms=message.number("cursor"),
        response_index=message.optional_integer("response_index"),
        event_id=event_id,
    )


def _update_session(message: Fields, event_id: str | None) -> Command:
    if "session" not in message and "extensions" in message:
        return UpdateSession(changes={}, event_id=event_id)
    return UpdateSession(changes=message.object("session"), event_id=event_id)


def resume_session(message: Fields, event_id: str | None) -> Command:
    last_seq = message.optional_integer("last_seq")
    if last_seq is not None and last_seq < 0:
        raise message.refuse("last_seq", "0 or more")
    return ResumeSession(
        resume_token=message.string("resume_token"),
        session_id=message.string("session_id") if "session_id" in message else None,
        last_seq=last_seq,
        event_id=event_id,
    )


def last_seq_of(query: Mapping[str, str]) -> int | None:
    """The query's number of the last message that the client has. Raises `DuplexError(BAD_CONFIG)`."""
    text = query.get("last_seq")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_SEQ_DIGITS):
        raise DuplexError(ErrorCode.BAD_CONFIG, "last_seq must be a whole number in digits", param="last_seq")
    return int(text)


COMMANDS: Final[dict[str, Callable[[Fields, str | None], Command]]] = {
    "input.commit": lambda _, event_id: Commit(event_id=event_id),
    "response.create": _create_response,
    "response.cancel": _cancel_response,
    "playback.ack": _playback_ack,
    "session.update": _update_session,
    "session.resume": resume_session,
    "close": lambda _, event_id: CloseSession(event_id=event_id),
}
