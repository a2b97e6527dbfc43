"""Changing session settings: by key, validated as a whole, refused by name."""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any, get_args, get_type_hints

import msgspec

from duplex.core.commands import UpdateSession
from duplex.core.effects import Effect, Send, UpdateAdapter
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.facts import ModelFacts
from duplex.core.outbox import error_event
from duplex.core.text import well_formed
from duplex.core.types import AudioCodec, AudioFormat, Modality, SessionSettings, TurnDetection

MAX_INSTRUCTIONS = 64 * 1024
"""Characters. More is no instruction but a document."""
MAX_VOICE = 256
"""Characters of a voice's name."""
MAX_OPTIONS = 64 * 1024
"""Bytes of the adapter's options, as JSON: changes are merged, so that without a bound they only grow."""
MAX_TOOLS = 64 * 1024
"""Bytes of the client's functions, as JSON."""
IDLE_TIMEOUT_MS = (1_000, 3_600_000)
"""Shortest and longest silence of the user that the model may break."""
MAX_UPDATES = 8
"""Changes that may wait for the adapter at once."""


def apply_changes(
    settings: SessionSettings, changes: dict[str, Any], *, event_id: str | None = None
) -> SessionSettings:
    """New settings with `changes` merged in by key, one level deep.

    Raises:
        DuplexError: `UNKNOWN_FIELD` or `INVALID_VALUE`, with `param` naming the key.
    """
    try:
        after = msgspec.convert(_merged(settings, changes, event_id), SessionSettings)
        options_size = len(msgspec.json.encode(after.options))
    except msgspec.ValidationError as error:
        text = str(error)
        code = ErrorCode.UNKNOWN_FIELD if "unknown field" in text else ErrorCode.INVALID_VALUE
        param = _field(text)
        raise DuplexError(code, _in_words(text, param), event_id=event_id, param=param) from None
    except (RecursionError, TypeError, ValueError) as error:
        # only options can nest too deep, or hold what no message carries back
        words = f"invalid options: {well_formed(str(error))}"
        raise DuplexError(ErrorCode.INVALID_VALUE, words, event_id=event_id, param="options") from None
    _check_ranges(after, options_size, event_id)
    return after


def _merged(settings: SessionSettings, changes: dict[str, Any], event_id: str | None) -> dict[str, Any]:
    merged: dict[str, Any] = msgspec.to_builtins(settings)
    for key, value in changes.items():
        if key not in merged:
            name = well_formed(str(key))
            raise DuplexError(
                ErrorCode.UNKNOWN_FIELD, f"unknown session field: {name}", event_id=event_id, param=name
            )
        before = merged[key]
        if key == "turn_detection" and before is None:
            before = msgspec.to_builtins(TurnDetection())
        if isinstance(value, dict) and isinstance(before, dict):
            merged[key] = {**before, **value}
        else:
            merged[key] = value
    return merged


def _field(text: str) -> str | None:
    """The key that a validation error is about: it ends in "- at `$.key`"."""
    _, found, path = text.rpartition("`$.")
    return path.rstrip("`") if found else None


def _in_words(text: str, param: str | None) -> str:
    """A validation error in the words of our messages, with what is allowed."""
    allowed = _ALLOWED.get(re.sub(r"\[.*", "", param or ""))
    if allowed is not None and "enum value" in text:
        return f"{param} must be one of {', '.join(map(str, allowed))}"
    types = re.match(r"Expected `(.+)`, got `(.+)` - at", text)
    if types is None or param is None:
        return f"invalid session field: {text}"
    wanted = " or ".join(_TYPES.get(name, name) for name in types[1].split(" | "))
    found = "a fraction" if types[2] == "float" else _TYPES.get(types[2], types[2])
    return f"{param} must be {wanted}, not {found}"


_ALLOWED: dict[str, tuple[object, ...]] = {
    "output_modalities": (Modality.TEXT, Modality.AUDIO),
    "turn_detection.type": get_args(get_type_hints(TurnDetection)["type"]),
    "turn_detection.eagerness": get_args(get_type_hints(TurnDetection)["eagerness"]),
    "output_format.codec": get_args(AudioCodec),
    "output_format.sample_rate": get_args(get_type_hints(AudioFormat)["sample_rate"]),
}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}


def _check_ranges(settings: SessionSettings, options_size: int, event_id: str | None) -> None:
    def check(ok: bool, param: str, words: str) -> None:
        if not ok:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"{param} must be {words}", event_id=event_id, param=param
            )

    def probability(value: float) -> bool:
        return math.isfinite(value) and 0 <= value <= 1

    def sound(text: str | None, most: int) -> bool:
        return text is None or (len(text) <= most and well_formed(text) == text)

    check(
        sound(settings.instructions, MAX_INSTRUCTIONS),
        "instructions",
        f"≤ {MAX_INSTRUCTIONS} characters of text",
    )
    check(sound(settings.voice, MAX_VOICE), "voice", f"null or ≤ {MAX_VOICE} characters of text")
    check(options_size <= MAX_OPTIONS, "options", f"≤ {MAX_OPTIONS} bytes as JSON")
    tools_size = len(msgspec.json.encode(settings.tools))
    check(tools_size <= MAX_TOOLS, "tools", f"≤ {MAX_TOOLS} bytes as JSON")
    tokens = settings.max_output_tokens
    check(tokens is None or tokens >= 1, "max_output_tokens", "null, or 1 or more")
    check(probability(settings.gate_threshold), "gate_threshold", "a number from 0 to 1")
    check(0 <= settings.max_run_ahead_ms <= 3_600_000, "max_run_ahead_ms", "from 0 to 3600000 ms")
    modalities = settings.output_modalities
    check(
        modalities is None or len(set(modalities)) == len(modalities) > 0,
        "output_modalities",
        "null, or different names out of text, audio",
    )
    turns = settings.turn_detection
    if turns is not None:
        check(probability(turns.threshold), "turn_detection.threshold", "a number from 0 to 1")
        for name, most in (
            ("prefix_padding_ms", 5_000),
            ("silence_duration_ms", 60_000),
            ("min_speech_ms", 5_000),
            ("interrupt_min_ms", 60_000),
        ):
            check(0 <= getattr(turns, name) <= most, f"turn_detection.{name}", f"from 0 to {most} ms")
        words = turns.interrupt_min_words
        check(0 <= words <= 100, "turn_detection.interrupt_min_words", "from 0 to 100")
        proof = words > 0 or turns.interrupt_min_ms > 0
        needs = "false without interrupt_min_words or interrupt_min_ms: there is nothing to decide"
        check(proof or not turns.duck, "turn_detection.duck", needs)
        idle = turns.idle_timeout_ms
        least, longest = IDLE_TIMEOUT_MS
        check(
            idle is None or least <= idle <= longest,
            "turn_detection.idle_timeout_ms",
            f"null, or from {least} to {longest} ms",
        )


class SettingsUpdates:
    """Changes of the settings, one at a time: the next is tried when the adapter has answered for the one
    before, so that each is judged by the settings that it really changes."""

    def __init__(self, settings: SessionSettings, model: ModelFacts) -> None:
        self.settings = settings
        self._model = model
        self._asked: deque[UpdateSession] = deque()  # the first is with the adapter

    @property
    def pending(self) -> bool:
        """The adapter has been asked and has not answered."""
        return bool(self._asked)

    def ask(self, command: UpdateSession) -> list[Effect]:
        """Change settings now, or when the changes before are decided.

        Raises:
            DuplexError: what `apply_changes` raises, `UNSUPPORTED_MODALITY`, `INPUT_OVERFLOW`.
        """
        if len(self._asked) >= MAX_UPDATES:
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW, f"{MAX_UPDATES} changes of settings wait for the model"
            )
        proposal = self._proposal(command)
        self._asked.append(command)
        return [proposal] if len(self._asked) == 1 else []

    def decided(self, settings: SessionSettings | None = None) -> list[Effect]:
        """The adapter took `settings`, or refused them when None. Returns the next proposal, and an error for
        each change that turns out to be wrong."""
        if self._asked:
            self._asked.popleft()
        if settings is not None:
            self.settings = settings
        effects: list[Effect] = []
        while self._asked:
            try:
                return [*effects, self._proposal(self._asked[0])]
            except DuplexError as error:
                error.event_id = self._asked.popleft().event_id
                effects.append(Send(event=error_event(error)))
        return effects

    def _proposal(self, command: UpdateSession) -> UpdateAdapter:
        after = apply_changes(self.settings, command.changes, event_id=command.event_id)
        self._model.check_output(after.output_modalities)
        return UpdateAdapter(settings=after, event_id=command.event_id)
