"""What both directions of a Realtime connection share."""

from __future__ import annotations

import secrets
from typing import Any, Final

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality
from duplex.dialects.native_events import Extension
from duplex.dialects.realtime_input import UserTurns
from duplex.dialects.realtime_items import Items
from duplex.dialects.realtime_session import AudioType, Voices

MAX_PENDING: Final = 256
"""Messages of the client that the core has not answered for yet."""
MAX_RESPONSES: Final = 64
_MARK: Final = "\x00"


class RealtimeState:
    """One connection's memory.

    The core names messages by the client's `event_id`, which need not be there and need not be unique. So
    what it is given is a key that holds the client's id: `key` makes it, `client_id` reads it.
    """

    def __init__(self, tag: str | None = None) -> None:
        self.beta = False
        self.extensions: frozenset[Extension] = frozenset()
        self.session: dict[str, Any] = {}
        self.voices = Voices()
        self.inputs: tuple[Modality, ...] | None = None
        self.input_type = AudioType()
        self.items = Items()
        self.turns = UserTurns(self.items, lambda: self.new_id("item"))
        self.appended_ms = 0.0
        """Audio that the client has appended since its last commit."""
        self.active: str | None = None
        """Id of the response that runs, as far as the client knows."""
        self.responses: dict[str, int] = {}
        self._tag = tag or secrets.token_hex(4)
        self._count = 0
        self._pending: dict[str, Any] = {}

    def new_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._tag}{self._count:05d}"

    # --- messages that the core will answer for -----------------------------------------------------

    def key(self, client_id: str | None, about: Any = None) -> str:
        """A key for a message; `about` it can be had back with it, once."""
        self._count += 1
        key = f"{_MARK}{self._count}:{client_id or ''}"
        if about is not None:
            if len(self._pending) >= MAX_PENDING:
                raise DuplexError(ErrorCode.INPUT_OVERFLOW, f"{MAX_PENDING} messages wait to be answered")
            self._pending[key] = about
        return key

    @staticmethod
    def client_id(key: str | None) -> str | None:
        """The client's id of that message, if it gave one."""
        if key is None or not key.startswith(_MARK):
            return key
        return key.partition(":")[2] or None

    def take(self, key: str | None) -> Any:
        """What the message was about; None when that is not known (any more)."""
        return self._pending.pop(key, None) if key is not None else None

    def waits(self, item_id: str) -> bool:
        """An item of that id is being created."""
        return any(
            isinstance(about, dict) and about.get("item", {}).get("id") == item_id
            for about in self._pending.values()
        )

    # --- responses ----------------------------------------------------------------------------------

    def begin(self, response_id: str, index: int) -> None:
        self.active = response_id
        self.responses[response_id] = index
        while len(self.responses) > MAX_RESPONSES:
            del self.responses[next(iter(self.responses))]
