"""The speech clients against the real gateway and a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from fake_speech import RATE, EndlessFace, FakeFace, FakeSpeechAdapter, WordyFace
from speech_stage import PATIENCE_S, Stage, config, pcm_bytes
from test_http import recording

from duplex.clients import ConnectionLost, ServerFull, SessionOver, SlowReader, Unauthorized
from duplex.clients.errors import ClientError
from duplex.clients.speech import (
    AsyncSpeechClient,
    SpeechAudio,
    SpeechCancelled,
    SpeechClient,
    SpeechDone,
    SpeechDraining,
    SpeechEvent,
    SpeechFault,
    SpeechRefused,
    SpeechStream,
    SpeechUnitDone,
    SpeechUnitStarted,
)
from duplex.core.errors import ErrorCode
from duplex.server.run import running_gateway

TEXT = "One fish. Two fish."


@contextlib.asynccontextmanager
async def staged(face: FakeFace | None = None, **fields: Any) -> AsyncIterator[Stage]:
    face = face or FakeFace()
    async with running_gateway(config(**fields), [FakeSpeechAdapter(face)]) as gateway:
        yield Stage(gateway, face)


@contextlib.asynccontextmanager
async def streaming(face: FakeFace | None = None, **fields: Any) -> AsyncIterator[tuple[Stage, SpeechStream]]:
    async with (
        staged(face, **fields) as stage,
        AsyncSpeechClient(stage.gateway.url, response_format="pcm") as client,
        client.stream() as stream,
    ):
        yield stage, stream


async def events_until(stream: SpeechStream, kind: type[SpeechEvent]) -> list[SpeechEvent]:
    events: list[SpeechEvent] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in stream:
            events.append(event)
            if isinstance(event, kind):
                return events
    raise AssertionError(f"no {kind.__name__} came: {events}")


def audio_of(events: list[SpeechEvent], context_id: str | None = None) -> bytes:
    pieces = [event for event in events if isinstance(event, SpeechAudio)]
    return b"".join(piece.data for piece in pieces if piece.context_id == context_id)


# --- requests -----------------------------------------------------------------------------------------


async def test_speak_gives_a_file_and_defaults_are_for_all() -> None:
    async with staged() as stage, AsyncSpeechClient(stage.gateway.url, voice="alloy") as client:
        samples, rate = soundfile.read(io.BytesIO(await client.speak(TEXT)), dtype="int16")
        assert (len(samples) * 2, rate) == (pcm_bytes(TEXT), RATE)
        assert (await client.speak(TEXT, response_format="flac"))[:4] == b"fLaC"
        assert {request.voice for request in stage.face.validated} == {"alloy"}


async def test_pieces_come_as_they_are_made_and_stop_when_left() -> None:
    face = EndlessFace()
    async with staged(face) as stage, AsyncSpeechClient(stage.gateway.url) as client:
        async with contextlib.aclosing(client.pieces(TEXT, response_format="pcm")) as pieces:
            assert len(await anext(pieces)) > 0
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        await stage.empty()


async def test_a_batch_names_what_failed() -> None:
    async with staged() as stage, AsyncSpeechClient(stage.gateway.url) as client:
        items = ["One.", {"input": "Two.", "response_format": "mp3"}, {"input": "x", "voice": "nobody"}]
        one, two, three = await client.batch(items, response_format="pcm")
        assert (len(one.audio), one.media_type, one.error) == (pcm_bytes("One."), "audio/pcm", None)
        assert (two.index, two.media_type) == (1, "audio/mpeg")
        assert (three.audio, three.error_code, three.param) == (b"", "invalid_value", "voice")


async def test_refusals_have_their_names() -> None:
    gate = asyncio.Semaphore(0)
    async with (
        staged(FakeFace(gate=gate), max_speech_requests=1) as stage,
        AsyncSpeechClient(stage.gateway.url) as client,
    ):
        with pytest.raises(SpeechRefused) as bad:
            await client.speak(TEXT, speed=9)
        assert (bad.value.status, bad.value.code, bad.value.param) == (
            400,
            ErrorCode.INVALID_VALUE,
            "speed",
        )
        with pytest.raises(SpeechRefused) as unknown:
            await anext(client.pieces(TEXT, model="nope"))
        assert (unknown.value.status, unknown.value.code) == (404, ErrorCode.MODEL_NOT_FOUND)
        first = asyncio.ensure_future(client.speak(TEXT))
        await stage.face.touched.wait()
        with pytest.raises(SpeechRefused) as full:
            await client.speak(TEXT)
        assert (full.value.code, full.value.retry_after_s) == (ErrorCode.SERVER_FULL, 1.0)
        gate.release()
        await first


async def test_no_server_is_a_lost_connection() -> None:
    async with staged() as stage:
        url = stage.gateway.url
    async with AsyncSpeechClient(url) as client:
        with pytest.raises(ConnectionLost):
            await client.speak(TEXT)
        with pytest.raises(ConnectionLost):
            await anext(client.pieces(TEXT))
        with pytest.raises(ConnectionLost):
            async with client.stream():
                pass


async def test_voices(tmp_path: Path) -> None:
    async with (
        staged(speaker_samples_dir=str(tmp_path)) as stage,
        AsyncSpeechClient(stage.gateway.url) as client,
    ):
        record = await client.add_voice("Ann Lee", recording(), consent="yes", ref_text="hello")
        assert (record.name, record.ref_text) == ("Ann Lee", "hello")
        listed = await client.voices()
        assert listed.uploaded_voices == (record,)
        assert listed.details[0].id == "tone"
        await client.speak(TEXT, voice="ann lee")
        await client.remove_voice("Ann Lee")
        assert (await client.voices()).uploaded_voices == ()
        with pytest.raises(SpeechRefused, match="no uploaded voice"):
            await client.remove_voice("Ann Lee")


async def test_a_client_without_httpx_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ClientError, match=r"duplex-gateway\[speech\]"):
        await AsyncSpeechClient().speak(TEXT)


# --- the stream ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("word_timestamps", [False, True])
async def test_a_stream_speaks_what_is_written(word_timestamps: bool) -> None:
    async with staged(WordyFace()) as stage, AsyncSpeechClient(stage.gateway.url) as client:
        options = {"response_format": "pcm", "word_timestamps": word_timestamps}
        async with client.stream(**options) as stream:
            for word in TEXT.split(" "):
                await stream.say(word + " ")
            await stream.flush()
            events = await events_until(stream, SpeechDone)
    told = [event for event in events if not isinstance(event, SpeechAudio)]
    assert [type(event) for event in told] == [
        *(SpeechUnitStarted, SpeechUnitDone, SpeechUnitStarted, SpeechUnitDone, SpeechDone)
    ]
    assert told[-1] == SpeechDone(utterance_index=0, total_sentences=2)
    assert len(audio_of(events)) == pcm_bytes(TEXT + " ")
    units = {event.sentence_index for event in events if isinstance(event, SpeechAudio)}
    assert units == {0, 1}
    words = [w.word for e in events if isinstance(e, SpeechAudio) for w in e.timestamps or ()]
    assert words == (TEXT.split() if word_timestamps else [])


async def test_contexts_are_told_apart() -> None:
    async with streaming() as (_, stream):
        for name in ("a", None, "b"):
            await stream.say(f"I am {name}. And ", context_id=name)
        for name in ("b", "a", None):
            await stream.say("so on.", context_id=name)
            await stream.flush(context_id=name)
        events: list[SpeechEvent] = []
        for _ in range(3):
            events += await events_until(stream, SpeechDone)
    for name in ("a", None, "b"):
        assert len(audio_of(events, name)) == pcm_bytes(f"I am {name}. And so on.")


async def test_after_a_cancel_no_audio_of_it_is_seen() -> None:
    face = EndlessFace()
    async with streaming(face) as (_, stream):
        for _ in range(3):  # two more wait behind the first
            await stream.say("On and on.")
            await stream.flush()
        await stream.say("Beside it.", context_id="b")
        await events_until(stream, SpeechAudio)
        await stream.cancel()
        events: list[SpeechEvent] = []
        for _ in range(3):
            events += await events_until(stream, SpeechCancelled)
        assert audio_of(events) == b""
        cancelled = [event for event in events if isinstance(event, SpeechCancelled)]
        assert [event.utterance_index for event in cancelled] == [0, 1, 2]
        await stream.say("Again.")
        await stream.cancel()
        await stream.say("And again.")
        await stream.flush()
        last = await events_until(stream, SpeechUnitStarted)
        assert isinstance(last[-1], SpeechUnitStarted)
        assert last[-1].utterance_index == 4
        await events_until(stream, SpeechAudio)
        await stream.abort()


async def test_a_refused_message_is_an_event_and_the_stream_lives() -> None:
    async with streaming() as (_, stream):
        await stream.configure(voice="nobody")
        fault = (await events_until(stream, SpeechFault))[-1]
        assert isinstance(fault, SpeechFault)
        assert (fault.code, fault.param) == ("invalid_value", "voice")
        await stream.say(TEXT)
        await stream.flush()
        assert len(audio_of(await events_until(stream, SpeechDone))) == pcm_bytes(TEXT)


async def test_a_stream_that_may_not_begin_says_why() -> None:
    async with staged(auth_token="s3cret", max_speech_requests=1) as stage:
        wrong = AsyncSpeechClient(stage.gateway.url, token="wrong").stream()
        with pytest.raises(Unauthorized):
            await until_over(wrong)
        right = AsyncSpeechClient(stage.gateway.url, token="s3cret")
        async with right, right.stream() as first:
            await first.flush()
            await events_until(first, SpeechDone)
            with pytest.raises(ServerFull, match="places are taken"):
                await until_over(right.stream())


async def until_over(stream: SpeechStream) -> None:
    async with asyncio.timeout(PATIENCE_S), stream:
        await stream.flush()
        async for _ in stream:
            pass


async def test_a_stream_that_is_not_read_is_told_that_it_was_too_slow() -> None:
    async with streaming(EndlessFace(), slow_reader_timeout_s=0.05) as (stage, stream):
        await stream.say("On and on.")
        await stream.flush()
        await asyncio.wait_for(stage.face.stopped.wait(), PATIENCE_S)
        with pytest.raises(SlowReader):
            await events_until(stream, SpeechDone)


async def test_a_drain_is_told_and_ends_the_stream() -> None:
    async with streaming() as (stage, stream):
        await stream.flush()
        await events_until(stream, SpeechDone)
        draining = asyncio.ensure_future(stage.gateway.runtime.drain())
        await events_until(stream, SpeechDraining)
        await draining
        with pytest.raises(SessionOver) as over:
            await events_until(stream, SpeechDone)
        assert over.value.close_code == 1012


async def test_leaving_a_stream_lets_what_was_flushed_be_spoken() -> None:
    async with staged() as stage, AsyncSpeechClient(stage.gateway.url) as client:
        async with client.stream() as stream:
            await stream.say(TEXT)
            await stream.flush()
        assert "".join(stage.face.started) == TEXT
        with pytest.raises(SessionOver):
            await stream.say("More.")
        with pytest.raises(ClientError, match="once"):
            await stream.open()


async def test_the_pages_example_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python-client.md").read_text()
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "SpeechClient" in c]
    names: dict[str, Any] = {}
    exec(compile(code, "python-client.md", "exec"), names)
    async with staged() as stage:
        audio = await names["read_aloud"](stage.gateway.url, ["One ", "fish. ", "Two."])
    texts = ("A whole file.", "The same, piece by piece as it is made.", "One fish. Two.")
    assert len(audio) == sum(map(pcm_bytes, texts))


# --- blocking -----------------------------------------------------------------------------------------


async def test_the_blocking_client(tmp_path: Path) -> None:
    async with staged(speaker_samples_dir=str(tmp_path)) as stage:

        def use() -> None:
            with SpeechClient(stage.gateway.url, response_format="pcm") as client:
                assert len(client.speak(TEXT)) == pcm_bytes(TEXT)
                assert sum(map(len, client.pieces(TEXT))) == pcm_bytes(TEXT)
                assert len(client.batch(["One."])[0].audio) == pcm_bytes("One.")
                client.add_voice("ann", recording(), consent="yes", ref_text="hello")
                assert [voice.name for voice in client.voices().uploaded_voices] == ["ann"]
                client.remove_voice("ann")
                with client.stream() as stream:
                    stream.configure(speed=1.5)
                    stream.say(TEXT)
                    stream.cancel()
                    stream.say(TEXT)
                    stream.flush()
                    events: list[SpeechEvent] = []
                    for event in stream:
                        events.append(event)
                        if isinstance(event, SpeechDone):
                            break
                    assert len(audio_of(events)) == pcm_bytes(TEXT)
            client.close()
            with pytest.raises(ClientError):
                client.speak(TEXT)

        await asyncio.to_thread(use)


async def test_a_blocking_iteration_that_is_left_stops_the_model() -> None:
    face = EndlessFace()
    async with staged(face) as stage:

        def use() -> None:
            with SpeechClient(stage.gateway.url, response_format="pcm") as client:
                for _ in client.pieces(TEXT):
                    break

        await asyncio.to_thread(use)
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        await stage.empty()
