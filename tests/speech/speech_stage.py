"""A running gateway with a scripted speech model, and clients of it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import urlencode

import httpx
from fake_speech import MS_PER_CHARACTER, RATE, FakeFace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duplex.config import ServerConfig
from duplex.server.run import Gateway
from duplex.speech.synthesis import Synthesis

PATIENCE_S = 20.0


class Voice:
    """A client of the stream."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.log: list[dict[str, Any]] = []

    async def send(self, type: str, **fields: Any) -> None:
        await self.ws.send(json.dumps({"type": type, **fields}))

    async def say(self, text: str, **fields: Any) -> None:
        """One whole utterance."""
        await self.send("input.text", text=text, **fields)
        await self.send("input.done", **fields)

    async def next(self) -> dict[str, Any]:
        raw = await asyncio.wait_for(self.ws.recv(), PATIENCE_S)
        message = {"type": "audio", "data": raw} if isinstance(raw, bytes) else json.loads(raw)
        self.log.append(message)
        return message

    async def until(self, type: str) -> dict[str, Any]:
        while (message := await self.next())["type"] != type:
            pass
        return message

    async def closed(self) -> tuple[int, str]:
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            frame = closed.rcvd
        assert frame is not None, "the connection was lost without a close frame"
        return frame.code, frame.reason

    @property
    def audio(self) -> bytes:
        """All of it, of every context."""
        return b"".join(
            message["data"] if message["type"] == "audio" else base64.b64decode(message["audio_b64"])
            for message in self.log
            if message["type"] in ("audio", "audio.chunk")
        )

    def told(self, type: str) -> list[dict[str, Any]]:
        return [message for message in self.log if message["type"] == type]


class Stage:
    def __init__(self, gateway: Gateway, face: FakeFace) -> None:
        self.gateway = gateway
        self.face = face
        self._sockets: list[ClientConnection] = []

    @property
    def synthesis(self) -> Synthesis:
        return next(d for d in self.gateway.runtime.drainables if isinstance(d, Synthesis))

    async def voice(self, *, headers: dict[str, str] | None = None, **query: Any) -> Voice:
        url = f"{self.gateway.ws_url}/v1/audio/speech/stream?{urlencode(query)}"
        ws = await connect(url, max_size=None, additional_headers=headers, close_timeout=2)
        self._sockets.append(ws)
        return Voice(ws)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.gateway.url, timeout=PATIENCE_S)

    async def empty(self) -> None:
        """Wait until no request holds a place."""
        await asyncio.wait_for(self.synthesis.places.empty(), PATIENCE_S)

    async def close(self) -> None:
        for ws in self._sockets:
            await ws.close()


def config(**fields: Any) -> ServerConfig:
    return ServerConfig(port=0, drain_grace_s=1.0, **fields)


def pcm_bytes(text: str, rate: int = RATE) -> int:
    return len(text) * MS_PER_CHARACTER * rate // 1000 * 2
