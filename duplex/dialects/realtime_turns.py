"""`audio.input.turn_detection` of the OpenAI Realtime dialect: what it means, and how it is shown.

An object takes the place of the one before it as a whole; what it leaves out is the default. The keys of
`PRIVATE` are ours, and known to those alone who asked for the extension `signals`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from duplex.core.types import TurnDetection
from duplex.dialects.fields import Fields

_TIMES: Final = ("prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms")
_ACTS: Final = ("create_response", "interrupt_response")
PRIVATE: Final = ("interrupt_min_words", "interrupt_min_ms", "duck", "resume_interrupted", "min_speech_ms")
_FLAGS: Final = (*_ACTS, "duck", "resume_interrupted")
_EAGERNESS: Final = ("low", "medium", "auto", "high")


def turn_changes(source: Fields, *, private: bool) -> dict[str, Any] | None:
    """The setting `turn_detection`; `source` is `audio.input`. None: the client ends its turns.

    Raises:
        DuplexError: `UNKNOWN_FIELD` or `INVALID_VALUE`, with `param`.
    """
    if "turn_detection" not in source:
        return None
    turns = source.fields("turn_detection")
    kind = turns.string("type") if "type" in turns else "server_vad"
    ours = PRIVATE if private else ()
    changes: dict[str, Any] = msgspec.to_builtins(TurnDetection())
    changes["type"] = kind
    if kind == "server_vad":
        turns.only("type", "threshold", *_TIMES, *_ACTS, *ours)
        if "threshold" in turns:
            changes["threshold"] = turns.number("threshold")
    elif kind == "semantic_vad":
        turns.only("type", "eagerness", *_ACTS, *ours)
        if "eagerness" in turns:
            changes["eagerness"] = turns.string("eagerness")
            if changes["eagerness"] not in _EAGERNESS:
                raise turns.refuse("eagerness", "one of " + ", ".join(_EAGERNESS))
    else:
        raise turns.refuse("type", "server_vad or semantic_vad")
    for name in turns.values:
        if name not in turns:
            continue  # null is the default
        if name in _FLAGS:
            if not isinstance(turns.values[name], bool):
                raise turns.refuse(name, "true or false")
            changes[name] = turns.values[name]
        elif name in _TIMES or name in ours:
            changes[name] = int(turns.number(name))
    return changes


def shown_turns(turns: dict[str, Any]) -> dict[str, Any]:
    """The object as the session shows it, all of its keys: of one that `turn_changes` has let pass."""
    acts = {name: turns.get(name) is not False for name in _ACTS}
    ours = {name: turns[name] for name in PRIVATE if turns.get(name) is not None}
    if turns.get("type") == "semantic_vad":
        return {"type": "semantic_vad", "eagerness": turns.get("eagerness") or "auto", **acts, **ours}
    defaults = TurnDetection()
    values = {
        name: getattr(defaults, name) if turns.get(name) is None else turns[name]
        for name in ("threshold", *_TIMES)
    }
    return {"type": "server_vad", **values, **acts, **ours}
