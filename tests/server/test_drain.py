"""33: on SIGTERM clients got 1006, or the server hung. Right: notice, bounded finish, 1012, exit 0."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gateway_peer import Peer, forever, tone, until
from gateway_process import serving

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.core.types import Delta, Turn


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_lets_the_running_response_finish(number: int) -> None:
    async with serving(audio_ms=400, grace_s=10) as server:
        speaking = await Peer.connect(server.gateway, ext="lifecycle")
        idle = await Peer.connect(server.gateway)
        away = await Peer.connect(server.gateway)
        away.drop()
        await speaking.send("response.create")
        await speaking.expect("response.delta", modality="audio")
        server.send(number)
        assert (await speaking.expect("drain.notice"))["grace_ms"] == 10_000
        assert await idle.until_closed() == (1012, "server draining")
        await speaking.expect("response.done")
        assert await speaking.until_closed() == (1012, "server draining")
        assert speaking.audio_ms(1) == 400
        assert await server.exit_code() == 0
        # the log said that the drain had begun, and never that it was over
        assert server.process.stderr is not None
        last = [line.strip() for line in (await server.process.stderr.read()).decode().splitlines()]
        assert "draining 3 sessions" in "\n".join(last)
        assert last[-1].endswith("duplex.server:stopped")


async def test_drain_is_bounded_and_a_second_signal_cuts_it_short() -> None:
    async with serving(audio_ms=600_000, grace_s=300) as server:
        peer = await Peer.connect(server.gateway, ext="lifecycle")
        await peer.send("response.create")
        await peer.expect("response.delta", modality="audio")
        server.send(signal.SIGTERM)
        await peer.expect("drain.notice")
        # meanwhile it says so, and takes nobody new
        async with httpx.AsyncClient() as client:
            ready = await client.get(f"{server.gateway.url}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        newcomer = await Peer.connect(server.gateway, opened=False)
        assert (await newcomer.next())["code"] == "draining"
        assert (await newcomer.until_closed())[0] == 1012
        server.send(signal.SIGTERM)
        assert (await peer.until_closed())[0] == 1012
        assert await server.exit_code() == 0


async def test_response_that_does_not_end_is_cut_at_the_end_of_the_grace(start_gateway: Any) -> None:
    gateway = await start_gateway(ScriptedAdapter(respond=forever), drain_grace_s=0.05)
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    await gateway.runtime.drain()
    assert await peer.until_closed() == (1012, "server draining")
    assert peer.log[-1] == {"type": "response.cancelled", "response_index": 1}
    assert len(gateway.runtime.leases) == 0


async def test_resume_is_refused_while_draining(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await Peer.connect(gateway)
    await gateway.runtime.drain()
    back = await Peer.connect(gateway, opened=False, resume=peer.created["resume_token"])
    assert (await back.until_closed())[0] == 1012


async def test_session_that_opens_during_the_drain_is_drained_too(start_gateway: Any) -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    async def on_open(request: Any) -> None:
        entered.set()
        await gate.wait()

    gateway = await start_gateway(ScriptedAdapter(on_open=on_open))
    peer = await Peer.connect(gateway, opened=False)
    await entered.wait()
    draining = asyncio.create_task(gateway.runtime.drain())
    await asyncio.sleep(0)
    gate.set()
    assert (await peer.until_closed())[0] == 1012
    await draining
    await until(lambda: len(gateway.runtime.leases) == 0)


async def test_model_that_hangs_does_not_hold_up_the_end(start_gateway: Any) -> None:
    async def on_close(session: ScriptedSession) -> None:
        await asyncio.Event().wait()

    async def deaf(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        while not release.is_set():
            yield tone(20)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)

    release = asyncio.Event()
    gateway = await start_gateway(
        ScriptedAdapter(ScriptedOptions(), respond=deaf, on_close=on_close), abort_timeout_s=0.05
    )
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    await gateway.runtime.drain()
    assert (await peer.until_closed())[0] == 1012
    release.set()
    await until(lambda: not gateway.runtime.stray)
