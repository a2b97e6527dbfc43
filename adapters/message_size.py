"""What a client's decoded message takes of the memory while it waits."""

from __future__ import annotations

from typing import Any, Final

_CONTAINER: Final = 64  # bytes, as Python holds them
_NUMBER: Final = 32


def message_size(value: Any) -> int:
    """Bytes of what a client's message became, about. A message has 150,000 values at most."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + message_size(item) for name, item in value.items()) + _CONTAINER
    if isinstance(value, list | tuple):
        return sum(map(message_size, value)) + _CONTAINER
    return _NUMBER
