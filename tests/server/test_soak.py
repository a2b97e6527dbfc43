"""30: 10,000 random connects, cancels and vanishing clients leave 0 slots, tasks and file descriptors behind.

`SOAK_CLIENTS=10000` runs the full number (some minutes); the default is a part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from gateway_peer import tone, until
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.uri import parse_uri

from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.core.types import Delta, OpenSession, TextDelta, Turn

CLIENTS = int(os.environ.get("SOAK_CLIENTS", "400"))
AT_ONCE = 40

NATIVE = (
    '{"type":"input.append","modality":"text","data":"hello"}',
    '{"type":"input.append","modality":"audio","data":"AAAAAAAA"}',
    '{"type":"input.commit"}',
    '{"type":"response.create"}',
    '{"type":"response.create"}',
    '{"type":"response.cancel"}',
    '{"type":"session.update","session":{"voice":"anna"}}',
    '{"type":"playback.ack","cursor":10}',
    '{"type":"close"}',
    "rubbish",
)
REALTIME = (
    '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
    '"content":[{"type":"input_text","text":"hello"}]}}',
    '{"type":"input_audio_buffer.append","audio":"AAAAAAAA"}',
    '{"type":"input_audio_buffer.commit"}',
    '{"type":"input_audio_buffer.clear"}',
    '{"type":"response.create"}',
    '{"type":"response.create"}',
    '{"type":"response.cancel"}',
    '{"type":"output_audio_buffer.clear"}',
    '{"type":"session.update","session":{"audio":{"output":{"voice":"anna"}}}}',
    "rubbish",
)


class RandomAdapter(ScriptedAdapter):
    """Quick, slow, failing and reluctant by turns, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(
            respond=self._answer,
            on_open=self._open,
            on_append=self._take,
            on_commit=self._take,
            on_update=self._take,
            on_close=self._take,
        )

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.choice((0, 0, 0, 0.001, 0.01)))

    async def _open(self, request: OpenSession) -> None:
        await self._pause()
        if self.random.random() < 0.03:
            raise RuntimeError("cannot open")

    async def _take(self, session: ScriptedSession, *arguments: object) -> None:
        await self._pause()
        if self.random.random() < 0.03:
            raise RuntimeError("cannot take it")

    async def _answer(self, session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text="well")
        try:
            for _ in range(self.random.randrange(50)):
                await self._pause()
                yield tone(self.random.choice((20, 80)))
            if self.random.random() < 0.05:
                raise RuntimeError("cannot go on")
        finally:
            await self._pause()


async def client(url: str, messages: tuple[str, ...], dice: random.Random, tickets: list[str]) -> None:
    """One client with a random life and a random end, over a bare socket: cheap, and free to misbehave."""
    query = dice.choice(("ext=lifecycle", "ext=lifecycle,resume"))
    if tickets and dice.random() < 0.4:
        query = f"ext=lifecycle&resume={tickets.pop()}&last_seq={dice.choice(('', 1, 1, 1, 2, 99))}"
    uri = parse_uri(f"{url}?{query}")
    protocol = ClientProtocol(uri)
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        if dice.random() < 0.02:
            return  # it never said a word
        protocol.send_request(protocol.connect())
        writer.writelines(protocol.data_to_send())
        if dice.random() < 0.05:
            return  # it left during the handshake
        for _ in range(dice.randrange(1, 8)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dice.choice((0.0, 0.005, 0.05))):
                    protocol.receive_data(await reader.read(65536))
            texts = [e.data for e in protocol.events_received() if getattr(e, "opcode", None) is Opcode.TEXT]
            opened = [json.loads(text) for text in texts if b'"session.created"' in text]
            tickets.extend(created["resume_token"] for created in opened)
            if protocol.state.name == "OPEN":
                message = dice.choice(messages)
                if tickets and dice.random() < 0.03:  # over to another session, on this socket
                    ticket = {"resume_token": tickets.pop(), "last_seq": dice.choice((None, 1, 5))}
                    message = json.dumps({"type": "session.resume", **ticket})
                protocol.send_text(message.encode())
            writer.writelines(protocol.data_to_send())
        if dice.random() < 0.3 and protocol.state.name == "OPEN":
            protocol.send_close(1000)
            writer.writelines(protocol.data_to_send())
    except (ConnectionError, EOFError):
        pass
    finally:
        if dice.random() < 0.5:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER 0: a reset, not a FIN
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("path", "messages"), [("/v1/duplex", NATIVE), ("/v1/realtime", REALTIME)], ids=["native", "realtime"]
)
async def test_fault_30_random_clients_leave_nothing_behind(
    start_gateway: Any, path: str, messages: tuple[str, ...]
) -> None:
    dice = random.Random(2718)
    adapter = RandomAdapter(3141)
    gateway = await start_gateway(
        adapter, max_sessions=30, resume_grace_s=2.0, close_grace_s=0.2, abort_timeout_s=2.0
    )
    runtime = gateway.runtime
    process = psutil.Process()
    tasks_before = len(asyncio.all_tasks())
    files_before = process.num_fds()
    tickets: list[str] = []

    async def clients(number: int) -> None:
        for _ in range(number):
            await client(gateway.ws_url + path, messages, dice, tickets)

    async with asyncio.timeout(30 + CLIENTS / 50):
        await asyncio.gather(*(clients(CLIENTS // AT_ONCE) for _ in range(AT_ONCE)))
        await until(lambda: len(runtime.leases) == 0 and not runtime.runners)
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        gc.collect()
        await until(lambda: process.num_fds() <= files_before)

    assert not adapter.open_sessions
    assert adapter.opened == adapter.closed > CLIENTS / 10
    await until(lambda: not runtime.stray)  # one that has just ended is taken out a turn later
    assert runtime.metrics.resumed > 0
    assert runtime.metrics.replayed > 0
