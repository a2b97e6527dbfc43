"""Changing session settings: by key, validated as a whole, refused by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import SessionSettings, TurnDetection

MAX_INSTRUCTIONS = 64 * 1024
"""Characters. More is no instruction but a document."""


def apply_changes(
    settings: SessionSettings, changes: dict[str, Any], *, event_id: str | None = None
) -> SessionSettings:
    """New settings with `changes` merged in by key, one level deep.

    Raises:
        DuplexError: `UNKNOWN_FIELD` or `INVALID_VALUE`, with `param` naming the key.
    """
    merged = msgspec.to_builtins(settings)
    for key, value in changes.items():
        if key not in merged:
            raise DuplexError(
                ErrorCode.UNKNOWN_FIELD, f"unknown session field: {key}", event_id=event_id, param=key
            )
        before = merged[key]
        if isinstance(value, dict):
            if key == "turn_detection" and before is None:
                before = msgspec.to_builtins(TurnDetection())
            merged[key] = {**(before or {}), **value}
        else:
            merged[key] = value
    try:
        after = msgspec.convert(merged, SessionSettings)
    except msgspec.ValidationError as error:
        text = str(error)
        code = ErrorCode.UNKNOWN_FIELD if "unknown field" in text else ErrorCode.INVALID_VALUE
        raise DuplexError(code, f"invalid session field: {text}", event_id=event_id) from None
    _check_ranges(after, event_id)
    return after


def _check_ranges(settings: SessionSettings, event_id: str | None) -> None:
    def check(ok: bool, param: str, words: str) -> None:
        if not ok:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"{param} must be {words}", event_id=event_id, param=param
            )

    def probability(value: float) -> bool:
        return math.isfinite(value) and 0 <= value <= 1

    check(len(settings.instructions) <= MAX_INSTRUCTIONS, "instructions", f"≤ {MAX_INSTRUCTIONS} characters")
    check(probability(settings.gate_threshold), "gate_threshold", "a number from 0 to 1")
    check(0 <= settings.max_run_ahead_ms <= 3_600_000, "max_run_ahead_ms", "from 0 to 3600000 ms")
    modalities = settings.output_modalities
    check(modalities is None or len(modalities) > 0, "output_modalities", "null or not empty")
    turns = settings.turn_detection
    if turns is not None:
        check(probability(turns.threshold), "turn_detection.threshold", "a number from 0 to 1")
        for name, most in (
            ("prefix_padding_ms", 5_000),
            ("silence_duration_ms", 60_000),
            ("min_speech_ms", 5_000),
        ):
            check(0 <= getattr(turns, name) <= most, f"turn_detection.{name}", f"from 0 to {most} ms")
