"""Liveness, readiness, models and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from gateway_peer import Peer, until
from starlette.routing import Route
from starlette.testclient import TestClient

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError
from duplex.server.app import create_app
from duplex.server.run import running_gateway


async def get(gateway: Any, path: str, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(gateway.url + path, **options)


async def test_health_and_ready(start_gateway: Any) -> None:
    gateway = await start_gateway(auth_token="secret")
    health = await get(gateway, "/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    ready = await get(gateway, "/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "active_sessions": 0})
    await Peer.connect(gateway, token="secret")
    assert (await get(gateway, "/ready")).json()["active_sessions"] == 1


async def test_not_ready_while_the_engine_is_down(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter)
    adapter.healthy = False
    ready = await get(gateway, "/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "engine_down")
    peer = await Peer.connect(gateway, opened=False)
    assert (await peer.until_closed())[0] == 1013
    adapter.healthy = True
    assert (await get(gateway, "/ready")).status_code == 200


def test_not_ready_while_loading() -> None:
    async def on_start() -> None:
        await asyncio.Event().wait()

    app = create_app(ServerConfig(), [ScriptedAdapter(on_start=on_start)])
    with TestClient(app) as client:
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "loading")
        assert client.get("/health").status_code == 200


async def test_model_that_cannot_be_loaded_stops_the_start() -> None:
    async def on_start() -> None:
        raise RuntimeError("no weights")

    with pytest.raises(RuntimeError, match="no weights"):
        async with running_gateway(ServerConfig(port=0), [ScriptedAdapter(on_start=on_start)]):
            pytest.fail("it came up")


async def test_address_in_use_is_told_by_name(start_gateway: Any) -> None:
    gateway = await start_gateway()
    port = int(gateway.url.rpartition(":")[2])
    with pytest.raises(DuplexError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
        async with running_gateway(ServerConfig(port=port), [ScriptedAdapter()]):
            pytest.fail("it came up")
    assert caught.value.param == "port"
    assert (await get(gateway, "/health")).status_code == 200


async def test_two_gateways_in_one_process_keep_to_themselves(start_gateway: Any) -> None:
    one, two = await start_gateway(max_sessions=1), await start_gateway(max_sessions=1)
    await Peer.connect(one)
    await Peer.connect(two)
    assert "duplex_sessions 1.0" in (await get(one, "/metrics")).text


async def test_models_are_listed_as_openai_does(start_gateway: Any) -> None:
    gateway = await start_gateway(
        ScriptedAdapter(ScriptedOptions(id="one")), ScriptedAdapter(ScriptedOptions(id="two"))
    )
    body = (await get(gateway, "/v1/models")).json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["one", "two"]
    assert all(model["object"] == "model" and model["created"] > 0 for model in body["data"])


@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
async def test_token_guards_models_and_metrics(start_gateway: Any, path: str) -> None:
    gateway = await start_gateway(auth_token="secret")
    refused = await get(gateway, path)
    assert refused.status_code == 401
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["error_code"]) == ("AuthenticationError", 401, "unauthorized")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert (await get(gateway, path, headers={"Authorization": "Bearer secret"})).status_code == 200
    assert (await get(gateway, path, params={"token": "secret"})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/duplex", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/audio/speech", 405),
    ],
)
async def test_path_and_method_that_do_not_exist_were_told_in_plain_text(
    start_gateway: Any, method: str, path: str, status: int
) -> None:
    gateway = await start_gateway()
    async with httpx.AsyncClient() as client:
        refused = await client.request(method, gateway.url + path)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["error_code"]) == (status, status, None)
    assert path in error["message"]
    assert ("allow" in refused.headers) == (status == 405)


def number(text: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def test_metrics_tell_what_happened(start_gateway: Any) -> None:
    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=2000))
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    peer.drop()
    await until(lambda: gateway.runtime.leases.detached == 1)
    back = await Peer.connect(gateway, resume=peer.created["resume_token"])
    await back.ws.send("{}")
    await back.expect("error", code="missing_type")
    text = (await get(gateway, "/metrics")).text
    assert number(text, "duplex_sessions") == 1
    assert number(text, "duplex_sessions_detached") == 0
    assert number(text, "duplex_sessions_opened_total") == 1
    assert number(text, "duplex_sessions_resumed_total") == 1
    assert number(text, "duplex_ttfa_seconds_count") == 1
    assert number(text, "duplex_cancel_seconds_count") == 1
    assert number(text, 'duplex_errors_total{code="missing_type"}') == 1
    assert number(text, "duplex_audio_frames_total") >= 1
    assert number(text, "duplex_received_bytes_total") > 0
    assert number(text, "duplex_sent_bytes_total") > 1280
    for name in ("queue_bytes", "queue_audio_seconds", "encoder_jobs", "stray_tasks"):
        assert number(text, f"duplex_{name}") == 0
    assert "duplex_loop_lag_seconds_bucket" in text


async def test_underruns_and_stale_deltas_are_counted(start_gateway: Any) -> None:
    from gateway_peer import tone

    late = asyncio.Event()

    async def halting(session: ScriptedSession, turn: Any) -> Any:
        yield tone(1)
        await late.wait()
        yield tone(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield tone(1)  # what comes after the cut is dropped

    gateway = await start_gateway(ScriptedAdapter(respond=halting))
    peer = await Peer.connect(gateway)
    (runner,) = gateway.runtime.runners
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    await until(lambda: runner.run_ahead_ms()[0] == 0)
    late.set()
    await peer.expect("response.delta", modality="audio")
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    await peer.close()
    text = (await get(gateway, "/metrics")).text
    assert number(text, "duplex_underruns_total") == 1
    assert number(text, "duplex_dropped_deltas_total") == 1


def test_sessions_say_which_server_they_need() -> None:
    app = create_app(ServerConfig(), [ScriptedAdapter()])
    with (
        TestClient(app) as client,
        pytest.raises(RuntimeError, match="GatewayWebSocket"),
        client.websocket_connect("/v1/duplex"),
    ):
        pytest.fail("it was accepted")


async def test_extra_routes_are_served() -> None:
    async def hello(request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("hello")

    app = create_app(ServerConfig(), [ScriptedAdapter()], extra_routes=[Route("/hello", hello)])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert (await client.get("/hello")).text == "hello"
