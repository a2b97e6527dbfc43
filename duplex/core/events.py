"""What the core tells the client, before a dialect encodes it.

Every created response gets exactly one of `ResponseDone`, `ResponseCancelled`, `ResponseFailed`, and no
delta after it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from duplex.core.commands import Command
from duplex.core.errors import ErrorCode
from duplex.core.types import AudioFormat, Modality, SessionSettings


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    pass


class CancelReason(StrEnum):
    """Why a response was cancelled."""

    CLIENT = "client_cancelled"
    SPEECH = "turn_detected"
    SUPERSEDED = "superseded"
    CLIENT_GONE = "client_gone"
    CLOSING = "closing"


class SessionCreated(_Event, frozen=True, kw_only=True):
    """The session is open. `limits` are numbers by name; `expires_at` is Unix seconds or None."""

    session_id: str
    model: str
    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]
    proactive: bool
    settings: SessionSettings
    resume_token: str | None = None
    resumed: bool = False
    limits: dict[str, float] = {}
    expires_at: float | None = None
    voices: tuple[str, ...] = ()
    default_output: tuple[Modality, ...] = ()
    """What a response gives when nobody names modalities."""


class SessionResumed(_Event, frozen=True, kw_only=True):
    """The session goes on over another connection. `seq`: number of the message that follows; `replayed`
    messages are sent again, `lost` are not kept any more; `received` messages of the client have arrived."""

    session_id: str
    seq: int
    replayed: int
    lost: int
    received: int


class SessionUpdated(_Event, frozen=True, kw_only=True):
    settings: SessionSettings
    event_id: str | None = None


class ResponseCreated(_Event, frozen=True, kw_only=True):
    response_id: str
    index: int
    modalities: tuple[Modality, ...] = ()
    settings: SessionSettings = SessionSettings()
    event_id: str | None = None


class ResponseText(_Event, frozen=True, kw_only=True):
    response_id: str
    index: int
    text: str


class ResponseAudio(_Event, frozen=True, kw_only=True):
    """Encoded audio. `pts` is the first sample's position in the response, at the output rate;
    `duration_ms` is the sound that went into the encoder for it."""

    response_id: str
    index: int
    payload: bytes
    format: AudioFormat
    pts: int
    duration_ms: float
    level_dbfs: float = -120.0
    text: str = ""


class ResponseToolCall(_Event, frozen=True, kw_only=True):
    """A call of one of the client's functions, or more of its `arguments`."""

    response_id: str
    index: int
    call_id: str
    name: str
    arguments: str


class ResponseDone(_Event, frozen=True, kw_only=True):
    """Ended by itself. `incomplete`: its text had no tokens left for what there was to say."""

    response_id: str
    index: int
    text: str = ""
    audio_ms: float = 0.0
    incomplete: bool = False
    event_id: str | None = None


class ResponseCancelled(_Event, frozen=True, kw_only=True):
    """Ended early, or the answer to a cancel while idle (`response_id` is then empty).

    `heard_ms` of its audio and `heard_text` are what the user got.
    """

    response_id: str
    index: int
    reason: CancelReason
    heard_ms: float = 0.0
    heard_text: str = ""
    event_id: str | None = None


class ResponseFailed(_Event, frozen=True, kw_only=True):
    """The model could not go on. `event_id`: the client's message that asked for the response."""

    response_id: str
    index: int
    code: ErrorCode
    message: str
    event_id: str | None = None


class PlaybackCleared(_Event, frozen=True, kw_only=True):
    """A finished response whose sound is still unplayed was interrupted: stop playing it."""

    response_id: str
    index: int
    heard_ms: float
    heard_text: str


class UserSpeechStarted(_Event, frozen=True, kw_only=True):
    at_ms: float


class UserSpeechStopped(_Event, frozen=True, kw_only=True):
    at_ms: float


class UserOverheard(_Event, frozen=True, kw_only=True):
    """The user's speech since `at_ms` was no interruption, by the settings: the voice goes on, and `text`, if
    it was written down, is in no turn."""

    at_ms: float
    text: str = ""


class UserIdle(_Event, frozen=True, kw_only=True):
    """The user has said nothing for `idle_timeout_ms`: from `start_ms` to `end_ms` of the input audio. The
    model speaks next."""

    start_ms: float
    end_ms: float


class PlaybackDucked(_Event, frozen=True, kw_only=True):
    """The user may be interrupting: lower the voice until it is cut (`ResponseCancelled`, `PlaybackCleared`)
    or `PlaybackUnducked`. The response is the one that sounds."""

    response_id: str
    index: int


class PlaybackUnducked(_Event, frozen=True, kw_only=True):
    """It was no interruption: the voice goes on as before."""

    response_id: str
    index: int


class UserTranscript(_Event, frozen=True, kw_only=True):
    text: str
    final: bool
    started_ms: float | None = None
    item_id: str = ""
    """Of the item that a final transcript has become."""


class Acknowledged(_Event, frozen=True, kw_only=True):
    """A command was carried out whose outcome no other event tells. `heard_text`: what is left of a response
    that was truncated."""

    command: Command
    heard_text: str = ""


class GateDecided(_Event, frozen=True, kw_only=True):
    score: float
    speak: bool
    pts_ms: float | None = None
    segment_id: str = ""


class InputLagged(_Event, frozen=True, kw_only=True):
    lag_ms: float
    coalesced: int


class DrainNotice(_Event, frozen=True, kw_only=True):
    """The server is going away: the session ends within `grace_ms`."""

    grace_ms: float


class ErrorEvent(_Event, frozen=True, kw_only=True):
    code: ErrorCode
    message: str
    event_id: str | None = None
    param: str | None = None
    fatal: bool = False
    details: dict[str, Any] = {}
    owner: str | None = None
    """Address of the gateway that has what was asked for."""


class SessionEnded(_Event, frozen=True, kw_only=True):
    """The last event. Dialects that have no such message encode it as nothing."""

    code: int
    reason: str


Event: TypeAlias = (
    SessionCreated
    | SessionResumed
    | SessionUpdated
    | ResponseCreated
    | ResponseText
    | ResponseAudio
    | ResponseToolCall
    | ResponseDone
    | ResponseCancelled
    | ResponseFailed
    | PlaybackCleared
    | UserSpeechStarted
    | UserSpeechStopped
    | UserOverheard
    | UserIdle
    | PlaybackDucked
    | PlaybackUnducked
    | UserTranscript
    | Acknowledged
    | GateDecided
    | InputLagged
    | DrainNotice
    | ErrorEvent
    | SessionEnded
)
