"""The addresses that the clients take, and those that they refuse by name."""

from __future__ import annotations

from typing import Any

import pytest
from contract_peer import gateway_with
from fake_gateway import fake_gateway

from duplex import clients
from duplex.clients import AsyncDuplexClient, AsyncRealtimeClient, AsyncSpeechClient, DuplexClient
from duplex.clients.address import http_url, websocket_url
from duplex.clients.loadgen import LoadOptions, run


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("ws://127.0.0.1:8600", "ws://127.0.0.1:8600/p"),
        ("http://127.0.0.1:8600/", "ws://127.0.0.1:8600/p"),
        ("HTTPS://Example.org", "wss://Example.org/p"),
        ("wss://[::1]:1?model=m", "wss://[::1]:1/p?model=m"),
        ("http://host/behind/a/proxy?a=b", "ws://host/behind/a/proxy?a=b"),
    ],
)
def test_what_a_websocket_address_is_taken_for(given: str, wanted: str) -> None:
    assert websocket_url(given, "/p") == wanted


def test_what_a_speech_address_is_taken_for() -> None:
    assert http_url("ws://host:8600/") == "http://host:8600"
    assert http_url("wss://host/prefix/") == "https://host/prefix"
    assert http_url("https://host") == "https://host"


@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_the_address_of_a_server_without_a_path_was_no_websocket(scheme: str) -> None:
    async with gateway_with() as gateway:
        base = f"{scheme}://{gateway.ws_url.partition('://')[2]}"
        async with AsyncDuplexClient(base, reconnect=False) as client:
            assert client.session.session_id
        async with AsyncRealtimeClient(base) as realtime:
            assert realtime.session
        report = await run(LoadOptions(url=base, duration_s=0.1, ramp_s=0.0))
        assert (report.opened, report.refused) == (1, {})


WRONG = [
    "127.0.0.1:8600",
    "localhost:8600",
    "ftp://host/v1/duplex",
    "ws://",
    "ws:///v1/duplex",
    "ws://host:port/v1/duplex",
    "ws://host:99999",
    "ws://[::1/v1/duplex",
    "ws://a..b/v1/duplex",
    "ws://a b/v1/duplex",
    "ws://host/v1/duplex#here",
    "",
]


@pytest.mark.parametrize("url", WRONG)
@pytest.mark.parametrize("client", [AsyncDuplexClient, AsyncRealtimeClient])
async def test_an_address_that_is_none_was_a_bare_error_of_a_library(client: Any, url: str) -> None:
    with pytest.raises(clients.BadConfig, match="address"):
        await client(url).open()
    with pytest.raises(clients.BadConfig, match="address"):
        DuplexClient.connect(url)
    with pytest.raises(clients.BadConfig, match="address"):
        AsyncSpeechClient(url)


async def test_a_load_run_counts_an_address_that_is_none() -> None:
    report = await run(LoadOptions(url="localhost:8600", duration_s=0.1, ramp_s=0.0))
    assert (report.opened, sum(report.refused.values())) == (0, 1)


async def test_a_server_that_sends_elsewhere_without_an_address_is_named() -> None:
    async with fake_gateway() as gateway:
        gateway.refuse_with = (302, b"")
        with pytest.raises(clients.SessionOver):
            await AsyncDuplexClient.connect(gateway.url)


async def test_a_path_without_a_websocket_was_a_model_that_is_missing() -> None:
    async with gateway_with() as gateway:
        with pytest.raises(clients.BadConfig, match="no WebSocket at /v1/duplexx"):
            await AsyncDuplexClient.connect(f"{gateway.ws_url}/v1/duplexx")
