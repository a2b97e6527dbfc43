"""Options of a Realtime session in the address, for clients that cannot send a message first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duplex.core.errors import DuplexError, ErrorCode

_SWITCHES: Final = {"turn_detection": "type", "transcription": "model"}
"""Objects that the address names by one of their fields, or switches off by `none`."""


def session_of(query: Mapping[str, str]) -> dict[str, Any]:
    """What the query asks for, in the shape of `session.update`.

    Raises:
        DuplexError: `BAD_CONFIG` for a speed that is no number, and for a rate that is none; all
            else is judged where it is used.
    """
    session: dict[str, Any] = {}
    source: dict[str, Any] = {}
    sink: dict[str, Any] = {}
    if "instructions" in query:
        session["instructions"] = query["instructions"]
    if "output_modalities" in query:
        session["output_modalities"] = [name for name in query["output_modalities"].split(",") if name]
    if "voice" in query:
        sink["voice"] = query["voice"]
    if "speed" in query:
        try:
            sink["speed"] = float(query["speed"])
        except ValueError:
            raise DuplexError(ErrorCode.BAD_CONFIG, "speed must be a number", param="speed") from None
    for name, field in _SWITCHES.items():
        if name in query:
            source[name] = None if query[name] == "none" else {field: query[name]}
    for side, of in ((source, "input"), (sink, "output")):
        if f"{of}_format" in query or f"{of}_rate" in query:
            side["format"] = _format(query, f"{of}_format", f"{of}_rate")
    audio = {name: side for name, side in (("input", source), ("output", sink)) if side}
    return {**session, "audio": audio} if audio else session


def _format(query: Mapping[str, str], name: str, rate: str) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": query.get(name, "audio/pcm")}
    if rate in query:
        if not query[rate].isdecimal() or len(query[rate]) > 6:
            raise DuplexError(ErrorCode.BAD_CONFIG, f"{rate} must be a whole number in digits", param=rate)
        kind["rate"] = int(query[rate])
    return kind


def overlaid(session: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, objects merged by key; `over` has the last word."""
    both = dict(session)
    for key, value in over.items():
        before = both.get(key)
        both[key] = overlaid(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both
