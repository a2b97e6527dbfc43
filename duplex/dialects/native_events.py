"""The native dialect's server-to-client messages as types: the server encodes them, the client decodes them.

Every message is one struct; its fields are exactly the keys on the wire, its tag is the `type`. Fields with
the default `UNSET` belong to an extension: they are absent unless the client asked for it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType


class Extension(StrEnum):
    """Groups of private events and fields that a client may ask for; `duplex.dialects.native` lists them."""

    SIGNALS = "signals"
    PLAYBACK = "playback"
    LIFECYCLE = "lifecycle"
    RESUME = "resume"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the session's model takes and gives."""

    input_modalities: tuple[str, ...] = ()
    output_modalities: tuple[str, ...] = ()
    proactive: bool = False


class SessionCreated(_Message, frozen=True, kw_only=True, tag="session.created"):
    """The session is open, or, with `resumed`, open again. `expires_at`: Unix seconds."""

    session_id: str
    model: str
    capabilities: Capabilities = Capabilities()
    resume_token: str | None = None
    limits: dict[str, float] = {}
    expires_at: float | None = None
    # lifecycle
    session: dict[str, Any] | UnsetType = UNSET
    resumed: bool | UnsetType = UNSET


class SessionResumed(_Message, frozen=True, kw_only=True, tag="session.resumed"):
    """Resume: the session goes on over this connection. `seq`: number of the message that follows; `replayed`
    messages are sent again, `lost` are not kept any more; `received` messages of the client have arrived."""

    session_id: str
    seq: int
    replayed: int
    lost: int
    received: int


class SessionUpdated(_Message, frozen=True, kw_only=True, tag="session.updated"):
    """Lifecycle: the settings after a `session.update`, all of them."""

    session: dict[str, Any]
    event_id: str | None = None


class ResponseCreated(_Message, frozen=True, kw_only=True, tag="response.created"):
    response_index: int


class ResponseDelta(_Message, frozen=True, kw_only=True, tag="response.delta"):
    """More of a response: text as it is, audio as base64."""

    response_index: int
    modality: Literal["text", "audio"]
    data: str


class ResponseDone(_Message, frozen=True, kw_only=True, tag="response.done"):
    """The response ended by itself. `audio_ms`: the audio that was generated."""

    response_index: int
    # playback
    audio_ms: float | UnsetType = UNSET


class ResponseCancelled(_Message, frozen=True, kw_only=True, tag="response.cancelled"):
    """The response ended early, or was not running when it was cancelled.

    `reason`: client_cancelled, turn_detected, superseded, client_gone, closing, or failed (an `error` came
    before). `heard_ms` of its audio and `heard_text` are what the user got.
    """

    response_index: int
    # playback
    reason: str | UnsetType = UNSET
    heard_ms: float | UnsetType = UNSET
    heard_text: str | UnsetType = UNSET
    event_id: str | UnsetType | None = UNSET


class PlaybackClear(_Message, frozen=True, kw_only=True, tag="playback.clear"):
    """Playback: a response that is done but still sounding was interrupted. Stop playing it."""

    response_index: int
    heard_ms: float
    heard_text: str


class SpeechStarted(_Message, frozen=True, kw_only=True, tag="input.speech_started"):
    """Signals: the user began to speak at `at_ms` of the session's input audio."""

    at_ms: float


class SpeechStopped(_Message, frozen=True, kw_only=True, tag="input.speech_stopped"):
    """Signals: the user's speech ended at `at_ms` of the session's input audio."""

    at_ms: float


class InputOverheard(_Message, frozen=True, kw_only=True, tag="input.overheard"):
    """Signals: the user's speech since `at_ms` was no interruption: the voice goes on. `text`: what was
    written down of it; it is in no turn."""

    at_ms: float
    text: str


class InputIdle(_Message, frozen=True, kw_only=True, tag="input.idle"):
    """Signals: the user has said nothing for `idle_timeout_ms`, up to `end_ms` of the input audio."""

    start_ms: float
    end_ms: float


class PlaybackDuck(_Message, frozen=True, kw_only=True, tag="playback.duck"):
    """Playback: the user may be interrupting. Lower the voice until `playback.unduck`, or until it is cut."""

    response_index: int


class PlaybackUnduck(_Message, frozen=True, kw_only=True, tag="playback.unduck"):
    """Playback: it was no interruption. The voice goes on as loud as before."""

    response_index: int


class InputTranscript(_Message, frozen=True, kw_only=True, tag="input.transcript"):
    """Signals: what the user is heard to say. A partial replaces the one before it."""

    text: str
    final: bool


class GateScore(_Message, frozen=True, kw_only=True, tag="gate.score"):
    """Signals: a decision of the proactive gate."""

    score: float
    speak: bool
    pts_ms: float | None = None
    segment_id: str = ""


class InputLag(_Message, frozen=True, kw_only=True, tag="input.lag"):
    """Signals: how far analysis is behind the input; windows merged to keep up."""

    lag_ms: float
    coalesced: int


class DrainNotice(_Message, frozen=True, kw_only=True, tag="drain.notice"):
    """Lifecycle: the server is going away; the session ends within `grace_ms`."""

    grace_ms: float


class ErrorMessage(_Message, frozen=True, kw_only=True, tag="error"):
    """A named fault. `event_id` is the client's message that caused it, `param` the field at fault."""

    message: str
    code: str = ""
    event_id: str | None = None
    param: str | None = None
    fatal: bool = False
    owner: str | UnsetType = UNSET
    """With `resume_elsewhere`: the address of the gateway that has the session."""


ServerMessage: TypeAlias = (
    SessionCreated
    | SessionResumed
    | SessionUpdated
    | ResponseCreated
    | ResponseDelta
    | ResponseDone
    | ResponseCancelled
    | PlaybackClear
    | PlaybackDuck
    | PlaybackUnduck
    | SpeechStarted
    | SpeechStopped
    | InputOverheard
    | InputIdle
    | InputTranscript
    | GateScore
    | InputLag
    | DrainNotice
    | ErrorMessage
)
