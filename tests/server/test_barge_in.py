"""Barge-in and staleness: after a cut nothing of what was cut follows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from gateway_peer import Peer, forever, tone, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Delta, SessionSettings, SpeechStarted, TextDelta, Turn, WantsToSpeak


def audio_of(message: dict[str, Any]) -> bool:
    return message["type"] == "response.delta" and message["modality"] == "audio"


async def started(peer: Peer, index: int) -> None:
    """Ask for a response and wait for its first audio."""
    await peer.send("response.create")
    await peer.expect("response.delta", response_index=index, modality="audio")


async def settled(peer: Peer) -> None:
    """All that the gateway had to say so far has come: errors keep their place behind it."""
    await peer.ws.send("{}")
    await peer.expect("error", code="missing_type")


async def test_cancel_leaves_nothing_stale_and_one_terminal_event(start_gateway: Any) -> None:
    """1: the user talks over an answer, and the answer went on."""
    gateway = await start_gateway(ScriptedAdapter(respond=forever))
    peer = await Peer.connect(gateway)
    for index in range(1, 6):
        await started(peer, index)
        await peer.send("response.cancel")
        await peer.expect("response.cancelled", response_index=index)
    await settled(peer)
    for index in range(1, 6):
        at = peer.log.index({"type": "response.cancelled", "response_index": index})
        assert not [m for m in peer.log[at + 1 :] if m.get("response_index") == index]
        assert not peer.of("response.done")


async def test_audio_of_an_answer_never_leaks_into_the_next(start_gateway: Any) -> None:
    """3: interrupted between synthesis and playback, the old audio led the next answer."""
    gateway = await start_gateway(ScriptedAdapter(respond=forever))
    peer = await Peer.connect(gateway)
    for index in range(1, 6):
        await started(peer, index)  # each supersedes the one before it
    await peer.send("response.cancel")
    await settled(peer)
    for message in filter(audio_of, peer.log):
        samples = np.frombuffer(base64.b64decode(message["data"]), np.int16)
        assert set(samples) == {message["response_index"]}
    assert [m["response_index"] for m in peer.of("response.cancelled")] == [1, 2, 3, 4, 5]


async def test_run_ahead_is_bounded(start_gateway: Any) -> None:
    """4: 30 s of audio were queued at the client, and the bot talked on."""

    async def thirty_seconds(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield tone(30_000, turn.index)

    gateway = await start_gateway(ScriptedAdapter(respond=thirty_seconds))
    peer = await Peer.connect(gateway, max_run_ahead_ms="1000")
    await started(peer, 1)
    await settled(peer)
    assert 600 <= peer.audio_ms(1) <= 1200
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    await settled(peer)
    assert peer.audio_ms(1) <= 1400

    await peer.send("session.update", session={"max_run_ahead_ms": 0})
    await peer.send("response.create")
    await peer.expect("response.done", response_index=2)
    assert peer.audio_ms(2) == 30_000


async def test_raising_the_run_ahead_lets_go_of_held_audio(start_gateway: Any) -> None:
    async def ten_seconds(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield tone(10_000, turn.index)

    gateway = await start_gateway(ScriptedAdapter(respond=ten_seconds))
    peer = await Peer.connect(gateway, max_run_ahead_ms="400")
    await started(peer, 1)
    await peer.send("session.update", session={"max_run_ahead_ms": 0})
    await peer.expect("response.done", response_index=1)
    assert peer.audio_ms(1) == 10_000


async def test_cancel_while_the_client_does_not_read(start_gateway: Any) -> None:
    """2: the abort waited for a blocked send."""
    aborted = asyncio.Event()

    async def loud(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        try:
            while True:
                yield tone(200, turn.index)
                await asyncio.sleep(0)
        finally:
            aborted.set()

    gateway = await start_gateway(ScriptedAdapter(respond=loud))
    peer = await Peer.connect(gateway, receive_buffer=4096, max_run_ahead_ms="0")
    (runner,) = gateway.runtime.runners
    await peer.send("response.create")
    await peer.expect("response.created")
    peer.ws.transport.pause_reading()
    await until(lambda: runner.connection is not None and runner.connection.queue.full)
    await peer.send("response.cancel")
    await aborted.wait()
    assert runner.connection is not None
    assert runner.connection.queue.audio_s == 0
    peer.ws.transport.resume_reading()
    await peer.expect("response.cancelled", response_index=1)
    await settled(peer)
    assert not audio_of(peer.log[-2])
    kinds = [m["type"] for m in peer.log]
    assert kinds.index("response.created") < kinds.index("response.cancelled")


async def test_next_response_waits_until_the_model_has_stopped(start_gateway: Any) -> None:
    stopping, gate = asyncio.Event(), asyncio.Event()
    running = 0

    async def slow_to_stop(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        nonlocal running
        running += 1
        assert running == 1, "two responses at once"
        try:
            while True:
                yield tone(20, turn.index)
                await asyncio.sleep(0.001)
        finally:
            if turn.index == 1:
                stopping.set()
                await gate.wait()
            running -= 1

    gateway = await start_gateway(ScriptedAdapter(respond=slow_to_stop))
    peer = await Peer.connect(gateway)
    await started(peer, 1)
    await peer.send("response.create")
    await stopping.wait()
    # the client is told at once, the model gets the next turn when it has stopped
    await peer.expect("response.cancelled", response_index=1)
    await peer.expect("response.created", response_index=2)
    await settled(peer)
    assert peer.audio_ms(2) == 0
    gate.set()
    await peer.expect("response.delta", response_index=2, modality="audio")


async def test_clean_up_of_a_cancelled_response_is_not_cancelled_again(start_gateway: Any) -> None:
    stopping, cleaned = asyncio.Event(), asyncio.Event()

    async def careful(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        try:
            while True:
                yield tone(20)
                await asyncio.sleep(0.001)
        finally:
            stopping.set()
            await asyncio.sleep(0.02)
            cleaned.set()

    gateway = await start_gateway(ScriptedAdapter(respond=careful))
    peer = await Peer.connect(gateway)
    await started(peer, 1)
    await peer.send("response.cancel")
    await stopping.wait()
    await peer.close()  # ends the session, and with it all its tasks
    assert cleaned.is_set()


async def test_model_that_does_not_stop_loses_its_session_alone(start_gateway: Any) -> None:
    """32: one session's fault reached the others."""
    release = asyncio.Event()

    async def deaf(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        while not (session.id == "stuck" and release.is_set()):
            yield tone(20, turn.index)
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                if session.id != "stuck":
                    raise
                await release.wait()

    adapter = ScriptedAdapter(respond=deaf)
    gateway = await start_gateway(adapter, abort_timeout_s=0.05)
    stuck, fine = await Peer.connect(gateway, session_id="stuck"), await Peer.connect(gateway)
    await started(stuck, 1)
    await started(fine, 1)
    await stuck.send("response.cancel")
    await stuck.expect("response.cancelled", response_index=1)
    assert await stuck.until_closed() == (1011, "adapter_stuck")
    assert "stuck" not in adapter.open_sessions
    assert len(gateway.runtime.stray) == 1
    await fine.send("response.cancel")
    await fine.expect("response.cancelled", response_index=1)
    await started(fine, 2)
    release.set()
    await until(lambda: not gateway.runtime.stray)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("internals"), "adapter_failed"),
        (asyncio.CancelledError(), "adapter_failed"),
        (DuplexError(ErrorCode.ENGINE_DOWN, "the engine died"), "engine_down"),
    ],
)
async def test_failing_response_ends_by_name(start_gateway: Any, error: BaseException, code: str) -> None:
    """11: a response that failed never ended, and the agent was silent for ever."""

    async def fails(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text="well")
        if turn.index == 1:
            raise error
        yield tone(20)

    gateway = await start_gateway(ScriptedAdapter(respond=fails))
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    assert (await peer.expect("error"))["code"] == code
    await peer.expect("response.cancelled", response_index=1)
    if code == "engine_down":
        assert (await peer.until_closed())[0] == 1013
    else:
        await peer.send("response.create")
        await peer.expect("response.done", response_index=2)


@pytest.mark.parametrize(
    "delta",
    [
        None,
        "text",
        tone(20).__class__(samples=np.zeros(4, np.complex64), sample_rate=24000),  # type: ignore[arg-type]
        tone(20).__class__(samples=np.full(4, np.nan, np.float32), sample_rate=24000),
        tone(20).__class__(samples=np.zeros(4, np.int16), sample_rate=0),
    ],
)
async def test_nonsense_from_a_model_fails_its_response_alone(start_gateway: Any, delta: Any) -> None:
    async def nonsense(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield tone(20)
        if turn.index == 1:
            yield delta
        yield tone(20)

    gateway = await start_gateway(ScriptedAdapter(respond=nonsense))
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    await peer.expect("response.cancelled", response_index=1)
    await peer.send("response.create")
    await peer.expect("response.done", response_index=2)


async def test_stalling_response_fails_by_the_watchdog(start_gateway: Any) -> None:
    async def stalls(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text="well")
        if turn.index == 1:
            await asyncio.Event().wait()

    gateway = await start_gateway(ScriptedAdapter(respond=stalls), response_stall_s=0.05)
    peer = await Peer.connect(gateway)
    await peer.send("response.create")
    assert (await peer.expect("error"))["code"] == "adapter_failed"
    await peer.expect("response.cancelled", response_index=1)
    await peer.send("response.create")
    await peer.expect("response.done", response_index=2)


async def test_cancel_while_idle_is_answered(start_gateway: Any) -> None:
    gateway = await start_gateway(ScriptedAdapter(ScriptedOptions(audio_ms=40)))
    peer = await Peer.connect(gateway)
    await peer.send("response.cancel")
    await peer.expect("response.cancelled", response_index=0)
    await peer.send("response.create")
    await peer.expect("response.done", response_index=1)
    await peer.send("response.cancel")
    await peer.expect("response.cancelled", response_index=1)


async def test_speech_over_the_answer_stops_it(start_gateway: Any) -> None:
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, ext="signals,playback")
    (session,) = adapter.open_sessions.values()
    await started(peer, 1)
    session.emit(SpeechStarted(at_ms=0))
    cancelled = await peer.expect("response.cancelled", response_index=1)
    assert cancelled["reason"] == "turn_detected"
    assert peer.of("input.speech_started")
    await settled(peer)
    assert not audio_of(peer.log[-2])


async def test_failing_signals_end_the_session_by_name(start_gateway: Any) -> None:
    class Deaf(ScriptedSession):
        async def signals(self) -> AsyncIterator[Any]:
            raise RuntimeError("internals")
            yield

    class Adapter(ScriptedAdapter):
        async def open(self, request: Any) -> ScriptedSession:
            return Deaf(self, request)

    gateway = await start_gateway(Adapter())
    peer = await Peer.connect(gateway, opened=False)
    assert (await peer.until_closed())[0] == 1011
    error = peer.log[-1]
    assert (error["code"], error["fatal"]) == ("adapter_failed", True)
    assert len(gateway.runtime.leases) == 0


async def test_proactive_response(start_gateway: Any) -> None:
    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=20, proactive=True))
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    for _ in range(3):
        session.emit(WantsToSpeak(event_id="goal"))  # the same event is answered once
    session.emit(WantsToSpeak(event_id="foul"))
    await peer.expect("response.done", response_index=2)
    assert [turn.event_id for turn in session.turns] == ["goal", "foul"]


async def test_new_settings_hold_for_the_response_asked_for_behind_them(start_gateway: Any) -> None:
    gate = asyncio.Event()

    async def on_update(session: ScriptedSession, settings: SessionSettings) -> None:
        await gate.wait()

    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=20), on_update=on_update)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    await peer.send("session.update", session={"voice": "anna"})
    await peer.send("response.create")
    await settled(peer)
    assert not peer.of("response.created")
    gate.set()
    await peer.expect("response.done")
    assert session.turns[0].settings.voice == "anna"


async def test_done_comes_after_the_last_audio_and_a_cut_finds_queued_audio_active(
    start_gateway: Any,
) -> None:
    """A model is faster than speech: its response is active until its last frame is written."""
    yielded = asyncio.Event()

    async def burst(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        for _ in range(20):
            yield tone(100, turn.index)
        yielded.set()

    gateway = await start_gateway(ScriptedAdapter(respond=burst))
    peer = await Peer.connect(gateway, max_run_ahead_ms="400", ext="playback")
    await started(peer, 1)
    await yielded.wait()
    await peer.send("response.cancel")
    cancelled = await peer.expect("response.cancelled", response_index=1)
    assert cancelled["reason"] == "client_cancelled"
    assert peer.audio_ms(1) < 2000
    assert not peer.of("response.done")


async def test_binary_frames_carry_whole_samples(start_gateway: Any) -> None:
    gateway = await start_gateway(ScriptedAdapter(ScriptedOptions(audio_ms=60, text="")))
    peer = await Peer.connect(gateway, frames="binary")
    await peer.send("response.create")
    await peer.expect("response.done")
    frames = [m["data"] for m in peer.of("binary")]
    assert [int.from_bytes(f[8:16], "little") for f in frames] == [0, 480, 960]
    assert all(len(f) == 16 + 960 for f in frames)


@pytest.mark.parametrize("codec", ["flac", "mp3", "opus", "aac", "wav", "pcm_f32le", "g711_ulaw"])
async def test_every_output_format_arrives_whole(start_gateway: Any, codec: str) -> None:
    """20: the encoder's tail was lost. Decoding what came gives the length of what went in."""
    from duplex.codecs.decoders import decode_audio

    gateway = await start_gateway(ScriptedAdapter(ScriptedOptions(audio_ms=1000, paced=False, text="")))
    peer = await Peer.connect(gateway, codec=codec, sample_rate="24000", frames="binary", ext="playback")
    await peer.send("response.create")
    done = await peer.expect("response.done")
    assert done["audio_ms"] == 1000
    payload = b"".join(m["data"][16:] for m in peer.of("binary"))
    if codec in ("pcm_f32le", "g711_ulaw"):
        assert len(payload) == 24000 * (4 if codec == "pcm_f32le" else 1)
        return
    samples, rate = decode_audio(payload)
    # AAC has no field for its padding, MP3 none in a stream of unknown length; see duplex.codecs.encoders
    assert 1.0 <= len(samples) / rate <= (1.15 if codec in ("aac", "mp3") else 1.001)
