"""A client of the native dialect for tests, and adapters' answers that wait for the test."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlencode

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duplex.adapters.scripted import ScriptedSession
from duplex.core.types import AudioDelta, Delta, TextDelta, Turn
from duplex.server.run import Gateway

PATIENCE_S = 20.0
"""How long a test waits for what must come, before it fails."""
RATE = 24000


class Peer:
    """One client. `expect` reads on until a message of that type; all that came is in `log`."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.log: list[dict[str, Any]] = []
        self.created: dict[str, Any] = {}

    @classmethod
    async def connect(
        cls,
        gateway: Gateway,
        path: str = "/v1/duplex",
        *,
        opened: bool = True,
        receive_buffer: int | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Peer:
        """Open a socket; with `opened`, wait for `session.created`."""
        options: dict[str, Any] = {}
        if receive_buffer is not None:
            host, port = gateway.url.removeprefix("http://").split(":")
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
            options["sock"] = raw
        url = f"{gateway.ws_url}{path}?{urlencode(query)}"
        ws = await connect(
            url,
            compression=None,
            max_size=None,
            max_queue=None,
            ping_interval=None,
            additional_headers=headers,
            close_timeout=5,
            **options,
        )
        peer = cls(ws)
        if opened:
            peer.created = await peer.expect("session.created")
        return peer

    async def send(self, type: str, **fields: Any) -> None:
        await self.ws.send(json.dumps({"type": type, **fields}))

    async def next(self) -> dict[str, Any]:
        """The next message; a binary one as {type: binary, data}."""
        raw = await asyncio.wait_for(self.ws.recv(), PATIENCE_S)
        message = {"type": "binary", "data": raw} if isinstance(raw, bytes) else json.loads(raw)
        self.log.append(message)
        return message

    async def expect(self, type: str, **fields: Any) -> dict[str, Any]:
        """Read on until a message of that type with these fields."""
        while True:
            message = await self.next()
            if message["type"] == type and all(message.get(k) == v for k, v in fields.items()):
                return message

    async def until_closed(self) -> tuple[int, str]:
        """Read all that comes; the close code and reason."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            if closed.rcvd is None:
                raise AssertionError("the connection was lost without a close frame") from closed
            return closed.rcvd.code, closed.rcvd.reason

    def of(self, type: str) -> list[dict[str, Any]]:
        return [message for message in self.log if message["type"] == type]

    def audio_ms(self, response_index: int) -> float:
        """Audio of a response that came as 24 kHz PCM in JSON."""
        size = sum(
            len(base64.b64decode(message["data"]))
            for message in self.of("response.delta")
            if message["modality"] == "audio" and message["response_index"] == response_index
        )
        return size / 2 / RATE * 1000

    async def say(self, text: str, **fields: Any) -> None:
        await self.send("input.append", modality="text", data=text, **fields)

    async def close(self) -> tuple[int, str]:
        """End gracefully."""
        await self.send("close")
        return await self.until_closed()

    def vanish(self) -> None:
        """The network is gone: nothing is read or sent any more, not even a FIN."""
        self.ws.transport.pause_reading()

    def drop(self) -> None:
        """The connection breaks off without a closing handshake."""
        self.ws.transport.abort()


def tone(ms: float, value: int = 1000, text: str = "") -> AudioDelta:
    """Audio of one value, so that a test can tell where it came from."""
    return AudioDelta(samples=np.full(int(RATE * ms / 1000), value, np.int16), sample_rate=RATE, text=text)


async def forever(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """Audio without end, as fast as it is taken. The sample value is the response's index."""
    yield TextDelta(text=f"answer {turn.index}")
    while True:
        yield tone(20, turn.index)
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
