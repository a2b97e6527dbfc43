"""Clients that leave and come back, on another socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_peer import Peer, forever, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.core.types import SpeechStarted, TurnEnded, Window


def ticket(peer: Peer) -> dict[str, str]:
    """What a client comes back with."""
    return {"session_id": peer.created["session_id"], "resume": peer.created["resume_token"]}


async def detached(gateway: Any) -> None:
    await until(lambda: gateway.runtime.leases.detached == 1)


async def test_client_that_left_in_mid_speech_never_hears_the_stale_tail(start_gateway: Any) -> None:
    """5: it returned and heard the tail of what it had left, or another session's."""
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    peer.drop()
    await detached(gateway)

    back = await Peer.connect(gateway, **ticket(peer), ext="lifecycle,playback")
    assert back.created["resumed"]
    assert back.created["session_id"] == peer.created["session_id"]
    cancelled = await back.expect("response.cancelled", response_index=1)
    assert cancelled["reason"] == "client_gone"
    assert not back.of("response.delta")
    await back.send("response.create")
    await back.expect("response.delta", response_index=2, modality="audio")
    assert {m["response_index"] for m in back.of("response.delta")} == {2}
    assert adapter.opened == 1


async def test_the_token_alone_is_enough(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await Peer.connect(gateway, session_id="mine")
    peer.drop()
    await detached(gateway)
    back = await Peer.connect(gateway, resume=peer.created["resume_token"])
    assert back.created["session_id"] == "mine"


async def test_only_the_right_token_resumes(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer, other = await Peer.connect(gateway), await Peer.connect(gateway)
    good = ticket(peer)
    for bad in (
        {**good, "resume": good["resume"][:-1] + "~"},
        {**good, "resume": ""},
        {**good, "session_id": other.created["session_id"]},
        {**good, "resume": "ä"},
    ):
        refused = await Peer.connect(gateway, opened=False, **bad)
        if bad["resume"]:
            assert (await refused.until_closed())[0] == 4410
        else:  # an empty parameter is none: it is a newcomer with an id in use
            assert (await refused.until_closed())[0] == 4429
    # and the session that was aimed at has noticed nothing
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    unknown = await Peer.connect(gateway, opened=False, session_id="mine", resume="nothing")
    assert (await unknown.until_closed())[0] == 4410


async def test_half_open_socket_is_taken_over(start_gateway: Any) -> None:
    """35: the second socket was refused while the first was half open."""
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")

    back = await Peer.connect(gateway, **ticket(peer))
    assert await peer.until_closed() == (4409, "taken_over")
    assert peer.log[-1]["code"] == "taken_over"
    await back.expect("response.cancelled", response_index=1)
    # what the old socket may still say is nobody's word any more
    await back.send("response.create")
    await back.expect("response.delta", response_index=2, modality="audio")
    assert (len(gateway.runtime.leases), adapter.opened) == (1, 1)


async def test_taken_over_socket_that_does_not_read_is_cut_off(start_gateway: Any) -> None:
    gateway = await start_gateway(ScriptedAdapter(respond=forever))
    peer = await Peer.connect(gateway, receive_buffer=4096, max_run_ahead_ms="0")
    (runner,) = gateway.runtime.runners
    peer.vanish()
    await peer.send("response.create")
    await until(lambda: runner.connection is not None and runner.connection.queue.audio_s > 0)
    back = await Peer.connect(gateway, **ticket(peer))
    await back.expect("response.cancelled", response_index=1)
    await back.send("response.create")
    await back.expect("response.delta", response_index=2, modality="audio")


async def test_client_that_does_not_come_back_frees_the_slot(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter, resume_grace_s=0.05)
    peer = await Peer.connect(gateway)
    peer.drop()
    await until(lambda: len(gateway.runtime.leases) == 0)
    assert not adapter.open_sessions
    late = await Peer.connect(gateway, opened=False, **ticket(peer))
    assert (await late.until_closed())[0] == 4410


async def test_without_grace_a_session_ends_with_its_socket(start_gateway: Any) -> None:
    gateway = await start_gateway(resume_grace_s=0.0)
    peer = await Peer.connect(gateway)
    assert peer.created["resume_token"] is None
    peer.drop()
    await until(lambda: len(gateway.runtime.leases) == 0)


async def test_full_server_gives_the_longest_detached_slot_to_a_newcomer(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter, max_sessions=2)
    first, second = await Peer.connect(gateway), await Peer.connect(gateway)
    first.drop()
    await detached(gateway)
    second.drop()
    await until(lambda: gateway.runtime.leases.detached == 2)

    newcomer = await Peer.connect(gateway)
    assert len(gateway.runtime.leases) == 2
    assert first.created["session_id"] not in adapter.open_sessions
    back = await Peer.connect(gateway, **ticket(second))
    gone = await Peer.connect(gateway, opened=False, **ticket(first))
    assert (await gone.until_closed())[0] == 4410
    await newcomer.close()
    await back.close()


async def test_two_newcomers_take_two_slots(start_gateway: Any) -> None:
    gate = asyncio.Event()

    async def on_close(session: ScriptedSession) -> None:
        await gate.wait()

    gateway = await start_gateway(ScriptedAdapter(on_close=on_close), max_sessions=2)
    old = [await Peer.connect(gateway) for _ in range(2)]
    for peer in old:
        peer.drop()
    await until(lambda: gateway.runtime.leases.detached == 2)
    newcomers = [asyncio.create_task(Peer.connect(gateway)) for _ in range(2)]
    await until(lambda: all(lease.leaving for lease in gateway.runtime.leases if lease.holder))
    third = await Peer.connect(gateway, opened=False)
    assert (await third.until_closed())[0] == 4429
    gate.set()
    for peer in [await task for task in newcomers]:
        await peer.close()
    assert len(gateway.runtime.leases) == 0


async def test_attached_session_is_never_evicted(start_gateway: Any) -> None:
    gateway = await start_gateway(max_sessions=1)
    peer = await Peer.connect(gateway)
    refused = await Peer.connect(gateway, opened=False)
    assert (await refused.until_closed())[0] == 4429
    assert (await peer.close())[0] == 1000


async def test_turn_committed_before_leaving_is_answered_on_return(start_gateway: Any) -> None:
    """34: input during a reconnect was silently dropped."""
    gate = asyncio.Event()

    async def on_commit(session: ScriptedSession) -> bool:
        await gate.wait()
        return True

    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=20), on_commit=on_commit)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    await peer.say("a question")
    await peer.send("input.commit")
    (session,) = adapter.open_sessions.values()
    await until(lambda: len(session.appended) == 1)
    peer.drop()
    await detached(gateway)
    gate.set()
    back = await Peer.connect(gateway, **ticket(peer))
    await back.expect("response.done", response_index=1)
    assert session.turns[0].question == "a question"


async def test_input_refused_while_the_client_is_away_is_told_on_return(start_gateway: Any) -> None:
    gate, refused = asyncio.Event(), asyncio.Event()

    async def on_append(session: ScriptedSession, window: Window) -> None:
        await gate.wait()
        refused.set()
        raise RuntimeError

    adapter = ScriptedAdapter(on_append=on_append)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    await peer.say("x", event_id="e1")
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    peer.drop()
    await detached(gateway)
    gate.set()
    await refused.wait()
    back = await Peer.connect(gateway, **ticket(peer))
    error = await back.expect("error")
    assert (error["code"], error["event_id"]) == ("adapter_failed", "e1")


async def test_nobody_is_spoken_to_while_the_client_is_away(start_gateway: Any) -> None:
    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=20))
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    session.emit(SpeechStarted(at_ms=0))
    session.emit(TurnEnded())
    await peer.expect("response.done", response_index=1)
    peer.drop()
    await detached(gateway)
    session.emit(SpeechStarted(at_ms=0))
    back = await Peer.connect(gateway, **ticket(peer))
    await back.send("response.create")
    created = await back.expect("response.created")
    assert created["response_index"] == 2
    await back.expect("response.done", response_index=2)


async def test_close_while_resuming_twice_leaves_one_session(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    for _ in range(10):
        following = await Peer.connect(gateway, **ticket(peer))
        assert (await peer.until_closed())[0] == 4409
        following.created["resume_token"] = following.created["resume_token"] or ""
        peer = following
    assert (await peer.close())[0] == 1000
    assert len(gateway.runtime.leases) == 0
    assert (adapter.opened, adapter.closed) == (1, 1)


@pytest.mark.parametrize("how", ["drop", "close"])
async def test_client_that_leaves_during_generation_frees_its_slot(start_gateway: Any, how: str) -> None:
    """17: a client that closed during generation kept its slot."""
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter, max_sessions=1, close_grace_s=0.05)
    for _ in range(3):
        peer = await Peer.connect(gateway)
        await peer.send("response.create")
        await peer.expect("response.delta", modality="audio")
        if how == "drop":
            peer.drop()
            await detached(gateway)
        else:
            assert (await peer.close())[0] == 1000
    assert (await (await Peer.connect(gateway)).close())[0] == 1000
