"""What the runtime needs of a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from duplex.dialects.base import Frame


class Socket(Protocol):
    """One accepted WebSocket. Every call is made on the loop's thread and returns at once."""

    @property
    def can_write(self) -> bool:
        """False while the transport holds more than its high-water mark, and once it is closing."""
        ...

    def watch(self, on_blocked: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call these when `can_write` changes."""
        ...

    def write(self, frame: Frame) -> None:
        """Hand one message to the transport: str as text, bytes as binary. Nothing once it is closing."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake. A peer that does not answer is cut off after a short linger."""
        ...
