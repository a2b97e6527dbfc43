"""What a client asks for, written for any way of sending it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from duplex.clients.protocol import Audio, ClientProtocol, Frame


class Requests(ABC):
    """The requests of a session. Each raises what `_send` raises: see `AsyncDuplexClient`."""

    protocol: ClientProtocol

    @abstractmethod
    async def _send(self, frame: Frame) -> None:
        """Send a message, or keep it until it can be sent."""

    async def append_text(self, text: str, *, event_id: str | None = None) -> None:
        """Text of the user; before a video window it is a question about it."""
        await self._send(self.protocol.append_text(text, event_id=event_id))

    async def append_audio(
        self, audio: Audio, sample_rate: int = 16000, *, event_id: str | None = None
    ) -> None:
        """Microphone audio: pcm16 bytes, or samples of shape (n,), int16 or float32; rate in Hz."""
        await self._send(self.protocol.append_audio(audio, sample_rate, event_id=event_id))

    async def append_image(
        self, image: bytes, *, pts_ms: float | None = None, event_id: str | None = None
    ) -> None:
        """One JPEG, PNG or WebP."""
        await self._send(self.protocol.append_image(image, pts_ms=pts_ms, event_id=event_id))

    async def append_video(self, data: bytes = b"", **place: Any) -> None:
        """A piece of video, or `frames=` stills; keywords as in `ClientProtocol.append_video`."""
        await self._send(self.protocol.append_video(data, **place))

    async def append_codec_window(self, kind: str, codec: Mapping[str, Any], **place: Any) -> None:
        """Codec side information; keywords as in `ClientProtocol.append_codec_window`."""
        await self._send(self.protocol.append_codec_window(kind, codec, **place))

    async def commit(self) -> str:
        """The user's turn is over. Returns the request's event id, which an error would carry."""
        return await self._request("input.commit")

    async def respond(self, *, modalities: Iterable[str] | None = None) -> str:
        """Respond now. Returns the request's event id."""
        response = {"modalities": list(modalities)} if modalities is not None else None
        return await self._request("response.create", response=response)

    async def speak(self, text: str, *, modalities: Iterable[str] | None = None) -> str:
        """Say exactly this. Returns the request's event id."""
        response: dict[str, Any] = {"speak": text}
        if modalities is not None:
            response["modalities"] = list(modalities)
        return await self._request("response.create", response=response)

    async def _request(self, type: str, **fields: Any) -> str:
        event_id = self.protocol.event_id()
        await self._send(self.protocol.request(type, event_id=event_id, **fields))
        return event_id
