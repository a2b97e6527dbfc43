"""JSON from the network: one strict reading, every refusal by name.

Stricter than most parsers where they differ from one another, since a message that two parsers read
differently is a fault: no NaN, no Infinity, no number beyond a double, no lone surrogate, no key twice.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec

from duplex.core.errors import DuplexError, ErrorCode

MAX_MARKS = 150_000
"""Commas, colons and opening brackets in one message, those inside strings included. It bounds how long one
message can keep the event loop, and what it grows to once decoded (about 90 bytes a container). A string of
131,072 characters always passes; more numbers than this belong into a binary frame."""
MAX_DEPTH = 64
"""Levels of nesting. No message of ours has more than seven."""

_decoder = msgspec.json.Decoder()


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object that a message is.

    Raises:
        DuplexError: `INVALID_JSON`, `NOT_AN_OBJECT` or `INPUT_OVERFLOW`.
    """
    value = parse(text)
    if not isinstance(value, dict):
        raise DuplexError(
            ErrorCode.NOT_AN_OBJECT, f"the message must be a JSON object, not {json_type(value)}"
        )
    return value


def parse(text: str | bytes) -> Any:
    """Any JSON value. Raises `DuplexError`: `INVALID_JSON`, `INPUT_OVERFLOW` for too many values in it."""
    containers = _count(text, "[") + _count(text, "{")
    colons = _count(text, ":")
    if containers + colons + _count(text, ",") > MAX_MARKS:
        raise DuplexError(
            ErrorCode.INPUT_OVERFLOW,
            f"the message has more than {MAX_MARKS} commas, colons and opening brackets: send large arrays of"
            " a codec window as {dtype, shape, data}",
        )
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise _invalid(f"nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeError:
        raise _invalid("it is not valid UTF-8") from None
    except msgspec.MsgspecError as error:
        raise _invalid(_in_words(str(error), text)) from None
    keys = _count_keys(value, 0) if containers > 1 else len(value) if isinstance(value, dict) else 0
    # Every key is followed by a colon. As many colons as keys that came through: no key was there twice.
    # More of them: a string has a colon in it, or a key was lost; only then the slow parser has to look.
    if colons != keys:
        _refuse_duplicates(text)
    return value


def json_type(value: object) -> str:
    """What a decoded value is, in JSON's own words, with an article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return type(value).__name__


def _in_words(fault: str, text: str | bytes) -> str:
    if "truncated" not in fault:
        return fault.removeprefix("JSON is ")
    # the decoder also calls a string truncated that ends behind the first half of a pair
    half = "\\ud" in text.lower() if isinstance(text, str) else b"\\ud" in text.lower()
    return "it ends too early, or has half of a surrogate pair" if half else "it ends too early"


def _count(text: str | bytes, character: str) -> int:
    return text.count(character) if isinstance(text, str) else text.count(character.encode())


def _count_keys(value: Any, depth: int) -> int:
    """Keys of all objects in `value`."""
    if depth > MAX_DEPTH:
        raise _invalid(f"nested deeper than {MAX_DEPTH} levels")
    keys = 0
    if isinstance(value, dict):
        keys = len(value)
        value = value.values()
    elif not isinstance(value, list):
        return 0
    for item in value:
        if isinstance(item, dict | list):
            keys += _count_keys(item, depth + 1)
    return keys


def _refuse_duplicates(text: str | bytes) -> None:
    def once(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            raise _invalid(f"the key {counts.most_common(1)[0][0][:64]!r} is there twice")

    json.loads(text, object_pairs_hook=once)


def _invalid(words: str) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_JSON, f"the message must be a JSON object: {words}")
