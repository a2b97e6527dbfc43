"""Faults of the HTTP speech endpoints on a running gateway, each test named after one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fake_speech import MS_PER_CHARACTER, RATE, EndlessFace, FakeFace, FakeSpeechAdapter, WordyFace
from speech_stage import PATIENCE_S, Stage, config
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from test_http import recording

from duplex.adapters.speech import SpeechRequest
from duplex.core.errors import DuplexError, ErrorCode
from duplex.server.run import running_gateway
from duplex.speech import synthesis
from duplex.speech.http import SpeechRoutes
from duplex.speech.reference import ReferencePolicy, load_reference
from duplex.speech.voices import VoiceStore

TEXT = "One fish, two fish."
LONG = "All work and no play makes a long text. " * 500


@contextlib.asynccontextmanager
async def staged(face: FakeFace, **fields: Any) -> AsyncIterator[Stage]:
    async with running_gateway(config(**fields), [FakeSpeechAdapter(face)]) as gateway:
        yield Stage(gateway, face)


async def raw_request(stage: Stage, body: dict[str, Any], path: str = "/v1/audio/speech") -> socket.socket:
    """A client that has sent its request, and reads when the test does."""
    host, port = stage.gateway.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + data)
    return client


async def read_until(client: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1024), PATIENCE_S)
        assert part, f"the connection ended before {mark!r}: {data!r}"
        data += part
    return data


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


# --- clients that go --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": "pcm", "stream": True},
        {"response_format": "mp3"},
        {"stream_format": "sse"},
        {"response_format": "wav"},
        {"response_format": "wav", "word_timestamps": True},
    ],
)
async def test_fault_17_a_client_that_hangs_up_before_the_first_audio(fields: dict[str, Any]) -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with staged(face) as stage:
        client = await raw_request(stage, {"input": TEXT, **fields})
        await face.touched.wait()
        client.close()
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        await stage.empty()


@pytest.mark.parametrize(
    "fields",
    [{"response_format": "pcm", "stream": True}, {"stream_format": "sse"}, {"response_format": "opus"}],
)
async def test_fault_17_a_client_that_hangs_up_in_mid_stream(fields: dict[str, Any]) -> None:
    face = EndlessFace()
    async with staged(face) as stage:
        client = await raw_request(stage, {"input": TEXT, **fields})
        await read_until(client, b"\r\n\r\n")
        client.close()
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        await stage.empty()


async def test_fault_17_a_client_that_hangs_up_during_a_batch() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with staged(face) as stage:
        items = [{"input": TEXT}] * 32
        client = await raw_request(stage, {"items": items}, "/v1/audio/speech/batch")
        await face.touched.wait()
        client.close()
        await stage.empty()
        assert 0 < face.closed <= len(items)
        assert face.closed == len(face.started)


async def test_fault_30_random_hang_ups_leave_no_place_taken() -> None:
    face = FakeFace()
    async with staged(face, max_speech_requests=8) as stage:
        for n in range(60):
            fields: dict[str, Any] = [{"stream": True}, {"stream_format": "sse"}, {}][n % 3]
            client = await raw_request(stage, {"input": LONG[: 40 + 300 * (n % 5)], **fields})
            for _ in range(n % 4):
                await asyncio.sleep(0)
            if n % 7 == 0:
                await read_until(client, b"\r\n")
            client.close()
        await stage.empty()
        async with stage.http() as http:
            assert (await http.post("/v1/audio/speech", json={"input": TEXT})).status_code == 200


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream_format": "sse"}])
async def test_fault_29_a_client_that_does_not_read_is_cut_off(fields: dict[str, Any]) -> None:
    face = EndlessFace()
    async with staged(face, slow_reader_timeout_s=0.05) as stage:
        client = await raw_request(stage, {"input": TEXT, "response_format": "pcm", **fields})
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        await stage.empty()
        assert stage.gateway.runtime.metrics.errors[ErrorCode.SLOW_READER] == 1
        while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), PATIENCE_S):
            pass  # the connection itself ends, not only the request
        client.close()


@pytest.mark.parametrize(
    "fields",
    [{"stream": True, "response_format": "pcm"}, {"stream_format": "sse"}, {}, {"response_format": "opus"}],
)
async def test_fault_31_the_place_is_free_when_the_client_has_the_end(fields: dict[str, Any]) -> None:
    async with staged(FakeFace(), max_speech_requests=1) as stage, stage.http() as http:
        for _ in range(20):
            async with http.stream("POST", "/v1/audio/speech", json={"input": TEXT, **fields}) as response:
                assert response.status_code == 200
                async for _ in response.aiter_bytes():
                    pass


@pytest.mark.parametrize(
    ("fields", "last"), [({"stream_format": "sse"}, b"speech.audio.done"), ({"stream": True}, b"")]
)
async def test_fault_31_the_place_is_given_back_before_the_last_message(
    fields: dict[str, Any], last: bytes
) -> None:
    async with staged(FakeFace()) as stage:
        app = Starlette(routes=SpeechRoutes(stage.synthesis, lambda request: None, print).routes)
        body = json.dumps({"input": TEXT, **fields}).encode()
        asked = [{"type": "http.request", "body": body}]
        held: dict[bytes, int] = {}

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            return await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and last in message["body"][:40]:
                held[message["body"]] = stage.synthesis.in_use

        scope = {"type": "http", "method": "POST", "path": "/v1/audio/speech", "headers": []}
        await app(scope, receive, send)
        assert list(held.values())[-1] == 0


# --- models that misbehave --------------------------------------------------------------------------


async def test_fault_11_a_model_that_makes_nothing_held_its_request_for_ever() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with staged(face, response_stall_s=0.05) as stage, stage.http() as http:
        response = await http.post("/v1/audio/speech", json={"input": TEXT})
        assert (response.status_code, error_of(response)["error_code"]) == (500, "adapter_failed")
        assert "0.05 s" in error_of(response)["message"]
        assert (face.closed, stage.synthesis.in_use) == (1, 0)


class Stubborn(FakeFace):
    """Does not stop when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()

    async def synthesise(self, request: SpeechRequest, text: AsyncIterator[str]) -> AsyncIterator[Any]:
        self.touched.set()
        while not self.free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.free.wait()
        return
        yield


async def test_a_model_that_does_not_stop_is_given_up_and_counted() -> None:
    face = Stubborn()
    async with staged(face, abort_timeout_s=0.05) as stage:
        client = await raw_request(stage, {"input": TEXT})
        await face.touched.wait()
        client.close()
        await stage.empty()
        assert len(stage.gateway.runtime.stray) == 1
        face.free.set()


class Odd(FakeFace):
    """Fails where nobody expects it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        if self.where == "validate":
            raise KeyError("secret")
        return super().validate(request)

    async def synthesise(self, request: SpeechRequest, text: AsyncIterator[str]) -> AsyncIterator[Any]:
        if self.where == "cancelled":
            raise asyncio.CancelledError("secret")
        yield "no chunk"


@pytest.mark.parametrize("where", ["validate", "cancelled", "type"])
async def test_a_model_that_fails_in_an_odd_way_is_named(where: str) -> None:
    async with staged(Odd(where)) as stage, stage.http() as http:
        for fields in ({}, {"stream": True}, {"stream_format": "sse"}):
            response = await http.post("/v1/audio/speech", json={"input": TEXT, **fields})
            assert (response.status_code, error_of(response)["error_code"]) == (500, "adapter_failed")
            assert "secret" not in response.text
        assert stage.synthesis.in_use == 0


async def test_a_model_that_fails_in_mid_stream_ends_the_body_short_and_the_events_with_an_error() -> None:
    class Short(FakeFace):
        async def synthesise(self, request: SpeechRequest, text: AsyncIterator[str]) -> AsyncIterator[Any]:
            async for chunk in super().synthesise(request, text):
                yield chunk
            raise DuplexError(ErrorCode.ADAPTER_FAILED, "out of breath")

    async with staged(Short()) as stage, stage.http() as http:
        body = {"input": TEXT, "response_format": "pcm"}
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/v1/audio/speech", json={**body, "stream": True})
        response = await http.post("/v1/audio/speech", json={**body, "stream_format": "sse"})
        last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert (last["type"], last["error"]["message"]) == ("error", "out of breath")
        assert stage.gateway.runtime.metrics.errors[ErrorCode.ADAPTER_FAILED] == 2
        assert stage.synthesis.in_use == 0


# --- requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "opus", "flac", "aac"])
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "sse"}])
async def test_text_without_words_was_an_empty_file(format: str, fields: dict[str, Any]) -> None:
    async with staged(FakeFace()) as stage, stage.http() as http:
        body = {"input": "… 🙂 \u200b", "response_format": format, **fields}
        response = await http.post("/v1/audio/speech", json=body)
        error = error_of(response)
        assert (response.status_code, error["error_code"], error["param"]) == (400, "empty_input", "input")


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "opus", "flac", "aac"])
async def test_fault_26_words_were_lost_whose_sound_the_encoder_still_held(format: str) -> None:
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    async with staged(WordyFace()) as stage, stage.http() as http:
        body = {"input": text, "response_format": format, "word_timestamps": True}
        response = await http.post("/v1/audio/speech", json={**body, "stream_format": "sse"})
        events = [json.loads(part[6:]) for part in response.text.split("\n\n") if part]
        words = [word for event in events[:-1] for word in event["timestamps"]]
        whole = json.loads((await http.post("/v1/audio/speech", json=body)).headers["x-word-timestamps"])
    assert words == whole
    assert "".join(word["word"] for word in words) == text.replace(" ", "")
    # ADTS cannot say that a player has to drop the encoder's first frame
    delay_ms = 1024 / RATE * 1000 if format == "aac" else 0.0
    starts = [word["start_ms"] for word in words]
    assert starts == pytest.approx([delay_ms + 2 * n * MS_PER_CHARACTER for n in range(26)])


async def test_word_times_of_a_streamed_body_were_dropped_silently() -> None:
    async with staged(FakeFace()) as stage, stage.http() as http:
        for fields in ({"stream": True}, {"stream_format": "audio"}):
            response = await http.post(
                "/v1/audio/speech", json={"input": TEXT, "word_timestamps": True, **fields}
            )
            assert error_of(response)["param"] == "word_timestamps"


async def test_audio_that_is_kept_in_one_piece_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "MAX_WHOLE_BYTES", 100_000)
    async with staged(FakeFace()) as stage, stage.http() as http:
        text = "x" * (100_000 // 2 * 1000 // RATE // MS_PER_CHARACTER + 1)
        response = await http.post("/v1/audio/speech", json={"input": text})
        assert (response.status_code, error_of(response)["error_code"]) == (413, "media_too_large")
        streamed = await http.post("/v1/audio/speech", json={"input": text, "stream": True})
        assert (streamed.status_code, len(streamed.content) > 100_000) == (200, True)
        items = [{"input": text[: len(text) // 2], "response_format": "pcm"}] * 3
        batch = (await http.post("/v1/audio/speech/batch", json={"items": items})).json()
        assert (batch["succeeded"], batch["failed"]) == (2, 1)
        assert stage.synthesis.in_use == 0


async def test_the_rate_that_opus_really_has_is_told() -> None:
    async with staged(FakeFace()) as stage, stage.http() as http:
        for asked, told in ((44100, "48000"), (22050, "24000"), (16000, "16000")):
            body = {"input": TEXT, "response_format": "opus", "sample_rate": asked}
            assert (await http.post("/v1/audio/speech", json=body)).headers["x-sample-rate"] == told


async def test_a_full_server_does_no_work_for_whom_it_refuses() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with staged(face, max_speech_requests=1) as stage, stage.http() as http:
        client = await raw_request(stage, {"input": TEXT})
        await face.touched.wait()
        validated = len(face.validated)
        for path, body in (
            ("/v1/audio/speech", {"input": TEXT, "ref_audio": "data:audio/wav;base64,AAAA"}),
            ("/v1/audio/speech/batch", {"items": [{"input": TEXT}]}),
        ):
            assert (await http.post(path, json=body)).status_code == 429
        assert len(face.validated) == validated
        client.close()


async def test_an_items_speaker_was_overridden_by_the_batchs_voice() -> None:
    face = FakeFace()
    async with staged(face) as stage, stage.http() as http:
        body = {"voice": "alloy", "items": [{"input": "One."}, {"input": "Two.", "speaker": "tone"}]}
        answer = (await http.post("/v1/audio/speech/batch", json=body)).json()
        assert answer["succeeded"] == 2
        assert sorted(str(request.voice) for request in face.validated) == ["alloy", "tone"]


@pytest.mark.parametrize("name", ["input", "stream", "stream_format"])
async def test_what_cannot_be_a_default_of_a_batch_is_refused(name: str) -> None:
    async with staged(FakeFace()) as stage, stage.http() as http:
        body = {name: "audio", "items": [{"input": "One."}]}
        response = await http.post("/v1/audio/speech/batch", json=body)
        assert (response.status_code, error_of(response)["param"]) == (400, name)


async def test_a_fault_of_ours_has_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: VoiceStore, name: str) -> None:
        raise RuntimeError("secret path")

    monkeypatch.setattr(VoiceStore, "remove", broken)
    async with staged(FakeFace()) as stage, stage.http() as http:
        response = await http.delete("/v1/audio/voices/ann")
        assert (response.status_code, error_of(response)["error_code"]) == (500, "internal_error")
        assert "secret" not in response.text


async def test_fault_33_a_drain_lets_running_requests_end() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with staged(face) as stage, stage.http() as http:
        running = asyncio.ensure_future(http.post("/v1/audio/speech", json={"input": TEXT, "stream": True}))
        await face.touched.wait()
        draining = asyncio.ensure_future(stage.gateway.runtime.drain())
        await asyncio.sleep(0)
        refused = await http.post("/v1/audio/speech", json={"input": TEXT})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert not draining.done()
        assert face.gate is not None
        face.gate.release()
        assert (await running).status_code == 200
        await draining


# --- voices and references --------------------------------------------------------------------------


async def upload(http: httpx.AsyncClient, name: str, **fields: str) -> httpx.Response:
    data = {"name": name, "consent": "yes-001", **fields}
    files = {"audio_sample": ("a.wav", recording(), "audio/wav")}
    return await http.post("/v1/audio/voices", data=data, files=files)


async def test_an_upload_could_take_a_models_own_voice_away(tmp_path: Path) -> None:
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        for name in ("tone", "Alloy", " ALLOY ", "default"):
            response = await upload(http, name)
            assert (response.status_code, error_of(response)["error_code"]) == (409, "voice_exists")


async def test_names_that_look_alike_are_one_voice(tmp_path: Path) -> None:
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        composed = unicodedata.normalize("NFC", "Zoë")
        assert (await upload(http, composed)).status_code == 201
        assert (await upload(http, unicodedata.normalize("NFD", "Zoë"))).status_code == 200
        speak = {"input": TEXT, "voice": unicodedata.normalize("NFD", "zoë")}
        assert (await http.post("/v1/audio/speech", json=speak)).status_code == 200


async def test_a_name_longer_than_file_names_may_be_is_refused(tmp_path: Path) -> None:
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        response = await upload(http, "𐐀" * 64)
        assert (response.status_code, error_of(response)["param"]) == (400, "name")


@pytest.mark.parametrize("param", ["consent", "ref_text", "speaker_description"])
async def test_words_about_a_voice_are_bounded(tmp_path: Path, param: str) -> None:
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        response = await upload(http, "ann", **{param: "x" * 5000})
        assert (response.status_code, error_of(response)["param"]) == (400, param)


async def test_an_upload_of_unknown_length_filled_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    write = UploadFile.write

    async def counted(self: UploadFile, data: bytes) -> None:
        nonlocal written
        written += len(data)
        await write(self, data)

    async def long() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="audio_sample"; filename="a"\r\n\r\n'
        for _ in range(40):
            yield bytes(1 << 20)

    monkeypatch.setattr(UploadFile, "write", counted)
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        response = await http.post("/v1/audio/voices", content=long(), headers=headers)
        assert (response.status_code, error_of(response)["error_code"]) == (413, "message_too_large")
        assert written < 11 << 20


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_its_bound_had_the_code_of_decoded_media(path: str, declared: bool) -> None:
    async def long() -> AsyncIterator[bytes]:
        for _ in range(33):
            yield bytes(1 << 20)

    async with staged(FakeFace()) as stage, stage.http() as http:
        content = bytes((32 << 20) + 1) if declared else long()
        response = await http.post(path, content=content)
        error = error_of(response)
        assert (response.status_code, error["code"]) == (413, 413)
        assert (error["type"], error["error_code"]) == ("RequestTooLargeError", "message_too_large")


@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
async def test_bodies_that_are_no_form_are_named(tmp_path: Path, kind: str) -> None:
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        response = await http.post("/v1/audio/voices", content=b"{}", headers={"content-type": kind})
        assert (response.status_code, error_of(response)["error_code"]) == (400, "invalid_value")


async def test_a_voice_whose_file_was_deleted_is_unknown(tmp_path: Path) -> None:
    async with staged(FakeFace(), speaker_samples_dir=str(tmp_path)) as stage, stage.http() as http:
        assert (await upload(http, "ann")).status_code == 201
        for path in tmp_path.glob("*.safetensors"):
            path.unlink()
        response = await http.post("/v1/audio/speech", json={"input": TEXT, "voice": "ann"})
        assert (response.status_code, error_of(response)["param"]) == (400, "voice")


@pytest.mark.parametrize("url", ["http://[", "file://[x", "http://host:port/a", "https://\x7f/", "data:"])
async def test_references_that_are_no_urls_are_named(url: str) -> None:
    async with staged(FakeFace(), ref_audio_hosts=("host:port",)) as stage, stage.http() as http:
        response = await http.post("/v1/audio/speech", json={"input": TEXT, "ref_audio": url})
        assert (response.status_code, error_of(response)["param"]) == (400, "ref_audio")


def test_a_reference_that_is_a_pipe_was_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(DuplexError, match="no such file"):
        load_reference((tmp_path / "pipe.wav").as_uri(), ReferencePolicy(folder=tmp_path))


async def serve_reference(answer: bytes, *, endless: bytes = b"") -> tuple[asyncio.Server, str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            while endless:
                writer.write(endless)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_reference_is_fetched_from_an_allowed_host_and_no_redirect_is_followed() -> None:
    wave = recording()
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(wave)}\r\n\r\n".encode()
    good, host = await serve_reference(head + wave)
    moved, other = await serve_reference(f"HTTP/1.1 302 F\r\nlocation: http://{host}/\r\n\r\n".encode())
    huge, large = await serve_reference(b"HTTP/1.1 200 OK\r\n\r\n", endless=bytes(1 << 16))
    bad, noise = await serve_reference(b"\x00\x01\x02\r\n\r\n")
    policy = ReferencePolicy(hosts=frozenset({host, other, large, noise}))
    try:
        reference = await asyncio.to_thread(load_reference, f"http://{host}/a.wav", policy)
        assert (reference.sample_rate, len(reference.samples)) == (16000, 16000)
        for url, code in (
            (f"http://{other}/a.wav", ErrorCode.INVALID_VALUE),
            (f"http://{large}/a.wav", ErrorCode.MEDIA_TOO_LARGE),
            (f"http://{noise}/a.wav", ErrorCode.INVALID_VALUE),
            (f"http://user@{host}/a.wav", ErrorCode.INVALID_VALUE),
            (f"http://{host}.evil.example/a.wav", ErrorCode.INVALID_VALUE),
        ):
            with pytest.raises(DuplexError) as fault:
                await asyncio.to_thread(load_reference, url, policy)
            assert (fault.value.code, fault.value.param) == (code, "ref_audio")
    finally:
        for server in (good, moved, huge, bad):
            server.close()


async def test_sse_audio_is_whole_and_its_usage_counts_frames() -> None:
    async with staged(FakeFace()) as stage, stage.http() as http:
        body = {"input": TEXT, "response_format": "pcm", "stream_format": "sse"}
        response = await http.post("/v1/audio/speech", json=body)
        events = [json.loads(part[6:]) for part in response.text.split("\n\n") if part]
        audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
        samples = len(TEXT) * MS_PER_CHARACTER * RATE // 1000
        assert len(audio) == samples * 2
        frames = -(-samples * 1000 // RATE // 80)
        assert events[-1]["usage"] == {
            "input_tokens": len(TEXT),
            "output_tokens": frames,
            "total_tokens": len(TEXT) + frames,
        }


async def test_a_model_that_was_down_had_all_speech_refused() -> None:
    class Other(FakeSpeechAdapter):
        info = msgspec.structs.replace(FakeSpeechAdapter.info, id="other-tts")
        healthy = True
        fault: str | None = None

    other = Other(FakeFace())
    async with (
        running_gateway(config(), [FakeSpeechAdapter(FakeFace()), other]) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):

        async def say(model: str) -> httpx.Response:
            body = {"model": model, "input": TEXT, "response_format": "pcm"}
            return await http.post("/v1/audio/speech", json=body)

        other.healthy, other.fault = False, "its worker died"
        refused = await say("other-tts")
        assert refused.status_code == 503
        assert refused.json()["error"]["error_code"] == "engine_down"
        assert "its worker died" in refused.json()["error"]["message"]
        spoken = await say("fake-tts")
        assert spoken.status_code == 200
        assert len(spoken.content) > 0
        assert (await http.get("/ready")).status_code == 503  # of all models
        other.healthy = True
        assert (await say("other-tts")).status_code == 200
