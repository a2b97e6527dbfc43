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
    RESPONSE_HOLD = "response_hold"
    INPUT_STALL = "input_stall"
    USER_IDLE = "user_idle"


class Send(_Effect, frozen=True, kw_only=True):
    """Queue an event for the client. Audio keeps its order; everything else overtakes queued audio."""

    event: Event


class AppendInput(_Effect, frozen=True, kw_only=True):
    """Hand a window to the adapter session."""

    window: Window


class CommitInput(_Effect, frozen=True, kw_only=True):
    """Ask the adapter whether there is something to respond to; answer with `Session.committed`."""

    event_id: str | None = None


class ForgetInput(_Effect, frozen=True, kw_only=True):
    """Tell the adapter to forget the input that is in no turn yet."""


class UpdateAdapter(_Effect, frozen=True, kw_only=True):
    """Tell the adapter the new settings; answer with `Session.settings_applied` or `settings_refused`."""

    settings: SessionSettings
    event_id: str | None = None


class FinishInput(_Effect, frozen=True, kw_only=True):
    """No more input comes: let the adapter finish pending decisions; answer with `Session.input_finished`."""


class StartResponse(_Effect, frozen=True, kw_only=True):
    """Run the adapter's `respond`, after the response before it has stopped."""

    turn: Turn


class AbortResponse(_Effect, frozen=True, kw_only=True):
    """Cancel the adapter's work on a response and drop all that is queued of it, encoder work included."""

    response_id: str
    reason: CancelReason


class SetTimer(_Effect, frozen=True, kw_only=True):
    """Call `Session.timer(name, now)` at `at` (seconds of the injected clock). Replaces one of that name."""

    name: TimerName
    at: float


class ClearTimer(_Effect, frozen=True, kw_only=True):
    name: TimerName


class ReleaseSlot(_Effect, frozen=True, kw_only=True):
    """Give the session's slot back. Comes before the terminal event of the session."""


class CloseTransport(_Effect, frozen=True, kw_only=True):
    """After what is queued is written, close with this code. `flush` False: drop what is queued."""

    code: int
    reason: str
    flush: bool = True


Effect: TypeAlias = (
    Send
    | AppendInput
    | CommitInput
    | ForgetInput
    | UpdateAdapter
    | FinishInput
    | StartResponse
    | AbortResponse
    | SetTimer
    | ClearTimer
    | ReleaseSlot
    | CloseTransport
)
