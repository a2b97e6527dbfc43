"""Faults 8 and 13 to 17 that users of such systems reported: turns, and what is no speech."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from faces import RATE, Client, Dialect, happens, loud
from gateway_peer import forever, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.config import ServerConfig
from duplex.core.facts import SessionLimits
from duplex.core.types import SpeechStarted, TurnEnded

QUICK = ScriptedOptions(audio_ms=40, paced=False)
SILENCE_MS = 600


def microphone(samples: Any) -> bytes:
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


@pytest.fixture(scope="module")
async def voice() -> Any:
    pytest.importorskip("hibari", reason="needs the embedded extra")
    pytest.importorskip("moonshine_voice", reason="needs the embedded extra")
    from duplex.adapters.embedded.voice import VoiceAdapter

    return VoiceAdapter()


QUESTION = "Stop that, please. What day is it today?"


async def hear(client: Client, samples: Any) -> None:
    pcm = microphone(samples)
    for at in range(0, len(pcm), 1920):
        await client.append(pcm[at : at + 1920])


def bangs(speech: Any) -> Any:
    """70 ms of loud noise, and 70 ms of a voice, in silence."""
    size = int(RATE * 0.07)
    noise = np.random.default_rng(1).uniform(-0.8, 0.8, size)
    loudest = int(np.abs(speech).argmax())
    scrap = speech[loudest - size // 2 : loudest + size // 2]
    silence = np.zeros(RATE * SILENCE_MS // 1000)
    return np.concatenate([silence, noise, silence, scrap, silence])


async def test_fault_08_a_bang_is_no_speech(start_gateway: Any, dialect: Dialect, voice: Any) -> None:
    client = await Client.connect(await start_gateway(voice), dialect)
    piece = await voice.say(QUESTION)
    no_speech = bangs(piece.samples)
    await hear(client, np.concatenate([no_speech, piece.samples, np.zeros(RATE)]))
    speech = await client.expect("speech")
    assert speech.data > len(no_speech) / RATE * 1000 - 400
    await client.expect("audio", 1)
    assert len(client.all("speech")) == 1


async def test_fault_08_a_bang_and_our_own_echo_do_not_stop_the_answer(
    start_gateway: Any, dialect: Dialect, voice: Any
) -> None:
    client = await Client.connect(await start_gateway(voice), dialect)
    await client.say("Count to fifty.")
    await client.create()
    while client.sound_ms(1) < 3000:
        await client.expect("audio", 1)
    echo = client.sound(1)[: RATE * 2].astype(np.float32) / 32768 / 10
    piece = await voice.say(QUESTION)
    no_speech = np.concatenate([bangs(piece.samples), echo, np.zeros(RATE * SILENCE_MS // 1000)])
    await hear(client, np.concatenate([no_speech, piece.samples, np.zeros(RATE)]))
    speech = await client.expect("speech")
    assert speech.data > len(no_speech) / RATE * 1000 - 400
    assert await client.end_of(1) == "cancelled"
    assert len(client.all("speech")) == 1


async def test_fault_13_there_are_never_two_voices(start_gateway: Any, dialect: Dialect) -> None:
    """Realtime's clients know the refusal by its code; the native dialect lets the newer request win."""
    client = await Client.connect(await start_gateway(ScriptedAdapter(respond=forever)), dialect)
    await client.create()
    await client.expect("audio", 1)
    await client.create(event_id="second")
    if dialect == "realtime":
        error = await client.expect("error")
        assert error.data["code"] == "conversation_already_has_active_response"
        assert error.data["event_id"] == "second"
        await client.expect("audio", 1)
        await client.cancel()
        await client.end_of(1)
        await client.create()
    await client.expect("audio", 2)
    kinds = [(heard.kind, heard.index) for heard in client.heard]
    assert kinds.index(("cancelled", 1)) < kinds.index(("created", 2))
    assert client.stale() == []


async def test_fault_14_a_refusal_names_the_request_that_it_refuses(
    start_gateway: Any, dialect: Dialect
) -> None:
    adapter = ScriptedAdapter(respond=forever)
    client = await Client.connect(await start_gateway(adapter), dialect)
    (session,) = adapter.open_sessions.values()
    session.emit(SpeechStarted(at_ms=0))
    session.emit(TurnEnded())
    await client.expect("created", 1)
    if dialect == "realtime":
        await client.create(event_id="late")
        code = "conversation_already_has_active_response"
    else:
        await client.cancel(index=7, event_id="late")
        code = "response_not_found"
    error = await client.expect("error")
    assert (error.data["code"], error.data["event_id"]) == (code, "late")
    await client.expect("audio", 1)


@pytest.mark.parametrize("how", ["create", "commit"])
async def test_fault_14_the_error_of_a_response_that_fails_names_who_asked_for_it(
    start_gateway: Any, how: str
) -> None:
    async def fails(session: ScriptedSession, turn: Any) -> AsyncIterator[Any]:
        raise RuntimeError
        yield

    client = await Client.connect(await start_gateway(ScriptedAdapter(respond=fails)), "native")
    await client.say("hello")
    await (client.create if how == "create" else client.commit)(event_id="mine")
    error = await client.expect("error")
    assert (error.data["code"], error.data["event_id"]) == ("adapter_failed", "mine")
    assert await client.end_of(1) == "failed"


async def test_fault_15_input_that_stalls_in_mid_speech_ends_the_turn(
    start_gateway: Any, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerConfig, "session_limits", lambda self: SessionLimits(input_stall_s=0.1))
    adapter = ScriptedAdapter(QUICK)
    client = await Client.connect(await start_gateway(adapter), dialect)
    await client.append(loud(9000, 300))
    (session,) = adapter.open_sessions.values()
    await until(lambda: len(session.appended) == 1)
    session.emit(SpeechStarted(at_ms=0))
    over = await client.expect("speech over")
    assert over.data == 300
    assert await client.end_of(1) == "done"
    assert client.all("error") == []


@pytest.mark.parametrize("appended", [False, True])
async def test_fault_16_a_commit_of_nothing_is_an_error_and_no_turn(
    start_gateway: Any, dialect: Dialect, appended: bool
) -> None:
    async def finds_nothing(session: ScriptedSession) -> bool:
        return False

    adapter = ScriptedAdapter(QUICK, on_commit=finds_nothing)
    client = await Client.connect(await start_gateway(adapter), dialect, turn_detection="none")
    if appended:
        await client.append(loud(1, 300))
    await client.commit(event_id="empty")
    error = await client.expect("error")
    assert (error.data["code"], error.data["event_id"]) == (client.code("commit_empty"), "empty")
    await client.create()
    assert await client.end_of(1) == "done"
    (session,) = adapter.open_sessions.values()
    assert session.turns[0].history == ()
    added = [h for h in client.heard if h.data in ("conversation.item.added", "input_audio_buffer.committed")]
    assert [h.data for h in added] == (["conversation.item.added"] if dialect == "realtime" else [])  # answer


@pytest.mark.parametrize("how", ["drop", "leave"])
async def test_fault_17_leaving_in_mid_answer_frees_the_slot_and_stops_the_model(
    start_gateway: Any, dialect: Dialect, how: str
) -> None:
    stopped = asyncio.Event()

    async def endless(session: ScriptedSession, turn: Any) -> AsyncIterator[Any]:
        try:
            async for delta in forever(session, turn):
                yield delta
        finally:
            stopped.set()

    gateway = await start_gateway(ScriptedAdapter(respond=endless), max_sessions=1, resume_hold_s=0.01)
    for _ in range(3):
        stopped.clear()
        client = await Client.connect(gateway, dialect)
        await client.create()
        await client.expect("audio", 1)
        if how == "leave":
            await client.leave()
            await until(lambda: len(gateway.runtime.leases) == 0)
        else:
            client.peer.drop()
            # its slot waits for it, but not when a newcomer needs it
            await until(lambda: gateway.runtime.leases.detached == 1)
        await happens(stopped)
    await Client.connect(gateway, dialect)
