"""The load of the gateway benchmark: many sockets in one process, parsed by hand so that the client is cheap.

python benchmarks/gateway_client.py < SPEC.json > RESULT.json
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

import msgspec
import pybase64
import uvloop

STAMP_CHARACTERS = 12
"""Base64 characters that hold the first 9 bytes of a chunk; 8 of them are its stamp."""
BINARY_HEADER = 16


class Spec(msgspec.Struct):
    """What to do. Times in seconds."""

    port: int
    sessions: int
    steady_s: float
    cancels: int
    """Cancels in all, spread over the sessions."""
    idle: int
    """Idle sockets to open, to weigh them."""
    pause_s: float = 0.2
    """Shortest time between a new response and its cut; three times that is the longest."""
    core: int | None = None
    binary: bool = False
    seed: int = 7


class Peer(asyncio.Protocol):
    """One socket. Server frames are unmasked and, here, never fragmented."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.buffer = bytearray()
        self.upgraded = asyncio.Event()
        self.created = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.latencies_ns: list[int] = []
        self.frames = 0
        self.audio_at = 0
        """When audio last came, ns."""
        self.stopped = False
        self.cancelled_at = 0
        self.stale_bytes = 0
        """Audio bytes that came behind `response.cancelled`."""
        self.data_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        query = "?frames=binary" if self.spec.binary else ""
        self.transport.write(
            f"GET /v1/duplex{query} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def send(self, text: str) -> None:
        data = text.encode()
        assert len(data) < 126
        self.transport.write(bytes((0x81, 0x80 | len(data))) + bytes(4) + data)  # masked with zeros

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        buffer = self.buffer
        buffer += data
        if not self.upgraded.is_set():
            head, end, rest = bytes(buffer).partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self.upgraded.set()
            buffer[:] = rest
        start = 0
        while len(buffer) - start >= 2:
            size = buffer[start + 1]
            body = start + 2
            if size == 126:
                if len(buffer) < start + 4:
                    break
                size = int.from_bytes(buffer[start + 2 : start + 4], "big")
                body = start + 4
            if len(buffer) < body + size:
                break
            self.frame(buffer[start] & 15, buffer[body : body + size], now)
            start = body + size
        del buffer[:start]

    def frame(self, opcode: int, payload: bytearray, now: int) -> None:
        if opcode == 9:
            self.transport.write(bytes((0x8A, 0x80 | len(payload))) + bytes(4) + payload)
        elif opcode == 2:
            stamp = payload[BINARY_HEADER : BINARY_HEADER + 8]
            self.audio(int.from_bytes(stamp, "little"), len(payload), now)
        elif opcode == 1:
            if len(payload) > 600 and (at := payload.find(b'"data":"')) > 0:
                head = pybase64.b64decode(payload[at + 8 : at + 8 + STAMP_CHARACTERS])
                self.audio(int.from_bytes(head[:8], "little"), len(payload), now)
            elif b"session.created" in payload:
                self.created.set()
            elif b"response.cancelled" in payload:
                self.cancelled_at = now
                self.stopped = True
                self.cancelled.set()

    def audio(self, stamp: int, size: int, now: int) -> None:
        self.frames += 1
        self.audio_at = now
        self.latencies_ns.append(now - stamp)
        if self.stopped:
            self.stale_bytes += size

    def connection_lost(self, exc: Exception | None) -> None:
        self.created.set()
        self.cancelled.set()

    def create(self) -> None:
        self.stopped = False
        self.send('{"type":"response.create"}')

    async def cancel(self) -> tuple[int, int]:
        """Cancel what runs: until the last stale byte, and until the answer (ns)."""
        self.cancelled.clear()
        begun = time.monotonic_ns()
        self.send('{"type":"response.cancel"}')
        await self.cancelled.wait()
        await asyncio.sleep(0.1)  # whatever would still come
        return max(0, self.audio_at - begun), self.cancelled_at - begun


async def connect(spec: Spec) -> Peer:
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_connection(lambda: Peer(spec), "127.0.0.1", spec.port)
    await asyncio.wait_for(peer.created.wait(), 30)
    return peer


async def probe(port: int, query: str = "") -> dict[str, Any]:
    """What the server says of itself. `lag`: it watches its loop until the next call."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /bench?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return json.loads(body)


async def steady(spec: Spec, peers: list[Peer], dice: random.Random) -> dict[str, Any]:
    """All sessions speak; phases are spread over the frame's time, the same for both servers."""

    async def begin(peer: Peer, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        peer.create()

    await asyncio.gather(*(begin(peer, dice.random()) for peer in peers))
    await asyncio.sleep(0.5)
    before = await probe(spec.port)
    for peer in peers:
        peer.latencies_ns.clear()
        peer.frames = 0
    client_before = time.process_time()
    begun = time.monotonic()
    await asyncio.sleep(spec.steady_s)
    frames = sum(peer.frames for peer in peers)
    took_s = time.monotonic() - begun
    after = await probe(spec.port)
    return {
        "frames": frames,
        "expected_frames": round(took_s * 50 * len(peers)),
        "cpu_us_per_frame": (after["cpu_ns"] - before["cpu_ns"]) / 1000 / max(1, frames),
        "cpu_share": (after["cpu_ns"] - before["cpu_ns"]) / 1e9 / took_s,
        "client_cpu_share": (time.process_time() - client_before) / took_s,
        "latencies_us": [round(ns / 1000) for peer in peers for ns in peer.latencies_ns],
    }


async def cancels(spec: Spec, peers: list[Peer], dice: random.Random) -> dict[str, Any]:
    """Each session is cut and asked again, at random times, while the others go on."""
    stale: list[int] = []
    answers: list[int] = []
    rounds = min(16, max(1, round(spec.cancels / len(peers))))
    await probe(spec.port, "lag")

    async def cut(peer: Peer) -> None:
        for _ in range(rounds):
            await asyncio.sleep(spec.pause_s * (1 + 2 * dice.random()))
            last, answer = await peer.cancel()
            stale.append(last)
            answers.append(answer)
            peer.create()

    await asyncio.gather(*(cut(peer) for peer in peers))
    return {
        "stale_us": [round(ns / 1000) for ns in stale],
        "answer_us": [round(ns / 1000) for ns in answers],
        "stale_bytes": sum(peer.stale_bytes for peer in peers),
        "lags_us": (await probe(spec.port))["lags_us"],
    }


async def weigh(spec: Spec) -> float:
    """Bytes of memory an idle socket costs the server. A first batch fills its pools."""
    warm = [await connect(spec) for _ in range(20)]
    await asyncio.sleep(0.2)
    before = (await probe(spec.port))["rss"]
    idle = [await connect(spec) for _ in range(spec.idle)]
    await asyncio.sleep(0.2)
    after = (await probe(spec.port))["rss"]
    for peer in warm + idle:
        peer.transport.close()
    return (after - before) / spec.idle


async def main(spec: Spec) -> dict[str, Any]:
    dice = random.Random(spec.seed)
    if spec.idle:
        return {"idle_bytes": await weigh(spec)}
    peers = [await connect(spec) for _ in range(spec.sessions)]
    result = await steady(spec, peers, dice)
    result |= await cancels(spec, peers, dice)
    for peer in peers:
        peer.transport.close()
    await asyncio.sleep(0.2)
    return result


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    if wanted.core is not None:
        os.sched_setaffinity(0, {wanted.core})
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(main(wanted))))
