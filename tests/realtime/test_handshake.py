"""Coming in: keys, subprotocols, client secrets."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from openai.types.realtime import ClientSecretCreateResponse
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from duplex.server.run import Gateway

Start = Callable[..., Awaitable[Gateway]]


async def first(gateway: Gateway, *, path: str = "/v1/realtime", **options: Any) -> tuple[Any, str | None]:
    """The first message, and the subprotocol that was chosen."""
    async with connect(f"{gateway.ws_url}{path}", **options) as ws:
        return json.loads(await ws.recv()), ws.subprotocol


async def test_without_a_token_everybody_comes_in(start_gateway: Start) -> None:
    gateway = await start_gateway()
    message, protocol = await first(gateway, path="/v1/realtime?model=gpt-realtime")
    assert message["type"] == "session.created"
    assert message["session"]["model"] == "scripted"
    assert protocol is None


@pytest.mark.parametrize(
    "options",
    [
        {"additional_headers": {"Authorization": "Bearer sesame"}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.sesame"]},
        {"path": "/v1/realtime?token=sesame"},
    ],
)
async def test_the_key_may_come_in_three_ways(start_gateway: Start, options: dict[str, Any]) -> None:
    gateway = await start_gateway(auth_token="sesame")
    message, protocol = await first(gateway, **options)
    assert message["type"] == "session.created"
    assert protocol == ("realtime" if "subprotocols" in options else None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"additional_headers": {"Authorization": "Bearer ek_unknown"}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]},
    ],
)
async def test_a_wrong_key_is_told_and_closed(start_gateway: Start, options: dict[str, Any]) -> None:
    gateway = await start_gateway(auth_token="sesame")
    async with connect(f"{gateway.ws_url}/v1/realtime", **options) as ws:
        message = json.loads(await ws.recv())
        assert message["type"] == "error"
        assert message["error"]["code"] == "unauthorized"
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401


async def test_a_client_secret_opens_the_session_that_it_was_made_for(start_gateway: Start) -> None:
    gateway = await start_gateway(auth_token="sesame")
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        refused = await http.post("/v1/realtime/client_secrets")
        assert refused.status_code == 401
        headers = {"Authorization": "Bearer sesame"}
        session = {"type": "realtime", "model": "scripted", "instructions": "Be brief."}
        body = {"session": session, "expires_after": {"anchor": "created_at", "seconds": 60}}
        answer = await http.post("/v1/realtime/client_secrets", json=body, headers=headers)
        assert answer.status_code == 200
        made = ClientSecretCreateResponse.model_validate(answer.json())
        assert made.value.startswith("ek_")
        assert made.session.instructions == "Be brief."
        wrong = await http.post(
            "/v1/realtime/client_secrets", json={"session": {"colour": "red"}}, headers=headers
        )
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "session.colour"
    protocols = ["realtime", f"openai-insecure-api-key.{made.value}"]
    message, _ = await first(gateway, subprotocols=protocols)
    assert message["session"]["instructions"] == "Be brief."


async def test_the_beta_header_selects_its_names(start_gateway: Start) -> None:
    gateway = await start_gateway()
    message, _ = await first(gateway, additional_headers={"OpenAI-Beta": "realtime=v1"})
    assert message["session"]["input_audio_format"] == "pcm16"


async def test_a_client_secret_ends() -> None:
    from duplex.server.realtime import ClientSecrets

    secrets = ClientSecrets()
    value = secrets.mint({"instructions": "x"}, 60, now=1000.0)
    assert secrets.session(value, 1059.0) == {"instructions": "x"}
    assert secrets.session(value, 1060.0) is None
    for _ in range(5000):
        secrets.mint({}, 60, now=1000.0)
    assert secrets.session(value, 1001.0) is None
