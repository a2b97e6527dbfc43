"""Settings that a session is opened with: in force, or refused to who opens it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from contract_peer import gateway_with
from fake_gateway import fake_gateway
from gateway_peer import until
from test_client import opening

from duplex import clients
from duplex.adapters.scripted import ScriptedAdapter
from duplex.clients import AsyncDuplexClient, DuplexClient
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import SessionSettings
from duplex.server.run import Gateway


def url(gateway: Gateway) -> str:
    return f"{gateway.ws_url}/v1/duplex"


async def only_speed(session: Any, settings: SessionSettings) -> None:
    """An adapter's hook: of `options` it knows `speed`, of voices heart."""
    unknown = sorted(set(settings.options) - {"speed"})
    if unknown:
        raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown option: {unknown[0]}", param="options")
    if settings.voice not in (None, "heart"):
        raise DuplexError(ErrorCode.INVALID_VALUE, f"no voice {settings.voice}", param="voice")


@pytest.mark.parametrize("ext", [clients.protocol.EXTENSIONS, (), ("resume",)])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"voise": "heart"}, "voise"),
        ({"output_format": {"codec": "midi"}}, "codec"),
        ({"options": {"spead": 1}}, "spead"),
        ({"max_output_tokens": "x"}, "max_output_tokens"),
        ({"voice": 5}, "voice"),
        ({"sample_rate": "x"}, "sample_rate"),
        ({"codec": None}, "codec"),
        ({"max_run_ahead_ms": 1.5}, "max_run_ahead_ms"),
        ({"turn_detection": {"treshold": 0.5}}, "treshold"),
        ({"instructions": None}, "instructions"),
        ({"frames": "json"}, "frames"),
        ({"instructions": "x" * 70_000}, "instructions"),
    ],
)
async def test_a_setting_that_is_wrong_was_dropped_silently(
    options: dict[str, Any], words: str, ext: tuple[str, ...]
) -> None:
    """It went into the query, where what a server does not know is ignored."""
    async with gateway_with(ScriptedAdapter(on_update=only_speed)) as gateway:
        with pytest.raises(clients.BadConfig, match=words):
            await AsyncDuplexClient.connect(url(gateway), ext=ext, options={"max_run_ahead_ms": 0} | options)
        await until(lambda: not gateway.runtime.runners)  # no session is left behind


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", float("nan"), "\ud800"])
async def test_a_setting_that_no_message_can_carry_opens_nothing(value: Any) -> None:
    async with fake_gateway() as gateway:
        for options in ({"instructions": value}, {"options": {"x": value}}):
            with pytest.raises(clients.BadConfig, match="cannot be sent"):
                await AsyncDuplexClient.connect(gateway.url, options=options)
        assert gateway.handshakes == 0


async def test_a_wrong_setting_is_raised_by_the_blocking_client_too() -> None:
    async with gateway_with() as gateway:
        with pytest.raises(clients.BadConfig, match="voise"):
            await asyncio.to_thread(DuplexClient.connect, url(gateway), options={"voise": "heart"})


SETTINGS: dict[str, Any] = {
    "voice": "heart",
    "instructions": "Be brief.",
    "output_modalities": ["audio"],
    "output_format": {"codec": "g711_ulaw", "sample_rate": 8000},
    "turn_detection": None,
    "max_output_tokens": 7,
    "options": {"speed": 2},
}


@pytest.mark.parametrize("ext", [clients.protocol.EXTENSIONS, (), ("resume",)])
async def test_every_setting_holds_from_the_start_and_after_a_reconnect(ext: tuple[str, ...]) -> None:
    adapter = ScriptedAdapter(on_update=only_speed)
    async with (
        gateway_with(adapter) as gateway,
        AsyncDuplexClient(url(gateway), session_id="s", ext=ext, options=SETTINGS) as client,
    ):

        def in_force() -> dict[str, Any]:
            settings = adapter.open_sessions["s"].settings
            return {
                "voice": settings.voice,
                "instructions": settings.instructions,
                "output_modalities": [str(name) for name in settings.output_modalities or ()],
                "output_format": {
                    "codec": str(settings.output_format.codec),
                    "sample_rate": settings.output_format.sample_rate,
                },
                "turn_detection": settings.turn_detection,
                "max_output_tokens": settings.max_output_tokens,
                "options": settings.options,
            }

        assert in_force() == SETTINGS
        assert client.protocol.settings["output_format"] == SETTINGS["output_format"]
        first = await anext(client)
        assert isinstance(first, clients.SessionCreated)
        assert client._socket is not None
        client._socket.transport.abort()
        async for event in client:
            if isinstance(event, clients.Reconnected):
                break
        assert in_force() == SETTINGS
        await client.speak("hello")
        response = await client.response()
        assert (response.status, response.codec, response.sample_rate) == ("done", "g711_ulaw", 8000)
        assert adapter.opened == 1


async def test_an_extension_that_was_not_asked_for_is_put_down_again() -> None:
    async with (
        fake_gateway() as gateway,
        opening(gateway, ext=["signals"], options={"options": {"a": 1}}) as (opened, connection),
    ):
        update = await connection.receive()
        assert (update["session"], update["extensions"]) == ({"options": {"a": 1}}, ["signals", "lifecycle"])
        await connection.send(type="input.speech_started", at_ms=1)
        assert not opened.done()
        await connection.send(type="session.updated", session={}, event_id=update["event_id"])
        client = await opened
        assert (await connection.receive())["extensions"] == ["signals"]
        await connection.send(type="input.speech_started", at_ms=2)
        assert [type(await anext(client)) for _ in range(3)] == [
            clients.SessionCreated,
            clients.SpeechStarted,
            clients.SpeechStarted,
        ]


async def test_a_server_that_fails_while_it_takes_the_settings_is_named() -> None:
    async with fake_gateway() as gateway:
        async with opening(gateway, options={"tools": []}) as (opened, connection):
            await connection.receive()
            await connection.send(type="error", message="gone", code="adapter_failed", fatal=True)
            await connection.close(1011, "adapter_failed")
            with pytest.raises(clients.ServerFault, match="gone"):
                await opened
        async with opening(gateway, options={"tools": []}) as (opened, connection):
            await connection.receive()
            connection.drop()
            with pytest.raises(clients.ConnectionLost):
                await opened
        async with opening(gateway, options={"tools": []}, open_timeout_s=0.2) as (opened, _):
            with pytest.raises(clients.ConnectionLost, match="did not answer"):
                await opened
