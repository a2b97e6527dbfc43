"""Hostile recordings, as a reference and as an upload: each ends in a named error."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from fake_speech import FakeFace, FakeSpeechAdapter
from speech_stage import Stage, config
from test_http import recording

from duplex.codecs import open_encoder
from duplex.codecs.encoders import wav_header
from duplex.codecs.framing import ebml
from duplex.server.run import running_gateway


def encoded(codec: str, seconds: float = 2.0) -> bytes:
    encoder = open_encoder(codec, input_rate=16000)
    noise = (np.random.default_rng(0).standard_normal(int(16000 * seconds)) * 3000).astype(np.int16)
    return encoder.feed(noise) + encoder.flush()


def png(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def silence(minutes: int) -> bytes:
    """A small file that is long."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8000 * 60 * minutes, np.int16), 8000, format="FLAC")
    return file.getvalue()


def nested(depth: int) -> bytes:
    """WebM elements in one another."""
    data = b""
    for _ in range(depth):
        data = ebml(0x18538067, data)
    return ebml(0x1A45DFA3, ebml(0x4282, "webm")) + data


HOSTILE = {
    "nothing": b"",
    "text": b"hello, this is no audio at all" * 50,
    "zeros": bytes(100_000),
    "truncated wav": recording()[:5000],
    "truncated flac": encoded("flac")[:4000],
    "truncated opus": encoded("opus")[:60],
    "a picture": png(16, 16),
    "100,000 by 100,000 pixels": png(100_000, 100_000),
    "ten hours in the header": wav_header(16000, 10 * 3600 * 16000) + bytes(3200),
    "twenty minutes of silence": silence(20),
    "nested elements": nested(2000),
    "a playlist": b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
    "a concat script": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "a session description": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
}


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("voices")
    face = FakeFace()
    settings = config(speaker_samples_dir=str(folder))
    async with running_gateway(settings, [FakeSpeechAdapter(face)]) as gateway:
        yield Stage(gateway, face)


def check_named(response: httpx.Response, param: str) -> None:
    error = response.json()["error"]
    assert response.status_code in (400, 413), error
    assert error["error_code"] in ("invalid_media", "media_too_large", "unsupported_format", "empty_input")
    assert error["param"] == param
    assert "passwd" not in response.text


@pytest.mark.parametrize("name", HOSTILE)
async def test_as_a_reference(stage: Stage, name: str) -> None:
    url = "data:audio/wav;base64," + base64.b64encode(HOSTILE[name]).decode()
    async with stage.http() as http:
        response = await http.post("/v1/audio/speech", json={"input": "Hello.", "ref_audio": url})
        check_named(response, "ref_audio")
        batch = await http.post("/v1/audio/speech/batch", json={"items": [{"input": "x", "ref_audio": url}]})
        assert batch.json()["results"][0]["param"] == "ref_audio"
    assert stage.synthesis.in_use == 0


@pytest.mark.parametrize("name", HOSTILE)
async def test_as_an_upload(stage: Stage, name: str) -> None:
    async with stage.http() as http:
        files = {"audio_sample": ("a.wav", HOSTILE[name], "audio/wav")}
        data = {"name": "ann", "consent": "yes"}
        check_named(await http.post("/v1/audio/voices", data=data, files=files), "audio_sample")
        assert (await http.get("/v1/audio/voices")).json()["uploaded_voices"] == []


@pytest.mark.parametrize("name", HOSTILE)
async def test_as_a_configuration(stage: Stage, name: str) -> None:
    voice = await stage.voice()
    url = "data:audio/wav;base64," + base64.b64encode(HOSTILE[name]).decode()
    await voice.send("session.config", response_format="pcm", ref_audio=url)
    assert (await voice.until("error"))["param"] == "ref_audio"
    await voice.send("session.config", response_format="pcm")
    await voice.say("Hello.")
    await voice.until("session.done")
    await voice.ws.close()


async def test_a_recording_that_is_not_what_it_says_is_taken_for_what_it_is(stage: Stage) -> None:
    url = "data:audio/wav;base64," + base64.b64encode(encoded("mp3")).decode()
    async with stage.http() as http:
        response = await http.post("/v1/audio/speech", json={"input": "Hello.", "ref_audio": url})
    assert response.status_code == 200
    reference = stage.face.validated[-1].reference
    assert reference is not None
    assert abs(len(reference.samples) - 2 * reference.sample_rate) < 3000
