"""Policies of interruption over sockets, on the native dialect and on the Realtime one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_peer import Peer, forever, tone

from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.core.types import (
    AudioDelta,
    Delta,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    Transcript,
    Trigger,
    Turn,
    TurnEnded,
)

POLICY = {"interrupt_min_words": 2, "duck": True}
DIALECTS = {
    "native": ("/v1/duplex", {"turn_detection": POLICY}, "response.delta", "response.cancelled"),
    "realtime": (
        "/v1/realtime",
        {"audio": {"input": {"turn_detection": {"type": "server_vad", **POLICY}}}},
        "response.output_audio.delta",
        "response.done",
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_duck_then_decide(start_gateway: Any, dialect: str) -> None:
    path, settings, audio, ended = DIALECTS[dialect]
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, path, ext="signals,playback,lifecycle")
    (session,) = adapter.open_sessions.values()
    await peer.send("session.update", session=settings)
    await peer.expect("session.updated")
    await peer.send("response.create")
    await peer.expect(audio)

    session.emit(SpeechStarted(at_ms=0))
    await peer.expect("playback.duck")
    session.emit(SpeechStopped(at_ms=600))
    session.emit(Transcript(text="Mhm.", final=True, started_ms=0))
    session.emit(TurnEnded())
    await peer.expect("playback.unduck")
    assert (await peer.expect("input.overheard"))["text"] == "Mhm."
    await peer.expect(audio)  # the voice goes on

    session.emit(SpeechStarted(at_ms=3000))
    await peer.expect("playback.duck")
    session.emit(Transcript(text="Stop it", started_ms=3000))
    await peer.expect(ended)
    kinds = [message["type"] for message in peer.log]
    assert sum(kind.endswith("speech_started") for kind in kinds) == 1
    assert len(session.turns) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_voice_that_a_noise_cut_goes_on_where_it_stopped(start_gateway: Any, dialect: str) -> None:
    path, _, audio, _ = DIALECTS[dialect]
    words = [f"word{number} " for number in range(60)]

    async def reads(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        rest = turn.speak_text.split() if turn.speak_text is not None else [word.strip() for word in words]
        yield TextDelta(text=" ".join(rest))
        for word in rest:
            sound = tone(200, turn.index)
            yield AudioDelta(samples=sound.samples, sample_rate=sound.sample_rate, text=word)

    adapter = ScriptedAdapter(respond=reads)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, path, ext="playback")
    (session,) = adapter.open_sessions.values()
    await peer.send("response.create")
    await peer.expect(audio)
    cursor = "cursor" if dialect == "native" else "audio_end_ms"
    await peer.send("playback.ack", **{cursor: 400})
    await peer.ws.send(json.dumps({"type": "no such thing"}))
    await peer.expect("error")  # all of it has been taken
    session.emit(SpeechStarted(at_ms=0))
    session.emit(SpeechStopped(at_ms=300))
    session.emit(Transcript(text="", final=True, started_ms=0))
    await peer.expect("response.created")
    await peer.expect(audio)
    resumed = session.turns[-1]
    assert resumed.trigger is Trigger.RESUMED
    assert resumed.speak_text == " ".join(word.strip() for word in words[2:])
