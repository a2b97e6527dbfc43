"""The session object of the OpenAI Realtime dialect, and what of it the core's settings are.

The object is kept as the client sees it. A `session.update` is a patch: objects are merged by key, everything
else is replaced, and null switches a thing off (`turn_detection`, `transcription`). What has a meaning here
becomes changes of `SessionSettings`; `noise_reduction`, `tracing`, `truncation`, `include`, `prompt`,
`reasoning`, `parallel_tool_calls` and `temperature` are kept and shown, and have no effect. A key that is
none of these is refused by name.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec

from duplex.adapters.speech import OPENAI_VOICES
from duplex.codecs.resample import SAMPLE_RATES
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, ToolSpec
from duplex.dialects.fields import Fields
from duplex.dialects.realtime_turns import shown_turns, turn_changes

MAX_TOOLS: Final = 128
MAX_OUTPUT_TOKENS: Final = 1_000_000
MAX_PATCH: Final = 256 * 1024
"""Bytes of a session as JSON: it is kept and sent back."""

_SHOWN: Final = frozenset(
    (
        *("type", "id", "object", "model", "expires_at", "client_secret", "tracing"),
        *("truncation", "include", "prompt", "reasoning", "parallel_tool_calls", "temperature"),
    )
)
_MEANT: Final = frozenset(
    ["output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens", "audio"]
)
_INPUT: Final = ("format", "transcription", "noise_reduction", "turn_detection")
_OUTPUT: Final = ("format", "voice", "speed")


class AudioType(NamedTuple):
    """Format of audio in messages. Rates in Hz; the two laws are 8 kHz."""

    codec: Literal["pcm", "ulaw", "alaw"] = "pcm"
    rate: int = 24000


def new_session(
    *, session_id: str, model: str, outputs: tuple[Modality, ...], expires_at: float | None
) -> dict[str, Any]:
    """The object of a session that nobody has changed."""
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": model,
        "output_modalities": ["audio"] if Modality.AUDIO in outputs else ["text"],
        "instructions": "",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "truncation": "auto",
        "prompt": None,
        "expires_at": int(expires_at) if expires_at is not None else 0,
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": shown_turns({}),
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": None, "speed": 1.0},
        },
        "include": None,
    }


def merged(session: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The session after a patch that `changes_of` has let pass."""
    meant = {
        key: value
        for key, value in patch.items()
        if key not in _FIXED and (value is not None or key in _NULLABLE)
    }
    after = {**session, **meant}
    audio = patch.get("audio") or {}
    before = session["audio"]
    source, sink = audio.get("input") or {}, audio.get("output") or {}
    given = {key: value for key, value in source.items() if value is not None or key != "format"}
    if isinstance(turns := given.get("turn_detection"), dict):
        given["turn_detection"] = shown_turns(turns)
    after["audio"] = {
        "input": {**before["input"], **given},
        "output": {**before["output"], **{k: value for k, value in sink.items() if value is not None}},
    }
    for side in after["audio"].values():
        side["format"] = long_format(side["format"])
    return after


def long_format(format: Any) -> Any:
    """A format object; the beta API has short names for them."""
    return _LONG_FORMATS[format] if isinstance(format, str) else format


_FIXED: Final = frozenset(["type", "id", "object", "model", "expires_at", "client_secret", "audio"])
_NULLABLE: Final = frozenset(["tracing", "prompt", "include", "reasoning"])
_LONG_FORMATS: Final[dict[str, dict[str, Any]]] = {
    "pcm16": {"type": "audio/pcm", "rate": 24000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}


# --- what a patch means ------------------------------------------------------------------------------


class Voices(NamedTuple):
    """What of the model a patch depends on."""

    names: tuple[str, ...] = ()
    outputs: tuple[Modality, ...] = (Modality.TEXT, Modality.AUDIO)

    def named(self, name: str) -> str | None:
        """The voice that a client means."""
        return None if name in OPENAI_VOICES and name not in self.names else name


def changes_of(
    patch: dict[str, Any], voices: Voices, *, speed: float = 1.0, private: bool = False
) -> dict[str, Any]:
    """Changes of `SessionSettings`, as `apply_changes` takes them. `speed` is the one before; `private`: the
    client may use our own keys.

    Raises:
        DuplexError: `UNKNOWN_FIELD` or `INVALID_VALUE`, with `param`.
    """
    fields = Fields(patch, "session")
    fields.only(*_SHOWN, *_MEANT)
    if len(msgspec.json.encode(patch)) > MAX_PATCH:
        raise DuplexError(
            ErrorCode.INVALID_VALUE, f"session may have at most {MAX_PATCH} bytes", param="session"
        )
    if patch.get("type", "realtime") != "realtime":
        raise fields.refuse("type", '"realtime"')
    audio = fields.fields("audio") if "audio" in fields else Fields({}, "session.audio")
    audio.only("input", "output")
    changes = common_changes(fields, audio, voices, speed=speed)
    if "input" in audio:
        source = audio.fields("input")
        source.only(*_INPUT)
        if "format" in source:
            audio_type(source)
        for name in ("transcription", "noise_reduction"):
            source.optional_object(name)
        if "turn_detection" in source.values:
            changes["turn_detection"] = turn_changes(source, private=private)
    return changes


def common_changes(fields: Fields, audio: Fields, voices: Voices, *, speed: float) -> dict[str, Any]:
    """What a session and a single response have in common."""
    changes: dict[str, Any] = {}
    if "instructions" in fields:
        changes["instructions"] = fields.string("instructions")
    if "output_modalities" in fields:
        changes["output_modalities"] = [m.value for m in modalities(fields, "output_modalities", voices)]
    if "tools" in fields.values:
        changes["tools"] = _tools(fields)
    if "tool_choice" in fields:
        changes["tool_choice"] = _tool_choice(fields)
    if "max_output_tokens" in fields:
        changes["max_output_tokens"] = _most_tokens(fields)
    if "output" in audio:
        sink = audio.fields("output")
        sink.only(*_OUTPUT)
        if "format" in sink:
            changes["output_format"] = _output_format(sink)
        if "voice" in sink:
            named = sink.fields("voice") if isinstance(sink.values["voice"], dict) else None
            changes["voice"] = voices.named(named.string("id") if named else sink.string("voice"))
        if "speed" in sink and sink.number("speed") != speed:
            changes["options"] = {"speed": sink.number("speed")}
    return changes


def modalities(fields: Fields, name: str, voices: Voices) -> tuple[Modality, ...]:
    """`["audio"]` is audio with its transcript, `["text"]` text alone, both together audio."""
    names = fields.strings(name)
    if not names or not set(names) <= {"text", "audio"}:
        raise fields.refuse(name, '["audio"] or ["text"]')
    if "audio" not in names:
        return (Modality.TEXT,)
    if Modality.AUDIO not in voices.outputs:
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, "the model gives no audio", param=fields.path(name))
    return tuple(m for m in (Modality.TEXT, Modality.AUDIO) if m in voices.outputs)


def audio_type(fields: Fields, name: str = "format") -> AudioType:
    """A format object, or the short name of the beta API."""
    value = fields.values[name]
    if isinstance(value, str):
        if value not in _LONG_FORMATS:
            raise fields.refuse(name, "one of " + ", ".join(_LONG_FORMATS))
        value = _LONG_FORMATS[value]
        given = Fields(value, fields.path(name))
    else:
        given = fields.fields(name)
    given.only("type", "rate")
    kind = given.string("type")
    if kind == "audio/pcm":
        rate = given.optional_integer("rate") or 24000
        if not 8000 <= rate <= 48000:
            raise given.refuse("rate", "from 8000 to 48000 Hz")
        return AudioType("pcm", rate)
    if kind in ("audio/pcmu", "audio/pcma"):
        if given.optional_integer("rate") not in (None, 8000):
            raise given.refuse("rate", "8000")
        return AudioType("ulaw" if kind == "audio/pcmu" else "alaw", 8000)
    raise given.refuse("type", "audio/pcm, audio/pcmu or audio/pcma")


def _most_tokens(fields: Fields) -> int | None:
    """A bound, or "inf" for the model's own."""
    if fields.values["max_output_tokens"] == "inf":
        return None
    tokens = fields.optional_integer("max_output_tokens")
    if tokens is None or not 1 <= tokens <= MAX_OUTPUT_TOKENS:
        raise fields.refuse("max_output_tokens", f'"inf" or from 1 to {MAX_OUTPUT_TOKENS}')
    return tokens


def _output_format(fields: Fields) -> dict[str, Any]:
    codec, rate = audio_type(fields)
    if codec != "pcm":
        return {"codec": f"g711_{codec}", "sample_rate": 8000}
    if rate not in SAMPLE_RATES:
        raise fields.refuse("format.rate", "one of " + ", ".join(map(str, SAMPLE_RATES)))
    return {"codec": "pcm_s16le", "sample_rate": rate}


def _tools(fields: Fields) -> list[dict[str, Any]]:
    listed = fields.values["tools"]
    if listed is None:
        return []
    if not isinstance(listed, list) or len(listed) > MAX_TOOLS:
        raise fields.refuse("tools", f"an array of at most {MAX_TOOLS} functions")
    tools = []
    for position, value in enumerate(listed):
        path = f"session.tools[{position}]"
        if not isinstance(value, dict) or value.get("type", "function") != "function":
            raise DuplexError(ErrorCode.INVALID_VALUE, f"{path} must be a function", param=path)
        given = Fields(value, path)
        spec = ToolSpec(
            name=given.string("name"),
            description=given.string("description") if "description" in given else "",
            parameters=given.optional_object("parameters"),
        )
        tools.append(msgspec.to_builtins(spec))
    return tools


def _tool_choice(fields: Fields) -> str:
    value = fields.values["tool_choice"]
    if isinstance(value, dict):
        choice = fields.fields("tool_choice")
        if choice.string("type") != "function":
            raise choice.refuse("type", '"function"')
        return choice.string("name")
    if value not in ("auto", "none", "required"):
        raise fields.refuse("tool_choice", "auto, none, required or a function")
    return str(value)
