"""Several gateways and one Redis: a client that comes back to another one is told where its session is."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import cutting_proxy
from gateway_peer import Peer, until
from redis.asyncio import Redis
from redis_servers import KINDS, free_port, redis_server

from duplex.adapters.scripted import ScriptedAdapter
from duplex.clients import AsyncDuplexClient, AsyncRealtimeClient
from duplex.config import ServerConfig, validate
from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime import resume_store
from duplex.runtime.resume_store import key_of
from duplex.server.run import Gateway, running_gateway


class Fleet:
    """Gateways that know each other by one Redis."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.redis = Redis.from_url(url, decode_responses=True)
        self._stack = stack

    async def gateway(self, **config: Any) -> Gateway:
        port = free_port()
        settings = ServerConfig(
            port=port, redis_url=self.url, advertised_url=f"ws://127.0.0.1:{port}", drain_grace_s=0, **config
        )
        return await self._stack.enter_async_context(running_gateway(settings, [ScriptedAdapter()]))

    async def known(self, token: str, there: bool = True) -> None:
        async with asyncio.timeout(20):
            while bool(await self.redis.exists(key_of(token))) is not there:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture(params=KINDS)
async def fleet(request: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with redis_server(request.param, tmp_path) as url, AsyncExitStack() as stack:
        fleet = Fleet(url, stack)
        yield fleet
        await fleet.redis.aclose()


async def resume(gateway: Gateway, peer: Peer, path: str = "/v1/duplex") -> dict[str, Any]:
    """What another gateway says."""
    token = peer.created["resume_token"]
    back = await Peer.connect(gateway, path, opened=False, resume=token, last_seq="1")
    answer = await back.next()
    answer["closed"] = await back.until_closed()
    return answer


async def test_the_other_gateway_names_the_owner(fleet: Fleet) -> None:
    first, second = await fleet.gateway(), await fleet.gateway()
    peer = await Peer.connect(first, ext="resume")
    await fleet.known(peer.created["resume_token"])
    peer.drop()
    native = await resume(second, peer)
    assert (native["code"], native["owner"]) == ("resume_elsewhere", first.ws_url)
    assert native["closed"] == (4421, "resume_elsewhere")
    realtime = await resume(second, peer, "/v1/realtime")
    assert (realtime["error"]["code"], realtime["error"]["owner"]) == ("resume_elsewhere", first.ws_url)


async def test_the_token_itself_is_not_in_redis(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    peer = await Peer.connect(gateway, ext="resume")
    token = peer.created["resume_token"]
    await fleet.known(token)
    (key,) = await fleet.redis.keys("*")
    assert key == key_of(token)
    assert token not in key + await fleet.redis.get(key)
    assert 0 < await fleet.redis.ttl(key) <= resume_store.LIFE_S


async def test_a_session_that_is_over_is_forgotten(fleet: Fleet) -> None:
    first, second = await fleet.gateway(), await fleet.gateway()
    peer = await Peer.connect(first, ext="resume")
    await fleet.known(peer.created["resume_token"])
    await peer.close()
    await fleet.known(peer.created["resume_token"], there=False)
    answer = await resume(second, peer)
    assert (answer["code"], answer.get("owner")) == ("resume_rejected", None)


async def test_a_gateway_that_stops_takes_its_sessions_out(fleet: Fleet) -> None:
    async with AsyncExitStack() as inner:
        gateway = await Fleet(fleet.url, inner).gateway()
        peer = await Peer.connect(gateway, ext="resume")
        await fleet.known(peer.created["resume_token"])
    assert not await fleet.redis.keys("*")


async def test_a_session_whose_gateway_lost_it_is_not_looked_for_there(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    await fleet.redis.set(key_of("token"), gateway.ws_url)
    wrong = await Peer.connect(gateway, opened=False, resume="token")
    assert await wrong.until_closed() == (4410, "resume_rejected")


async def test_keys_live_as_long_as_their_sessions(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_store, "REFRESH_S", 0.05)
    gateway = await fleet.gateway()
    peer = await Peer.connect(gateway, ext="resume")
    token = peer.created["resume_token"]
    await fleet.known(token)
    await fleet.redis.flushall()  # it lost all, as after a restart
    await fleet.known(token)


async def test_without_an_answer_of_redis_sessions_open_and_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()  # where nobody listens
    config = ServerConfig(port=0, redis_url=f"redis://127.0.0.1:{port}/0", advertised_url="ws://127.0.0.1:1")
    with caplog.at_level(logging.WARNING, "duplex.resume"):
        async with running_gateway(config, [ScriptedAdapter()]) as gateway:
            peer = await Peer.connect(gateway, ext="resume")
            await until(lambda: "Redis does not answer" in caplog.text)
            peer.drop()
            await until(lambda: gateway.runtime.leases.detached == 1)
            token = peer.created["resume_token"]
            back = await Peer.connect(gateway, opened=False, resume=token, last_seq="1")
            assert (await back.next())["type"] == "session.resumed"
            unknown = await Peer.connect(gateway, opened=False, resume="nothing")
            assert await unknown.until_closed() == (4410, "resume_rejected")
    assert caplog.text.count("Redis does not answer") == 1


@pytest.mark.parametrize("dialect", ["native", "realtime"])
async def test_the_clients_find_their_session_behind_a_balancer(fleet: Fleet, dialect: str) -> None:
    first, second = await fleet.gateway(), await fleet.gateway()
    async with cutting_proxy(int(first.url.rpartition(":")[2])) as balancer:
        if dialect == "native":
            client = await AsyncDuplexClient.connect(balancer.url("/v1/duplex"))
            token = client.session.resume_token
        else:
            client = AsyncRealtimeClient(balancer.url("/v1/realtime"), reconnect=True)
            token = (await client.open())["resume_token"]
        await fleet.known(token)
        balancer.target = int(second.url.rpartition(":")[2])
        balancer.cut()
        if dialect == "native":
            await client.speak("still here")
            assert (await client.response()).status == "done"
        else:
            await client.send("response.create")
            async for event in client:
                if event["type"] == "response.done":
                    break
        assert (len(first.runtime.leases), len(second.runtime.leases)) == (1, 0)
        assert second.runtime.metrics.errors[ErrorCode.RESUME_ELSEWHERE] == 1
        await client.close()


def test_redis_needs_an_address_to_tell() -> None:
    with pytest.raises(DuplexError) as caught:
        validate(ServerConfig(redis_url="redis://127.0.0.1"))
    assert (caught.value.code, caught.value.param) == (ErrorCode.BAD_CONFIG, "advertised_url")
    with pytest.raises(DuplexError) as caught:
        validate(ServerConfig(advertised_url="http://gateway"))
    assert caught.value.param == "advertised_url"


def test_a_redis_address_that_is_none_is_refused_without_its_password() -> None:
    config = ServerConfig(redis_url="http://:hunter2@host", advertised_url="ws://here")
    with pytest.raises(DuplexError) as caught:
        resume_store.resume_store(config)
    assert (caught.value.code, caught.value.param) == (ErrorCode.BAD_CONFIG, "redis_url")
    assert "hunter2" not in caught.value.message


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    config = ServerConfig(redis_url="redis://host", advertised_url="ws://here")
    with pytest.raises(DuplexError, match=r"\[redis\]"):
        resume_store.resume_store(config)
