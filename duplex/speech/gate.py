"""Messages that wait while a model checks a configuration before them."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeAlias

from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.messages import MAX_CONFIG_BYTES

MAX_HELD: Final = 256
"""Messages that may wait, and twice `MAX_CONFIG_BYTES` of them."""
_WAITING: Final = frozenset({"session.config", "input.text", "input.done", "session.close"})
"""What comes after a configuration. A cancel does not wait: it is for what waits, too."""

Held: TypeAlias = tuple[dict[str, Any], int]


class ConfigGate:
    """Keeps the order of a context's messages; contexts that wait for nothing go on."""

    def __init__(self) -> None:
        self._checking: list[str | None] = []
        self._held: deque[Held] = deque()

    @property
    def checking(self) -> bool:
        """A configuration is being checked."""
        return bool(self._checking)

    def begin(self, context: str | None) -> None:
        """A check of the context's configuration has begun; None: of everybody's."""
        self._checking.append(context)

    def end(self, context: str | None) -> None:
        """It has an outcome."""
        self._checking.remove(context)

    def has_to_wait(self, message: dict[str, Any]) -> bool:
        """Something before the message has to be known first."""
        if message["type"] not in _WAITING or not (self._checking or self._held):
            return False
        name = message.get("context_id")
        ahead = [(held.get("context_id"), held["type"]) for held, _ in self._held]
        return (
            _concerns_all(message)
            or None in self._checking
            or name in self._checking
            or any(other == name for other, _ in ahead)
            or any(other is None and kind == "session.config" for other, kind in ahead)
        )

    def hold(self, message: dict[str, Any], size: int) -> None:
        """Keep the message, of `size` characters. Raises `DuplexError(INPUT_OVERFLOW)`."""
        sizes = sum(held for _, held in self._held)
        if len(self._held) >= MAX_HELD or sizes + size > 2 * MAX_CONFIG_BYTES:
            raise DuplexError(ErrorCode.INPUT_OVERFLOW, "too many messages before the configuration")
        self._held.append((message, size))

    def take_all(self) -> deque[Held]:
        """Everything that waits, in order; what still has to wait is to be held again."""
        waiting, self._held = self._held, deque()
        return waiting

    def cancel(self, context: str | None) -> None:
        """Drop the context's text."""
        spoken = ("input.text", "input.done")
        self._held = deque(
            (held, size)
            for held, size in self._held
            if held.get("context_id") != context or held["type"] not in spoken
        )


def _concerns_all(message: dict[str, Any]) -> bool:
    """It is about every context, so it waits for, and is waited for by, all of them."""
    return message["type"] == "session.close" or (
        message["type"] == "session.config" and message.get("context_id") is None
    )
