"""The clients against the real gateway and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import numpy as np
import pytest
from contract_peer import endless, gateway_with
from gateway_peer import until

from duplex import clients
from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.clients import AsyncDuplexClient, DuplexClient, PlaybackBuffer
from duplex.core.types import (
    AudioDelta,
    AudioWindow,
    CodecWindow,
    Delta,
    ImageWindow,
    SpeechStarted,
    TextDelta,
    TextWindow,
    Turn,
    VideoWindow,
)
from duplex.server.run import Gateway

RAMP = np.arange(24000, dtype=np.int16)
JPEG = b"\xff\xd8\xffjpeg"
MP4 = b"\x00\x00\x00\x18ftypisom"


async def ramp(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """What it was told to say, and a second of audio in 20 ms chunks."""
    yield TextDelta(text=turn.speak_text or turn.question or "nothing")
    for start in range(0, 24000, 480):
        yield AudioDelta(samples=RAMP[start : start + 480], sample_rate=24000)


def url(gateway: Gateway) -> str:
    return f"{gateway.ws_url}/v1/duplex"


@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_speech_comes_whole(frames: Literal["binary", "json"]) -> None:
    async with (
        gateway_with(ScriptedAdapter(respond=ramp)) as gateway,
        AsyncDuplexClient(url(gateway), frames=frames) as client,
    ):
        for index, text in enumerate(("one", "two"), start=1):
            await client.speak(text)
            response = await client.response()
            assert (response.index, response.status, response.text) == (index, "done", text)
            assert response.samples.tolist() == RAMP.tolist()
        await client.append_text("what?")
        await client.commit()
        assert (await client.response()).text == "what?"


@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_every_window_arrives_as_it_was_sent(frames: Literal["binary", "json"]) -> None:
    adapter = ScriptedAdapter(respond=ramp)
    async with (
        gateway_with(adapter) as gateway,
        AsyncDuplexClient(url(gateway), session_id="s", frames=frames) as client,
    ):
        await client.append_image(JPEG)
        await client.append_video(MP4, pts_ms=80, duration_ms=40)
        await client.append_video(MP4, kind="video/mp4", segment_id="a", metadata={"camera": 1})
        await client.append_video(frames=[JPEG, JPEG])
        await client.append_codec_window("h264", {"motion": [[1, 2]]}, pts_ms=7, duration_ms=40.5)
        await client.append_audio(RAMP[:100], 24000)
        await client.append_text("last")
        await client.commit()
        await client.response()
        image, *others = adapter.open_sessions["s"].appended
    assert isinstance(image, ImageWindow)
    assert image.data == JPEG
    assert others == [
        VideoWindow(kind="video/mp4", data=MP4, pts_ms=80.0, duration_ms=40.0),
        VideoWindow(kind="video/mp4", data=MP4, segment_id="a", metadata={"camera": 1}),
        VideoWindow(kind="image", frames=(JPEG, JPEG)),
        CodecWindow(kind="h264", codec={"motion": [[1, 2]]}, pts_ms=7.0, duration_ms=40.5),
        AudioWindow(pcm=RAMP[:100].tobytes(), sample_rate=24000),
        TextWindow(text="last"),
    ]


async def test_a_cut_is_silent_at_once_and_history_knows_what_was_heard() -> None:
    adapter = ScriptedAdapter(respond=endless)
    player = PlaybackBuffer(24000)
    async with (
        gateway_with(adapter) as gateway,
        AsyncDuplexClient(url(gateway), session_id="s", player=player) as client,
    ):
        await client.speak("on and on")
        async for event in client:
            if isinstance(event, clients.AudioDelta) and event.pts is not None and event.pts > 4800:
                break
        player.pull(2400)  # 100 ms are heard
        await client.cancel()
        rest = player.pull(24000)
        assert np.count_nonzero(rest) <= 24000 * 0.015  # no more than the fade
        response = None
        async for event in client:
            assert not isinstance(event, clients.AudioDelta)
            if isinstance(event, clients.ResponseCancelled):
                response = event
                break
        assert response is not None
        assert response.reason == "client_cancelled"
        assert response.heard_ms == pytest.approx(100)
        await client.speak("again")
        assert isinstance(await anext(client), clients.ResponseCreated)
        await client.cancel()


async def test_a_barge_in_by_speech_stops_the_player() -> None:
    adapter = ScriptedAdapter(respond=endless)
    player = PlaybackBuffer(24000)
    async with (
        gateway_with(adapter) as gateway,
        AsyncDuplexClient(url(gateway), session_id="s", player=player) as client,
    ):
        await client.speak("on and on")
        gathering = asyncio.ensure_future(client.response())
        await until(lambda: bool(player.pull(480).any()))
        adapter.open_sessions["s"].emit(SpeechStarted(at_ms=0))
        response = await gathering
        assert (response.status, response.reason) == ("cancelled", "turn_detected")
        assert clients.SpeechStarted(at_ms=0) in response.others
        assert np.count_nonzero(player.pull(24000)) <= 24000 * 0.015


async def test_the_output_format_follows_the_settings() -> None:
    async with (
        gateway_with(ScriptedAdapter(respond=ramp)) as gateway,
        AsyncDuplexClient(url(gateway), options={"sample_rate": 48000}) as client,
    ):
        await client.speak("wide")
        wide = await client.response()
        assert (wide.codec, wide.sample_rate, len(wide.samples)) == ("pcm_s16le", 48000, 48000)
        await client.update({"output_format": {"codec": "g711_ulaw", "sample_rate": 8000}})
        await client.speak("narrow")
        narrow = await client.response()
        assert (narrow.codec, narrow.sample_rate, len(narrow.audio)) == ("g711_ulaw", 8000, 8000)
        assert any(isinstance(event, clients.SessionUpdated) for event in narrow.others)


async def test_what_is_said_during_a_break_is_heard_after_it() -> None:
    """Fault 34, on the real gateway."""
    adapter = ScriptedAdapter(respond=endless)
    async with (
        gateway_with(adapter) as gateway,
        AsyncDuplexClient(url(gateway), session_id="s", ext=["playback", "lifecycle"]) as client,
    ):
        await client.append_text("before")
        await client.respond()
        async for event in client:
            if isinstance(event, clients.AudioDelta):
                break
        _break(client)
        async for event in client:
            if isinstance(event, clients.Disconnected):
                break
        for number in range(5):
            await client.append_text(f"word {number}")
        adapter.respond = ramp
        await client.commit()
        kinds = []
        while True:
            response = await client.response()
            kinds.append(response.status)
            if response.status == "done":
                break
        assert response.text == "\n".join(f"word {number}" for number in range(5))
        assert adapter.opened == 1
        assert kinds == ["done"]


async def test_a_session_that_was_not_resumed_in_time() -> None:
    async with gateway_with(resume_grace_s=0.1) as gateway:
        client = await AsyncDuplexClient.connect(url(gateway), reconnect=False)
        token = client.session.resume_token
        _break(client)
        with pytest.raises(clients.ConnectionLost):
            await client.response()
        await until(lambda: not gateway.runtime.runners)
        with pytest.raises(clients.ResumeRejected):
            await AsyncDuplexClient.connect(f"{url(gateway)}?resume={token}")


async def test_a_second_client_takes_the_session_over() -> None:
    """Fault 35."""
    async with gateway_with(ScriptedAdapter(respond=ramp)) as gateway:
        first = await AsyncDuplexClient.connect(url(gateway))
        second = await AsyncDuplexClient.connect(f"{url(gateway)}?resume={first.session.resume_token}")
        assert second.session.session_id == first.session.session_id
        assert second.session.resumed
        with pytest.raises(clients.TakenOver):
            async for _ in first:
                pass
        await second.speak("mine")
        assert (await second.response()).text == "mine"
        await second.close()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"token": "wrong"}, clients.Unauthorized),
        ({"model": "nobody"}, clients.ModelNotFound),
        ({"session_id": "a b"}, clients.InvalidSessionId),
        ({"session_id": "taken"}, clients.SessionIdInUse),
        ({"ext": ["taste"]}, clients.BadConfig),
        ({"options": {"codec": "ogg"}}, clients.BadConfig),
        ({}, clients.ServerFull),
    ],
)
async def test_refusals_have_names(options: dict[str, Any], kind: type[clients.SessionOver]) -> None:
    async with (
        gateway_with(auth_token="right", max_sessions=1 if kind is clients.ServerFull else 8) as gateway,
        AsyncDuplexClient(url(gateway), token="right", session_id="taken"),
    ):
        with pytest.raises(clients.SessionOver) as caught:
            await AsyncDuplexClient.connect(url(gateway), **({"token": "right"} | options))
        assert type(caught.value) is kind


async def test_engine_down_and_draining_have_names() -> None:
    adapter = ScriptedAdapter(respond=ramp)
    async with gateway_with(adapter) as gateway:
        adapter.healthy = False
        with pytest.raises(clients.EngineDown):
            await AsyncDuplexClient.connect(url(gateway))
        adapter.healthy = True
        client = await AsyncDuplexClient.connect(url(gateway))
        draining = asyncio.ensure_future(gateway.runtime.drain())
        assert isinstance(await anext(client), clients.SessionCreated)
        assert isinstance(await anext(client), clients.DrainNotice)
        with pytest.raises(clients.Draining):
            await anext(client)
        with pytest.raises(clients.Draining):
            await AsyncDuplexClient.connect(url(gateway))
        await draining


async def test_a_bad_request_is_tied_to_its_event_id() -> None:
    async with (
        gateway_with(ScriptedAdapter(respond=ramp)) as gateway,
        AsyncDuplexClient(url(gateway)) as client,
    ):
        event_id = await client.commit()
        with pytest.raises(clients.RequestRefused) as caught:
            await client.response()
        assert caught.value.event_id == event_id
        await client.append_image(b"GIF89a", event_id="picture")
        with pytest.raises(clients.RequestRefused, match="JPEG"):
            await client.response()
        await client.speak("fine")
        assert (await client.response()).status == "done"


async def test_many_sessions_do_not_mix() -> None:
    async with gateway_with(ScriptedAdapter(respond=ramp)) as gateway:

        async def one(number: int) -> str:
            async with AsyncDuplexClient(url(gateway)) as client:
                await client.speak(f"session {number}")
                response = await client.response()
                assert response.samples.tolist() == RAMP.tolist()
                return response.text

        texts = await asyncio.gather(*map(one, range(16)))
        assert texts == [f"session {number}" for number in range(16)]


async def test_the_blocking_client() -> None:
    async with gateway_with(ScriptedAdapter(respond=ramp)) as gateway:

        def talk() -> list[str]:
            with DuplexClient(url(gateway), frames="json") as client:
                client.speak("hello")
                first = client.response(timeout_s=20)
                client.append_text("question")
                client.commit()
                return [first.text, client.response(timeout_s=20).text]

        assert await asyncio.to_thread(talk) == ["hello", "question"]


def _break(client: AsyncDuplexClient) -> None:
    """Cut the wire."""
    assert client._socket is not None
    client._socket.transport.abort()
