"""The client's side of the native dialect, sans-I/O: requests to frames, frames to events, fencing.

A delta of a response that is not running, or that this client has cancelled, is dropped by its index: it
cannot reach a player, whatever was already on its way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pybase64
from msgspec import UNSET
from numpy.typing import NDArray

from duplex.clients.errors import ClientError, error_code
from duplex.clients.events import AudioDelta, ClientEvent, TextDelta, UnknownEvent
from duplex.codecs.number_arrays import pack_numbers
from duplex.codecs.pcm import to_int16
from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects import native_events as wire
from duplex.dialects.native_frames import FrameKind, pack, unpack
from duplex.dialects.windows import video_kind

Frame: TypeAlias = str | bytes
Audio: TypeAlias = bytes | NDArray[np.int16] | NDArray[np.float32]

EXTENSIONS: Final = tuple(map(str, wire.Extension))
_REMEMBERED: Final = 256
"""Responses back from the newest whose cancelling is remembered."""
_SAMPLE_BYTES: Final = {"pcm_s16le": 2, "pcm_f32le": 4, "g711_ulaw": 1, "g711_alaw": 1}


class _Numbered(msgspec.Struct):
    seq: int | None = None


_numbered = msgspec.json.Decoder(_Numbered)
_decoder: msgspec.json.Decoder[wire.ServerMessage] = msgspec.json.Decoder(wire.ServerMessage)


class _Running:
    """A response that has begun and not ended: its format, and the place of its next sample."""

    __slots__ = ("codec", "next_pts", "sample_rate")

    def __init__(self, codec: str, sample_rate: int) -> None:
        self.codec = codec
        self.sample_rate = sample_rate
        self.next_pts = 0


class ClientProtocol:
    """One session's translation, over as many connections as it takes.

    Args:
        binary: media travel in binary frames (`frames=binary` was asked for).
        codec, sample_rate: the output format, until the server says otherwise.
    """

    def __init__(self, *, binary: bool, codec: str = "pcm_s16le", sample_rate: int = 24000) -> None:
        self.binary = binary
        self.session: wire.SessionCreated | None = None
        """The server's newest `session.created`."""
        self.settings: dict[str, Any] = {"output_format": {"codec": codec, "sample_rate": sample_rate}}
        """The session's settings as far as the server tells them (extension `lifecycle`)."""
        self.last_index = 0
        """Index of the newest response."""
        self.last_seq: int | None = None
        """Number of the newest message that came; None unless the server numbers them."""
        self.dropped_deltas = 0
        """Deltas of ended or cancelled responses that were dropped."""
        self.fatal: wire.ErrorMessage | None = None
        """The fatal error that the server announced, if it did."""
        self._running: dict[int, _Running] = {}
        self._cancelled: set[int] = set()
        self._lost: set[int] = set()
        self._ids = itertools.count(1)
        self._input_pts = 0

    # --- requests -----------------------------------------------------------------------------------

    def event_id(self) -> str:
        """A new id for a request."""
        return f"c{next(self._ids)}"

    def request(self, type: str, *, event_id: str | None = None, **fields: Any) -> str:
        """A JSON message. Fields that are None are left out."""
        message = {"type": type, **{k: v for k, v in fields.items() if v is not None}}
        if event_id is not None:
            message["event_id"] = event_id
        return msgspec.json.encode(message).decode()

    def append_text(self, text: str, *, event_id: str | None = None) -> str:
        return self._append("text", text, event_id)

    def append_audio(self, audio: Audio, sample_rate: int = 16000, *, event_id: str | None = None) -> Frame:
        """pcm16 bytes, or samples of shape (n,): int16, or float32 in [-1, 1]."""
        pcm = audio if isinstance(audio, bytes) else to_int16(audio).astype("<i2", copy=False).tobytes()
        if self.binary and event_id is None:
            frame = pack(FrameKind.AUDIO_IN, pcm, pts=self._input_pts, flags=sample_rate)
            self._input_pts += len(pcm) // 2
            return frame
        data = {"audio_base64": _b64(pcm), "sample_rate": sample_rate}
        return self._append("audio", data, event_id)

    def append_image(
        self, image: bytes, *, pts_ms: float | None = None, event_id: str | None = None
    ) -> Frame:
        """A JPEG, PNG or WebP. Its time travels in binary frames only."""
        if self.binary and event_id is None:
            return pack(FrameKind.IMAGE, image, pts=round(pts_ms or 0))
        return self._append("image", _b64(image), event_id)

    def append_video(
        self,
        data: bytes = b"",
        *,
        kind: str | None = None,
        frames: Iterable[bytes] = (),
        segment_id: str = "",
        pts_ms: float | None = None,
        duration_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        event_id: str | None = None,
    ) -> Frame:
        """A piece of video in `data`, or encoded stills in `frames`. Times in ms of the client's clock."""
        stills = [_b64(frame) for frame in frames]
        duration = duration_ms or 0
        plain = not (stills or segment_id or metadata or event_id)
        if self.binary and plain and pts_ms is not None and _fits(pts_ms, 64) and _fits(duration, 16):
            try:
                sniffed = video_kind(data)
            except DuplexError:
                sniffed = ""  # let the server say what is wrong with it
            if sniffed and kind in (None, sniffed):
                return pack(FrameKind.VIDEO, data, pts=int(pts_ms), flags=int(duration))
        window = {
            "kind": kind,
            "segment_id": segment_id or None,
            "pts_ms": pts_ms,
            "duration_ms": duration_ms,
            "metadata": dict(metadata) if metadata else None,
            "data": {"frames": stills} if stills else {"video_base64": _b64(data)},
        }
        return self._append("video", {k: v for k, v in window.items() if v is not None}, event_id)

    def append_codec_window(
        self,
        kind: str,
        codec: Mapping[str, Any],
        *,
        segment_id: str = "",
        pts_ms: float | None = None,
        duration_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        event_id: str | None = None,
    ) -> Frame:
        """Codec side information. `bytes` in `codec` stay bytes in binary frames, and are base64 in JSON.

        Arrays of numpy in `codec` go as bytes (`duplex.codecs.number_arrays`). Raises `DuplexError` for one
        that is not of numbers.
        """
        window = {
            "kind": kind,
            "codec": {k: pack_numbers(v) if isinstance(v, np.ndarray) else v for k, v in codec.items()},
            "segment_id": segment_id or None,
            "pts_ms": pts_ms,
            "duration_ms": duration_ms,
            "metadata": dict(metadata) if metadata else None,
        }
        window = {k: v for k, v in window.items() if v is not None}
        if self.binary and event_id is None and pts_ms is not None:
            return pack(FrameKind.CODEC_WINDOW, msgspec.msgpack.encode(window))
        return self._append("codec_window", window, event_id)

    def cancel(self, response_index: int | None = None, *, event_id: str | None = None) -> str:
        """Cancel a response, by default the newest that runs; from now on its deltas are dropped."""
        index = response_index if response_index is not None else max(self._running, default=None)
        if index is not None:
            self._fence(index)
        return self.request("response.cancel", response_index=index, event_id=event_id)

    def _append(self, modality: str, data: Any, event_id: str | None) -> str:
        return self.request("input.append", modality=modality, data=data, event_id=event_id)

    # --- what the server sends ----------------------------------------------------------------------

    def receive(self, frame: Frame) -> list[ClientEvent]:
        """Events of one frame; none for a stale delta.

        Raises:
            ClientError: the frame is none of the native dialect.
        """
        if isinstance(frame, bytes):
            if self.last_seq is not None:
                self.last_seq += 1
            return self._receive_audio(frame)
        try:
            message = _decoder.decode(frame)
        except msgspec.MsgspecError:
            self.last_seq = _seq_of(frame)
            return [_unknown(frame)]
        self.last_seq = message.seq - 1 if isinstance(message, wire.SessionResumed) else _seq_of(frame)
        match message:
            case wire.ResponseDelta():
                return self._receive_delta(message)
            case wire.ResponseCreated():
                self.last_index = message.response_index
                output = self.settings.get("output_format") or {}
                self._running[message.response_index] = _Running(
                    str(output.get("codec", "pcm_s16le")), int(output.get("sample_rate", 24000))
                )
            case wire.ResponseDone():
                if self._running.pop(message.response_index, None) is None:
                    return []
            case wire.ResponseCancelled():
                running = self._running.pop(message.response_index, None)
                self._fence(message.response_index)
                if running is None and message.response_index in self._lost:
                    self._lost.discard(message.response_index)
                    return []  # told already, when the connection broke
            case wire.PlaybackClear():
                self._fence(message.response_index)
            case wire.SessionCreated():
                self.session = message
                if message.session is not UNSET:
                    self.settings = message.session
            case wire.SessionUpdated():
                self.settings = message.session
            case wire.ErrorMessage():
                if message.fatal:
                    self.fatal = message
            case _:
                pass
        return [message]

    def _receive_delta(self, delta: wire.ResponseDelta) -> list[ClientEvent]:
        index = delta.response_index
        running = self._running.get(index)
        if running is None or index in self._cancelled:
            self.dropped_deltas += 1
            return []
        if delta.modality == "text":
            return [TextDelta(response_index=index, text=delta.data)]
        try:
            data = pybase64.b64decode(delta.data, validate=True)
        except ValueError:
            raise ClientError("the server sent audio that is not base64") from None
        pts = None
        if running.codec in _SAMPLE_BYTES:
            pts = running.next_pts
            running.next_pts += len(data) // _SAMPLE_BYTES[running.codec]
        return [
            AudioDelta(
                response_index=index,
                data=data,
                codec=running.codec,
                sample_rate=running.sample_rate,
                pts=pts,
            )
        ]

    def _receive_audio(self, data: bytes) -> list[ClientEvent]:
        try:
            frame = unpack(data)
        except DuplexError as error:
            raise ClientError(f"the server sent a frame that is none: {error}") from None
        if frame.kind is not FrameKind.AUDIO_OUT:
            raise ClientError(f"the server sent a frame of kind {frame.kind}")
        running = self._running.get(frame.response_index)
        if running is None or frame.response_index in self._cancelled:
            self.dropped_deltas += 1
            return []
        return [
            AudioDelta(
                response_index=frame.response_index,
                data=frame.payload,
                codec=running.codec,
                sample_rate=frame.flags or running.sample_rate,
                pts=frame.pts,
            )
        ]

    # --- fencing ------------------------------------------------------------------------------------

    def stale(self, event: ClientEvent) -> bool:
        """True for audio of a response that has been cancelled since it was received."""
        return isinstance(event, AudioDelta) and event.response_index in self._cancelled

    def disconnected(self) -> list[ClientEvent]:
        """The connection broke: the responses that ran over it have ended, and are told as cancelled."""
        self._lost |= self._running.keys()
        ended: list[ClientEvent] = []
        for index in self._running:
            self._fence(index)
            ended.append(wire.ResponseCancelled(response_index=index, reason="connection_lost"))
        self._running.clear()
        return ended

    def _fence(self, index: int) -> None:
        self._cancelled.add(index)
        if len(self._cancelled) > 2 * _REMEMBERED:
            self._cancelled = {i for i in self._cancelled if i > self.last_index - _REMEMBERED}

    @property
    def fault(self) -> tuple[ErrorCode | None, str]:
        """Code and words of the fatal error that the server announced."""
        return (error_code(self.fatal.code), self.fatal.message) if self.fatal else (None, "")


def _seq_of(frame: str) -> int | None:
    """The number of a message, where it has one."""
    if '"seq":' not in frame[-32:]:  # always the last key
        return None
    try:
        return _numbered.decode(frame).seq
    except msgspec.MsgspecError:
        return None


def _b64(data: bytes) -> str:
    return str(pybase64.b64encode_as_string(data))


def _fits(value: float, bits: int) -> bool:
    return float(value).is_integer() and 0 <= value < 2**bits


def _unknown(frame: str) -> UnknownEvent:
    """A message of a type, or a shape, that this client does not know."""
    try:
        fields = msgspec.json.decode(frame, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ClientError(f"the server sent a message that is none: {error}") from None
    return UnknownEvent(type=str(fields.get("type", "")), fields=fields)
