"""What a client asks for, after a dialect has decoded it.

`event_id` is the client's own id of the message; an error that the message causes carries it back.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from duplex.core.types import HistoryItem, Modality, Window


class _Command(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str | None = None


class Append(_Command, frozen=True, kw_only=True):
    """Append one window. Audio may end in half a sample: the core carries it over."""

    window: Window


class Commit(_Command, frozen=True, kw_only=True):
    """The user's turn is over. `respond` False: hear all of it, say so with `Acknowledged`, and wait for
    `CreateResponse`. `silent`: no error when there is nothing to commit."""

    respond: bool = True
    silent: bool = False


class CreateResponse(_Command, frozen=True, kw_only=True):
    """Respond now. `speak_text`: say exactly this. `modalities` and the settings in `changes` override the
    session's for this response. `history`: answer this instead of the conversation. Without `record` the
    answer stays out of the conversation."""

    speak_text: str | None = None
    modalities: tuple[Modality, ...] | None = None
    changes: dict[str, Any] = {}
    history: tuple[HistoryItem, ...] | None = None
    record: bool = True


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


class ResumeSession(_Command, frozen=True, kw_only=True):
    """Take up another session on this socket; the one that it has now ends. For the runtime: the core knows
    no other sessions. `last_seq`: number of the last message that the client has of it."""

    resume_token: str
    session_id: str | None = None
    last_seq: int | None = None


class ClearInput(_Command, frozen=True, kw_only=True):
    """Forget what was appended since the last turn."""


class ClearOutput(_Command, frozen=True, kw_only=True):
    """Stop what runs and all that sounds, if anything does."""


class AddItem(_Command, frozen=True, kw_only=True):
    """Write an item into the conversation: at its end, behind the item `after`, or in front ("")."""

    item_id: str
    item: HistoryItem
    after: str | None = None


class RemoveItem(_Command, frozen=True, kw_only=True):
    """Strike an item out of the conversation: one that was added, what the user said (its id comes with the
    transcript), or the answer with that response index."""

    item_id: str = ""
    response_index: int | None = None


class TruncateResponse(_Command, frozen=True, kw_only=True):
    """The client has stopped playing a response: `heard_ms` of its audio were heard, 0 is none."""

    response_index: int
    heard_ms: float


class Note(_Command, frozen=True, kw_only=True):
    """Nothing for the core: it is acknowledged in its order. `about` is the dialect's own."""

    about: str
    subject: str = ""


Command: TypeAlias = (
    Append
    | Commit
    | CreateResponse
    | CancelResponse
    | PlaybackAck
    | UpdateSession
    | CloseSession
    | ResumeSession
    | ClearInput
    | ClearOutput
    | AddItem
    | RemoveItem
    | TruncateResponse
    | Note
)
