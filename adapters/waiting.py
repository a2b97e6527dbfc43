"""Windows that wait to be looked at: what they take of the memory, and what of them need not wait."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from duplex.core.types import CodecWindow, ImageWindow, VideoWindow

Seen: TypeAlias = VideoWindow | ImageWindow | CodecWindow

_CONTAINER: Final = 64  # bytes, as Python holds them
_NUMBER: Final = 32


def window_size(window: Seen | None) -> int:
    """Bytes of a window's media or side information, about; 0 for None."""
    match window:
        case VideoWindow():
            return len(window.data) + sum(map(len, window.frames))
        case ImageWindow():
            return len(window.data)
        case CodecWindow():
            return _message_size(window.codec)
    return 0


def needed(window: Seen, keys: Container[str]) -> Seen:
    """Without what nobody looks at, which may be as large as a message: metadata, and fields of the side
    information that are not in `keys`."""
    if isinstance(window, CodecWindow):
        codec = {name: value for name, value in window.codec.items() if name in keys}
        return replace(window, codec=codec, metadata={})
    if isinstance(window, VideoWindow) and window.metadata:
        return replace(window, metadata={})
    return window


def _message_size(value: Any) -> int:
    """Bytes of what a client's message became, about. A message has 150,000 values at most."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _message_size(item) for name, item in value.items()) + _CONTAINER
    if isinstance(value, list | tuple):
        return sum(map(_message_size, value)) + _CONTAINER
    return _NUMBER
