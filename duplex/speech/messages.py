"""Reading the client's frames on the speech socket."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.strict_json import parse_object

MAX_CONTEXT_ID: Final = 128
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024

_MAX_HALVES: Final = 1024 * 1024
"""Characters of a message that a slower reader may look at: 128 KiB of text in escapes, and some."""
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def decode(frame: str | bytes) -> dict[str, Any]:
    """The message in a frame: an object with a string `type`.

    Raises:
        DuplexError: `INVALID_FRAME`, `MESSAGE_TOO_LARGE`, `INVALID_JSON`, `NOT_AN_OBJECT`, `MISSING_TYPE`.
    """
    if isinstance(frame, bytes):
        raise DuplexError(ErrorCode.INVALID_FRAME, "binary frames are not expected; send JSON text")
    if len(frame) > MAX_CONFIG_BYTES or (not frame.isascii() and len(frame.encode()) > MAX_CONFIG_BYTES):
        raise DuplexError(ErrorCode.MESSAGE_TOO_LARGE, f"message over {MAX_CONFIG_BYTES} bytes")
    try:
        message = parse_object(frame)
    except DuplexError:
        halves = _with_halves(frame)
        if halves is None:
            raise
        message = halves
    if not isinstance(message.get("type"), str):
        raise DuplexError(ErrorCode.MISSING_TYPE, "message needs a string `type`", param="type")
    return message


def _with_halves(frame: str) -> dict[str, Any] | None:
    """An `input.text` that was cut between the two UTF-16 halves of a character, as JavaScript's `slice`
    does; None for anything else that is no JSON."""
    if len(frame) > _MAX_HALVES or not _SURROGATE_ESCAPE.search(frame):
        return None
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    rest = {key: value for key, value in message.items() if key != "text" or not isinstance(value, str)}
    return None if _SURROGATE_ESCAPE.search(repr(rest)) else message  # repr escapes halves alone


def context_id(message: dict[str, Any]) -> str | None:
    """The context that a message is for. Raises `DuplexError(INVALID_VALUE)`."""
    name = message.get("context_id")
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_CONTEXT_ID):
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            f"context_id must be a string of 1 to {MAX_CONTEXT_ID} characters",
            param="context_id",
        )
    return name
