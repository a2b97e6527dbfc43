"""The beta names of the OpenAI Realtime API, for clients that send `OpenAI-Beta: realtime=v1`.

Messages are made and read in the names of the released API; here they are turned into the others and back.
"""

from __future__ import annotations

from typing import Any, Final

from duplex.core.errors import DuplexError, ErrorCode

Message = dict[str, Any]

_EVENTS: Final = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "conversation.item.added": "conversation.item.created",
}
_LEFT_OUT: Final = frozenset(["conversation.item.done"])
_CONTENT: Final = {"output_audio": "audio", "output_text": "text"}
_FORMATS: Final = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_PATCHED: Final = {
    "input_audio_format": ("input", "format"),
    "input_audio_transcription": ("input", "transcription"),
    "input_audio_noise_reduction": ("input", "noise_reduction"),
    "turn_detection": ("input", "turn_detection"),
    "output_audio_format": ("output", "format"),
    "voice": ("output", "voice"),
    "speed": ("output", "speed"),
}
_RENAMED: Final = {"modalities": "output_modalities", "max_response_output_tokens": "max_output_tokens"}


def to_beta(message: Message) -> Message | None:
    """A server's message in beta names; None for one that the beta API does not have."""
    kind = message["type"]
    if kind in _LEFT_OUT:
        return None
    changed = {**message, "type": _EVENTS.get(kind, kind)}
    if "item" in message:
        changed["item"] = _item(message["item"])
    if "session" in message:
        changed["session"] = _session(message["session"])
    if "response" in message:
        changed["response"] = _response(message["response"])
    return changed


def from_beta(session: Message, path: str = "session") -> Message:
    """A beta client's session or response object in the released API's shape.

    Raises:
        DuplexError: `INVALID_VALUE` when both shapes are mixed.
    """
    changed: Message = {}
    audio: dict[str, Message] = {}
    for key, value in session.items():
        if key in _PATCHED:
            side, name = _PATCHED[key]
            audio.setdefault(side, {})[name] = value
        else:
            changed[_RENAMED.get(key, key)] = value
    if audio:
        if "audio" in changed:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"{path} must have either audio or beta names", param=f"{path}.audio"
            )
        changed["audio"] = audio
    return changed


def _item(item: Message) -> Message:
    if "content" not in item:
        return item
    parts = [{**part, "type": _CONTENT.get(part["type"], part["type"])} for part in item["content"]]
    return {**item, "content": parts}


def _modalities(names: list[str]) -> list[str]:
    return ["text", "audio"] if "audio" in names else names


def _session(session: Message) -> Message:
    audio = session["audio"]
    source, sink = audio["input"], audio["output"]
    kept = ("id", "model", "instructions", "tools", "tool_choice", "expires_at")
    return {
        **{name: session[name] for name in kept},
        "object": "realtime.session",
        "modalities": _modalities(session["output_modalities"]),
        "voice": sink["voice"],
        "speed": sink["speed"],
        "input_audio_format": _FORMATS[source["format"]["type"]],
        "output_audio_format": _FORMATS[sink["format"]["type"]],
        "input_audio_transcription": source["transcription"],
        "input_audio_noise_reduction": source["noise_reduction"],
        "turn_detection": source["turn_detection"],
        "temperature": session.get("temperature", 0.8),
        "max_response_output_tokens": session["max_output_tokens"],
    }


def _response(response: Message) -> Message:
    kept = {
        key: value for key, value in response.items() if key not in ("output_modalities", "audio", "output")
    }
    return {
        **kept,
        "modalities": _modalities(response["output_modalities"]),
        "output": [_item(item) for item in response["output"]],
        "voice": response["audio"]["output"]["voice"],
        "output_audio_format": _FORMATS[response["audio"]["output"]["format"]["type"]],
    }
