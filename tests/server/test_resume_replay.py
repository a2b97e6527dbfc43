"""Clients that count messages and come back for those that they missed, over real sockets and in both
dialects."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_peer import Peer, forever, tone, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.core.types import Delta, TextDelta, Transcript, Turn

NATIVE, REALTIME = "/v1/duplex", "/v1/realtime"


async def join(gateway: Any, path: str = NATIVE, **query: str) -> Peer:
    return await Peer.connect(gateway, path, **{"ext": "resume,lifecycle,playback,signals", **query})


async def rejoin(gateway: Any, peer: Peer, last_seq: int, path: str = NATIVE, **query: str) -> Peer:
    """Another socket, on which the session has gone on."""
    token = peer.created["resume_token"]
    back = await Peer.connect(gateway, path, opened=False, resume=token, last_seq=str(last_seq), **query)
    back.created = {**peer.created, **(await back.next())}
    assert back.created["type"] == "session.resumed", back.created
    return back


async def detached(gateway: Any) -> None:
    await until(lambda: gateway.runtime.leases.detached == 1)


def seqs(messages: list[dict[str, Any]]) -> list[int]:
    return [message["seq"] for message in messages if message["type"] != "session.resumed"]


class Told:
    """A model that says what the test lets it say, a second at a time."""

    def __init__(self) -> None:
        self.may = asyncio.Semaphore(0)
        self.adapter = ScriptedAdapter(respond=self.respond)

    async def respond(self, session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        for part in range(1, 5):
            await self.may.acquire()
            yield TextDelta(text=f"part {part} ")
            for _ in range(5):
                yield tone(20, 100 * turn.index + part)

    def say(self, parts: int = 1) -> None:
        for _ in range(parts):
            self.may.release()


def native_pcm(messages: list[dict[str, Any]], index: int) -> bytes:
    return b"".join(
        base64.b64decode(m["data"])
        for m in messages
        if m["type"] == "response.delta" and m["modality"] == "audio" and m["response_index"] == index
    )


def realtime_pcm(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(
        base64.b64decode(m["delta"]) for m in messages if m["type"] == "response.output_audio.delta"
    )


@pytest.mark.parametrize("path", [NATIVE, REALTIME])
async def test_messages_are_numbered_only_for_those_who_ask(start_gateway: Any, path: str) -> None:
    gateway = await start_gateway()
    plain = await Peer.connect(gateway, path)
    assert "seq" not in plain.created
    counted = await join(gateway, path)
    assert counted.created["seq"] == 1
    assert counted.created["resume_token"]
    await counted.send("session.update", session={})
    assert (await counted.expect("session.updated"))["seq"] == 2


@pytest.mark.parametrize("path", [NATIVE, REALTIME])
async def test_an_answer_goes_on_behind_the_last_message_that_arrived(start_gateway: Any, path: str) -> None:
    told = Told()
    gateway = await start_gateway(told.adapter)
    whole = await join(gateway, path, max_run_ahead_ms="0")
    told.say(4)
    await whole.send("response.create")
    await whole.expect("response.done")

    peer = await join(gateway, path, max_run_ahead_ms="0")
    told.say(2)
    await peer.send("response.create")
    while len(peer.log) < 12:
        await peer.next()
    last = peer.log[7]["seq"]  # the client lost what came behind the eighth message
    peer.drop()
    await detached(gateway)
    told.say(2)
    back = await rejoin(gateway, peer, last, path)
    assert back.created["lost"] == 0
    await back.expect("response.done")
    seen = peer.log[:8] + back.log[1:]
    assert seqs(seen) == list(range(1, len(seen) + 1))
    pcm = (lambda log: native_pcm(log, 1)) if path == NATIVE else realtime_pcm
    assert pcm(seen) == pcm(whole.log) != b""
    if path == REALTIME:
        # ids of before the break can still be named: the conversation is the same
        item = next(m["item"] for m in seen if m["type"] == "response.output_item.added")
        await back.send("conversation.item.retrieve", item_id=item["id"])
        assert (await back.expect("conversation.item.retrieved"))["item"]["id"] == item["id"]
    assert gateway.runtime.metrics.replayed == back.created["replayed"] > 0


async def test_5_client_that_left_in_mid_speech_never_hears_the_stale_tail(
    start_gateway: Any,
) -> None:
    """5: it returned after a while and heard the tail of what it had left."""
    gateway = await start_gateway(ScriptedAdapter(respond=forever), resume_hold_s=0.05)
    peer = await join(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    peer.drop()
    await detached(gateway)
    (runner,) = gateway.runtime.runners
    await until(lambda: runner.session.active_response is None)
    back = await rejoin(gateway, peer, peer.log[-1]["seq"])
    cancelled = await back.expect("response.cancelled", response_index=1)
    assert cancelled["reason"] == "client_gone"
    await back.send("response.create")
    await back.expect("response.delta", response_index=2, modality="audio")
    assert not native_pcm(back.log, 1)


@pytest.mark.parametrize("path", [NATIVE, REALTIME])
async def test_35_half_open_socket_is_taken_over_in_mid_answer(start_gateway: Any, path: str) -> None:
    """35: a second socket was refused while the first was half open."""
    told = Told()
    gateway = await start_gateway(told.adapter)
    peer = await join(gateway, path)
    told.say()
    await peer.send("response.create")
    await peer.expect("response.created")
    back = await rejoin(gateway, peer, peer.log[-1]["seq"], path)
    assert await peer.until_closed() == (4409, "taken_over")
    told.say(3)
    await back.expect("response.done")
    assert not back.of("response.cancelled")
    assert len(gateway.runtime.leases) == 1


async def test_34_what_the_client_sent_is_counted(start_gateway: Any) -> None:
    """34: input during a reconnect was silently dropped: now the client learns what arrived."""
    gateway = await start_gateway()
    peer = await join(gateway)
    for word in ("one", "two", "three"):
        await peer.say(word)
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    peer.drop()
    await detached(gateway)
    back = await rejoin(gateway, peer, peer.log[-1]["seq"])
    assert (back.created["received"], back.created["replayed"]) == (4, 0)


@pytest.mark.parametrize("path", [NATIVE, REALTIME])
async def test_resume_by_message_on_a_socket_with_its_own_session(start_gateway: Any, path: str) -> None:
    told = Told()
    gateway = await start_gateway(told.adapter)
    peer = await join(gateway, path)
    told.say()
    await peer.send("response.create")
    await peer.expect("response.created")
    last = peer.log[-1]["seq"]
    peer.drop()
    await detached(gateway)
    other = await join(gateway, path)
    await other.send("session.resume", resume_token=peer.created["resume_token"], last_seq=last)
    resumed = await other.expect("session.resumed")
    assert resumed["seq"] == last + 1
    told.say(3)
    await other.expect("response.done")
    await until(lambda: len(gateway.runtime.leases) == 1)  # the session that the socket had is over
    (runner,) = gateway.runtime.runners
    assert runner.session.id == resumed["session_id"]


async def test_resume_by_message_of_what_is_not_there(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await join(gateway)
    await peer.send("session.resume", resume_token="nothing", last_seq=0, event_id="e1")
    error = await peer.expect("error")
    assert (error["code"], error["event_id"]) == ("resume_rejected", "e1")
    assert (await peer.until_closed())[0] == 4410


@pytest.mark.parametrize("path", [NATIVE, REALTIME])
@pytest.mark.parametrize(
    "fields",
    [{}, {"resume_token": 1}, {"resume_token": "x", "last_seq": -1}, {"resume_token": "x", "last_seq": "1"}],
    ids=str,
)
async def test_a_resume_message_that_cannot_be_read(
    start_gateway: Any, path: str, fields: dict[str, Any]
) -> None:
    """It is refused by name, and the session that the socket has lives on."""
    gateway = await start_gateway()
    peer = await join(gateway, path)
    await peer.send("session.resume", event_id="e1", **fields)
    error = await peer.expect("error")
    error = error.get("error", error)
    assert (error["code"], error["event_id"]) == ("invalid_value", "e1")
    await peer.send("session.update", session={})
    await peer.expect("session.updated")


async def test_realtime_clients_that_did_not_ask_have_no_resume(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await Peer.connect(gateway, REALTIME)
    assert "resume_token" not in peer.created
    await peer.send("session.resume", resume_token="x")
    error = (await peer.expect("error"))["error"]
    assert error["code"] == "invalid_event"


async def test_a_socket_cannot_take_over_itself(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer = await join(gateway)
    await peer.send("session.resume", resume_token=peer.created["resume_token"], last_seq=1)
    assert (await peer.expect("error"))["code"] == "resume_rejected"
    assert (await peer.until_closed())[0] == 4410


@pytest.mark.parametrize("last_seq", ["99", "1.5", "-1", "x"])
async def test_a_number_that_was_never_sent_is_refused(start_gateway: Any, last_seq: str) -> None:
    gateway = await start_gateway()
    peer = await join(gateway)
    token = peer.created["resume_token"]
    wrong = await Peer.connect(gateway, opened=False, resume=token, last_seq=last_seq)
    code, reason = await wrong.until_closed()
    assert (code, reason) == ((4410, "resume_rejected") if last_seq == "99" else (4400, "bad_config"))
    # and the session has noticed nothing
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")


async def test_what_was_written_down_while_the_client_was_away_is_told(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter)
    peer = await join(gateway)
    peer.drop()
    await detached(gateway)
    (session,) = adapter.open_sessions.values()
    session.emit(Transcript(text="what I said", final=True))
    (runner,) = gateway.runtime.runners
    await until(lambda: bool(runner.queue.unwritten()))
    back = await rejoin(gateway, peer, 1)
    assert (await back.expect("input.transcript"))["text"] == "what I said"


async def test_a_client_without_a_number_begins_anew(start_gateway: Any) -> None:
    """It is told how its answer ended, once, and gets nothing of the old sound."""
    told = Told()
    gateway = await start_gateway(told.adapter)
    peer = await join(gateway)
    told.say()
    await peer.send("response.create")
    await peer.expect("response.created")
    peer.drop()
    await detached(gateway)
    token = peer.created["resume_token"]
    back = await Peer.connect(gateway, resume=token, ext="lifecycle")
    assert back.created["resumed"]
    await back.expect("response.cancelled", response_index=1)
    assert not native_pcm(back.log, 1)
    assert "seq" not in back.log[-1]


async def test_a_session_in_grace_holds_its_slot_and_its_journal_is_counted(start_gateway: Any) -> None:
    gateway = await start_gateway(max_sessions=2)
    peer = await join(gateway)
    peer.drop()
    await detached(gateway)
    figures = gateway.runtime.metrics.render().decode()
    assert "duplex_sessions 1.0" in figures
    assert "duplex_sessions_detached 1.0" in figures
    (kept,) = [line for line in figures.splitlines() if line.startswith("duplex_journal_bytes ")]
    assert float(kept.split()[1]) > 0


async def test_the_end_of_the_grace_frees_the_slot_of_a_client_that_counts(start_gateway: Any) -> None:
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter, resume_grace_s=0.05)
    peer = await join(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    peer.drop()
    await until(lambda: len(gateway.runtime.leases) == 0)
    assert not adapter.open_sessions
    late = await Peer.connect(gateway, opened=False, resume=peer.created["resume_token"], last_seq="1")
    assert (await late.until_closed())[0] == 4410


async def test_33_a_drain_ends_graces_at_once(start_gateway: Any) -> None:
    gateway = await start_gateway(ScriptedAdapter(respond=forever))
    peer = await join(gateway)
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")
    peer.drop()
    await detached(gateway)
    async with asyncio.timeout(5):  # far less than any grace
        await gateway.runtime.drain()
    assert len(gateway.runtime.leases) == 0


async def test_a_journal_of_nothing_loses_by_name(start_gateway: Any) -> None:
    told = Told()
    gateway = await start_gateway(told.adapter, journal_bytes=0)
    peer = await join(gateway)
    told.say(4)
    await peer.send("response.create")
    done = await peer.expect("response.done")
    peer.drop()
    await detached(gateway)
    back = await rejoin(gateway, peer, 1)
    assert (back.created["lost"], back.created["replayed"]) == (done["seq"] - 1, 0)
