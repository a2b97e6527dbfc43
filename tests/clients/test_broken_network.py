"""Clients that come back by themselves, through a network that cuts connections at random bytes."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from typing import Any, Literal

import numpy as np
import pytest
from contract_peer import gateway_with
from cutting_proxy import cutting_proxy
from gateway_peer import until
from redis_servers import free_port

from duplex import clients
from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.clients import AsyncDuplexClient, AsyncRealtimeClient
from duplex.clients.reconnect import Sent, connect_again
from duplex.core.types import AudioDelta, Delta, TextDelta, TextWindow, Turn
from duplex.server.run import Gateway

RAMP = np.arange(12000, dtype=np.int16)


async def ramp(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """Half a second of audio that shows any gap and any repetition, and words between it."""
    for start in range(0, len(RAMP), 480):
        yield TextDelta(text=f"{turn.index}.{start} ")
        yield AudioDelta(samples=RAMP[start : start + 480] + turn.index, sample_rate=24000)
        await asyncio.sleep(0)


def port_of(gateway: Gateway) -> int:
    return int(gateway.url.rpartition(":")[2])


def words_of(turn: int) -> str:
    return "".join(f"{turn}.{start} " for start in range(0, len(RAMP), 480))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_native_answers_come_whole_over_a_network_that_breaks(
    frames: Literal["binary", "json"], seed: int
) -> None:
    heard: list[str] = []

    async def on_append(session: ScriptedSession, window: Any) -> None:
        if isinstance(window, TextWindow):
            heard.append(window.text)

    adapter = ScriptedAdapter(respond=ramp, on_append=on_append)
    luck = random.Random(seed)
    async with (
        gateway_with(adapter, resume_hold_s=30.0) as gateway,
        cutting_proxy(port_of(gateway), luck, up_to=16_000) as network,
    ):
        network.calm = True  # until the session is there
        url = network.url("/v1/duplex")
        client = await AsyncDuplexClient.connect(url, frames=frames, options={"max_run_ahead_ms": 0})
        network.calm = False
        network.cut()
        said = []
        for turn in range(1, 5):
            said.append(f"question {turn}")
            await client.append_text(said[-1])
            await client.commit()
            response = await client.response()
            assert (response.index, response.status) == (turn, "done")
            assert response.text == words_of(turn)
            assert response.samples.tolist() == (RAMP + turn).tolist()
            breaks = [event for event in response.others if isinstance(event, clients.Reconnected)]
            assert sum(event.lost for event in breaks) == 0
        network.calm = True
        await client.close()
        assert heard == said  # nothing the client said was dropped, nothing came twice
        assert network.cuts > 2
        assert adapter.opened == 1


@pytest.mark.parametrize("seed", range(4))
async def test_realtime_answers_come_whole_over_a_network_that_breaks(seed: int) -> None:
    adapter = ScriptedAdapter(respond=ramp)
    luck = random.Random(seed)
    async with (
        gateway_with(adapter, resume_hold_s=30.0) as gateway,
        cutting_proxy(port_of(gateway), luck, up_to=24_000) as network,
    ):
        network.calm = True
        client = AsyncRealtimeClient(network.url("/v1/realtime"), reconnect=True)
        await client.open()
        network.calm = False
        network.cut()
        for turn in range(1, 4):
            part = {"type": "input_text", "text": f"question {turn}"}
            item = {"type": "message", "role": "user", "content": [part]}
            await client.send("conversation.item.create", item=item)
            await client.send("response.create")
            events = []
            async for event in client:
                events.append(event)
                if event["type"] == "response.done":
                    break
            assert events[-1]["response"]["status"] == "completed"
            sound = [e["delta"] for e in events if e["type"] == "response.output_audio.delta"]
            pcm = np.frombuffer(b"".join(map(base64.b64decode, sound)), "<i2")
            assert pcm.tolist() == (RAMP + turn).tolist()
            spoken = [e["delta"] for e in events if e["type"] == "response.output_audio_transcript.delta"]
            assert "".join(spoken) == words_of(turn)
            ids = [e["event_id"] for e in events if "event_id" in e]
            assert len(ids) == len(set(ids))
            assert [e["type"] for e in events].count("conversation.item.done") == 2
        network.calm = True
        await client.close()
        assert network.cuts > 2
        assert adapter.opened == 1
        await until(lambda: len(gateway.runtime.leases) == 0)


@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_cancelled_sound_does_not_come_back(frames: Literal["binary", "json"]) -> None:
    """Fault 5, and 1: what was cut before the break, or during it, stays cut."""

    async def endless(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        while True:
            yield AudioDelta(samples=np.full(480, turn.index, np.int16), sample_rate=24000)
            await asyncio.sleep(0.001)

    async with (
        gateway_with(ScriptedAdapter(respond=endless)) as gateway,
        cutting_proxy(port_of(gateway)) as network,
    ):
        client = await AsyncDuplexClient.connect(network.url("/v1/duplex"), frames=frames)
        await client.respond()
        async for event in client:
            if isinstance(event, clients.AudioDelta):
                break
        network.cut()
        await client.cancel()  # while the connection is down, or before that is known
        await client.respond()
        audio: list[int] = []
        async for event in client:
            if isinstance(event, clients.AudioDelta):
                audio.append(event.response_index)
                if event.response_index == 2:
                    break
        assert audio == [2]
        await client.abort()


async def test_a_client_that_may_not_come_back_says_so() -> None:
    async with gateway_with() as gateway, cutting_proxy(port_of(gateway)) as network:
        realtime = AsyncRealtimeClient(network.url("/v1/realtime"))
        created = await realtime.open()
        assert "resume_token" not in created
        await anext(realtime)
        network.cut()
        with pytest.raises(clients.ConnectionLost):
            await anext(realtime)
        with pytest.raises(clients.ConnectionLost):
            await realtime.send("response.create")


async def test_a_realtime_session_that_is_gone_ends_by_name() -> None:
    async with gateway_with() as gateway, cutting_proxy(port_of(gateway)) as network:
        client = AsyncRealtimeClient(network.url("/v1/realtime"), reconnect=True)
        await client.open()
        await anext(client)
        (runner,) = gateway.runtime.runners
        home, network.target = network.target, free_port()  # nothing can be reached
        network.cut()
        assert (await anext(client))["type"] == "client.disconnected"
        runner.evict()
        await until(lambda: not gateway.runtime.runners)
        network.target = home
        with pytest.raises(clients.ResumeRejected):
            await anext(client)
        with pytest.raises(clients.ResumeRejected):
            await client.send("response.create")


async def test_a_session_that_cannot_be_reached_is_given_up() -> None:
    async with gateway_with(resume_grace_s=0.1) as gateway, cutting_proxy(port_of(gateway)) as network:
        client = AsyncRealtimeClient(network.url("/v1/realtime"), reconnect=True)
        await client.open()
        await anext(client)
        network.target = free_port()
        network.cut()
        assert (await anext(client))["type"] == "client.disconnected"
        with pytest.raises(clients.ConnectionLost, match="could not be resumed"):
            await anext(client)


def test_what_is_kept_of_what_was_sent_is_bounded() -> None:
    sent = Sent(10)
    for frame in ("aaaa", "bbbb", "cccc"):
        sent.add(frame)
    assert sent.after(3) == ([], 0)
    assert sent.after(2) == (["cccc"], 0)
    assert sent.after(0) == (["bbbb", "cccc"], 1)
    sent.add("d", keep=False)
    assert sent.after(2) == ([], 2)
    sent.reset()
    sent.add("e")
    assert sent.after(0) == (["e"], 0)


async def test_a_gateway_that_names_another_is_followed_once() -> None:
    asked: list[str] = []

    async def connect(url: str) -> str:
        asked.append(url)
        if len(asked) == 4:
            return "there"
        elsewhere = clients.ResumeElsewhere("another gateway has the session")
        elsewhere.owner = "ws://owner:1"
        raise elsewhere

    found = await connect_again(connect, "ws://balancer/v1/duplex?x=1", within_s=10)
    assert found == ("there", 4)
    assert asked == ["ws://balancer/v1/duplex?x=1", "ws://owner:1/v1/duplex?x=1"] * 2


@pytest.mark.parametrize("owner", ["", "http://owner", "ws://owner", "wss://"])
async def test_an_owner_that_cannot_be_trusted_is_not_followed(owner: str) -> None:
    async def connect(url: str) -> str:
        elsewhere = clients.ResumeElsewhere("another gateway has the session")
        elsewhere.owner = owner
        raise elsewhere

    with pytest.raises(clients.ResumeElsewhere):
        await connect_again(connect, "wss://balancer/v1/duplex", within_s=10)
