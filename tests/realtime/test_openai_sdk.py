"""OpenAI's Python SDK against `/v1/realtime`, with the embedded voice; what it says is heard again."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hibari", reason="needs the embedded extra")
pytest.importorskip("moonshine_voice", reason="needs the embedded extra")
pytest.importorskip("openai", reason="needs OpenAI's SDK")

import openai
import soundfile
from embedded_stage import Ear
from talking import RATE, SILENCE, Talker, pcm, spoken

from duplex.adapters.embedded.voice import VoiceAdapter
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.config import ServerConfig
from duplex.server.run import Gateway, running_gateway

SHARED = Path(os.environ.get("DUPLEX_SHARED") or Path(__file__).parents[2].parent / "shared")
RECORDING = SHARED / "media/librivox/sense_and_sensibility_01_austen_64kb-0870.wav"
TRANSCRIBE = {"transcription": {"model": "whisper-1"}}
TOOL = {
    "type": "function",
    "name": "note_down",
    "description": "Writes a text down.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


@pytest.fixture(scope="module")
async def voice() -> VoiceAdapter:
    return VoiceAdapter()


@pytest.fixture(scope="module")
async def gateway(voice: VoiceAdapter) -> AsyncIterator[Gateway]:
    scripted = ScriptedAdapter(
        ScriptedOptions(call_tools=True, text="Call me Ishmael.", audio_ms=400, paced=False)
    )
    config = ServerConfig(port=0, drain_grace_s=0.0, default_model="embedded-voice")
    async with running_gateway(config, [voice, scripted]) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def talking(gateway: Gateway, model: str = "gpt-realtime", **session: Any) -> AsyncIterator[Talker]:
    """A connection whose session is set up."""
    client = openai.AsyncOpenAI(api_key="any", websocket_base_url=f"{gateway.ws_url}/v1")
    async with client, client.realtime.connect(model=model) as connection:
        talker = Talker(connection)
        created = await talker.expect("session.created")
        assert created.session.type == "realtime"
        await connection.session.update(session={"type": "realtime", **session})
        await talker.expect("session.updated")
        yield talker


async def test_a_question_is_heard_written_down_and_answered_aloud(
    gateway: Gateway, voice: VoiceAdapter
) -> None:
    async with talking(gateway, audio={"input": TRANSCRIBE, "output": {"voice": "marin"}}) as talker:
        await talker.say(
            await spoken(voice, "Repeat after me: the old lighthouse keeper climbed the stairs.")
        )
        done = (await talker.expect("response.done")).response
        kind = "conversation.item.input_audio_transcription"
        (completed,) = talker.of(f"{kind}.completed")
        assert "lighthouse keeper" in completed.transcript.lower()
        deltas = [event.delta for event in talker.of(f"{kind}.delta", item_id=completed.item_id)]
        assert completed.transcript.startswith("".join(deltas)[:4])
        assert done.status == "completed"
        transcript = done.output[0].content[0].transcript
        assert "lighthouse keeper" in transcript
        heard = Ear().pcm(talker.audio(done.id), RATE)
        assert "lighthouse keeper climbed" in heard
        assert done.usage.output_token_details.audio_tokens > 10
    order = [event.type for event in talker.log if not event.type.endswith("delta")]
    wanted = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    assert [kind for kind in order if kind in wanted] == wanted


@pytest.mark.skipif(not RECORDING.exists(), reason="needs the shared recordings")
async def test_a_recording_is_written_down(gateway: Gateway) -> None:
    samples, rate = soundfile.read(RECORDING, dtype="float32")
    turns = {"type": "server_vad", "silence_duration_ms": 900}
    async with talking(
        gateway, output_modalities=["text"], audio={"input": {**TRANSCRIBE, "turn_detection": turns}}
    ) as talker:
        await talker.say(pcm(samples, rate) + SILENCE)
        done = (await talker.expect("response.done")).response
        assert done.output_modalities == ["text"]
        completed = talker.of("conversation.item.input_audio_transcription.completed")
        assert len(" ".join(event.transcript for event in completed).split()) > 5
        assert not talker.of("response.output_audio.delta")


async def test_an_answer_is_interrupted_and_truncated_to_what_was_heard(
    gateway: Gateway, voice: VoiceAdapter
) -> None:
    count = await spoken(voice, "Count to fifty.")
    stop = await spoken(voice, "Stop that, please. What day is it today?")
    async with talking(gateway, audio={"input": TRANSCRIBE}) as talker:
        await talker.say(count)
        first = (await talker.expect("response.created")).response
        item = (await talker.expect("response.output_item.added")).item
        await talker.expect("response.output_audio.delta")
        await talker.say(stop)
        done = (await talker.expect("response.done")).response
        assert done.id == first.id
        assert done.status == "cancelled"
        assert done.status_details.reason == "turn_detected"
        truncated = await talker.expect("conversation.item.truncated")
        assert truncated.item_id == item.id
        # nothing of the first answer comes after its end
        mark = len(talker.log)
        await talker.connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=0)
        second = await talker.expect("response.done")
        assert second.response.id != first.id
        assert second.response.status == "completed"
        stale = [e for e in talker.log[mark:] if getattr(e, "response_id", None) == first.id]
        assert stale == []
        assert talker.of("conversation.item.truncated", item_id=item.id)[-1].audio_end_ms == 0
        await talker.connection.conversation.item.retrieve(item_id=item.id)
        kept = await talker.expect("conversation.item.retrieved")
        assert kept.item.content[0].transcript == ""


async def test_texts_are_answered_in_either_modality(gateway: Gateway) -> None:
    async with talking(gateway) as talker:
        connection = talker.connection
        for modalities in (["text"], ["audio"]):
            text = "Repeat after me: good morning."
            await connection.conversation.item.create(
                item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            )
            await connection.response.create(response={"output_modalities": modalities})
            done = (await talker.expect("response.done")).response
            content = done.output[0].content[0]
            assert "good morning" in ((content.text or content.transcript) or "").lower()
            assert bool(talker.audio(done.id)) == (modalities == ["audio"])


async def test_manual_turns(gateway: Gateway, voice: VoiceAdapter) -> None:
    async with talking(gateway, audio={"input": {**TRANSCRIBE, "turn_detection": None}}) as talker:
        await talker.say(await spoken(voice, "This is to be forgotten."))
        await talker.connection.input_audio_buffer.clear()
        await talker.expect("input_audio_buffer.cleared")
        await talker.say(await spoken(voice, "Repeat after me: blue bicycles."))
        await talker.connection.input_audio_buffer.commit()
        await talker.connection.response.create()
        await talker.expect("response.done")
        (completed,) = talker.of("conversation.item.input_audio_transcription.completed")
        assert "bicycle" in completed.transcript.lower()
        assert "forgotten" not in completed.transcript.lower()
        assert not talker.of("input_audio_buffer.speech_started")


async def test_a_function_is_called_and_its_result_is_said(gateway: Gateway) -> None:
    async with talking(gateway, model="scripted", tools=[TOOL]) as talker:
        connection = talker.connection
        await connection.response.create()
        call = await talker.expect("response.function_call_arguments.done")
        assert (call.name, call.arguments) == ("note_down", '{"text":"Call me Ishmael."}')
        deltas = [event.delta for event in talker.of("response.function_call_arguments.delta")]
        assert "".join(deltas) == call.arguments
        done = (await talker.expect("response.done")).response
        assert done.output[0].type == "function_call"
        await connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": call.call_id, "output": "It is written."}
        )
        await connection.response.create()
        done = (await talker.expect("response.done")).response
        assert done.output[0].content[0].transcript == "It is written."
        assert len(talker.audio(done.id)) == 2 * RATE * 400 // 1000


async def test_g711_both_ways(gateway: Gateway) -> None:
    telephone = {"format": {"type": "audio/pcmu"}}
    async with talking(gateway, model="scripted", audio={"input": telephone, "output": telephone}) as talker:
        await talker.connection.input_audio_buffer.append(audio=base64.b64encode(b"\xff" * 800).decode())
        await talker.connection.response.create()
        done = (await talker.expect("response.done")).response
        assert done.audio.output.format.type == "audio/pcmu"
        assert len(talker.audio(done.id)) == 8 * 400


async def test_errors_carry_the_event_id_and_the_session_lives(gateway: Gateway) -> None:
    async with talking(gateway, model="scripted") as talker:
        await talker.connection.response.cancel(event_id="mine")
        error = (await talker.expect("error")).error
        assert (error.code, error.event_id) == ("response_cancel_not_active", "mine")
        await talker.connection.response.create()
        assert (await talker.expect("response.done")).response.status == "completed"


async def test_fault_17_leaving_in_mid_answer_frees_the_slot(voice: VoiceAdapter) -> None:
    config = ServerConfig(port=0, drain_grace_s=0.0, max_sessions=1, resume_grace_s=0.0)
    async with running_gateway(config, [ScriptedAdapter()]) as gateway:
        for _ in range(3):
            async with talking(gateway) as talker:
                await talker.connection.response.create()
                await talker.expect("response.output_audio.delta")
