"""What a client of the OpenAI Realtime dialect asks for: its messages as commands of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duplex.codecs.g711 import decode_g711
from duplex.core.commands import (
    AddItem,
    Append,
    CancelResponse,
    ClearInput,
    ClearOutput,
    Command,
    Commit,
    CreateResponse,
    Note,
    PlaybackAck,
    RemoveItem,
    TruncateResponse,
    UpdateSession,
)
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioWindow, HistoryItem, Modality
from duplex.dialects.fields import Fields
from duplex.dialects.native_commands import extensions_of, resume_session
from duplex.dialects.native_events import Extension
from duplex.dialects.realtime_beta import from_beta
from duplex.dialects.realtime_items import ROOT, Item, read_item
from duplex.dialects.realtime_session import audio_type, changes_of, common_changes, modalities
from duplex.dialects.realtime_state import RealtimeState
from duplex.dialects.windows import base64_field, window_from_message

MAX_METADATA: Final = 16
_RESPONSE: Final = (
    *("conversation", "input", "metadata", "output_modalities", "instructions", "tools", "tool_choice"),
    *("max_output_tokens", "audio", "parallel_tool_calls", "prompt", "reasoning", "temperature"),
)
"""Keys of a response's overrides; those behind `audio` have no effect."""

Handler = Callable[[RealtimeState, Fields, str | None], list[Command]]


def _append(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    if message.values.get("audio") == "":
        return []  # a microphone that gave nothing
    data = base64_field(message, "audio")
    codec, rate = state.input_type
    pcm = data if codec == "pcm" else decode_g711(data, codec).tobytes()
    state.appended_ms += len(pcm) / 2 / rate * 1000
    window = AudioWindow(pcm=pcm, sample_rate=rate)
    return [Append(window=window, event_id=state.key(event_id) if event_id else None)]


def _commit(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    about = {"seconds": state.appended_ms / 1000, "committed": state.turns.committed}
    state.appended_ms = 0.0
    return [Commit(respond=False, event_id=state.key(event_id, about))]


def _clear(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    state.appended_ms = 0.0
    return [ClearInput(event_id=state.key(event_id))]


def _clear_output(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    return [ClearOutput(event_id=state.key(event_id, {"response_id": state.active}))]


def _update(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    extensions = state.extensions
    if "extensions" in message:
        extensions = extensions_of(message.strings("extensions"), "extensions")
    patch = message.object("session") if "session" in message or "extensions" not in message else {}
    patch = from_beta(patch)
    speed = state.session.get("audio", {}).get("output", {}).get("speed") or 1.0
    changes = changes_of(patch, state.voices, speed=speed, private=Extension.SIGNALS in extensions)
    command = UpdateSession(changes=changes, event_id=state.key(event_id, {"patch": patch}))
    state.extensions = extensions
    source = (patch.get("audio") or {}).get("input") or {}
    if source.get("format") is not None:
        # audio behind this message is in the new format, whenever the model has taken the settings
        state.input_type = audio_type(Fields(source, "session.audio.input"))
    return [command]


# --- items -------------------------------------------------------------------------------------------


def _create_item(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    given = message.fields("item")
    item_id = given.identifier("id") or state.new_id("item")
    if item_id in state.items or state.waits(item_id):
        raise DuplexError(ErrorCode.ITEM_CREATE_INVALID, "an item with this id exists", param="item.id")
    after = message.identifier("previous_item_id") or None
    if after not in (None, ROOT) and after not in state.items and not state.waits(str(after)):
        raise DuplexError(
            ErrorCode.ITEM_CREATE_INVALID, "there is no item with this id", param="previous_item_id"
        )
    new = read_item(given, item_id)
    if new.images and state.inputs is not None and Modality.IMAGE not in state.inputs:
        raise DuplexError(
            ErrorCode.UNSUPPORTED_MODALITY, "the model does not see images", param="item.content"
        )
    commands: list[Command] = [Append(window=image) for image in new.images]
    key = state.key(event_id, {"item": new.wire, "after": after})
    if not new.history.text and not new.history.call_id:
        return [*commands, Note(about="item", subject=item_id, event_id=key)]
    return [*commands, AddItem(item_id=item_id, item=new.history, after=_place(state, after), event_id=key)]


def _place(state: RealtimeState, after: str | None) -> str | None:
    """`after` in the core's ids."""
    if after is None or after == ROOT:
        return "" if after == ROOT else None
    known = state.items.get(after)
    if known is None:
        return after
    return known.history_id or None


def _known_item(state: RealtimeState, message: Fields, code: ErrorCode) -> tuple[str, Item | None]:
    item_id = message.string("item_id")
    known = state.items.get(item_id)
    if known is None and not state.waits(item_id):
        raise DuplexError(code, "there is no item with this id", param="item_id")
    return item_id, known


def _retrieve(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    item_id, _ = _known_item(state, message, ErrorCode.ITEM_RETRIEVE_INVALID)
    return [Note(about="retrieve", subject=item_id, event_id=state.key(event_id))]


def _delete(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    item_id, known = _known_item(state, message, ErrorCode.ITEM_DELETE_INVALID)
    return [
        RemoveItem(
            item_id=(known.history_id if known is not None else "") or item_id,
            response_index=known.response_index if known is not None else None,
            event_id=state.key(event_id, {"delete": item_id}),
        )
    ]


def _truncate(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    item_id, known = _known_item(state, message, ErrorCode.ITEM_TRUNCATE_INVALID)
    if known is None or known.response_index is None:
        raise DuplexError(
            ErrorCode.ITEM_TRUNCATE_INVALID, "only the model's own answers can be truncated", param="item_id"
        )
    heard_ms = message.number("audio_end_ms")
    if heard_ms < 0:
        raise message.refuse("audio_end_ms", "0 or more")
    return [
        TruncateResponse(
            response_index=known.response_index,
            heard_ms=heard_ms,
            event_id=state.key(event_id, {"truncate": item_id}),
        )
    ]


# --- responses ---------------------------------------------------------------------------------------


def _create_response(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    given = Fields(from_beta(message.optional_object("response"), "response"), "response")
    given.only(*_RESPONSE)
    audio = given.fields("audio") if "audio" in given else Fields({}, "response.audio")
    audio.only("output")
    speed = state.session.get("audio", {}).get("output", {}).get("speed") or 1.0
    changes = common_changes(given, audio, state.voices, speed=speed)
    changes.pop("output_modalities", None)
    wanted = None
    if "output_modalities" in given:
        wanted = modalities(given, "output_modalities", state.voices)
    conversation = given.string("conversation") if "conversation" in given else "auto"
    if conversation not in ("auto", "none"):
        raise given.refuse("conversation", "auto or none")
    about = {
        "metadata": _metadata(given),
        "record": conversation == "auto",
        "audio": audio.values.get("output"),
        "max_output_tokens": given.values.get("max_output_tokens"),
    }
    create = CreateResponse(
        modalities=wanted,
        changes=changes,
        history=_input(state, given),
        record=conversation == "auto",
        event_id=state.key(event_id, about),
    )
    if state.turns.unwritten:
        # speech that has ended is still being written down, and is part of what is to be answered
        return [Commit(respond=False, silent=True, event_id=state.key(None)), create]
    return [create]


def _metadata(response: Fields) -> dict[str, str] | None:
    if "metadata" not in response:
        return None
    metadata = response.object("metadata")
    if len(metadata) > MAX_METADATA or not all(
        isinstance(value, str) and len(value) <= 512 and len(key) <= 64 for key, value in metadata.items()
    ):
        raise response.refuse("metadata", f"at most {MAX_METADATA} strings by name")
    return metadata


def _input(state: RealtimeState, response: Fields) -> tuple[HistoryItem, ...] | None:
    """Items that are answered instead of the conversation."""
    if "input" not in response:
        return None
    listed = response.values["input"]
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise response.refuse("input", "an array of items")
    history = []
    for position, value in enumerate(listed):
        given = Fields(value, f"response.input[{position}]")
        if given.values.get("type") == "item_reference":
            known = state.items.get(given.string("id"))
            if known is None:
                raise given.refuse("id", "the id of an item")
            given = Fields(known.wire, f"response.input[{position}]")
        history.append(read_item(given, given.identifier("id")).history)
    return tuple(history)


def _cancel(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    response_id = message.identifier("response_id")
    if not response_id:
        return [CancelResponse(event_id=state.key(event_id))]
    if response_id != state.active:
        raise DuplexError(
            ErrorCode.RESPONSE_CANCEL_NOT_ACTIVE, "this response is not active", param="response_id"
        )
    return [CancelResponse(response_index=state.responses[response_id], event_id=state.key(event_id))]


# --- private -----------------------------------------------------------------------------------------


def _playback_ack(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    index = None
    if "item_id" in message:
        item = state.items.get(message.string("item_id"))
        if item is None or item.response_index is None:
            raise message.refuse("item_id", "the id of an answer")
        index = item.response_index
    elif "response_id" in message:
        index = state.responses.get(message.string("response_id"))
        if index is None:
            raise message.refuse("response_id", "the id of a response")
    cursor_ms = message.number("audio_end_ms")
    return [PlaybackAck(cursor_ms=cursor_ms, response_index=index, event_id=state.key(event_id))]


def _append_video(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    if state.inputs is not None and Modality.VIDEO not in state.inputs:
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, "the model does not see video", param="type")
    window = window_from_message(Fields({**message.values, "modality": "video"}))
    return [Append(window=window, event_id=state.key(event_id))]


def _heartbeat(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    return [Note(about="heartbeat", event_id=state.key(event_id))]


def _resume(state: RealtimeState, message: Fields, event_id: str | None) -> list[Command]:
    return [resume_session(message, state.key(event_id))]


COMMANDS: Final[dict[str, Handler]] = {
    "session.update": _update,
    "input_audio_buffer.append": _append,
    "input_audio_buffer.commit": _commit,
    "input_audio_buffer.clear": _clear,
    "output_audio_buffer.clear": _clear_output,
    "conversation.item.create": _create_item,
    "conversation.item.retrieve": _retrieve,
    "conversation.item.delete": _delete,
    "conversation.item.truncate": _truncate,
    "response.create": _create_response,
    "response.cancel": _cancel,
}
PRIVATE: Final[dict[str, tuple[Extension, Handler]]] = {
    "playback.ack": (Extension.PLAYBACK, _playback_ack),
    "input.video.append": (Extension.SIGNALS, _append_video),
    "session.heartbeat": (Extension.LIFECYCLE, _heartbeat),
    "session.resume": (Extension.RESUME, _resume),
}
"""Messages of ours, by the extension that a client has to ask for first."""
