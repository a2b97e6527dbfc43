"""A server that says what a test tells it to, on a real socket."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

CREATED = {
    "type": "session.created",
    "session_id": "s1",
    "model": "m",
    "capabilities": {
        "input_modalities": ["text"],
        "output_modalities": ["text", "audio"],
        "proactive": False,
    },
    "resume_token": "r1",
    "limits": {"max_message_bytes": 100_000, "resume_grace_s": 30.0},
    "expires_at": None,
}


class FakeConnection:
    """One socket of a client."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        assert socket.request is not None
        self.query = dict(parse_qsl(urlsplit(socket.request.path).query))
        self.headers = socket.request.headers
        self.released = asyncio.Event()

    async def receive(self) -> Any:
        """The client's next message: JSON decoded, or (kind, index, pts, flags, payload)."""
        frame = await self.socket.recv()
        if isinstance(frame, str):
            return json.loads(frame)
        version, kind, flags, index, pts = struct.unpack("<BBHIQ", frame[:16])
        assert version == 1
        return kind, index, pts, flags, frame[16:]

    async def greet(self, **changes: Any) -> None:
        await self.send(**{**CREATED, **changes})

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def send_audio(self, index: int, payload: bytes, *, pts: int = 0, rate: int = 24000) -> None:
        await self.socket.send(struct.pack("<BBHIQ", 1, 2, rate, index, pts) + payload)

    async def close(self, code: int, reason: str = "") -> None:
        await self.socket.close(code, reason)
        self.released.set()

    async def delivered(self) -> None:
        """What was sent has reached the client's socket."""
        await (await self.socket.ping())

    def drop(self) -> None:
        """Break the connection without a close frame."""
        self.socket.transport.abort()
        self.released.set()


class FakeGateway:
    """`url` is where clients connect; `refuse_with` answers handshakes with HTTP instead."""

    def __init__(self) -> None:
        self.url = ""
        self.refuse_with: tuple[int, bytes] | None = None
        self.handshakes = 0
        self._arrived: asyncio.Queue[FakeConnection] = asyncio.Queue()

    async def accept(self, *, greet: bool = True, **changes: Any) -> FakeConnection:
        """The next connection."""
        connection = await self._arrived.get()
        if greet:
            await connection.greet(**changes)
        return connection

    def process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        self.handshakes += 1
        if self.refuse_with is None:
            return None
        status, body = self.refuse_with
        return connection.respond(HTTPStatus(status), body.decode())

    async def handle(self, socket: ServerConnection) -> None:
        connection = FakeConnection(socket)
        self._arrived.put_nowait(connection)
        closed = asyncio.ensure_future(socket.wait_closed())
        released = asyncio.ensure_future(connection.released.wait())
        try:
            await asyncio.wait({closed, released}, return_when=asyncio.FIRST_COMPLETED)
        except ConnectionClosed:
            pass
        finally:
            closed.cancel()
            released.cancel()


@asynccontextmanager
async def fake_gateway() -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway()
    async with serve(
        gateway.handle, "127.0.0.1", 0, process_request=gateway.process_request, ping_interval=None
    ) as server:
        port = server.sockets[0].getsockname()[1]
        gateway.url = f"ws://127.0.0.1:{port}/v1/duplex"
        yield gateway
        server.close()
