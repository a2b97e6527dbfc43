"""The load generator counts what happened."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Literal

import numpy as np
import pytest
from contract_peer import brief, endless, gateway_with
from fake_gateway import FakeGateway, fake_gateway

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.clients.load_session import Distribution
from duplex.clients.loadgen import LoadOptions, run, table
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioDelta, Delta, Turn

# every run is ended by its duration: short, since what is counted does not depend on it
QUICK = {"duration_s": 0.3, "ramp_s": 0.0}


@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_whole_responses(frames: Literal["binary", "json"]) -> None:
    async with gateway_with(ScriptedAdapter(respond=brief)) as gateway:
        options = LoadOptions(url=f"{gateway.ws_url}/v1/duplex", sessions=3, frames=frames, **QUICK)
        report = await run(options)
        assert not gateway.runtime.runners
    assert report.opened == report.open_ms.count == 3
    started, done, cut = (report.responses[name] for name in ("started", "done", "cancelled"))
    assert started == done + cut >= 3
    assert cut <= 3
    assert 0 < report.ttfd_ms.count <= started
    assert done * 1920 <= report.audio_bytes <= started * 1920
    assert report.audio_s == pytest.approx(report.audio_bytes / 48000)
    assert (report.stale_bytes, report.refused, report.ended, report.errors) == (0, {}, {}, {})


async def test_cancelled_responses_with_microphone_audio() -> None:
    adapter = ScriptedAdapter(respond=endless)
    async with gateway_with(adapter) as gateway:
        url = f"{gateway.ws_url}/v1/duplex"
        options = LoadOptions(
            url=url, sessions=2, cancel_after_ms=5, uplink=True, pause_ms=1, ramp_s=0, duration_s=1
        )
        report = await run(options)
    assert report.responses["done"] == 0
    assert report.responses["cancelled"] == report.responses["started"]
    assert report.cancel_ms.count == report.cancel_to_silence_ms.count > 0
    assert report.stale_bytes == 0


async def test_stamped_audio_tells_how_long_it_took() -> None:
    adapter = ScriptedAdapter(ScriptedOptions(stamped=True, audio_ms=100, paced=False))
    async with gateway_with(adapter) as gateway:
        report = await run(LoadOptions(url=f"{gateway.ws_url}/v1/duplex", stamped=True, **QUICK))
    assert report.latency_ms.count > 0
    assert 0 < report.latency_ms.p50 < 60_000


async def test_refusals_and_errors_are_counted_by_name() -> None:
    async def fail(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield AudioDelta(samples=np.zeros(480, np.int16), sample_rate=24000)
        raise DuplexError(ErrorCode.ADAPTER_FAILED, "no")

    async with gateway_with(ScriptedAdapter(respond=fail), max_sessions=2) as gateway:
        report = await run(LoadOptions(url=f"{gateway.ws_url}/v1/duplex", sessions=5, pause_ms=20, **QUICK))
    assert report.refused == {"server_full": 3}
    assert report.opened == 2
    assert report.errors["adapter_failed"] >= 1
    assert "3 server_full" in table(report)


async def test_a_refused_request_does_not_hang_the_session() -> None:
    async with fake_gateway() as gateway:

        async def refuse(gateway: FakeGateway) -> None:
            connection = await gateway.accept()
            while (await connection.receive())["type"] != "close":
                await connection.send(type="error", message="no", code="input_overflow")
            await connection.close(1000)

        refusing = asyncio.ensure_future(refuse(gateway))
        report = await run(LoadOptions(url=gateway.url, turn="respond", pause_ms=10, **QUICK))
        await refusing
    assert report.errors["input_overflow"] == report.responses["started"] >= 1
    assert report.ended == {}


@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_stale_audio_is_seen(frames: Literal["binary", "json"]) -> None:
    async with fake_gateway() as gateway:

        async def leak(gateway: FakeGateway) -> None:
            connection = await gateway.accept()
            await connection.receive()
            await connection.send(type="response.created", response_index=1)
            await connection.send(type="response.done", response_index=1)
            await connection.receive()
            if frames == "binary":
                await connection.send_audio(1, bytes(480))
            else:
                await connection.send(type="response.delta", response_index=1, modality="audio", data="AAAA")
            await connection.close(1011, "internal_error")

        leaking = asyncio.ensure_future(leak(gateway))
        report = await run(LoadOptions(url=gateway.url, frames=frames, **QUICK))
        await leaking
    assert report.stale_bytes > 0
    assert report.ended == {"internal_error": 1}


async def test_sessions_that_end_early_are_counted() -> None:
    async with fake_gateway() as gateway:
        running = asyncio.ensure_future(run(LoadOptions(url=gateway.url, **QUICK)))
        (await gateway.accept()).drop()
        report = await running
    assert report.ended == {"ConnectionLost": 1}


async def test_the_command_prints_json_without_the_token() -> None:
    async with gateway_with(ScriptedAdapter(respond=brief), auth_token="secret") as gateway:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "duplex.clients.loadgen", f"{gateway.ws_url}/v1/duplex", "--json"),
            *("--duration-s", "0.2", "--ramp-s", "0", "--sessions", "2", "--token", "secret"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    report = json.loads(out)
    assert report["opened"] == 2
    assert b"secret" not in out


async def test_the_command_fails_when_sessions_were_refused() -> None:
    async with gateway_with(auth_token="secret") as gateway:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "duplex.clients.loadgen", f"{gateway.ws_url}/v1/duplex", "--ramp-s", "0"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert process.returncode == 1
    assert b"1 unauthorized" in out


def test_a_distribution() -> None:
    assert Distribution.of([]) == Distribution()
    values = list(range(101))
    assert Distribution.of(values) == Distribution(count=101, mean=50, p50=50, p99=99, max=100)
