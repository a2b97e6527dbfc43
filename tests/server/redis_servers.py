"""A Redis for tests: the real one where it is installed, else a stand-in that speaks its protocol."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

REAL = shutil.which("redis-server")
KINDS = ["redis-server", "fakeredis"] if REAL else ["fakeredis"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def redis_server(kind: str, folder: Path, port: int | None = None) -> AsyncIterator[str]:
    """Its address."""
    port = port or free_port()
    url = f"redis://127.0.0.1:{port}/0"
    if kind == "fakeredis":
        from fakeredis import TcpFakeServer

        server = TcpFakeServer(("127.0.0.1", port), server_type="redis")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield url
        finally:
            await asyncio.to_thread(server.shutdown)
            server.server_close()
        return
    assert REAL is not None
    process = await asyncio.create_subprocess_exec(
        *(REAL, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
        *("--dir", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            while b"Ready to accept connections" not in (line := await process.stdout.readline()):
                assert line, "redis-server did not start"
        yield url
    finally:
        process.kill()
        await process.wait()
