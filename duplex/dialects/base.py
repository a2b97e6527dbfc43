"""What a wire dialect is: a pure translation, one object a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from duplex.core.commands import Command
from duplex.core.events import Event

Frame: TypeAlias = str | bytes


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the handshake asked for. `extensions`: private events the client wants.

    `settings` are changes to the default session settings, as `apply_changes` takes them, for clients that
    cannot send a first message before they need them.
    """

    session_id: str | None = None
    model: str | None = None
    resume_token: str | None = None
    last_seq: int | None = None
    """Number of the last message that a client that resumes has got; None: it wants no replay."""
    binary: bool = False
    extensions: frozenset[str] = frozenset()
    settings: dict[str, Any] = {}


class Dialect(Protocol):
    """Bytes and str in, commands out; events in, frames out. No I/O, no clock."""

    @property
    def resumable(self) -> bool:
        """The client counts messages, to come back for those that it misses."""
        ...

    def open(self, query: Mapping[str, str], headers: Mapping[str, str]) -> OpenRequest:
        """Read the handshake. Raises `DuplexError`."""
        ...

    def decode(self, frame: Frame) -> list[Command]:
        """Commands of one message. Raises `DuplexError` with the client's `event_id` where it had one;
        nothing of a message that raises has been applied."""
        ...

    def encode(self, event: Event) -> list[Frame]:
        """Frames of one event, in order; none for an event this client did not ask for. Text frames are JSON
        objects. Of a `ResponseAudio` that has a payload, the last frame is the sound."""
        ...
