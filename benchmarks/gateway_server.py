"""The two servers of the gateway benchmark: the gateway with a scripted model, and the floor.

The floor is what a server of this kind cannot go below: a bare ASGI app on uvicorn, with the fastest of its
WebSocket implementations, that sends the same frames at the same times and does nothing else.

    python benchmarks/gateway_server.py gateway|burst|floor PORT CORE

`burst` is the gateway with a model that is far faster than speech: the audio waits in the gateway's queue.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pybase64
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.config import ServerConfig
from duplex.runtime.clock import LoopClock
from duplex.server.run import serve

CHUNK_MS = 20
RATE = 24_000
CHUNK_BYTES = RATE * CHUNK_MS // 1000 * 2
RESPONSE_MS = 3_600_000
"""Responses go on until they are cancelled or their client leaves."""


class LagProbe:
    """How late a timer comes, every 5 ms: finer than the gateway's own monitor, the same for both servers."""

    INTERVAL_S = 0.005

    def __init__(self) -> None:
        self.lags_us: list[int] = []
        self._clock = LoopClock()
        self._due = 0.0
        self._running = False

    def _again(self) -> None:
        self._due = self._clock.now() + self.INTERVAL_S
        self._clock.call_at(self._due, self._tick)

    def _tick(self) -> None:
        if self._running:
            self.lags_us.append(max(0, round((self._clock.now() - self._due) * 1e6)))
            self._again()

    def take(self, running: bool) -> dict[str, Any]:
        """CPU time, memory, and the lags seen since the last call. `running`: watch from now on; what that
        costs must not count as the server's."""
        lags, self.lags_us = self.lags_us, []
        if running and not self._running:
            self._again()
        self._running = running
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "cpu_ns": time.process_time_ns(),
            "rss": pages * resource.getpagesize(),
            "lags_us": lags,
        }


def run_gateway(port: int, *, paced: bool = True) -> None:
    probe = LagProbe()

    async def bench(request: Request) -> JSONResponse:
        return JSONResponse(probe.take("lag" in request.query_params))

    options = ScriptedOptions(audio_ms=RESPONSE_MS, chunk_ms=CHUNK_MS, paced=paced, stamped=True, text="")
    config = ServerConfig(port=port, max_sessions=2000, resume_grace_s=0.0)
    serve(config, [ScriptedAdapter(options)], extra_routes=[Route("/bench", bench)])


class Floor:
    """`response.create` starts the frames, `response.cancel` stops them."""

    def __init__(self) -> None:
        self.probe = LagProbe()
        sound = bytes(CHUNK_BYTES)
        self.head = '{"type":"response.delta","response_index":1,"modality":"audio","data":"'
        # the first 9 bytes are 12 characters of base64: the stamp and one byte more
        self.tail = pybase64.b64encode_as_string(sound)[12:] + '"}'

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["type"]:
            case "lifespan":
                while True:
                    message = await receive()
                    await send({"type": f"{message['type']}.complete"})
                    if message["type"] == "lifespan.shutdown":
                        return
            case "http":
                await JSONResponse(self.probe.take(b"lag" in scope["query_string"]))(scope, receive, send)
            case _:
                await self.socket(receive, send)

    async def socket(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": '{"type":"session.created"}'})
        speaking: asyncio.Task[None] | None = None
        while (message := await receive())["type"] != "websocket.disconnect":
            kind = json.loads(message["text"])["type"]
            if speaking is not None:
                speaking.cancel()
                speaking = None
            if kind == "response.create":
                speaking = asyncio.ensure_future(self.speak(send))
            elif kind == "response.cancel":
                text = '{"type":"response.cancelled","response_index":1}'
                await send({"type": "websocket.send", "text": text})
        if speaking is not None:
            speaking.cancel()

    async def speak(self, send: Any) -> None:
        began = time.monotonic()
        for number in range(RESPONSE_MS // CHUNK_MS):
            ahead = began + number * CHUNK_MS / 1000 - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
            stamp = pybase64.b64encode_as_string(time.monotonic_ns().to_bytes(8, "little") + b"\0")
            await send({"type": "websocket.send", "text": f"{self.head}{stamp}{self.tail}"})


def run_floor(port: int) -> None:
    uvicorn.run(
        Floor(),
        port=port,
        loop="uvloop",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="warning",
    )


if __name__ == "__main__":
    role, port_text, core = sys.argv[1:]
    if core != "-":
        os.sched_setaffinity(0, {int(core)})
    if role == "floor":
        run_floor(int(port_text))
    else:
        run_gateway(int(port_text), paced=role == "gateway")
