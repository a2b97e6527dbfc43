"""Values that every part shares: media windows, settings, turns, what adapters yield.

All are immutable. Times are milliseconds unless a name says otherwise; `now` is seconds of a monotonic
clock that the caller injects. Audio is mono.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.core.errors import DuplexError, ErrorCode

Samples: TypeAlias = NDArray[np.int16] | NDArray[np.float32]


class Modality(StrEnum):
    """Kinds of input and output."""

    TEXT = "text"
    AUDIO = "audio"
    IMAGE = "image"
    VIDEO = "video"
    CODEC_WINDOW = "codec_window"


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the value types: immutable, slotted, keyword-only."""


# --- input -----------------------------------------------------------------------------------------


class TextWindow(_Value, frozen=True, kw_only=True, tag="text"):
    """Text that the user wrote. Before a video window it is an explicit question."""

    text: str

    @property
    def modality(self) -> Modality:
        return Modality.TEXT


class AudioWindow(_Value, frozen=True, kw_only=True, tag="audio"):
    """Microphone audio: whole samples, signed 16-bit little-endian, mono.

    `playout_dbfs` is the level (dBFS, RMS) of the gateway's own audio that the user's speaker is
    playing now, None when nothing is unplayed; echo-aware turn detectors raise their threshold by it.
    """

    pcm: bytes
    sample_rate: int
    playout_dbfs: float | None = None

    @property
    def modality(self) -> Modality:
        return Modality.AUDIO

    @property
    def duration_ms(self) -> float:
        return len(self.pcm) / 2 / self.sample_rate * 1000


class ImageWindow(_Value, frozen=True, kw_only=True, tag="image"):
    """One encoded still: JPEG, PNG or WebP."""

    data: bytes
    pts_ms: float | None = None

    @property
    def modality(self) -> Modality:
        return Modality.IMAGE


class VideoWindow(_Value, frozen=True, kw_only=True, tag="video"):
    """One piece of video: a container or elementary stream in `data`, or encoded stills in `frames`.

    `kind` is a media type such as `video/mp4`; `pts_ms` and `duration_ms` place it on the client's clock.
    """

    kind: str
    data: bytes = b""
    frames: tuple[bytes, ...] = ()
    segment_id: str = ""
    pts_ms: float | None = None
    duration_ms: float | None = None
    metadata: dict[str, Any] = {}

    @property
    def modality(self) -> Modality:
        return Modality.VIDEO


class CodecWindow(_Value, frozen=True, kw_only=True, tag="codec_window"):
    """Codec side information without pixels (motion vectors, residual energy, …), from the client."""

    kind: str
    codec: dict[str, Any]
    segment_id: str = ""
    pts_ms: float | None = None
    duration_ms: float | None = None
    metadata: dict[str, Any] = {}

    @property
    def modality(self) -> Modality:
        return Modality.CODEC_WINDOW


Window: TypeAlias = TextWindow | AudioWindow | ImageWindow | VideoWindow | CodecWindow


# --- settings --------------------------------------------------------------------------------------

AudioCodec: TypeAlias = Literal[
    "pcm_s16le", "pcm_f32le", "wav", "flac", "mp3", "aac", "opus", "g711_ulaw", "g711_alaw"
]


class AudioFormat(_Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How response audio is sent. `sample_rate` is in Hz."""

    codec: AudioCodec = "pcm_s16le"
    sample_rate: Literal[8000, 16000, 22050, 24000, 44100, 48000] = 24000


class TurnDetection(_Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Server-side turn taking by voice activity. Times in ms, `threshold` a probability.

    A turn ends after `silence_duration_ms` (`server_vad`), or after a time that depends on whether what was
    said is complete, and on `eagerness` (`semantic_vad`). `idle_timeout_ms`: the model speaks when the user
    says nothing for this long after it; None is never.

    Speech interrupts the model's voice (`interrupt_response`) at once, or, with `interrupt_min_words` or
    `interrupt_min_ms` above 0, when it has that many words or has lasted that long; meanwhile clients that
    can are told to `duck` the voice. With `resume_interrupted` a voice that was cut by what turns out to be
    no speech goes on where it stopped.
    """

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    min_speech_ms: int = 120
    eagerness: Literal["low", "medium", "auto", "high"] = "auto"
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True
    interrupt_min_words: int = 0
    interrupt_min_ms: int = 0
    duck: bool = False
    resume_interrupted: bool = True


class ToolSpec(_Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function of the client that the model may call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class SessionSettings(_Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may change by `session.update`. `None` modalities or voice: the model's default.

    `turn_detection` None means manual turns. `max_run_ahead_ms` bounds how far audio is sent ahead of
    playback; 0 is no bound. `gate_threshold` is the proactive gate's probability. `options` belong to
    the model's adapter, which refuses keys that it does not know. `tool_choice` is auto, none, required or
    the name of one of the `tools`. `max_output_tokens` bounds the text of a response for models that count
    tokens; None is the model's own bound.
    """

    instructions: str = ""
    voice: str | None = None
    output_modalities: tuple[Modality, ...] | None = None
    output_format: AudioFormat = AudioFormat()
    turn_detection: TurnDetection | None = TurnDetection()
    gate_threshold: float = 0.5
    max_run_ahead_ms: int = 4000
    options: dict[str, Any] = {}
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    max_output_tokens: int | None = None


class OpenSession(_Value, frozen=True, kw_only=True):
    """What an adapter learns when a session opens."""

    session_id: str
    settings: SessionSettings


# --- turns -----------------------------------------------------------------------------------------


class Trigger(StrEnum):
    """Why a response starts."""

    CREATE = "create"  # response.create
    COMMIT = "commit"  # input.commit
    QUESTION = "question"  # text followed by a video window
    SPEECH = "speech"  # turn detection ended the user's turn
    PROACTIVE = "proactive"  # the model asked to speak
    IDLE = "idle"  # the user has said nothing for `idle_timeout_ms`
    RESUMED = "resumed"  # what cut the voice was no speech: `speak_text` is what was not heard


class HistoryItem(_Value, frozen=True, kw_only=True):
    """One item of the conversation. For the assistant, `text` is only what was heard.

    With a `call_id` it is a call of the assistant (`name`, and `text` its arguments as JSON), or, in the role
    tool, what the call gave.
    """

    role: Literal["user", "assistant", "system", "tool"]
    text: str
    response_index: int | None = None
    interrupted: bool = False
    call_id: str = ""
    name: str = ""


class Turn(_Value, frozen=True, kw_only=True):
    """What an adapter is asked to answer.

    `question` is the user's text since the last turn, joined by newlines, or None. `windows` is the
    session's bounded history, oldest first. `speak_text`: say exactly this text, do not answer it.
    `event_id` names the proactive event that asked for the response.
    """

    response_id: str
    index: int
    epoch: int
    trigger: Trigger
    settings: SessionSettings
    modalities: tuple[Modality, ...]
    question: str | None = None
    speak_text: str | None = None
    event_id: str | None = None
    history: tuple[HistoryItem, ...] = ()
    windows: tuple[Window, ...] = ()


# --- what adapters yield ---------------------------------------------------------------------------


class TextDelta(_Value, frozen=True, kw_only=True):
    """More of the response's text: whole characters."""

    text: str


class AudioDelta(_Value, frozen=True, kw_only=True):
    """More of the response's audio: mono samples, shape (n,), int16 or float32 in [-1, 1].

    `text` is the part of the response's text that these samples speak; history is cut by it when the
    user interrupts. Empty when the model cannot say.
    """

    samples: Samples
    sample_rate: int
    text: str = ""


class ToolCallDelta(_Value, frozen=True, kw_only=True):
    """A call of one of the turn's tools, or more of it: `arguments` are pieces of a JSON object's text. A
    call is complete when another begins or the response ends; the client answers it, in a later turn."""

    call_id: str
    name: str
    arguments: str = ""


class LengthReached(_Value, frozen=True, kw_only=True):
    """The response is not complete: its text has as many tokens as it may have. Yielded last."""


Delta: TypeAlias = TextDelta | AudioDelta | ToolCallDelta | LengthReached


class EncodedAudio(_Value, frozen=True, kw_only=True):
    """An audio delta after the response's encoder: what the core is given.

    `samples` counts what went into the encoder, at the output rate; `payload` may be empty while an encoder
    fills its frame. `level_dbfs` is the RMS level of those samples.
    """

    payload: bytes
    samples: int
    sample_rate: int
    level_dbfs: float = -120.0
    text: str = ""


Delivery: TypeAlias = TextDelta | EncodedAudio | ToolCallDelta | LengthReached
"""What the core is given of a response."""


class SpeechStarted(_Value, frozen=True, kw_only=True):
    """The user began to speak at `at_ms` of the session's input audio (pre-roll included)."""

    at_ms: float


class SpeechContinued(_Value, frozen=True, kw_only=True):
    """The user's speech has lasted `speech_ms`, silence not counted. Told when that reaches
    `TurnDetection.interrupt_min_ms`; a model that does not tell it is asked at the end of the speech."""

    speech_ms: float


class SpeechStopped(_Value, frozen=True, kw_only=True):
    """The user's speech ended at `at_ms` of the session's input audio."""

    at_ms: float


class Transcript(_Value, frozen=True, kw_only=True):
    """What the user is heard to say. A partial replaces the partial before it; the final replaces all.

    `started_ms` is the `SpeechStarted.at_ms` of the speech that it writes down, where there was one. An empty
    final: that was no speech.
    """

    text: str
    final: bool = False
    started_ms: float | None = None


class TurnEnded(_Value, frozen=True, kw_only=True):
    """The user's turn is over: respond, if the settings say so."""


class WantsToSpeak(_Value, frozen=True, kw_only=True):
    """A proactive model asks for a response. An event that was answered is not answered again."""

    event_id: str
    score: float = 1.0


class GateScore(_Value, frozen=True, kw_only=True):
    """A gate decision, for clients and metrics: probability, and the window's time."""

    score: float
    pts_ms: float | None = None
    segment_id: str = ""


class InputLag(_Value, frozen=True, kw_only=True):
    """How far analysis is behind the input, and how many windows were merged to keep up."""

    lag_ms: float
    coalesced: int = 0


class InputRejected(_Value, frozen=True, kw_only=True):
    """A window that could not be used, found after `append` returned (a truncated file, say).

    `param` names the field that is at fault, where it is one.
    """

    code: ErrorCode
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: DuplexError) -> Self:
        """The refusal of a window by this error."""
        return cls(code=error.code, message=error.message, param=error.param)


Signal: TypeAlias = (
    SpeechStarted
    | SpeechContinued
    | SpeechStopped
    | Transcript
    | TurnEnded
    | WantsToSpeak
    | GateScore
    | InputLag
    | InputRejected
)
