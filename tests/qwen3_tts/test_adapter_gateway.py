"""Qwen3-TTS end to end: tiny checkpoints in worker processes, behind the gateway's own endpoints.

The weights are random, so what is said is babble that never ends by itself: requests bound it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

pytest.importorskip("torch", reason="needs the qwen3-tts extra")
pytest.importorskip("tokenizers", reason="needs the qwen3-tts extra")

from fake_speech import FakeFace
from speech_stage import PATIENCE_S, Stage, config
from websockets.asyncio.client import connect

from duplex.adapters.qwen3_tts.adapter import QwenTts, create
from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.adapters.qwen3_tts.rules import MAX_FRAMES
from duplex.adapters.qwen3_tts.tiny import SPEAKERS, write_tiny_checkpoint
from duplex.adapters.speech import UploadedVoice
from duplex.clients import AsyncDuplexClient, AudioDelta, ResponseCancelled, ResponseDone
from duplex.server.run import running_gateway
from duplex.speech.profiles import save_profile

FRAME_BYTES = 2 * 1920
SLOTS = 8
TEXT = "Hello there, how are you today?"
MODELS: dict[str, TtsModelType] = {
    "tts-custom": "custom_voice",
    "tts-design": "voice_design",
    "tts-base": "base",
}


class Room(Stage):
    """A gateway with a checkpoint of each kind, and clients of it."""

    def adapter(self, model: str) -> QwenTts:
        found = self.gateway.runtime.adapters[model]
        assert isinstance(found, QwenTts)
        return found

    async def speak(self, model: str, text: str = TEXT, **fields: Any) -> httpx.Response:
        body = {"model": model, "input": text, "response_format": "pcm", "max_new_tokens": 12, **fields}
        async with self.http() as http:
            return await http.post("/v1/audio/speech", json=body)

    async def audio(self, model: str, text: str = TEXT, **fields: Any) -> bytes:
        answer = await self.speak(model, text, **fields)
        assert answer.status_code == 200, answer.text
        return answer.content

    async def refused(self, model: str, **fields: Any) -> dict[str, Any]:
        answer = await self.speak(model, **fields)
        assert answer.status_code == 400
        error: dict[str, Any] = answer.json()["error"]
        return error

    async def idle(self, model: str) -> None:
        """Wait until the engine has nothing to do."""
        engine = self.adapter(model).engine
        async with asyncio.timeout(PATIENCE_S):
            while any(replica.load for replica in engine.replicas):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def ready(self) -> None:
        """Wait until the gateway takes work."""
        async with asyncio.timeout(60), self.http() as http:
            while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def room(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    folder = tmp_path_factory.mktemp("tts")
    save_profile(folder / "voices", UploadedVoice(name="Ann", embedding=tuple(np.linspace(-1, 1, 128))))
    adapters = []
    for name, kind in MODELS.items():
        checkpoint = write_tiny_checkpoint(folder / kind, kind)
        options: dict[str, Any] = {"custom_voice_dir": str(folder / "voices")} if kind == "base" else {}
        adapters.append(
            create(
                {
                    "id": name,
                    "model": str(checkpoint),
                    "device": "cpu",
                    "slots": SLOTS,
                    "positions": 512,
                    "threads": 1,
                    **options,
                }
            )
        )
    settings = config(speaker_samples_dir=str(folder / "uploads"))
    async with running_gateway(settings, adapters) as gateway:
        room = Room(gateway, FakeFace())
        yield room
        await room.close()


def wav(seconds: float = 1.5, rate: int = 16000) -> bytes:
    wave = 0.4 * np.sin(np.arange(int(seconds * rate)) * 0.07)
    file = io.BytesIO()
    soundfile.write(file, wave, rate, format="WAV")
    return file.getvalue()


def distinct(*audios: bytes) -> bool:
    """No two are the same."""
    return len(set(audios)) == len(audios)


RECORDING = "data:audio/wav;base64," + base64.b64encode(wav()).decode()


# --- what is there ------------------------------------------------------------------------------------


async def test_the_voices_are_listed(room: Room) -> None:
    async with room.http() as http:
        custom = (await http.get("/v1/audio/voices")).json()
        assert set(SPEAKERS) <= set(custom["voices"])
        assert "alloy" in custom["voices"]
        details = {voice["id"]: voice for voice in custom["details"]}
        assert set(details) == set(SPEAKERS)
        assert custom["details"][0]["id"] == "vivian"
        base = (await http.get("/v1/audio/voices", params={"model": "tts-base"})).json()
        assert "Ann" in base["voices"]
        design = (await http.get("/v1/audio/voices", params={"model": "tts-design"})).json()
        assert design["voices"] == []
        models = (await http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == list(MODELS)


# --- every task ---------------------------------------------------------------------------------------


async def test_custom_voice(room: Room) -> None:
    first = await room.audio("tts-custom", voice="Ryan", language="English", seed=1)
    assert len(first) == 12 * FRAME_BYTES
    assert any(first)
    others = [
        await room.audio("tts-custom", voice="sohee", language="English", seed=1),
        await room.audio("tts-custom", voice="Ryan", language="ko", seed=1),
        await room.audio("tts-custom", voice="Ryan", language="English", seed=1, instructions="whisper"),
        await room.audio("tts-custom", voice="Ryan", language="English", seed=2),
    ]
    assert distinct(first, *others)
    by_alias = [await room.audio("tts-custom", voice=name, seed=1) for name in ("alloy", "vivian")]
    assert by_alias[0] == by_alias[1]


async def test_voice_design(room: Room) -> None:
    fields: dict[str, Any] = {"task_type": "VoiceDesign", "seed": 1}
    old = await room.audio("tts-design", instructions="an old man", **fields)
    young = await room.audio("tts-design", instructions="a young woman", **fields)
    assert len(old) == len(young) == 12 * FRAME_BYTES
    assert distinct(old, young)


async def test_base_with_a_recording(room: Room) -> None:
    cloned = {
        "in context": await room.audio("tts-base", ref_audio=RECORDING, ref_text="What it says.", seed=1),
        "other words": await room.audio("tts-base", ref_audio=RECORDING, ref_text="Other words.", seed=1),
        "alone": await room.audio("tts-base", ref_audio=RECORDING, x_vector_only_mode=True, seed=1),
        "precomputed": await room.audio("tts-base", voice="ann", seed=1),
    }
    assert all(len(audio) == 12 * FRAME_BYTES for audio in cloned.values())
    assert distinct(*cloned.values())
    again = await room.audio("tts-base", ref_audio=RECORDING, ref_text="What it says.", seed=1)
    assert again == cloned["in context"]


async def test_base_with_an_uploaded_voice(room: Room) -> None:
    async with room.http() as http:
        form = {"name": "Eve", "consent": "yes", "ref_text": "What it says."}
        files = {"audio_sample": ("eve.wav", wav(), "audio/wav")}
        added = await http.post("/v1/audio/voices", data=form, files=files)
        assert added.status_code == 201
    uploaded = await room.audio("tts-base", voice="eve", seed=1)
    # the same as if the request had brought it
    brought = await room.audio("tts-base", ref_audio=RECORDING, ref_text="What it says.", seed=1)
    assert uploaded == brought
    error = await room.refused("tts-custom", voice="eve", task_type="CustomVoice")
    assert error["message"] == (
        "Qwen3-TTS CustomVoice checkpoint does not support task_type='Base'. "
        "Use task_type='CustomVoice' or load the matching Base checkpoint."
    )
    assert error["param"] == "voice"


@pytest.mark.parametrize(
    ("model", "fields", "param", "words"),
    [
        ("tts-custom", {"ref_audio": RECORDING}, "ref_audio", "does not support task_type='Base'"),
        ("tts-design", {}, "task_type", "does not support task_type='CustomVoice'"),
        ("tts-base", {}, "task_type", "does not support task_type='CustomVoice'"),
        ("tts-base", {"task_type": "Base"}, "ref_audio", "needs a voice to clone"),
        ("tts-design", {"task_type": "VoiceDesign"}, "instructions", "needs instructions"),
        ("tts-custom", {"voice": "nobody"}, "voice", "unknown voice 'nobody'"),
        ("tts-custom", {"language": "Klingon"}, "language", "unknown language"),
        ("tts-custom", {"speed": 1.5}, "speed", "has no speed"),
        ("tts-custom", {"max_new_tokens": MAX_FRAMES + 1}, "max_new_tokens", f"from 1 to {MAX_FRAMES}"),
        ("tts-base", {"speaker_embedding": [0.1] * 1024}, "speaker_embedding", "must have 128 numbers"),
    ],
)
async def test_what_a_checkpoint_does_not_do_is_refused_before_the_engine_is_asked(
    room: Room, monkeypatch: pytest.MonkeyPatch, model: str, fields: dict[str, Any], param: str, words: str
) -> None:
    def touched(*args: object, **kwargs: object) -> None:
        raise AssertionError("the engine was asked")

    monkeypatch.setattr(room.adapter(model).engine, "request", touched)
    monkeypatch.setattr(room.adapter(model).engine, "call", touched)
    error = await room.refused(model, **fields)
    assert (error["param"], error["error_code"]) == (param, "invalid_value")
    assert words in error["message"]


async def test_a_text_without_words_is_empty_input(room: Room) -> None:
    error = await room.refused("tts-custom", text="…")
    assert error["error_code"] == "empty_input"


# --- the answer ---------------------------------------------------------------------------------------


async def test_a_ceiling_ends_with_length_and_word_times_are_not_known(room: Room) -> None:
    voice = await room.voice(
        model="tts-custom",
        response_format="pcm",
        stream_audio="true",
        max_new_tokens=6,
        word_timestamps="true",
    )
    await voice.say(TEXT)
    done = await voice.until("audio.done")
    assert done["finish_reason"] == "length"
    assert done["total_bytes"] == 6 * FRAME_BYTES
    assert all(chunk["timestamps"] is None for chunk in voice.told("audio.chunk"))


async def test_text_that_comes_late_is_spoken_in_the_same_utterance(room: Room) -> None:
    voice = await room.voice(
        model="tts-custom",
        response_format="pcm",
        stream_audio="true",
        split_granularity="none",
        stream_text="true",
        max_new_tokens=16,
        seed=4,
    )
    await voice.send("input.text", text="Hello there, how are ")
    await voice.until("audio")
    await voice.send("input.text", text="you today?")
    await voice.send("input.done")
    await voice.until("session.done")
    assert len(voice.audio) == 16 * FRAME_BYTES
    # the text of one utterance is the same audio, whenever its pieces came
    other = await room.voice(
        model="tts-custom",
        response_format="pcm",
        stream_audio="true",
        split_granularity="none",
        stream_text="true",
        max_new_tokens=16,
        seed=4,
    )
    await other.send("input.text", text="Hello ")
    await other.until("audio.start")
    await asyncio.sleep(0.05)
    await other.say("there, how are you today?")
    await other.until("session.done")
    assert other.audio == voice.audio


async def test_a_text_that_fills_an_utterance_is_taken(room: Room) -> None:
    text = ("The keeper climbed the stairs and lit the lamp. " * 9)[:280]
    assert len(await room.audio("tts-custom", text, max_new_tokens=2)) == 2 * FRAME_BYTES


# --- seeds --------------------------------------------------------------------------------------------


async def test_a_seed_gives_the_same_audio_alone_and_among_others(room: Room) -> None:
    texts = [f"{TEXT} {number}" * (1 + number % 3) for number in range(SLOTS)]

    def spoken(number: int) -> Coroutine[Any, Any, bytes]:
        fields: dict[str, Any] = {"seed": number - 4, "max_new_tokens": 5 + number % 4}
        return room.audio("tts-custom", texts[number], **fields)

    alone = [await spoken(number) for number in range(SLOTS)]
    together = await asyncio.gather(*map(spoken, range(SLOTS)))
    assert together == alone
    assert distinct(*alone)
    assert distinct(*[await room.audio("tts-custom") for _ in range(2)])


# --- ends ---------------------------------------------------------------------------------------------


async def test_a_cancel_frees_the_slot(room: Room) -> None:
    endless: dict[str, Any] = {"model": "tts-custom", "response_format": "pcm", "stream_audio": "true"}
    voices = [await room.voice(**endless) for _ in range(SLOTS)]
    for voice in voices:
        await voice.say(TEXT)
        await voice.until("audio")
    waiting = asyncio.ensure_future(room.audio("tts-custom", seed=1, max_new_tokens=2))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done, "there was a slot too many"
    await voices[0].send("input.cancel")
    await voices[0].until("audio.cancelled")
    assert len(await waiting) == 2 * FRAME_BYTES
    for voice in voices[1:]:
        voice.ws.transport.abort()
    await room.idle("tts-custom")


async def test_a_client_that_hangs_up_frees_the_slot(room: Room) -> None:
    async with room.http() as http:
        body = {"model": "tts-custom", "input": TEXT, "response_format": "pcm"}
        async with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            await anext(answer.aiter_bytes())
    await room.idle("tts-custom")


async def test_a_worker_that_dies_fails_its_requests_by_name_and_comes_back(room: Room) -> None:
    before = await room.audio("tts-custom", seed=1)
    (replica,) = room.adapter("tts-custom").engine.replicas
    assert replica.ready is not None
    async with room.http() as http:
        body = {"model": "tts-custom", "input": TEXT, "response_format": "pcm", "stream_format": "sse"}
        async with http.stream("POST", "/v1/audio/speech", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            os.kill(replica.ready.pid, signal.SIGKILL)
            events = [json.loads(line.removeprefix("data: ")) async for line in lines if line]
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["error_code"] == "adapter_failed"
        assert "SIGKILL" in events[-1]["error"]["message"]
        # until it is back nobody is kept waiting
        refused = await room.speak("tts-custom")
        assert refused.status_code == 503
        assert refused.json()["error"]["error_code"] == "engine_down"
        assert (await http.get("/health")).status_code == 200
    await room.ready()
    assert await room.audio("tts-custom", seed=1) == before


# --- sessions -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def session(room: Room, model: str, **options: Any) -> AsyncIterator[AsyncDuplexClient]:
    url = f"{room.gateway.ws_url}/v1/duplex"
    async with AsyncDuplexClient(url, model=model, options={"max_run_ahead_ms": 0, **options}) as client:
        yield client


async def test_a_session_reads_the_clients_text(room: Room) -> None:
    async with session(room, "tts-custom", voice="ryan") as client:
        await client.update({"options": {"max_new_tokens": 10, "seed": 5, "language": "en"}})
        await client.append_text(TEXT)
        await client.commit()
        response = await client.response()
        assert response.text == TEXT
        assert len(response.audio) == 10 * FRAME_BYTES
        await client.speak(TEXT)
        assert (await client.response()).audio == response.audio
        expected = await room.audio("tts-custom", voice="ryan", language="en", seed=5, max_new_tokens=10)
        assert response.audio == expected


async def test_a_session_is_cut_and_goes_on(room: Room) -> None:
    async with session(room, "tts-base", voice="Ann") as client:
        await client.speak(TEXT * 3)
        async for event in client:
            if isinstance(event, AudioDelta):
                await client.cancel()
                break
        async for event in client:
            assert not isinstance(event, ResponseDone)
            if isinstance(event, ResponseCancelled):
                break
        await room.idle("tts-base")
        await client.update({"options": {"max_new_tokens": 4}})
        await client.speak("Again.")
        assert len((await client.response()).audio) == 4 * FRAME_BYTES


async def test_a_realtime_client_hears_its_text(room: Room) -> None:
    url = f"{room.gateway.ws_url}/v1/realtime?model=tts-custom"
    async with connect(url, max_size=None) as ws:

        async def say(type: str, **fields: Any) -> None:
            await ws.send(json.dumps({"type": type, **fields}))

        await say("session.update", session={"type": "realtime", "audio": {"output": {"voice": "alloy"}}})
        content = [{"type": "input_text", "text": "Hello."}]
        await say("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        await say("response.create")
        audio = transcript = ""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                event = json.loads(await ws.recv())
                assert event["type"] != "error", event
                match event["type"]:
                    case "response.output_audio.delta":
                        audio += event["delta"]
                        if len(audio) > 3 * FRAME_BYTES:
                            await say("response.cancel")
                    case "response.output_audio_transcript.delta":
                        transcript += event["delta"]
                    case "response.done":
                        assert event["response"]["status"] == "cancelled"
                        break
    assert transcript == "Hello."
    await room.idle("tts-custom")


# --- the command --------------------------------------------------------------------------------------


async def test_the_command_serves_it(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tts", "custom_voice", "0.6B")
    command = ("serve", "--port", "0", "--adapter", "qwen3-tts", "--option", "qwen3-tts.device=cpu")
    options = ("--option", f"qwen3-tts.model={checkpoint}", "--option", "qwen3-tts.positions=256")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "duplex.cli", *command, *options), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        lines = ""
        while not (found := re.search(r"serving qwen3-tts on (http://\S+)", lines)):
            line = await asyncio.wait_for(process.stderr.readline(), 60)
            assert line, lines
            lines += line.decode()
        async with httpx.AsyncClient(base_url=found[1], timeout=PATIENCE_S) as http:
            voices = (await http.get("/v1/audio/voices")).json()["voices"]
            assert set(SPEAKERS) <= set(voices)
            body = {"input": TEXT, "response_format": "pcm", "max_new_tokens": 3}
            assert len((await http.post("/v1/audio/speech", json=body)).content) == 3 * FRAME_BYTES
        process.send_signal(signal.SIGTERM)
        await process.stderr.read()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
