"""A gateway with the whole of Mage-VL behind it on a tiny checkpoint: vLLM's real engine core and a sight
worker, both on the CPU."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from gateway_peer import Peer
from video_clips import still, texture

from duplex.adapters.mage_vl.adapter import MageVl, create
from duplex.config import ServerConfig
from duplex.server.run import Gateway, running_gateway

PATH = "/v1/mage-vl/duplex"
CONTEXT = 512
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": CONTEXT,
    "max_num_seqs": 32,
    "max_num_batched_tokens": CONTEXT,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "block_size": 32,
}
PATIENCE_S = 120.0
FRAMES = [still(texture(32, 64, seed), "mjpeg") for seed in range(8)]


@dataclass(slots=True)
class Rig:
    gateway: Gateway
    adapter: MageVl
    peers: list[Peer] = field(default_factory=list)

    async def connect(self, **query: str) -> Peer:
        peer = await Peer.connect(self.gateway, PATH, **{"ext": "signals", **query})
        self.peers.append(peer)
        return peer

    async def says(self, status: int) -> None:
        """Wait until `/ready` answers that."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.get("/ready")).status_code != status:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def leave(self) -> None:
        """All sessions end, as do their slots."""
        for peer in self.peers:
            await peer.ws.close()
        self.peers.clear()
        await until(lambda: len(self.gateway.runtime.leases) == 0)

    def figure(self, name: str) -> float:
        """A figure of the adapter."""
        return next(figure.value for figure in self.adapter.figures() if figure.name == name)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            return await http.get(self.gateway.url + path)

    @property
    def decoder_pid(self) -> int:
        engine: Any = self.adapter.engine
        (process,) = engine.up().processes
        return int(process.pid)

    @property
    def eye_pid(self) -> int:
        sight: Any = self.adapter.sight
        return int(sight._client.ready.pid)


def options(folder: Path, **others: Any) -> dict[str, Any]:
    return {
        "model": str(folder),
        "device": "cpu",
        "backend": "frames",
        "eye_threads": 1,
        "threads": 1,
        "engine": ENGINE,
        "max_new_tokens": 24,
        **others,
    }


@asynccontextmanager
async def rigged(folder: Path, **others: Any) -> AsyncIterator[Rig]:
    """Up within a minute."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    adapter = create(options(folder, **others))
    assert isinstance(adapter, MageVl)
    config = ServerConfig(port=0, drain_grace_s=0.0, window_history=4)
    async with running_gateway(config, [adapter]) as gateway:
        yield Rig(gateway, adapter)


async def until(holds: Callable[[], object]) -> None:
    """For what other processes do, which has no event here."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
