"""The speech socket with the embedded voice: cancels, contexts, word times; what is said is heard again."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hibari", reason="needs the embedded extra")
pytest.importorskip("moonshine_voice", reason="needs the embedded extra")
pytest.importorskip("jiwer", reason="needs jiwer")

from embedded_stage import TEXT, Ear, embedded_gateway, plain, word_error_rate
from fake_speech import FakeFace
from speech_stage import Stage, Voice

RATE = 24000
PCM = {"response_format": "pcm", "stream_audio": "true"}
SECOND = "Nobody had ever seen the sea so calm before."


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with embedded_gateway() as gateway:
        stage = Stage(gateway, FakeFace())
        yield stage
        await stage.close()


@pytest.fixture(scope="module")
def ear() -> Ear:
    return Ear()


def chunks_of(voice: Voice, context: str | None = None) -> list[dict[str, Any]]:
    return [m for m in voice.told("audio.chunk") if m.get("context_id") == context]


def audio_of(chunks: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in chunks)


@pytest.mark.parametrize("granularity", ["sentence", "clause", "none"])
@pytest.mark.parametrize("streamed", ["true", "false"])
async def test_text_that_comes_word_by_word_is_said_whole(
    stage: Stage, ear: Ear, granularity: str, streamed: str
) -> None:
    voice = await stage.voice(**PCM, split_granularity=granularity, stream_text=streamed)
    for word in TEXT.split(" "):
        await voice.send("input.text", text=word + " ")
    await voice.send("input.done")
    await voice.until("session.done")
    assert word_error_rate(ear.pcm(voice.audio, RATE)) <= 0.05


async def test_a_cancel_in_mid_synthesis(stage: Stage, ear: Ear) -> None:
    """No audio after it, a second context untouched, and the connection speaks again at once."""
    voice = await stage.voice(**PCM, word_timestamps="true")
    await voice.say(TEXT * 10, context_id="a")
    await voice.say(SECOND, context_id="b")
    while not (chunks_of(voice, "a") and chunks_of(voice, "b")):
        await voice.next()
    await voice.send("input.cancel", context_id="a")
    await voice.until("audio.cancelled")
    at = len(voice.log)
    await voice.say(TEXT, context_id="a")
    while {m["context_id"] for m in voice.told("session.done")} != {"a", "b"}:
        await voice.next()
    late = [m for m in voice.log[at:] if m.get("context_id") == "a" and m["type"].startswith("audio.")]
    assert {m["utterance_index"] for m in late} == {1}
    said = [m for m in chunks_of(voice, "a") if m["utterance_index"] == 1]
    assert word_error_rate(ear.pcm(audio_of(said), RATE)) <= 0.05
    assert word_error_rate(ear.pcm(audio_of(chunks_of(voice, "b")), RATE), SECOND) <= 0.12
    assert {m["context_id"]: m["utterance_index"] for m in voice.told("session.done")} == {"a": 1, "b": 0}


@pytest.mark.parametrize("messages", range(0, 8, 2))
async def test_a_cancel_at_any_point(stage: Stage, messages: int) -> None:
    voice = await stage.voice(**PCM, word_timestamps="true")
    await voice.say(TEXT)
    for _ in range(messages):
        await voice.next()
    await voice.send("input.cancel")
    await voice.until("audio.cancelled")
    at = len(voice.log)
    await voice.say("Hello.")
    await voice.until("session.done")
    assert {m["utterance_index"] for m in voice.log[at:]} == {1}
    assert [w["word"] for m in chunks_of(voice)[-99:] if m["utterance_index"] for w in m["timestamps"]] == [
        "Hello."
    ]


async def test_a_cancel_of_text_that_is_being_written(stage: Stage) -> None:
    voice = await stage.voice(**PCM, split_granularity="none", stream_text="true")
    await voice.send("input.text", text=TEXT)
    await voice.until("audio")
    await voice.send("input.cancel")
    await voice.until("audio.cancelled")
    at = len(voice.log)
    await voice.say("Hello.")
    await voice.until("session.done")
    assert {m["utterance_index"] for m in voice.log[at:] if m["type"] != "audio"} == {1}


async def test_five_contexts_at_once(stage: Stage, ear: Ear) -> None:
    voice = await stage.voice(**PCM, word_timestamps="true")
    names = ["one", "two", "three", "four", "five"]
    for name in names:
        await voice.send("input.text", text=f"This is number {name}, and ", context_id=name)
    for name in names:
        await voice.send("input.text", text="it speaks for itself.", context_id=name)
        await voice.send("input.done", context_id=name)
    for _ in names:
        await voice.until("session.done")
    for name in names:
        heard = ear.pcm(audio_of(chunks_of(voice, name)), RATE)
        assert f"number {name}" in heard
        assert "itself" in heard


@pytest.mark.parametrize("format", ["pcm", "mp3", "opus", "flac", "aac"])
async def test_words_are_where_they_are_said(stage: Stage, ear: Ear, format: str) -> None:
    """Each half of the audio, cut at a word's start as told, holds its own half of the words."""
    voice = await stage.voice(
        response_format=format, stream_audio="true", word_timestamps="true", split_granularity="none"
    )
    await voice.say(TEXT)
    await voice.until("session.done")
    words = [word for chunk in chunks_of(voice) for word in chunk["timestamps"]]
    assert [word["word"] for word in words] == TEXT.split()
    assert all(a["end_ms"] <= b["start_ms"] + 1.0 for a, b in itertools.pairwise(words))
    assert all(word["start_ms"] < word["end_ms"] for word in words)
    data = audio_of(chunks_of(voice))
    if format == "pcm":
        samples, rate = np.frombuffer(data, "<i2").astype(np.float32) / 32768, RATE
    else:
        from duplex.codecs.decoders import decode_audio

        samples, rate = decode_audio(data, dtype="float32")
    cut = next(word for word in words if word["word"] == "He")
    at = int(cut["start_ms"] / 1000 * rate)
    half = words.index(cut)
    said = plain(TEXT).split()
    assert word_error_rate(ear.words(samples[:at], rate), " ".join(said[:half])) <= 0.1
    assert word_error_rate(ear.words(samples[at:], rate), " ".join(said[half:])) <= 0.1


@pytest.mark.parametrize("word_timestamps", [False, True])
async def test_a_seed_below_zero_failed_in_the_model(stage: Stage, word_timestamps: bool) -> None:
    async with stage.http() as http:
        body = {"input": "Hello.", "response_format": "pcm", "word_timestamps": word_timestamps}
        answers = [
            await http.post("/v1/audio/speech", json={**body, "seed": seed}) for seed in (-1, -1, 2**63 - 1)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].content == answers[1].content != answers[2].content


@pytest.mark.parametrize(
    ("seed", "status"), [(-(2**63), 200), (2**64 - 1, 200), (2**64, 400), (-(2**63) - 1, 400)]
)
async def test_every_64_bit_integer_is_a_seed(stage: Stage, seed: int, status: int) -> None:
    async with stage.http() as http:
        answer = await http.post("/v1/audio/speech", json={"input": "Hello.", "seed": seed})
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("text", ["🙂", "…!?", "。"])
async def test_text_without_words(stage: Stage, text: str) -> None:
    async with stage.http() as http:
        response = await http.post("/v1/audio/speech", json={"input": text})
        assert response.json()["error"]["error_code"] == "empty_input"
    voice = await stage.voice(**PCM)
    await voice.say(text)
    done = await voice.until("session.done")
    assert (done["total_sentences"], voice.audio, voice.told("error")) == (1, b"", [])


async def test_a_bound_on_the_length_is_told(stage: Stage) -> None:
    voice = await stage.voice(**PCM, max_new_tokens="10", split_granularity="none")
    await voice.say(TEXT)
    done = await voice.until("audio.done")
    assert (done["finish_reason"], len(voice.audio)) == ("length", 10 * 80 * RATE // 1000 * 2)
