"""What the core asks the runtime to do. Effects are carried out in the order of the list."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from duplex.core.events import CancelReason, Event
from duplex.core.types import SessionSettings, Turn, Window


class _Effect(msgspec.Struct, frozen=True, kw_only=True):
    pass


class TimerName(StrEnum):
    """The timers a session can have running; one of each."""

    IDLE = "idle"
    RESPONSE_WATCHDOG = "response_watchdog"
    CLOSE_GRACE = "close_grace"
    RESUME_GRACE = "resume_grace"


class Send(_Effect):
    """Queue an event for the client.

    `ordered` False: it overtakes queued audio. True: it keeps its place behind the audio queued before
    it (audio itself, and the terminal event that follows it).
    """

    event: Event
    ordered: bool = False


class AppendInput(_Effect):
    """Hand a window to the adapter session."""

    window: Window


class CommitInput(_Effect):
    """Ask the adapter whether there is something to respond to; answer with `Session.committed`."""

    event_id: str | None = None


class UpdateAdapter(_Effect):
    """Tell the adapter the new settings; answer with `Session.settings_applied` or `settings_refused`."""

    settings: SessionSettings
    event_id: str | None = None


class FinishInput(_Effect):
    """No more input comes: let the adapter finish pending decisions; answer with `Session.input_finished`."""


class StartResponse(_Effect):
    """Run the adapter's `respond`, after the response before it has stopped."""

    turn: Turn


class AbortResponse(_Effect):
    """Cancel the adapter's work on a response and drop all that is queued of it, encoder work included."""

    response_id: str
    reason: CancelReason


class SetTimer(_Effect):
    """Call `Session.timer(name, now)` at `at` (seconds of the injected clock). Replaces one of that name."""

    name: TimerName
    at: float


class ClearTimer(_Effect):
    name: TimerName


class ReleaseSlot(_Effect):
    """Give the session's slot back. Comes before the terminal event of the session."""


class CloseTransport(_Effect):
    """After what is queued is written, close with this code. `flush` False: drop what is queued."""

    code: int
    reason: str
    flush: bool = True


Effect: TypeAlias = (
    Send
    | AppendInput
    | CommitInput
    | UpdateAdapter
    | FinishInput
    | StartResponse
    | AbortResponse
    | SetTimer
    | ClearTimer
    | ReleaseSlot
    | CloseTransport
)
