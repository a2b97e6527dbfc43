"""What a client is told: the server's messages, decoded, and what the client itself has to tell.

The messages are the structs of `duplex.dialects.native_events`, but for deltas, which come decoded as
`TextDelta` and `AudioDelta`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.dialects.native_events import (
    DrainNotice,
    ErrorMessage,
    GateScore,
    InputIdle,
    InputLag,
    InputOverheard,
    InputTranscript,
    PlaybackClear,
    PlaybackDuck,
    PlaybackUnduck,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    SessionCreated,
    SessionResumed,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
)

__all__ = [
    "AudioDelta",
    "ClientEvent",
    "Disconnected",
    "DrainNotice",
    "ErrorMessage",
    "GateScore",
    "InputIdle",
    "InputLag",
    "InputOverheard",
    "InputTranscript",
    "PlaybackClear",
    "PlaybackDuck",
    "PlaybackUnduck",
    "Reconnected",
    "ResponseCancelled",
    "ResponseCreated",
    "ResponseDone",
    "SessionCreated",
    "SessionResumed",
    "SessionUpdated",
    "SpeechStarted",
    "SpeechStopped",
    "TextDelta",
    "UnknownEvent",
]


class _Local(msgspec.Struct, frozen=True, kw_only=True):
    pass


class TextDelta(_Local, frozen=True, kw_only=True):
    """More of a response's text: whole characters."""

    response_index: int
    text: str


class AudioDelta(_Local, frozen=True, kw_only=True):
    """More of a response's audio, as the session's output format encodes it.

    `pts` is the first sample's place in the response, None where only the server could know (JSON frames
    of a compressed format). `sample_rate` in Hz.
    """

    response_index: int
    data: bytes
    codec: str
    sample_rate: int
    pts: int | None = None

    @property
    def samples(self) -> NDArray[np.int16]:
        """The samples, shape (n,). Raises `ValueError` for a codec that is not `pcm_s16le`."""
        if self.codec != "pcm_s16le":
            raise ValueError(f"audio in {self.codec} has to be decoded first")
        return np.frombuffer(self.data, "<i2")


class Disconnected(_Local, frozen=True, kw_only=True):
    """The connection broke; the client is trying to resume the session. Input is kept meanwhile."""

    reason: str


class Reconnected(_Local, frozen=True, kw_only=True):
    """The session goes on over another connection. `kept` messages are sent that were kept meanwhile, or had
    not arrived; `replayed` messages follow that were missed. `lost` are those that nobody has any more."""

    attempts: int
    kept: int
    replayed: int = 0
    lost: int = 0


class UnknownEvent(_Local, frozen=True, kw_only=True):
    """A message of a newer server."""

    type: str
    fields: dict[str, Any]


ClientEvent: TypeAlias = (
    SessionCreated
    | SessionResumed
    | SessionUpdated
    | ResponseCreated
    | TextDelta
    | AudioDelta
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
    | Disconnected
    | Reconnected
    | UnknownEvent
)
