"""The HTTP speech endpoints, over an application that has nothing else."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from fake_speech import MS_PER_CHARACTER, RATE, FakeFace, FakeSpeechAdapter
from starlette.applications import Starlette
from starlette.requests import Request

from duplex.codecs.decoders import decode_audio
from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime.encoding import EncoderPool
from duplex.speech.http import SpeechRoutes
from duplex.speech.http_voices import VoiceRoutes
from duplex.speech.reference import ReferencePolicy
from duplex.speech.synthesis import Synthesis
from duplex.speech.voices import VoiceStore

TEXT = "One fish, two fish."
SAMPLES = len(TEXT) * MS_PER_CHARACTER * RATE // 1000


class App:
    def __init__(self, folder: Path, face: FakeFace, most: int = 4) -> None:
        self.face = face
        self.pool = EncoderPool(1)
        self.counted: list[ErrorCode] = []
        self.synthesis = Synthesis(
            [FakeSpeechAdapter(face)],
            voices=VoiceStore(folder / "voices", most=2),
            policy=ReferencePolicy(folder=folder / "refs"),
            pool=self.pool,
            most=most,
        )
        (folder / "refs").mkdir(exist_ok=True)
        routes = [
            *SpeechRoutes(self.synthesis, self.guard, self.counted.append).routes,
            *VoiceRoutes(self.synthesis, self.guard, self.counted.append).routes,
        ]
        transport = httpx.ASGITransport(Starlette(routes=routes))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def guard(self, request: Request) -> None:
        if request.headers.get("authorization") == "Bearer wrong":
            raise DuplexError(ErrorCode.UNAUTHORIZED, "wrong token")

    async def speak(self, **fields: object) -> httpx.Response:
        return await self.client.post("/v1/audio/speech", json={"input": TEXT, **fields})


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = App(tmp_path, FakeFace())
    yield app
    await app.client.aclose()
    app.pool.close()


def error_of(response: httpx.Response) -> dict[str, object]:
    error: dict[str, object] = response.json()["error"]
    return error


async def test_a_plain_request_gets_a_wav_file_of_known_length(app: App) -> None:
    response = await app.speak()
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    samples, rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
    assert (len(samples), rate) == (SAMPLES, RATE)
    assert app.synthesis.in_use == 0


@pytest.mark.parametrize("format", ["wav", "pcm", "flac", "mp3", "opus", "aac"])
async def test_every_format_streams_and_decodes_to_the_same_length(app: App, format: str) -> None:
    response = await app.speak(response_format=format, stream_format="audio")
    assert response.status_code == 200
    assert "content-length" not in response.headers
    if format == "pcm":
        assert len(response.content) == SAMPLES * 2
        return
    samples, rate = decode_audio(response.content)
    # aac and mp3 pad to whole frames; ADTS and a streamed mp3 cannot say so
    slack = 3 * 1152 if format in ("aac", "mp3") else 0
    assert 0 <= len(samples) * RATE / rate - SAMPLES <= slack
    assert np.abs(samples).max() > 8000


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
async def test_any_sample_rate(app: App, rate: int) -> None:
    response = await app.speak(response_format="pcm", sample_rate=rate)
    assert len(response.content) == pytest.approx(SAMPLES * 2 * rate / RATE, abs=4)


async def test_a_stream_begins_before_the_model_has_ended(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    app = App(tmp_path, FakeFace(gate=gate))
    gate.release()
    job = asyncio.ensure_future(app.speak(response_format="pcm", stream=True))
    response = await job
    assert len(response.content) == SAMPLES * 2
    assert app.face.closed == 1
    await app.client.aclose()


async def test_sse_ends_with_usage(app: App) -> None:
    response = await app.speak(response_format="pcm", stream_format="sse")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
    assert {e["type"] for e in events[:-1]} == {"speech.audio.delta"}
    assert len(b"".join(base64.b64decode(e["audio"]) for e in events[:-1])) == SAMPLES * 2
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["input_tokens"] == len(TEXT)


async def test_word_times_travel_in_a_header(app: App) -> None:
    response = await app.speak(word_timestamps=True, response_format="mp3")
    (word,) = json.loads(response.headers["x-word-timestamps"])
    assert word == {"word": TEXT, "start_ms": 0.0, "end_ms": len(TEXT) * MS_PER_CHARACTER}


async def test_word_times_that_are_too_long_are_said_to_be_omitted(app: App) -> None:
    response = await app.speak(word_timestamps=True, input="w" * 5000)
    assert "x-word-timestamps" not in response.headers
    assert int(response.headers["x-word-timestamps-omitted"]) > 4096


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"input": ""}, 400, "input", "empty_input"),
        ({"input": 5}, 400, "input", "invalid_value"),
        ({"input": "x" * 140_000}, 413, "input", "input_overflow"),
        ({"model": "nope"}, 404, "model", "model_not_found"),
        ({"voice": "nobody"}, 400, "voice", "invalid_value"),
        ({"speed": 5}, 400, "speed", "invalid_value"),
        ({"sample_rate": 11025}, 400, "sample_rate", "invalid_value"),
        ({"response_format": "wma"}, 400, "response_format", "invalid_value"),
        ({"task_type": "Base"}, 400, "task_type", "invalid_value"),
        ({"volume": 1}, 400, "volume", "unknown_field"),
        ({"ref_audio": "ftp://host/a.wav"}, 400, "ref_audio", "invalid_value"),
        ({"ref_audio": "http://127.0.0.1:1/a.wav"}, 400, "ref_audio", "invalid_value"),
        ({"ref_audio": "file:///etc/passwd"}, 400, "ref_audio", "invalid_value"),
        ({"ref_audio": "data:audio/wav;base64,???"}, 400, "ref_audio", "invalid_base64"),
        ({"ref_audio": "data:audio/wav;base64,AAAA"}, 400, "ref_audio", "invalid_media"),
        ({"speaker_embedding": [0.5] * 7}, 400, "speaker_embedding", "invalid_value"),
    ],
)
async def test_what_cannot_be_is_refused_before_the_model_is_touched(
    app: App, fields: dict[str, object], status: int, param: str, code: str
) -> None:
    response = await app.speak(**fields)
    error = error_of(response)
    assert (response.status_code, error["param"], error["error_code"]) == (status, param, code)
    assert error["code"] == status
    assert app.face.started == []
    assert app.synthesis.in_use == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"input":NaN}', b"[" * 100_000])
async def test_bodies_that_are_no_request(app: App, body: bytes) -> None:
    response = await app.client.post("/v1/audio/speech", content=body)
    assert response.status_code == 400
    assert error_of(response)["error_code"] in ("invalid_json", "not_an_object")


async def test_a_body_over_the_limit_is_413(app: App) -> None:
    response = await app.client.post("/v1/audio/speech", content=b" " * (33 << 20))
    assert response.status_code == 413


async def test_a_wrong_token_is_401(app: App) -> None:
    headers = {"authorization": "Bearer wrong"}
    response = await app.client.post("/v1/audio/speech", json={"input": TEXT}, headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    error = error_of(response)
    assert (error["type"], error["code"], error["error_code"]) == ("AuthenticationError", 401, "unauthorized")


async def test_a_full_server_says_when_to_come_back(tmp_path: Path) -> None:
    app = App(tmp_path, FakeFace(gate=asyncio.Semaphore(0)), most=1)
    first = asyncio.ensure_future(app.speak())
    await app.face.touched.wait()
    second = await app.speak()
    assert second.status_code == 429
    assert int(second.headers["retry-after"]) >= 1
    assert app.face.gate is not None
    app.face.gate.release()
    assert (await first).status_code == 200
    assert app.synthesis.in_use == 0
    await app.client.aclose()


async def test_a_model_that_breaks_is_named_and_tells_no_secrets(tmp_path: Path) -> None:
    app = App(tmp_path, FakeFace(fail_on="fish"))
    for fields in ({}, {"stream": True}, {"stream_format": "sse"}):
        response = await app.speak(**fields)
        assert response.status_code == 500
        assert error_of(response)["error_code"] == "adapter_failed"
        assert "secret" not in response.text
    assert app.synthesis.in_use == 0
    await app.client.aclose()


async def test_openai_names_of_models_and_voices_work(app: App) -> None:
    assert (await app.speak(model="gpt-4o-mini-tts", voice="alloy")).status_code == 200
    assert (await app.speak(model="tts-1", voice={"id": "alloy"})).status_code == 200
    assert (await app.speak(speaker="tone")).status_code == 200


async def test_a_batch_keeps_order_and_one_failure_is_its_own(app: App) -> None:
    items = [{"input": "One."}, {"input": ""}, {"input": "Three.", "response_format": "flac"}, "four"]
    body = {"items": items, "response_format": "pcm"}
    response = await app.client.post("/v1/audio/speech/batch", json=body)
    answer = response.json()
    assert [r["status"] for r in answer["results"]] == ["success", "error", "success", "error"]
    assert [r["index"] for r in answer["results"]] == [0, 1, 2, 3]
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (4, 2, 2)
    assert answer["results"][2]["media_type"] == "audio/flac"
    pcm = base64.b64decode(answer["results"][0]["audio_data"])
    assert len(pcm) == 4 * MS_PER_CHARACTER * RATE // 1000 * 2


@pytest.mark.parametrize("items", [[], [{"input": "x"}] * 33, "x", None])
async def test_a_batch_of_the_wrong_size_is_refused(app: App, items: object) -> None:
    response = await app.client.post("/v1/audio/speech/batch", json={"items": items})
    assert (response.status_code, error_of(response)["param"]) == (400, "items")


def recording(seconds: float = 1.0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(int(16000 * seconds), np.int16), 16000, format="WAV")
    return file.getvalue()


async def upload(
    app: App, name: str, audio: bytes | None = None, kind: str = "audio/wav", **fields: str
) -> httpx.Response:
    data = {"name": name, "consent": "yes-001", **fields}
    files = {"audio_sample": ("a.wav", recording() if audio is None else audio, kind)}
    return await app.client.post("/v1/audio/voices", data=data, files=files)


async def test_voices_are_uploaded_listed_used_and_deleted(app: App) -> None:
    listed = (await app.client.get("/v1/audio/voices")).json()
    assert listed["voices"] == ["tone", "alloy"]
    assert listed["uploaded_voices"] == []
    created = await upload(app, "Ann", ref_text="hello", speaker_description="calm")
    assert created.status_code == 201
    (record,) = (await app.client.get("/v1/audio/voices")).json()["uploaded_voices"]
    assert set(record) == {
        *("name", "consent", "created_at", "file_size", "mime_type", "ref_text", "speaker_description")
    }
    assert (await app.speak(voice="ann")).status_code == 200
    stored = app.face.validated[-1].stored_voice
    assert stored is not None
    assert stored.reference is not None
    assert (stored.text, stored.reference.sample_rate, len(stored.reference.samples)) == (
        "hello",
        16000,
        16000,
    )
    assert (await app.client.delete("/v1/audio/voices/Ann")).status_code == 200
    assert (await app.client.delete("/v1/audio/voices/Ann")).status_code == 404
    assert (await app.speak(voice="ann")).status_code == 400


async def test_an_upload_again_is_harmless_and_another_one_of_that_name_is_refused(app: App) -> None:
    assert (await upload(app, "ann")).status_code == 201
    assert (await upload(app, "ann")).status_code == 200
    other = await upload(app, "Ann", recording(2.0))
    assert (other.status_code, error_of(other)["error_code"]) == (409, "voice_exists")
    assert (await upload(app, "bob")).status_code == 201
    third = await upload(app, "cid")
    assert (third.status_code, error_of(third)["error_code"]) == (409, "voice_limit")


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", ".hidden", "", "a\\b", "x" * 65, "nul\0", "a..b"])
async def test_names_that_are_paths_are_refused(app: App, tmp_path: Path, name: str) -> None:
    response = await upload(app, name)
    assert (response.status_code, error_of(response)["param"]) == (400, "name")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["refs", "voices"]


@pytest.mark.parametrize(
    ("audio", "kind", "code"),
    [
        (b"not audio at all", "audio/wav", "invalid_media"),
        (b"", "audio/wav", "empty_input"),
        (recording()[:30], "audio/wav", "invalid_media"),
        (b"x", "text/html", "unsupported_format"),
        (b"RIFF" + b"\0" * (10 << 20), "audio/wav", "media_too_large"),
        (recording(61.0), "audio/wav", "media_too_large"),
    ],
)
async def test_recordings_that_cannot_be_are_refused(app: App, audio: bytes, kind: str, code: str) -> None:
    response = await upload(app, "ann", audio, kind)
    assert error_of(response)["error_code"] == code
    assert (await app.client.get("/v1/audio/voices")).json()["uploaded_voices"] == []


async def test_an_uploaded_voice_outlives_the_process_and_a_torn_file_is_left_alone(tmp_path: Path) -> None:
    app = App(tmp_path, FakeFace())
    await upload(app, "Ann Lee")
    (tmp_path / "voices" / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    again = VoiceStore(tmp_path / "voices")
    assert [record.name for record in again.uploaded] == ["Ann Lee"]
    assert again.find("ann lee") is not None
    await app.client.aclose()


async def test_file_references_stay_in_their_folder(app: App, tmp_path: Path) -> None:
    (tmp_path / "refs" / "a.wav").write_bytes(recording())
    (tmp_path / "outside.wav").write_bytes(recording())
    (tmp_path / "refs" / "link.wav").symlink_to(tmp_path / "outside.wav")
    inside = (tmp_path / "refs" / "a.wav").as_uri()
    assert (await app.speak(ref_audio=inside)).status_code == 200
    for url in (
        (tmp_path / "outside.wav").as_uri(),
        (tmp_path / "refs" / "link.wav").as_uri(),
        f"file://{tmp_path}/refs/../outside.wav",
        f"file://{tmp_path}/refs/%2e%2e/outside.wav",
        f"file://elsewhere{tmp_path}/refs/a.wav",
        (tmp_path / "refs" / "missing.wav").as_uri(),
        f"file://{tmp_path}/refs/\0",
    ):
        response = await app.speak(ref_audio=url)
        assert (response.status_code, error_of(response)["param"]) == (400, "ref_audio"), url
