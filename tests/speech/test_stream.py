"""The speech WebSocket over a real socket, with a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from fake_speech import FakeFace, FakeSpeechAdapter
from speech_stage import Stage, config, pcm_bytes
from websockets.exceptions import ConnectionClosed

from duplex.server.run import running_gateway


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    face = FakeFace()
    async with running_gateway(config(), [FakeSpeechAdapter(face)]) as gateway:
        stage = Stage(gateway, face)
        yield stage
        await stage.close()


@pytest.fixture
async def gated() -> AsyncIterator[Stage]:
    """A model that makes one chunk each time the test lets it."""
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with running_gateway(config(), [FakeSpeechAdapter(face)]) as gateway:
        stage = Stage(gateway, face)
        yield stage
        await stage.close()


async def test_the_documented_conversation(stage: Stage) -> None:
    voice = await stage.voice()
    await voice.send("session.config", response_format="pcm", stream_audio=True, voice="alloy")
    await voice.send("input.text", text="One fish. Two ")
    await voice.send("input.text", text="fish.")
    await voice.send("input.done")
    done = await voice.until("session.done")
    assert done == {"type": "session.done", "utterance_index": 0, "total_sentences": 2}
    kinds = [m["type"] for m in voice.log if m["type"] != "audio"]
    assert kinds == ["audio.start", "audio.done", "audio.start", "audio.done", "session.done"]
    first = next(m for m in voice.log if m["type"] == "audio.done")
    assert first == {
        "type": "audio.done",
        "utterance_index": 0,
        "sentence_index": 0,
        "total_bytes": pcm_bytes("One fish. "),
        "error": False,
    }
    assert len(voice.audio) == pcm_bytes("One fish. Two fish.")
    await voice.send("session.close")
    assert await voice.closed() == (1000, "closed by the client")


async def test_fault_39_all_options_as_query_parameters(stage: Stage) -> None:
    voice = await stage.voice(response_format="pcm", stream_audio="true", speed="1.5", sample_rate="8000")
    await voice.send("input.text", text="One fish.")
    await voice.send("input.done")
    await voice.until("session.done")
    assert len(voice.audio) == pytest.approx(pcm_bytes("One fish.") / 3, abs=4)
    assert stage.face.validated[-1].speed == 1.5
    start = next(m for m in voice.log if m["type"] == "audio.start")
    assert (start["format"], start["sample_rate"]) == ("pcm", 8000)


async def test_bad_query_parameters_are_refused_by_name(stage: Stage) -> None:
    voice = await stage.voice(speed="fast")
    error = await voice.until("error")
    assert error["param"] == "speed"
    assert (await voice.closed())[0] == 1008


async def test_without_stream_audio_each_unit_is_one_whole_file(stage: Stage) -> None:
    voice = await stage.voice(response_format="flac")
    await voice.send("input.text", text="One fish. Two fish.")
    await voice.send("input.done")
    await voice.until("session.done")
    frames = [m["data"] for m in voice.log if m["type"] == "audio"]
    assert [frame[:4] for frame in frames] == [b"fLaC", b"fLaC"]


async def test_fault_24_audio_leaves_while_the_model_goes_on(gated: Stage) -> None:
    voice = await gated.voice(
        response_format="pcm", stream_audio="true", split_granularity="none", stream_text="1"
    )
    await voice.send("input.text", text="One ")
    assert gated.face.gate is not None
    gated.face.gate.release()
    await voice.until("audio")  # the text has not even ended
    await voice.send("input.text", text="more.")
    await voice.send("input.done")
    gated.face.gate.release()
    await voice.until("session.done")
    assert len(voice.audio) == pcm_bytes("One more.")


async def test_a_cancel_in_mid_synthesis_leaves_nothing_stale_and_the_connection_speaks_again(
    gated: Stage,
) -> None:
    voice = await gated.voice(response_format="pcm", stream_audio="true")
    await voice.send("input.text", text="One fish. Two fish. ")
    await gated.face.touched.wait()
    await voice.send("input.cancel")
    cancelled = await voice.until("audio.cancelled")
    assert (cancelled["utterance_index"], cancelled["sentence_index"]) == (0, 0)
    assert gated.face.gate is not None
    for _ in range(4):
        gated.face.gate.release()
    await voice.send("input.text", text="Red fish.")
    await voice.send("input.done")
    assert (await voice.until("session.done"))["utterance_index"] == 1
    after = voice.log[voice.log.index(cancelled) :]
    assert sum(len(m["data"]) for m in after if m["type"] == "audio") == pcm_bytes("Red fish.")
    assert {
        m.get("utterance_index") for m in after if m["type"].startswith("audio.") and m is not cancelled
    } == {1}
    assert gated.face.closed == 2


async def test_a_second_context_goes_on_untouched_by_a_cancel(gated: Stage) -> None:
    voice = await gated.voice(response_format="pcm", stream_audio="true")
    for name in "abcdef":
        await voice.send("input.text", text=f"Context {name}.", context_id=name)
        await voice.send("input.done", context_id=name)
    await voice.send("input.cancel", context_id="c")
    await voice.until("audio.cancelled")
    assert gated.face.gate is not None
    for _ in range(5):
        gated.face.gate.release()
    done = {(await voice.until("session.done"))["context_id"] for _ in range(5)}
    assert done == set("abdef")
    assert len(voice.audio) == 5 * pcm_bytes("Context a.")


async def test_word_times_come_with_their_audio_while_it_streams(stage: Stage) -> None:
    voice = await stage.voice(response_format="pcm", stream_audio="true", word_timestamps="true")
    await voice.send("input.text", text="One fish.")
    await voice.send("input.done")
    await voice.until("session.done")
    chunks = [m for m in voice.log if m["type"] == "audio.chunk"]
    assert chunks[0]["timestamps"] == [{"word": "One fish.", "start_ms": 0.0, "end_ms": 180.0}]
    assert [c["chunk_id"] for c in chunks] == list(range(len(chunks)))


async def test_fault_17_a_client_that_vanishes_stops_the_model_and_frees_its_place() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with running_gateway(config(max_speech_requests=1), [FakeSpeechAdapter(face)]) as gateway:
        stage = Stage(gateway, face)
        voice = await stage.voice(response_format="pcm")
        await voice.send("input.text", text="One fish. Two fish. ")
        await face.touched.wait()
        full = await stage.voice()
        assert (await full.until("error"))["code"] == "server_full"
        assert (await full.closed())[0] == 4429
        voice.ws.transport.abort()
        while True:  # the very next connection that finds the place free
            again = await stage.voice(response_format="pcm")
            with contextlib.suppress(ConnectionClosed):
                await again.send("input.done")
                if (await again.next())["type"] == "session.done":
                    break
        assert face.closed == 1
        await stage.close()


async def test_a_wrong_token_is_closed_with_4401() -> None:
    face = FakeFace()
    async with running_gateway(config(auth_token="s3cret"), [FakeSpeechAdapter(face)]) as gateway:
        stage = Stage(gateway, face)
        wrong = await stage.voice(headers={"authorization": "Bearer nope"})
        assert (await wrong.closed())[0] == 4401
        right = await stage.voice(token="s3cret", response_format="pcm")
        await right.send("input.done")
        await right.until("session.done")
        await stage.close()


async def test_fault_33_a_drain_lets_the_running_utterance_end() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with running_gateway(config(), [FakeSpeechAdapter(face)]) as gateway:
        stage = Stage(gateway, face)
        speaking = await stage.voice(response_format="pcm", stream_audio="true")
        await speaking.send("input.text", text="One fish.")
        await speaking.send("input.done")
        await face.touched.wait()
        draining = asyncio.ensure_future(gateway.runtime.drain())
        await speaking.until("server.draining")
        assert face.gate is not None
        face.gate.release()
        await speaking.until("session.done")
        assert await speaking.closed() == (1012, "server draining")
        await draining
        assert len(speaking.audio) == pcm_bytes("One fish.")


async def test_hostile_frames_are_named_and_another_client_goes_on(stage: Stage) -> None:
    beside = await stage.voice(response_format="pcm")
    voice = await stage.voice(response_format="pcm")
    for frame, code in (("{", "invalid_json"), ("[]", "not_an_object"), (b"\0\1", "invalid_frame")):
        await voice.ws.send(frame)
        assert (await voice.until("error"))["code"] == code
    await voice.ws.send("x" * (5 << 20))
    assert (await voice.until("error"))["code"] == "message_too_large"
    assert (await voice.closed())[0] == 1009
    await beside.send("input.text", text="Still here.")
    await beside.send("input.done")
    await beside.until("session.done")
