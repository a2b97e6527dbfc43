"""OpenAI's Python SDK against the speech endpoints, with the embedded voice; its audio is heard again."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hibari", reason="needs the embedded extra")
pytest.importorskip("moonshine_voice", reason="needs the embedded extra")
pytest.importorskip("jiwer", reason="needs jiwer")
pytest.importorskip("openai", reason="needs OpenAI's SDK")

import openai
from embedded_stage import TEXT, Ear, embedded_gateway, word_error_rate
from fake_speech import FakeFace, FakeSpeechAdapter
from speech_stage import config

from duplex.server.run import Gateway, running_gateway

MAX_WER = 0.05
"""Moonshine tiny hears this voice without a mistake; one word in twenty-six may go."""


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with embedded_gateway() as gateway:
        yield gateway


@pytest.fixture(scope="module")
def ear() -> Ear:
    return Ear()


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm"])
async def test_create_gives_a_file_that_says_the_text(client: Any, ear: Ear, format: str) -> None:
    response = await client.audio.speech.create(
        model="gpt-4o-mini-tts", voice="alloy", input=TEXT, response_format=format
    )
    heard = ear.pcm(response.content, 24000) if format == "pcm" else ear.file(response.content)
    assert word_error_rate(heard) <= MAX_WER


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm"])
async def test_streaming_gives_the_same_in_pieces(client: Any, ear: Ear, format: str) -> None:
    async with client.audio.speech.with_streaming_response.create(
        model="tts-1",
        voice="nova",
        input=TEXT,
        response_format=format,
        extra_body={"stream_format": "audio"},
    ) as response:
        assert "content-length" not in response.headers
        rate = int(response.headers["x-sample-rate"])
        pieces = [piece async for piece in response.iter_bytes()]
    data = b"".join(pieces)
    heard = ear.pcm(data, rate) if format == "pcm" else ear.file(data)
    assert word_error_rate(heard) <= MAX_WER
    assert len(pieces) > 3


async def test_stream_to_a_file(client: Any, ear: Ear, tmp_path: Path) -> None:
    async with client.audio.speech.with_streaming_response.create(
        model="tts-1-hd", voice="onyx", input=TEXT, response_format="mp3", speed=1.2
    ) as response:
        await response.stream_to_file(tmp_path / "speech.mp3")
    assert word_error_rate(ear.file((tmp_path / "speech.mp3").read_bytes())) <= MAX_WER


async def test_events_have_audio_and_usage(client: Any, ear: Ear) -> None:
    async with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="sage", input=TEXT, response_format="pcm", stream_format="sse"
    ) as response:
        lines = [line async for line in response.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert word_error_rate(ear.pcm(data, 24000)) <= MAX_WER
    usage = events[-1]["usage"]
    assert usage["input_tokens"] == len(TEXT)
    assert usage["output_tokens"] == -(-len(data) * 1000 // 2 // 24000 // 80)


async def test_telephone_rate_and_speed(client: Any, ear: Ear) -> None:
    def create(speed: float) -> Any:
        return client.audio.speech.create(
            model="tts-1",
            voice="alloy",
            input=TEXT,
            response_format="pcm",
            speed=speed,
            extra_body={"sample_rate": 8000},
        )

    slow, fast = (await create(1.0)).content, (await create(1.5)).content
    assert word_error_rate(ear.pcm(slow, 8000)) <= 2 * MAX_WER  # half the band
    assert 1.3 < len(slow) / len(fast) < 1.7


async def test_the_blocking_client(gateway: Gateway, ear: Ear) -> None:
    def ask() -> bytes:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            response = client.audio.speech.create(
                model="tts-1", voice="alloy", input=TEXT, response_format="flac"
            )
            return response.content

    assert word_error_rate(ear.file(await asyncio.to_thread(ask))) <= MAX_WER


async def test_the_pages_example_runs(gateway: Gateway, ear: Ear, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "speech.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "speech.md", "exec"), names)
    path = tmp_path / "speech.ogg"
    await asyncio.to_thread(names["read_aloud"], gateway.url, TEXT, str(path))
    assert word_error_rate(ear.file(path.read_bytes())) <= MAX_WER


# --- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"voice": "nobody"}, openai.BadRequestError, "voice"),
        ({"speed": 9.0}, openai.BadRequestError, "speed"),
        ({"response_format": "wma"}, openai.BadRequestError, "response_format"),
        ({"input": ""}, openai.BadRequestError, "input"),
        ({"extra_body": {"task_type": "Base"}}, openai.BadRequestError, "task_type"),
        ({"extra_body": {"language": "Klingon"}}, openai.BadRequestError, "language"),
        ({"extra_body": {"volume": 3}}, openai.BadRequestError, "volume"),
        ({"model": "whisper-1"}, openai.NotFoundError, "model"),
    ],
)
async def test_faults_are_the_sdks_own_classes(
    client: Any, fields: dict[str, Any], kind: type[Exception], param: str
) -> None:
    asked = {"model": "tts-1", "voice": "alloy", "input": TEXT, **fields}
    with pytest.raises(kind) as fault:
        await client.audio.speech.create(**asked)
    assert fault.value.param == param  # type: ignore[attr-defined]


async def test_a_wrong_token_and_too_much_text() -> None:
    async with running_gateway(config(auth_token="s3cret"), [FakeSpeechAdapter(FakeFace())]) as gateway:
        url = f"{gateway.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.audio.speech.create(model="tts-1", voice="alloy", input="Hi.")
        async with openai.AsyncOpenAI(base_url=url, api_key="s3cret", max_retries=0) as client:
            with pytest.raises(openai.APIStatusError) as fault:
                await client.audio.speech.create(model="tts-1", voice="alloy", input="x" * 140_000)
            assert fault.value.status_code == 413
            response = await client.audio.speech.create(model="tts-1", voice="alloy", input="Hi.")
            assert response.content[:4] == b"RIFF"


async def test_a_full_server_is_a_rate_limit_and_the_sdk_comes_back() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    settings = config(max_speech_requests=1)
    async with running_gateway(settings, [FakeSpeechAdapter(face)]) as gateway:
        url = f"{gateway.url}/v1"
        asked = {"model": "tts-1", "voice": "alloy", "input": "Hi."}
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            first = asyncio.ensure_future(client.audio.speech.create(**asked))
            await face.touched.wait()
            with pytest.raises(openai.RateLimitError) as fault:
                await client.audio.speech.create(**asked)
            assert fault.value.response.headers["retry-after"] == "1"
            patient = client.with_options(max_retries=2)
            second = asyncio.ensure_future(patient.audio.speech.create(**asked))
            assert face.gate is not None
            face.gate.release()
            face.gate.release()
            assert (await first).content == (await second).content


async def test_the_voices_list_says_that_openais_names_are_one_voice(client: Any, gateway: Gateway) -> None:
    listed = await client.get("/audio/voices", cast_to=dict[str, Any])
    assert {"alloy", "echo", "nova", "shimmer"} < set(listed["voices"])
    default = listed["details"][0]
    assert default["id"] == listed["voices"][0]
    assert "alloy" in default["aliases"]
    assert listed["uploaded_voices"] == []
