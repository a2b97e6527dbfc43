"""A small server that speaks like OpenAI's: chats and completions as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

KEY = "sk-secret"


class FakeServer:
    """What it answers is set by its fields; what it was asked is kept in `asked`."""

    def __init__(self) -> None:
        self.pieces: list[str] = ["Hello", ", ", "world", "."]
        self.finish: str | None = "stop"
        self.ids: list[int] | None = None
        self.raw: bytes | None = None
        """A body instead of the pieces."""
        self.trickle: bytes | None = None
        """A piece of a body that never ends, instead of the pieces or of an error's body."""
        self.whole: Any = None
        """An answer that is not streamed."""
        self.status = 200
        self.body: Any = {"error": {"message": "no"}}
        self.models: Any = {"data": [{"id": "tiny", "max_model_len": 64}, {"id": "other"}]}
        self.models_status = 200
        self.hold = False
        """Write one piece, then nothing until the client is gone."""
        self.key: str | None = None
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.gone = asyncio.Event()
        self.url = ""

    # --- answers ------------------------------------------------------------------------------------

    async def list_models(self, request: Request) -> Response:
        if self._refused(request):
            return JSONResponse({"error": {"message": f"bad key {KEY}"}}, 401)
        return JSONResponse(self.models, self.models_status)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, lambda piece: {"delta": {"content": piece}})

    async def complete(self, request: Request) -> Response:
        return await self._answer(request, lambda piece: {"text": piece})

    async def _answer(self, request: Request, piece_of: Callable[[str], dict[str, Any]]) -> Response:
        self.asked.append((request.url.path, json.loads(await request.body())))
        if self._refused(request):
            return JSONResponse({"error": {"message": f"bad key {KEY}"}}, 401)
        if self.trickle is not None:
            kind = "text/event-stream" if self.status == 200 else "text/plain"
            return StreamingResponse(self._trickle(self.trickle), self.status, media_type=kind)
        if self.whole is not None:
            return JSONResponse(self.whole)
        if self.status != 200:
            if isinstance(self.body, str):
                return PlainTextResponse(self.body, self.status)
            return JSONResponse(self.body, self.status)
        return StreamingResponse(self._events(piece_of), media_type="text/event-stream")

    async def _events(self, piece_of: Callable[[str], dict[str, Any]]) -> AsyncIterator[bytes]:
        if self.raw is not None:
            yield self.raw
            return
        try:
            for n, piece in enumerate(self.pieces):
                choice = {"index": 0, "finish_reason": None, **piece_of(piece)}
                if self.ids is not None:
                    choice["token_ids"] = [self.ids[n]]
                yield event({"choices": [choice]})
                if self.hold:
                    await asyncio.Event().wait()
            if self.finish is not None:
                yield event({"choices": [{"index": 0, "finish_reason": self.finish, **piece_of("")}]})
                yield event(
                    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(self.pieces)}}
                )
                yield b"data: [DONE]\n\n"
        finally:
            self.gone.set()

    async def _trickle(self, piece: bytes) -> AsyncIterator[bytes]:
        try:
            while True:
                yield piece
                await asyncio.sleep(0.01)
        finally:
            self.gone.set()

    def _refused(self, request: Request) -> bool:
        return self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def served(server: FakeServer, port: int = 0) -> AsyncIterator[FakeServer]:
    """On a port of its own, which it has again when it is served again."""
    listener = socket.create_server(("127.0.0.1", port))
    routes = [
        Route("/v1/models", server.list_models),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/completions", server.complete, methods=["POST"]),
    ]
    running = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off"))
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    serving = asyncio.create_task(running._serve([listener]))
    while not running.started:
        assert not serving.done()
        await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        running.should_exit = running.force_exit = True
        await serving
        listener.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert isinstance(port, int)
    return port
