"""A broken connection: the session goes on, and what was said meanwhile is kept or refused by name."""

import asyncio

import pytest
from fake_gateway import fake_gateway
from test_client import PCM, session, take

from duplex import clients


async def test_the_session_is_resumed_and_input_is_kept_in_order():
    """Fault 34: input during a reconnect silently dropped."""
    async with fake_gateway() as gateway, session(gateway, model="m") as (client, first):
        await client.update(extensions=["playback"])
        await first.receive()
        await first.send(type="response.created", response_index=1)
        await take(client, 1)
        first.drop()
        assert [type(event) for event in await take(client, 2)] == [
            clients.ResponseCancelled,
            clients.Disconnected,
        ]
        assert not client.connected
        for word in ("one", "two"):
            await client.append_text(word)
        await client.append_audio(PCM)
        second = await gateway.accept(resume_token="r2")
        assert second.query["resume"] == "r1"
        assert second.query["session_id"] == "s1"
        assert second.query["ext"] == "playback"
        created, reconnected = await take(client, 2)
        assert created.resume_token == "r2"
        assert reconnected == clients.Reconnected(attempts=1, kept=3)
        await client.append_text("three")
        received = [await second.receive() for _ in range(4)]
        assert [message["data"] for message in received if isinstance(message, dict)] == [
            "one",
            "two",
            "three",
        ]
        assert received[2][4] == PCM
        assert client.connected


async def test_a_response_that_the_break_ended_is_ended_once():
    async with fake_gateway() as gateway, session(gateway) as (client, first):
        await first.send(type="response.created", response_index=1)
        await take(client, 1)
        first.drop()
        cancelled, _ = await take(client, 2)
        assert (cancelled.response_index, cancelled.reason) == (1, "connection_lost")
        second = await gateway.accept()
        await second.send(type="response.cancelled", response_index=1, reason="client_gone")
        await second.send_audio(1, PCM)
        await second.send(type="response.created", response_index=2)
        await take(client, 2)
        assert await anext(client) == clients.ResponseCreated(response_index=2)
        assert client.protocol.dropped_deltas == 1


async def test_a_gathered_response_ends_with_the_connection():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await connection.send(type="response.delta", response_index=1, modality="text", data="half a ")
        gathering = asyncio.ensure_future(client.response())
        await connection.delivered()
        connection.drop()
        response = await gathering
    assert (response.status, response.reason) == ("cancelled", "connection_lost")
    assert response.text == "half a "


async def test_input_beyond_the_bound_is_refused_by_name():
    async with fake_gateway() as gateway, session(gateway, max_kept_bytes=200) as (client, first):
        first.drop()
        await take(client, 1)
        await client.append_text("kept")
        with pytest.raises(clients.ReconnectBufferFull):
            await client.append_audio(bytes(200))
        second = await gateway.accept()
        assert (await second.receive())["data"] == "kept"
        await take(client, 2)
        await client.append_text("after")
        assert (await second.receive())["data"] == "after"


async def test_a_second_break_while_kept_input_is_sent():
    async with fake_gateway() as gateway, session(gateway) as (client, first):
        first.drop()
        await take(client, 1)
        await client.append_text("kept")
        second = await gateway.accept(greet=False)
        second.drop()
        third = await gateway.accept()
        assert (await third.receive())["data"] == "kept"
        assert (await take(client, 2))[1].attempts == 2


async def test_a_session_that_is_gone_says_what_was_not_sent():
    async with fake_gateway() as gateway, session(gateway) as (client, first):
        first.drop()
        await take(client, 1)
        await client.append_text("lost")
        second = await gateway.accept(greet=False)
        await second.send(type="error", message="no such session", code="resume_rejected", fatal=True)
        await second.close(4410, "resume_rejected")
        with pytest.raises(clients.ResumeRejected, match="no such session") as caught:
            await anext(client)
        assert caught.value.unsent == 1
        with pytest.raises(clients.ResumeRejected):
            await client.append_text("after")


async def test_the_attempts_end_with_the_servers_grace():
    greeting = {"limits": {"resume_grace_s": 0.2}}
    async with fake_gateway() as gateway, session(gateway, greeting=greeting) as (client, first):
        gateway.refuse_with = (500, b"")
        first.drop()
        await take(client, 1)
        with pytest.raises(clients.ConnectionLost, match="could not be resumed"):
            await anext(client)
        assert gateway.handshakes >= 2


@pytest.mark.parametrize("how", ["not wanted", "no token"])
async def test_without_resume_the_break_is_the_end(how):
    options = {"reconnect": False} if how == "not wanted" else {}
    greeting = {"resume_token": None} if how == "no token" else {}
    async with fake_gateway() as gateway, session(gateway, greeting=greeting, **options) as (client, first):
        first.drop()
        with pytest.raises(clients.ConnectionLost):
            await anext(client)
        with pytest.raises(clients.ConnectionLost):
            await client.append_text("x")
        assert gateway.handshakes == 1


async def test_a_session_that_the_server_ended_is_not_resumed():
    async with fake_gateway() as gateway, session(gateway) as (client, first):
        await first.send(type="drain.notice", grace_ms=10)
        await first.close(1012, "draining")
        assert isinstance(await anext(client), clients.DrainNotice)
        with pytest.raises(clients.Draining):
            await anext(client)
        assert gateway.handshakes == 1


async def test_close_during_a_break_sends_what_was_kept_first():
    async with fake_gateway() as gateway, session(gateway) as (client, first):
        first.drop()
        await take(client, 1)
        await client.append_text("kept")
        closing = asyncio.ensure_future(client.close())
        second = await gateway.accept()
        assert [(await second.receive())["type"] for _ in range(2)] == ["input.append", "close"]
        await second.close(1000, "closed by the client")
        await closing
