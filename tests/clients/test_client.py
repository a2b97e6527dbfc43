"""The asynchronous client against a server that says what it is told to."""

import asyncio
import base64
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
from fake_gateway import FakeConnection, FakeGateway, fake_gateway

from duplex import clients
from duplex.clients import AsyncDuplexClient
from duplex.clients import client as client_module
from duplex.core.errors import ErrorCode

PCM = np.arange(240, dtype="<i2").tobytes()


@asynccontextmanager
async def session(gateway: FakeGateway, *, greeting=None, **options):
    """A client and the server's side of its connection."""
    client = AsyncDuplexClient(gateway.url, **options)
    opening = asyncio.ensure_future(client.open())
    connection = await gateway.accept(**(greeting or {}))
    await opening
    assert isinstance(await anext(client), clients.SessionCreated)
    try:
        yield client, connection
    finally:
        await client.abort()


@asynccontextmanager
async def opening(gateway: FakeGateway, **options):
    """A client that is being opened, and the server's side of its connection, which has greeted."""
    opened = asyncio.ensure_future(AsyncDuplexClient.connect(gateway.url, **options))
    try:
        yield opened, await gateway.accept()
    finally:
        if not opened.done():
            opened.cancel()
        elif opened.exception() is None:
            await opened.result().abort()


async def take(client, count):
    return [await anext(client) for _ in range(count)]


# --- requests ---------------------------------------------------------------------------------------


async def test_the_handshake_carries_everything():
    async with (
        fake_gateway() as gateway,
        session(
            gateway, model="m", session_id="s1", token="secret", ext=["playback"], options={"voice": "anna"}
        ) as (client, connection),
    ):
        assert connection.query == {
            "model": "m",
            "session_id": "s1",
            "frames": "binary",
            "ext": "playback",
            "voice": "anna",
        }
        assert connection.headers["Authorization"] == "Bearer secret"
        assert client.session.session_id == "s1"
        assert client.session.capabilities.output_modalities == ("text", "audio")
        assert client.connected


async def test_long_instructions_are_sent_by_an_update():
    long = "Be brief. " * 1000
    async with (
        fake_gateway() as gateway,
        opening(gateway, options={"voice": "anna", "instructions": long}) as (opened, connection),
    ):
        assert connection.query["voice"] == "anna"
        assert "instructions" not in connection.query
        update = await connection.receive()
        assert (update["type"], update["session"]) == ("session.update", {"instructions": long})
        await connection.send(type="session.updated", session={}, event_id=update["event_id"])
        client = await opened
        await client.append_text("hi")
        assert (await connection.receive())["data"] == "hi"


async def test_a_url_may_have_a_query():
    async with fake_gateway() as gateway:
        gateway.url += "?instructions=a%20b"
        async with session(gateway) as (_, connection):
            assert connection.query["instructions"] == "a b"
            assert connection.query["frames"] == "binary"


async def test_every_request_in_json():
    jpeg, mp4 = b"\xff\xd8\xffjpeg", b"\x00\x00\x00\x18ftypisom"
    async with fake_gateway() as gateway, session(gateway, frames="json") as (client, connection):
        await client.append_text("hi", event_id="t1")
        await client.append_audio(PCM, 24000)
        await client.append_audio(np.array([0, -1, 1], np.float32))
        await client.append_image(jpeg)
        await client.append_video(mp4, kind="video/mp4", segment_id="s", pts_ms=5, metadata={"a": 1})
        await client.append_video(frames=[jpeg, jpeg], duration_ms=40)
        await client.append_codec_window("h264", {"mv": [1]}, pts_ms=0)
        ids = [await client.commit(), await client.respond(), await client.respond(modalities=["text"])]
        ids += [await client.speak("so"), await client.cancel(4), await client.update({"voice": "b"})]
        await client.ack(12.3456, 2)
        received = [await connection.receive() for _ in range(14)]
    b64 = {data: base64.b64encode(data).decode() for data in (PCM, jpeg, mp4)}
    append = {"type": "input.append"}
    assert received == [
        append | {"modality": "text", "data": "hi", "event_id": "t1"},
        append | {"modality": "audio", "data": {"audio_base64": b64[PCM], "sample_rate": 24000}},
        append | {"modality": "audio", "data": {"audio_base64": "AAAAgP9/", "sample_rate": 16000}},
        append | {"modality": "image", "data": b64[jpeg]},
        append
        | {
            "modality": "video",
            "data": {
                "kind": "video/mp4",
                "segment_id": "s",
                "pts_ms": 5,
                "metadata": {"a": 1},
                "data": {"video_base64": b64[mp4]},
            },
        },
        append | {"modality": "video", "data": {"duration_ms": 40, "data": {"frames": [b64[jpeg]] * 2}}},
        append | {"modality": "codec_window", "data": {"kind": "h264", "codec": {"mv": [1]}, "pts_ms": 0}},
        {"type": "input.commit", "event_id": ids[0]},
        {"type": "response.create", "event_id": ids[1]},
        {"type": "response.create", "response": {"modalities": ["text"]}, "event_id": ids[2]},
        {"type": "response.create", "response": {"speak": "so"}, "event_id": ids[3]},
        {"type": "response.cancel", "response_index": 4, "event_id": ids[4]},
        {"type": "session.update", "session": {"voice": "b"}, "event_id": ids[5]},
        {"type": "playback.ack", "cursor": 12.346, "response_index": 2},
    ]
    assert len(set(ids)) == 6


async def test_media_in_binary_frames():
    jpeg, mp4 = b"\xff\xd8\xffjpeg", b"\x00\x00\x00\x18ftypisom"
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await client.append_audio(PCM, 24000)
        await client.append_audio(PCM, 24000)
        await client.append_image(jpeg, pts_ms=40)
        await client.append_video(mp4, pts_ms=80, duration_ms=500)
        await client.append_codec_window("h264", {"mv": b"\x01"}, pts_ms=120)
        assert await connection.receive() == (1, 0, 0, 24000, PCM)
        assert await connection.receive() == (1, 0, 240, 24000, PCM)
        assert await connection.receive() == (3, 0, 40, 0, jpeg)
        assert await connection.receive() == (4, 0, 80, 500, mp4)
        kind, _, _, _, payload = await connection.receive()
        assert kind == 5
        assert msgspec.msgpack.decode(payload) == {"kind": "h264", "codec": {"mv": b"\x01"}, "pts_ms": 120}
        # what a binary frame has no room for goes as JSON
        await client.append_video(mp4, segment_id="s", pts_ms=80)
        await client.append_video(b"?", pts_ms=1)
        await client.append_audio(PCM, event_id="a1")
        assert [(await connection.receive())["type"] for _ in range(3)] == ["input.append"] * 3


async def test_a_message_over_the_servers_limit_is_refused_here_and_the_session_lives():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        with pytest.raises(clients.RequestRefused) as caught:
            await client.append_audio(bytes(100_001))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await client.append_text("hi")
        assert (await connection.receive())["data"] == "hi"


# --- events -----------------------------------------------------------------------------------------


async def test_events_are_typed():
    async with fake_gateway() as gateway, session(gateway, frames="json") as (client, connection):
        await connection.send(type="input.speech_started", at_ms=1)
        await connection.send(type="input.transcript", text="a", final=True)
        await connection.send(type="gate.score", score=0.5, speak=True)
        await connection.send(type="error", message="no", code="invalid_value", event_id="c1", param="p")
        await connection.send(type="error", message="an old server")
        await connection.send(type="drain.notice", grace_ms=5, more="fields")
        await connection.send(type="from.the.future", answer=42)
        assert await take(client, 7) == [
            clients.SpeechStarted(at_ms=1.0),
            clients.InputTranscript(text="a", final=True),
            clients.GateScore(score=0.5, speak=True),
            clients.ErrorMessage(message="no", code="invalid_value", event_id="c1", param="p"),
            clients.ErrorMessage(message="an old server"),
            clients.DrainNotice(grace_ms=5.0),
            clients.UnknownEvent(type="from.the.future", fields={"type": "from.the.future", "answer": 42}),
        ]


async def test_audio_in_json_and_in_binary_frames_is_the_same():
    seen = []
    for frames in ("json", "binary"):
        async with fake_gateway() as gateway, session(gateway, frames=frames) as (client, connection):
            await connection.send(type="response.created", response_index=1)
            for pts in (0, 240):
                if frames == "binary":
                    await connection.send_audio(1, PCM, pts=pts)
                else:
                    data = base64.b64encode(PCM).decode()
                    await connection.send(
                        type="response.delta", response_index=1, modality="audio", data=data
                    )
            seen.append(await take(client, 3))
    assert seen[0] == seen[1]
    assert seen[0][2] == clients.AudioDelta(
        response_index=1, data=PCM, codec="pcm_s16le", sample_rate=24000, pts=240
    )
    assert seen[0][2].samples.tolist() == list(range(240))


async def test_the_output_format_is_the_servers_at_the_time_the_response_began():
    settings = {"output_format": {"codec": "g711_ulaw", "sample_rate": 8000}}
    async with fake_gateway() as gateway, session(gateway, frames="json") as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await connection.send(type="session.updated", session=settings, event_id=None)
        await connection.send(type="response.delta", response_index=1, modality="audio", data="AAAA")
        await connection.send(type="response.done", response_index=1)
        await connection.send(type="response.created", response_index=2)
        await connection.send(type="response.delta", response_index=2, modality="audio", data="AAAA")
        first, second = [e for e in await take(client, 6) if isinstance(e, clients.AudioDelta)]
    assert (first.codec, first.sample_rate) == ("pcm_s16le", 24000)
    assert (second.codec, second.sample_rate) == ("g711_ulaw", 8000)
    with pytest.raises(ValueError, match="decoded"):
        _ = second.samples


async def test_a_server_that_does_not_speak_the_dialect_ends_the_session():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.socket.send(b"short")
        with pytest.raises(clients.SessionOver, match="frame"):
            await anext(client)
        with pytest.raises(clients.SessionOver):
            await client.commit()


# --- responses --------------------------------------------------------------------------------------


async def respond(connection: FakeConnection, index: int, *texts: str, end: str = "done", **more) -> None:
    await connection.send(type="response.created", response_index=index)
    for text in texts:
        await connection.send(type="response.delta", response_index=index, modality="text", data=text)
    await connection.send_audio(index, PCM)
    await connection.send(type=f"response.{end}", response_index=index, **more)


async def test_a_response_is_gathered():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.send(type="input.speech_started", at_ms=1)
        await respond(connection, 1, "a", "b", audio_ms=10)
        await respond(connection, 2, "c", end="cancelled", reason="turn_detected", heard_ms=5, heard_text="c")
        await connection.send(type="response.created", response_index=3)
        await connection.send(type="error", message="broke", code="adapter_failed")
        await connection.send(type="response.cancelled", response_index=3, reason="failed")
        first, second, third = [await client.response() for _ in range(3)]
    assert (first.index, first.status, first.text, first.audio) == (1, "done", "ab", PCM)
    assert first.others == (clients.SpeechStarted(at_ms=1.0),)
    assert first.samples.tolist() == list(range(240))
    assert (second.status, second.reason, second.heard_ms, second.heard_text) == (
        "cancelled",
        "turn_detected",
        5.0,
        "c",
    )
    assert third.status == "failed"
    assert third.error.code == "adapter_failed"


async def test_a_refused_request_is_raised_where_the_response_is_awaited():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        event_id = await client.commit()
        await connection.send(type="error", message="nothing", code="commit_empty", event_id=event_id)
        with pytest.raises(clients.RequestRefused, match="nothing") as caught:
            await client.response()
        assert (caught.value.code, caught.value.event_id) == (ErrorCode.COMMIT_EMPTY, event_id)
        await respond(connection, 1, "a")
        assert (await client.response()).text == "a"


# --- fencing ----------------------------------------------------------------------------------------


async def test_after_a_cancel_nothing_of_the_response_is_seen_but_its_end():
    """Fault 42: the queue is cleared, then the same response's next frame restarts it."""
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await connection.send_audio(1, PCM)
        await connection.send_audio(1, PCM, pts=240)
        assert isinstance((await take(client, 2))[1], clients.AudioDelta)
        while client.protocol.dropped_deltas == 0:  # the second frame may wait in the client, or on its way
            await client.cancel()
            assert (await connection.receive())["response_index"] == 1
            await connection.send_audio(1, PCM, pts=480)
            await connection.send(type="response.delta", response_index=1, modality="text", data="late")
            await connection.send(type="response.cancelled", response_index=1)
            await connection.send_audio(1, PCM, pts=720)
            await respond(connection, 2, "new")
            assert isinstance(await anext(client), clients.ResponseCancelled)
        response = await client.response()
    assert (response.index, response.text, response.audio) == (2, "new", PCM)
    assert client.protocol.dropped_deltas >= 3


async def test_audio_that_waits_to_be_taken_is_dropped_by_a_cancel():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        for pts in range(0, 2400, 240):
            await connection.send_audio(1, PCM, pts=pts)
        await connection.send(type="input.speech_started", at_ms=1)
        await take(client, 1)
        await connection.delivered()
        await client.cancel()
        assert await anext(client) == clients.SpeechStarted(at_ms=1.0)


async def test_a_cancel_while_idle_is_answered():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await client.cancel()
        assert "response_index" not in await connection.receive()
        await connection.send(type="response.cancelled", response_index=0)
        assert (await anext(client)).response_index == 0


async def test_deltas_of_unknown_responses_are_dropped():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.send_audio(9, PCM)
        await connection.send(type="response.done", response_index=9)
        await respond(connection, 10)
        assert (await client.response()).index == 10
    assert client.protocol.dropped_deltas == 1


# --- the end ----------------------------------------------------------------------------------------

CLOSES = [
    (4401, "unauthorized", clients.Unauthorized),
    (4401, "", clients.Unauthorized),
    (4429, "server_full", clients.ServerFull),
    (4429, "session_id_in_use", clients.SessionIdInUse),
    (4429, "invalid_session_id", clients.InvalidSessionId),
    (1012, "draining", clients.Draining),
    (1012, "", clients.Draining),
    (1013, "engine_down", clients.EngineDown),
    (4400, "bad_config", clients.BadConfig),
    (4400, "too_many_errors", clients.TooManyErrors),
    (4404, "model_not_found", clients.ModelNotFound),
    (4408, "idle_timeout", clients.TimedOut),
    (4408, "slow_reader", clients.SlowReader),
    (4409, "taken_over", clients.TakenOver),
    (4410, "resume_rejected", clients.ResumeRejected),
    (1009, "message_too_large", clients.MessageTooLarge),
    (1009, "", clients.MessageTooLarge),
    (1011, "adapter_stuck", clients.ServerFault),
    (1011, "", clients.ServerFault),
    (4999, "what is this", clients.SessionOver),
]


@pytest.mark.parametrize(("close_code", "reason", "kind"), CLOSES)
async def test_every_reason_to_refuse_a_session_is_told_apart(close_code, reason, kind):
    """Fault 40."""
    async with fake_gateway() as gateway:
        opening = asyncio.ensure_future(AsyncDuplexClient.connect(gateway.url))
        connection = await gateway.accept(greet=False)
        if reason:
            await connection.send(type="error", message="in words", code=reason, fatal=True)
        await connection.close(close_code, reason)
        with pytest.raises(clients.SessionOver) as caught:
            await opening
    assert type(caught.value) is kind
    assert caught.value.close_code == close_code
    assert not reason or reason == "what is this" or caught.value.message == "in words"


@pytest.mark.parametrize(("close_code", "reason", "kind"), CLOSES)
async def test_every_reason_to_end_a_session_is_told_apart(close_code, reason, kind):
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.close(close_code, reason)
        with pytest.raises(kind):
            await anext(client)
        with pytest.raises(kind):
            await client.response()
        with pytest.raises(kind):
            await client.append_text("too late")
    assert gateway.handshakes == 1


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"", clients.Unauthorized),
        (403, b"no JSON", clients.Unauthorized),
        (404, b"", clients.BadConfig),
        (404, b'{"error": {"code": 404, "error_code": "model_not_found"}}', clients.ModelNotFound),
        (429, b"[]", clients.ServerFull),
        (503, b"", clients.EngineDown),
        (503, b'{"error": {"code": "draining", "message": "bye"}}', clients.Draining),
        (500, b"", clients.ConnectionLost),
    ],
)
async def test_a_handshake_refused_over_http(status, body, kind):
    async with fake_gateway() as gateway:
        gateway.refuse_with = (status, body)
        with pytest.raises(clients.SessionOver) as caught:
            await AsyncDuplexClient.connect(gateway.url)
    assert type(caught.value) is kind


async def test_nobody_listens():
    async with fake_gateway() as gateway:
        pass
    with pytest.raises(clients.ConnectionLost, match="no connection"):
        await AsyncDuplexClient.connect(gateway.url)


async def test_a_server_that_says_nothing():
    async with fake_gateway() as gateway:
        with pytest.raises(clients.ConnectionLost, match="did not answer"):
            await AsyncDuplexClient.connect(gateway.url, open_timeout_s=0.05)


async def test_a_graceful_close_lets_the_response_finish():
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await take(client, 1)
        closing = asyncio.ensure_future(client.close())
        assert (await connection.receive())["type"] == "close"
        with pytest.raises(clients.SessionClosed):
            await client.append_text("too late")
        await connection.send(type="response.delta", response_index=1, modality="text", data="last words")
        await connection.send(type="response.done", response_index=1)
        await connection.close(1000, "closed by the client")
        await closing
        assert [event async for event in client] == [
            clients.TextDelta(response_index=1, text="last words"),
            clients.ResponseDone(response_index=1),
        ]
        await client.close()
        with pytest.raises(clients.SessionClosed):
            await client.response()


async def test_a_close_that_the_server_ignores_is_cut_off():
    async with fake_gateway() as gateway, session(gateway, close_timeout_s=0.05) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await take(client, 1)
        await client.close()
        assert [event async for event in client] == []
        assert not client.connected


async def test_no_task_is_left():
    before = asyncio.all_tasks()
    async with fake_gateway() as gateway:
        async with session(gateway, player=clients.PlaybackClock()) as (_, connection):
            connection.drop()
        with pytest.raises(RuntimeError, match="mine"):
            async with session(gateway):
                raise RuntimeError("mine")
    assert asyncio.all_tasks() == before


async def test_a_reader_that_takes_nothing_is_bounded(monkeypatch):
    """The client's memory does not grow: it stops reading, and the server's bounds act."""
    monkeypatch.setattr(client_module, "MAX_EVENTS", 4)
    async with fake_gateway() as gateway, session(gateway) as (client, connection):
        for at in range(10):  # fewer than the socket itself lets wait, so that it still answers a ping
            await connection.send(type="input.speech_started", at_ms=at)
        await connection.delivered()
        assert len(client._inbox) <= 4
        for at in range(10, 100):
            await connection.send(type="input.speech_started", at_ms=at)
        assert [event.at_ms for event in await take(client, 100)] == list(range(100))
