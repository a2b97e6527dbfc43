"""A gateway in a process of its own, for tests of signals."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator

from gateway_peer import PATIENCE_S

from duplex.server.run import Gateway

SCRIPT = """
import logging, sys
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.config import ServerConfig
from duplex.server.run import serve
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
audio_ms, grace_s = int(sys.argv[1]), float(sys.argv[2])
serve(ServerConfig(port=0, drain_grace_s=grace_s), [ScriptedAdapter(ScriptedOptions(audio_ms=audio_ms))])
"""


class Process:
    """A gateway in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, gateway: Gateway) -> None:
        self.process = process
        self.gateway = gateway

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)


@contextlib.asynccontextmanager
async def serving(audio_ms: int, grace_s: float) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, str(audio_ms), str(grace_s)), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        lines = b""
        while not (found := re.search(rb"serving \S+ on http://(\S+):(\d+)", lines)):
            line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)
            assert line, lines.decode()
            lines += line
        host, port = found[1].decode(), int(found[2])
        url = f"{host}:{port}"
        gateway = Gateway(url=f"http://{url}", ws_url=f"ws://{url}", runtime=None)  # type: ignore[arg-type]
        yield Process(process, gateway)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
