"""The native dialect: `WS /v1/duplex` and `WS /v1/mage-vl/duplex`.

A message is one JSON object with a `type`; with `?frames=binary` media may also travel in binary frames
(`duplex.dialects.native_frames`), and response audio always does. Messages of the server are the structs of
`duplex.dialects.native_events`, key by key.

Client to server, every message with an optional `event_id` that an error carries back. A field of a message
that is not known is ignored, one inside `session` or `response` is refused by name; null is "absent".

| type | fields |
| --- | --- |
| `input.append` | `modality`, `data`: see `duplex.dialects.windows`. Audio without a rate is 16 kHz |
| `input.commit` | |
| `response.create` | `response`: `{speak, modalities}`, both optional. `speak`: say exactly this text |
| `response.cancel` | `response_index`, optional |
| `playback.ack` | `cursor` (ms), `response_index`, optional |
| `session.update` | `session`: settings to change; `extensions`: replaces the set of the handshake |
| `session.resume` | `resume_token`, `last_seq`, `session_id`, the last two optional |
| `close` | |

Query parameters: `session_id`, `model`, `resume`, `last_seq`, `frames` (json, binary), `ext` (extensions, by
comma), and settings: `voice`, `instructions`, `output_modalities` (by comma), `codec`, `sample_rate`,
`gate_threshold`, `max_run_ahead_ms`, `turn_detection=none`. The token is read by the server.

What is sent only to a client that asked for it, by `?ext=` or `session.update`:

| extension | messages | fields |
| --- | --- | --- |
| signals | `input.speech_started`, `input.speech_stopped`, `input.transcript`, `gate.score`, `input.lag` | |
| playback | `playback.clear` | `response.cancelled`: `reason`, `heard_ms`, `heard_text`, `event_id` |
| playback | | `response.done`: `audio_ms` |
| lifecycle | `session.updated`, `drain.notice` | `session.created`: `session`, `resumed` |
| resume | `session.resumed` | every message: `seq`, its number |

A response that fails ends with `error`, then `response.cancelled`: every index gets one terminal message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import pybase64
from msgspec import UNSET

from duplex.core.commands import Append, Command
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import (
    DrainNotice,
    ErrorEvent,
    Event,
    GateDecided,
    InputLagged,
    PlaybackCleared,
    PlaybackDucked,
    PlaybackUnducked,
    ResponseAudio,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    ResponseFailed,
    ResponseText,
    SessionCreated,
    SessionEnded,
    SessionResumed,
    SessionUpdated,
    UserIdle,
    UserOverheard,
    UserSpeechStarted,
    UserSpeechStopped,
    UserTranscript,
)
from duplex.core.settings import apply_changes
from duplex.core.types import (
    AudioWindow,
    ImageWindow,
    Modality,
    SessionSettings,
    VideoWindow,
    Window,
)
from duplex.dialects import native_events as wire
from duplex.dialects.base import Frame, OpenRequest
from duplex.dialects.fields import MAX_ID, Fields
from duplex.dialects.native_commands import COMMANDS, event_id_of, extensions_of, last_seq_of, settings_of
from duplex.dialects.native_events import Extension
from duplex.dialects.native_frames import MAX_PTS, BinaryFrame, FrameKind, pack, unpack
from duplex.dialects.strict_json import json_type, parse_object
from duplex.dialects.windows import (
    DEFAULT_SAMPLE_RATE,
    check_clock,
    check_sample_rate,
    codec_window_from_msgpack,
    modality_of,
    still,
    video_kind,
    window_from_message,
)

MAX_ERROR_MESSAGE: Final = 1000
"""Characters of an error's message: a hostile key or value is not sent back at length."""

_encoder = msgspec.json.Encoder()


class NativeDialect:
    """One connection's translation. Call `open` once, first."""

    def __init__(self) -> None:
        self._binary = False
        self._extensions: frozenset[Extension] = frozenset()
        self._inputs: tuple[Modality, ...] | None = None
        self._delta_index = 0
        self._delta_head = ""

    @property
    def resumable(self) -> bool:
        return Extension.RESUME in self._extensions

    # --- handshake ----------------------------------------------------------------------------------

    def open(self, query: Mapping[str, str], headers: Mapping[str, str]) -> OpenRequest:
        """Read the query. Parameters that are not ours are ignored: addresses get decorated on their way.

        Raises:
            DuplexError: `BAD_CONFIG`, with `param`.
        """
        frames = query.get("frames", "json")
        if frames not in ("json", "binary"):
            raise DuplexError(ErrorCode.BAD_CONFIG, "frames must be json or binary", param="frames")
        self._binary = frames == "binary"
        try:
            self._extensions = extensions_of(query.get("ext", "").split(","), "ext")
            settings = settings_of(query)
            last_seq = last_seq_of(query)
            apply_changes(SessionSettings(), settings)
        except DuplexError as error:
            raise DuplexError(ErrorCode.BAD_CONFIG, error.message, param=error.param) from None
        return OpenRequest(
            session_id=query.get("session_id"),
            model=query.get("model") or None,
            resume_token=query.get("resume") or None,
            last_seq=last_seq,
            binary=self._binary,
            extensions=frozenset(map(str, self._extensions)),
            settings=settings,
        )

    # --- client to server ---------------------------------------------------------------------------

    def decode(self, frame: Frame) -> list[Command]:
        if isinstance(frame, str):
            return [self._decode_message(parse_object(frame))]
        if not self._binary:
            raise DuplexError(
                ErrorCode.INVALID_FRAME,
                "a message must be a JSON object in a text frame; binary frames need ?frames=binary",
            )
        return [Append(window=self._decode_frame(unpack(frame)))]

    def _decode_message(self, values: dict[str, Any]) -> Command:
        message = Fields(values)
        event_id = event_id_of(message)
        try:
            kind = values.get("type")
            if not isinstance(kind, str):
                raise DuplexError(
                    ErrorCode.MISSING_TYPE,
                    f"the message must be a JSON object with a string type, not {json_type(kind)}",
                    param="type",
                )
            if kind == "input.append":
                self._check_modality(modality_of(message))
                return Append(window=window_from_message(message), event_id=event_id)
            command = COMMANDS.get(kind)
            if command is None:
                raise DuplexError(ErrorCode.UNKNOWN_TYPE, f"unknown message type: {kind[:64]}", param="type")
            if kind == "session.update" and "extensions" in message:
                wanted = extensions_of(message.strings("extensions"), "extensions")
                decoded = command(message, event_id)
                self._extensions = wanted
                return decoded
            return command(message, event_id)
        except DuplexError as error:
            error.event_id = event_id
            raise

    def _check_modality(self, modality: Modality) -> None:
        """Before the data is looked at: what the model cannot take need not be well-formed."""
        if self._inputs is not None and modality not in self._inputs:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_MODALITY, f"unsupported input modality: {modality}", param="modality"
            )

    def _decode_frame(self, frame: BinaryFrame) -> Window:
        modality = _FRAME_MODALITIES.get(frame.kind)
        if modality is None:
            raise DuplexError(
                ErrorCode.INVALID_FRAME, f"frames of kind {frame.kind} ({frame.kind.name}) are for output"
            )
        if frame.response_index:
            raise DuplexError(ErrorCode.INVALID_FRAME, "the response index of an input frame must be 0")
        self._check_modality(modality)
        payload = frame.payload
        if not payload:
            raise DuplexError(ErrorCode.EMPTY_INPUT, f"the {modality} frame has no payload")
        match modality:
            case Modality.AUDIO:
                rate = check_sample_rate(frame.flags or DEFAULT_SAMPLE_RATE, "flags")
                return AudioWindow(pcm=payload, sample_rate=rate)
            case Modality.IMAGE:
                return ImageWindow(data=still(payload, "the payload"), pts_ms=check_clock(frame.pts, "pts"))
            case Modality.VIDEO:
                return VideoWindow(
                    kind=video_kind(payload),
                    data=payload,
                    pts_ms=check_clock(frame.pts, "pts"),
                    duration_ms=float(frame.flags) if frame.flags else None,
                )
            case _:
                return codec_window_from_msgpack(payload, frame.pts)

    # --- server to client ---------------------------------------------------------------------------

    def encode(self, event: Event) -> list[Frame]:
        if isinstance(event, ResponseAudio):
            return self._encode_audio(event)
        if isinstance(event, SessionCreated):
            self._inputs = event.input_modalities
        return [_encoder.encode(message).decode() for message in self._messages(event)]

    def _encode_audio(self, event: ResponseAudio) -> list[Frame]:
        """The hot path: about 1 µs for 20 ms of PCM."""
        if not event.payload:
            return []  # the encoder is still filling its frame
        if self._binary:
            return [
                pack(
                    FrameKind.AUDIO_OUT,
                    event.payload,
                    response_index=event.index,
                    pts=min(event.pts, MAX_PTS),
                    flags=event.format.sample_rate,
                )
            ]
        if event.index != self._delta_index:
            self._delta_index = event.index
            delta = wire.ResponseDelta(response_index=event.index, modality="audio", data="")
            self._delta_head = _encoder.encode(delta).decode().removesuffix('"}')
        return [f'{self._delta_head}{pybase64.b64encode_as_string(event.payload)}"}}']

    def _messages(self, event: Event) -> Iterable[wire.ServerMessage]:
        signals = Extension.SIGNALS in self._extensions
        playback = Extension.PLAYBACK in self._extensions
        lifecycle = Extension.LIFECYCLE in self._extensions
        match event:
            case ResponseText():
                yield wire.ResponseDelta(response_index=event.index, modality="text", data=event.text)
            case ResponseCreated():
                yield wire.ResponseCreated(response_index=event.index)
            case ResponseDone():
                yield wire.ResponseDone(
                    response_index=event.index, audio_ms=_ms(event.audio_ms) if playback else UNSET
                )
            case ResponseCancelled():
                yield wire.ResponseCancelled(
                    response_index=event.index,
                    reason=event.reason.value if playback else UNSET,
                    heard_ms=_ms(event.heard_ms) if playback else UNSET,
                    heard_text=event.heard_text if playback else UNSET,
                    event_id=event.event_id if playback else UNSET,
                )
            case ResponseFailed():
                yield _error(event.code, event.message, event.event_id)
                yield wire.ResponseCancelled(
                    response_index=event.index, reason="failed" if playback else UNSET
                )
            case ErrorEvent():
                yield _error(event.code, event.message, event.event_id, event.param, event.fatal, event.owner)
            case SessionResumed():
                yield wire.SessionResumed(
                    session_id=event.session_id,
                    seq=event.seq,
                    replayed=event.replayed,
                    lost=event.lost,
                    received=event.received,
                )
            case SessionCreated():
                yield _session_created(event, lifecycle)
            case SessionUpdated() if lifecycle:
                yield wire.SessionUpdated(
                    session=msgspec.to_builtins(event.settings), event_id=event.event_id
                )
            case PlaybackCleared() if playback:
                yield wire.PlaybackClear(
                    response_index=event.index,
                    heard_ms=_ms(event.heard_ms),
                    heard_text=event.heard_text,
                )
            case PlaybackDucked() if playback:
                yield wire.PlaybackDuck(response_index=event.index)
            case PlaybackUnducked() if playback:
                yield wire.PlaybackUnduck(response_index=event.index)
            case UserOverheard() if signals:
                yield wire.InputOverheard(at_ms=event.at_ms, text=event.text)
            case UserIdle() if signals:
                yield wire.InputIdle(start_ms=event.start_ms, end_ms=event.end_ms)
            case UserSpeechStarted() if signals:
                yield wire.SpeechStarted(at_ms=event.at_ms)
            case UserSpeechStopped() if signals:
                yield wire.SpeechStopped(at_ms=event.at_ms)
            case UserTranscript() if signals:
                yield wire.InputTranscript(text=event.text, final=event.final)
            case GateDecided() if signals:
                yield wire.GateScore(
                    score=event.score, speak=event.speak, pts_ms=event.pts_ms, segment_id=event.segment_id
                )
            case InputLagged() if signals:
                yield wire.InputLag(lag_ms=event.lag_ms, coalesced=event.coalesced)
            case DrainNotice() if lifecycle:
                yield wire.DrainNotice(grace_ms=event.grace_ms)
            case SessionEnded():
                pass  # the close code and reason say it


_FRAME_MODALITIES: Final = {
    FrameKind.AUDIO_IN: Modality.AUDIO,
    FrameKind.IMAGE: Modality.IMAGE,
    FrameKind.VIDEO: Modality.VIDEO,
    FrameKind.CODEC_WINDOW: Modality.CODEC_WINDOW,
}


# --- the messages that a server sends ---------------------------------------------------------------


def _ms(value: float) -> float:
    """To 0.1 ms: below that the clock of a playback is noise."""
    return round(value, 1)


def _session_created(event: SessionCreated, lifecycle: bool) -> wire.SessionCreated:
    return wire.SessionCreated(
        session_id=event.session_id,
        model=event.model,
        capabilities=wire.Capabilities(
            input_modalities=tuple(map(str, event.input_modalities)),
            output_modalities=tuple(map(str, event.output_modalities)),
            proactive=event.proactive,
        ),
        resume_token=event.resume_token,
        limits=event.limits,
        expires_at=event.expires_at,
        session=msgspec.to_builtins(event.settings) if lifecycle else UNSET,
        resumed=event.resumed if lifecycle else UNSET,
    )


def _error(
    code: ErrorCode,
    message: str,
    event_id: str | None = None,
    param: str | None = None,
    fatal: bool = False,
    owner: str | None = None,
) -> wire.ErrorMessage:
    return wire.ErrorMessage(
        message=message[:MAX_ERROR_MESSAGE],
        code=code.value,
        event_id=event_id,
        param=param[:MAX_ID] if param else param,
        fatal=fatal,
        owner=owner or UNSET,
    )
