"""Listeners of the Qwen3-TTS benchmark: they ask for speech, hear it at real time and keep their own clock.

    python benchmarks/tts_gpu_client.py SPEC.json > RESULT.jsonl

A listener asks for an utterance, plays it from the first byte on, and asks for the next one when the last
sample has been played, so that as many streams are in the air as there are listeners. What arrives is taken
at once, as a player's buffer does. A chunk that comes after the play head has passed its place is an
underrun; the player then waits for it, as players do. With a rate, utterances begin at random moments instead
(Poisson), whatever still speaks. A probe asks for short utterances one after the other, so that few listeners
give enough first sounds too.

First audio is from the request's first byte being written (HTTP: from opening the connection) until the first
PCM byte is read. Utterances take turns between `POST /v1/audio/speech` and the WebSocket.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any, Final, Literal

import httptools
import msgspec
import uvloop
from tts_gpu_common import as_part, quantile, spread, tell
from tts_gpu_sizes import SAMPLE_RATE, SENTENCE, SPEAKER
from websockets.asyncio.client import connect

BYTES_PER_S: Final = 2 * SAMPLE_RATE
Transport = Literal["http", "socket"]


class Orders(msgspec.Struct, kw_only=True):
    """What to do. Times in seconds.

    `listeners` at once, or `rate` utterances a second; `probes` beside them. The first `settle_s` are not
    counted, then `seconds` are. Utterances have `frames[0]` to `frames[1]` frames of 80 ms, the probes' have
    `probe_frames`.
    """

    port: int
    seconds: float
    settle_s: float
    listeners: int = 0
    rate: float = 0.0
    probes: int = 0
    frames: tuple[int, int] = (38, 75)
    probe_frames: int = 4
    transports: tuple[Transport, ...] = ("http", "socket")
    seed: int = 7


class Hearing:
    """One utterance as its listener hears it. Times of `time.perf_counter`, seconds."""

    __slots__ = ("asked", "began", "bytes", "fault", "first", "late", "probe", "slack", "transport")

    def __init__(self, transport: Transport, *, probe: bool) -> None:
        self.transport = transport
        self.probe = probe
        self.asked = time.perf_counter()
        self.first = 0.0
        """When the first byte came; 0: not yet."""
        self.began = 0.0
        """When playback would have begun, had it never waited."""
        self.bytes = 0
        self.late: list[tuple[float, float]] = []
        """Underruns: when, and by how much."""
        self.slack: list[float] = []
        """Audio that the player still had when more came, from the second chunk on."""
        self.fault: str | None = None

    def heard(self, size: int) -> None:
        now = time.perf_counter()
        if not self.first:
            self.first = self.began = now
        else:
            slack = self.ends_at - now
            self.slack.append(slack)
            if slack < 0:
                self.late.append((now, -slack))
                self.began -= slack
        self.bytes += size

    @property
    def ends_at(self) -> float:
        """When the play head reaches the end of what has come."""
        return self.began + self.bytes / BYTES_PER_S


class _Answer(asyncio.Protocol):
    """An HTTP response read as it comes."""

    def __init__(self, request: bytes, hearing: Hearing) -> None:
        self.request = request
        self.hearing = hearing
        self.parser: Any = httptools.HttpResponseParser(self)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusal = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.hearing.fault = self.hearing.fault or str(error)
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        if self.parser.get_status_code() == 200:
            self.hearing.heard(len(body))
        else:
            self.refusal += body

    def on_message_complete(self) -> None:
        if self.refusal:
            self.hearing.fault = f"{self.parser.get_status_code()}: {self.refusal[:300]!r}"
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.hearing.fault = self.hearing.fault or f"broken off: {exc!r}"
            self.done.set_result(None)


class Client:
    """All listeners of this process."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.dice = random.Random(orders.seed)
        self.hearings: list[Hearing] = []
        self.turn = 0

    def next_transport(self) -> Transport:
        self.turn += 1
        return self.orders.transports[self.turn % len(self.orders.transports)]

    async def speak(self, frames: int, *, probe: bool = False) -> Hearing:
        """One utterance, to its last byte."""
        transport = self.next_transport()
        if transport == "http":
            return await self._over_http(frames, probe=probe)
        return await self._over_socket(frames, probe=probe)

    async def _over_http(self, frames: int, *, probe: bool) -> Hearing:
        body = json.dumps(
            {
                "input": SENTENCE,
                "voice": SPEAKER,
                "language": "English",
                "response_format": "pcm",
                "stream_format": "audio",
                "max_new_tokens": frames,
                "seed": self.dice.randrange(2**31),
            }
        ).encode()
        head = (
            f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        hearing = Hearing("http", probe=probe)
        self.hearings.append(hearing)
        loop = asyncio.get_running_loop()
        transport, answer = await loop.create_connection(
            lambda: _Answer(head + body, hearing), "127.0.0.1", self.orders.port
        )
        try:
            await answer.done
        finally:
            transport.abort()
        return hearing

    async def _over_socket(self, frames: int, *, probe: bool) -> Hearing:
        url = f"ws://127.0.0.1:{self.orders.port}/v1/audio/speech/stream"
        async with connect(url, max_size=None, compression=None) as ws:
            config = {
                "type": "session.config",
                "voice": SPEAKER,
                "language": "English",
                "response_format": "pcm",
                "stream_audio": True,
                "split_granularity": "none",
                "max_new_tokens": frames,
                "seed": self.dice.randrange(2**31),
            }
            await ws.send(json.dumps(config))
            await ws.send('{"type":"input.done"}')
            await ws.recv()  # the configuration has been checked
            hearing = Hearing("socket", probe=probe)
            self.hearings.append(hearing)
            await ws.send(json.dumps({"type": "input.text", "text": SENTENCE}))
            await ws.send('{"type":"input.done"}')
            async for message in ws:
                if isinstance(message, bytes):
                    hearing.heard(len(message))
                elif '"session.done"' in message:
                    break
                elif '"type":"error"' in message.replace(" ", ""):
                    hearing.fault = message[:300]
                    break
            else:
                hearing.fault = hearing.fault or "closed"
        return hearing

    async def listener(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            hearing = await self.speak(self.dice.randint(*self.orders.frames))
            if hearing.fault:
                await asyncio.sleep(0.5)
            await asyncio.sleep(max(0.0, hearing.ends_at - time.perf_counter()))

    async def probe(self) -> None:
        while True:
            hearing = await self.speak(self.orders.probe_frames, probe=True)
            await asyncio.sleep(0.02 + 0.08 * self.dice.random() + (0.5 if hearing.fault else 0.0))

    async def arrivals(self, group: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(self.dice.expovariate(self.orders.rate))
            group.create_task(self.speak(self.dice.randint(*self.orders.frames)))

    async def run(self) -> dict[str, Any]:
        """Everything, and what was heard in the counted time."""
        orders = self.orders
        lags: list[float] = []
        mean_s = sum(orders.frames) / 2 * 0.08

        async def lag() -> None:
            while True:
                due = time.perf_counter() + 0.02
                await asyncio.sleep(0.02)
                lags.append(time.perf_counter() - due)

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(lag())
                for index in range(orders.listeners):
                    start = mean_s * (index + self.dice.random()) / orders.listeners
                    group.create_task(self.listener(min(start, orders.settle_s)))
                for _ in range(orders.probes):
                    group.create_task(self.probe())
                if orders.rate:
                    group.create_task(self.arrivals(group))

        task = asyncio.create_task(work())
        began = time.perf_counter() + orders.settle_s
        await asyncio.wait({task}, timeout=orders.settle_s)
        lags.clear()
        await asyncio.wait({task}, timeout=orders.seconds)
        ended = time.perf_counter()
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        return self._heard(began, ended, lags)

    def _heard(self, began: float, ended: float, lags: list[float]) -> dict[str, Any]:
        """What counts: first sounds of what was asked for in the time, underruns in the time."""
        asked = [h for h in self.hearings if began <= h.asked < ended - 0.25]
        alive = [h for h in self.hearings if h.first and not h.probe and h.ends_at > began]
        late = [by for h in alive for at, by in h.late if at >= began]
        return {
            "first_ms": {
                kind: [round((h.first - h.asked) * 1000, 3) for h in asked if h.first and h.transport == kind]
                for kind in ("http", "socket")
            },
            "unanswered": sum(not h.first and not h.fault for h in asked),
            "faults": [h.fault for h in self.hearings if h.fault],
            "streams": len(alive),
            "underrun_streams": sum(any(at >= began for at, _ in h.late) for h in alive),
            "late_ms": [round(by * 1000, 3) for by in late],
            "least_slack_ms": [round(min(h.slack) * 1000, 3) for h in alive if h.slack],
            "audio_s": sum(h.bytes for h in self.hearings if h.asked >= began) / BYTES_PER_S,
            "lag_p99_ms": round(1000 * (quantile(lags, 0.99) or 0.0), 3),
        }


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several processes as one."""
    first = {kind: [ms for part in parts for ms in part["first_ms"][kind]] for kind in ("http", "socket")}
    late = [ms for part in parts for ms in part["late_ms"]]
    slack = [ms for part in parts for ms in part["least_slack_ms"]]
    return {
        "first_ms": spread(first["http"] + first["socket"]),
        "first_http_ms": spread(first["http"]),
        "first_socket_ms": spread(first["socket"]),
        **{
            key: sum(part[key] for part in parts)
            for key in ("unanswered", "streams", "underrun_streams", "audio_s")
        },
        "faults": sum(len(part["faults"]) for part in parts),
        "fault": next((fault for part in parts for fault in part["faults"]), None),
        "underruns": len(late),
        "late_ms": spread(late),
        "slack_p1_ms": quantile(slack, 0.01),
        "client_lag_p99_ms": max((part["lag_p99_ms"] for part in parts), default=None),
    }


if __name__ == "__main__":
    tell("heard", **uvloop.run(Client(msgspec.convert(as_part(), Orders)).run()))
