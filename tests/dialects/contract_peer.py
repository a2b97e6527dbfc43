"""A raw client of the native dialect: what is on the wire, word by word."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.config import ServerConfig
from duplex.core.types import AudioDelta, Delta, TextDelta, Turn
from duplex.server.run import Gateway, running_gateway

PATIENCE_S = 20.0
"""How long a test waits for what must come, before it fails."""


class Peer:
    """One socket. `log` has all that came, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.log: list[dict[str, Any]] = []

    async def send(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def append(self, modality: str, data: Any, **fields: Any) -> None:
        await self.send("input.append", modality=modality, data=data, **fields)

    async def next(self) -> dict[str, Any]:
        frame = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        assert isinstance(frame, str)
        self.log.append(json.loads(frame))
        return self.log[-1]

    async def expect(self, type: str, **fields: Any) -> dict[str, Any]:
        """Read on until a message of that type with these fields."""
        while True:
            message = await self.next()
            if message["type"] == type and all(message.get(key) == value for key, value in fields.items()):
                return message

    async def closed(self) -> tuple[int, str]:
        """Read on until the server closes: its code and reason."""
        with pytest.raises(ConnectionClosed) as closing:
            await self._read_all()
        frame = closing.value.rcvd
        assert frame is not None, "the connection was lost without a close frame"
        return frame.code, frame.reason

    async def _read_all(self) -> None:
        while True:
            await self.next()

    async def alive(self) -> None:
        """A whole exchange works."""
        await self.send("response.create", event_id="alive")
        index = (await self.expect("response.created"))["response_index"]
        await self.expect("response.done", response_index=index)

    def text(self, index: int) -> str:
        return "".join(
            message["data"]
            for message in self.log
            if message["type"] == "response.delta"
            and message["modality"] == "text"
            and message["response_index"] == index
        )

    def audio(self, index: int) -> bytes:
        return b"".join(
            base64.b64decode(message["data"])
            for message in self.log
            if message["type"] == "response.delta"
            and message["modality"] == "audio"
            and message["response_index"] == index
        )


@asynccontextmanager
async def peer(
    gateway: Gateway, path: str = "/v1/duplex", *, greeted: bool = True, **query: str
) -> AsyncIterator[Peer]:
    """A peer that is connected and, if `greeted`, has its `session.created`."""
    url = f"{gateway.ws_url}{path}?{urlencode(query)}"
    async with connect(url, compression=None, max_size=None, max_queue=None, ping_interval=None) as socket:
        raw = Peer(socket)
        if greeted:
            await raw.expect("session.created")
        yield raw


@asynccontextmanager
async def gateway_with(adapter: ScriptedAdapter | None = None, **config: Any) -> AsyncIterator[Gateway]:
    """A gateway on a free port that serves one scripted model."""
    config = {"port": 0, "drain_grace_s": 0.2, "abort_timeout_s": 2.0} | config
    async with running_gateway(
        ServerConfig(**config), [adapter or ScriptedAdapter(respond=brief)]
    ) as gateway:
        yield gateway


async def brief(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """A word and 40 ms of audio."""
    yield TextDelta(text="yes")
    yield AudioDelta(samples=np.full(960, 7, np.int16), sample_rate=24000)


async def endless(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """Audio as fast as it is taken, of the response's index."""
    while True:
        yield AudioDelta(samples=np.full(480, turn.index, np.int16), sample_rate=24000)
        await asyncio.sleep(0)
