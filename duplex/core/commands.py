"""What a client asks for, after a dialect has decoded it.

`event_id` is the client's own id of the message; an error that the message causes carries it back.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from duplex.core.types import Modality, Window


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str | None = None


class Append(_Command, frozen=True, kw_only=True):
    """Append one window. Audio may end in half a sample: the core carries it over."""

    window: Window


class Commit(_Command, frozen=True, kw_only=True):
    """The user's turn is over."""


class CreateResponse(_Command, frozen=True, kw_only=True):
    """Respond now. `speak_text`: say exactly this. `modalities` override the session's for this response."""

    speak_text: str | None = None
    modalities: tuple[Modality, ...] | None = None


class CancelResponse(_Command, frozen=True, kw_only=True):
    """Barge in. Without an index the active response is meant."""

    response_index: int | None = None


class PlaybackAck(_Command, frozen=True, kw_only=True):
    """`cursor_ms` of the response's audio have been played. Without an index the latest response."""

    cursor_ms: float
    response_index: int | None = None


class UpdateSession(_Command, frozen=True, kw_only=True):
    """Change settings: only the keys that are present, nested objects replaced by key."""

    changes: dict[str, Any]


class CloseSession(_Command, frozen=True, kw_only=True):
    """End gracefully: pending decisions and the running response finish first."""


Command: TypeAlias = (
    Append | Commit | CreateResponse | CancelResponse | PlaybackAck | UpdateSession | CloseSession
)
