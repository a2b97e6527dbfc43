"""The blocking client, against a server on a thread of its own."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
from fake_gateway import FakeConnection, fake_gateway

from duplex import clients
from duplex.clients import DuplexClient


@contextmanager
def serving(script):
    """A fake gateway that plays `script` with every connection. Yields its address."""
    ready = threading.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve():
        async with fake_gateway() as gateway:
            address.append(gateway.url)
            ready.set()
            while True:
                await script(await gateway.accept())

    def run():
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass

    task = loop.create_task(serve())
    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        loop.close()


async def echo(connection: FakeConnection) -> None:
    """Answers each `response.create` with what it was to speak."""
    index = 0
    while (message := await connection.receive())["type"] != "close":
        if message["type"] == "input.commit":
            await connection.send(
                type="error", message="nothing", code="commit_empty", event_id=message["event_id"]
            )
        if message["type"] != "response.create":
            continue
        index += 1
        text = message["response"]["speak"]
        await connection.send(type="response.created", response_index=index)
        await connection.send(type="response.delta", response_index=index, modality="text", data=text)
        await connection.send(type="response.done", response_index=index)
    await connection.close(1000, "closed by the client")


def test_speak_and_gather():
    with serving(echo) as url, DuplexClient(url, frames="json") as client:
        assert client.session.session_id == "s1"
        assert client.connected
        for text in ("one", "two"):
            client.speak(text)
            assert client.response(timeout_s=10).text == text
        event_id = client.commit()
        with pytest.raises(clients.RequestRefused) as caught:
            client.response()
        assert caught.value.event_id == event_id


def test_every_request_reaches_the_server():
    received = []

    async def record(connection):
        while (message := await connection.receive())["type"] != "close":
            received.append(message["type"])
        await connection.close(1000)

    with serving(record) as url, DuplexClient(url, frames="json") as client:
        client.append_text("a")
        client.append_audio(b"\0\0")
        client.append_image(b"x")
        client.append_video(b"x", kind="video/mp4")
        client.append_codec_window("h264", {"a": 1})
        client.commit()
        client.respond()
        client.speak("b")
        client.cancel()
        client.ack(1.0)
        client.update({"voice": "c"})
    assert received == ["input.append"] * 5 + [
        "input.commit",
        "response.create",
        "response.create",
        "response.cancel",
        "playback.ack",
        "session.update",
    ]


def test_iteration_ends_with_the_session():
    async def short(connection):
        await connection.send(type="input.speech_started", at_ms=1)
        await connection.close(1000)

    with serving(short) as url, DuplexClient(url) as client:
        assert [type(event) for event in client] == [clients.SessionCreated, clients.SpeechStarted]


def test_faults_are_raised():
    async def full(connection):
        await connection.close(4429, "server_full")

    with serving(full) as url, DuplexClient(url) as client:
        with pytest.raises(clients.ServerFull):
            list(client)
        with pytest.raises(clients.ServerFull):
            client.append_text("x")


def test_a_client_that_could_not_open_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(clients.ConnectionLost):
        DuplexClient.connect("ws://127.0.0.1:9/v1/duplex")
    assert threading.active_count() == before


def test_closing_twice_and_using_it_afterwards():
    with serving(echo) as url:
        client = DuplexClient.connect(url)
        client.close()
        client.close()
        client.abort()
        with pytest.raises(clients.SessionClosed):
            client.append_text("x")
        unopened = DuplexClient(url)
        with pytest.raises(clients.ClientError):
            unopened.append_text("x")


def test_a_response_that_does_not_come_times_out():
    with serving(echo) as url, DuplexClient(url) as client, pytest.raises(TimeoutError):
        client.response(timeout_s=0.05)


def test_another_thread_may_speak_while_one_waits():
    with serving(echo) as url, DuplexClient(url) as client:
        texts = []
        waiting = threading.Thread(target=lambda: texts.append(client.response().text))
        waiting.start()
        client.speak("from here")
        waiting.join(10)
        assert texts == ["from here"]
