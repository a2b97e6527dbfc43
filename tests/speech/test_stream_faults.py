"""Faults of the speech WebSocket over a real socket, each test named after one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import soundfile
from fake_speech import MS_PER_CHARACTER, RATE, EndlessFace, FakeFace, FakeSpeechAdapter, WordyFace
from speech_stage import PATIENCE_S, Stage, config, pcm_bytes
from websockets.exceptions import ConnectionClosed

from duplex.codecs.decoders import decode_audio
from duplex.core.errors import ErrorCode
from duplex.runtime.clock import LoopClock
from duplex.server.run import running_gateway
from duplex.speech import synthesis
from duplex.speech.connection import SpeechConnection

PCM = {"response_format": "pcm", "stream_audio": "true"}


@contextlib.asynccontextmanager
async def staged(face: FakeFace, **fields: Any) -> AsyncIterator[Stage]:
    async with running_gateway(config(**fields), [FakeSpeechAdapter(face)]) as gateway:
        stage = Stage(gateway, face)
        yield stage
        await stage.close()


# --- formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "true"), [(44100, 48000), (22050, 24000), (8000, 8000)])
async def test_the_rate_that_opus_does_not_have_was_announced(asked: int, true: int) -> None:
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(response_format="opus", stream_audio="true", sample_rate=asked)
        await voice.say("One fish.")
        await voice.until("session.done")
        assert voice.told("audio.start")[0]["sample_rate"] == true
        head = voice.audio.index(b"OpusHead")
        assert int.from_bytes(voice.audio[head + 12 : head + 16], "little") == true


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "opus", "flac", "aac"])
@pytest.mark.parametrize("stream_audio", ["true", "false"])
async def test_every_unit_is_a_stream_of_its_own_that_decodes(format: str, stream_audio: str) -> None:
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(response_format=format, stream_audio=stream_audio)
        await voice.say("One fish swims. Two fishes swim.")
        await voice.until("session.done")
    units: list[bytes] = []
    for message in voice.log:
        if message["type"] == "audio.start":
            units.append(b"")
        elif message["type"] == "audio":
            units[-1] += message["data"]
    assert [len(unit) for unit in units] == [m["total_bytes"] for m in voice.told("audio.done")]
    for unit, text in zip(units, ("One fish swims. ", "Two fishes swim."), strict=True):
        samples = len(text) * MS_PER_CHARACTER * RATE // 1000
        if format == "pcm":
            assert len(unit) == samples * 2
            continue
        decoded, rate = decode_audio(unit)
        slack = 3 * 1152 if format in ("aac", "mp3") else 0
        assert 0 <= len(decoded) * RATE / rate - samples <= slack


async def test_a_whole_wav_file_had_a_streams_header() -> None:
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(response_format="wav")
        await voice.say("One fish.")
        await voice.until("session.done")
        assert int.from_bytes(voice.audio[40:44], "little") == pcm_bytes("One fish.")
        assert soundfile.info(io.BytesIO(voice.audio)).frames == pcm_bytes("One fish.") // 2


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "aac"])
@pytest.mark.parametrize("stream_audio", ["true", "false"])
async def test_fault_26_words_of_compressed_audio_come_once_and_in_order(
    format: str, stream_audio: str
) -> None:
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    async with staged(WordyFace()) as stage:
        voice = await stage.voice(response_format=format, stream_audio=stream_audio, word_timestamps="true")
        await voice.say(text)
        await voice.until("session.done")
    words = [word for chunk in voice.told("audio.chunk") for word in chunk["timestamps"]]
    assert "".join(word["word"] for word in words) == text.replace(" ", "")
    assert sorted(words, key=lambda word: float(word["start_ms"])) == words
    data = b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in voice.told("audio.chunk"))
    assert len(data) == voice.told("audio.done")[0]["total_bytes"]
    assert (len(voice.told("audio.chunk")) > 1) == (stream_audio == "true")


@pytest.mark.parametrize("granularity", ["sentence", "clause", "none"])
@pytest.mark.parametrize("streamed", ["true", "false"])
async def test_any_split_of_any_script_is_spoken_whole(granularity: str, streamed: str) -> None:
    text = "Dr. Li said: 你好。今天天气很好！ 👩‍👩‍👧 Ça va? «Да», 3.14… ¿Qué? ⚡️ ok 😀😀 " * 3
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(**PCM, split_granularity=granularity, stream_text=streamed)
        for character in text:
            await voice.send("input.text", text=character)
        await voice.send("input.done")
        done = await voice.until("session.done")
        units = [m["sentence_text"] for m in voice.told("audio.start")]
        assert done["total_sentences"] == len(units)
        assert "".join(stage.face.started).split() == text.split()
        if not (granularity == "none" and streamed == "true"):
            assert "".join(units).split() == text.split()


async def test_audio_that_is_kept_in_one_piece_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "MAX_WHOLE_BYTES", 1_000_000)
    face = EndlessFace()
    async with staged(face) as stage:
        voice = await stage.voice(response_format="pcm")
        await voice.say("On and on.")
        assert (await voice.until("error"))["code"] == "media_too_large"
        assert (await voice.until("audio.done"))["error"] is True
        await voice.until("session.done")
        assert face.closed == 1


# --- configuration ------------------------------------------------------------------------------------


async def test_a_query_that_only_repeats_a_default_was_no_configuration() -> None:
    async with staged(FakeFace()) as stage:
        for query in ({"response_format": "wav"}, {"speed": "1.0"}, {"stream_audio": "false"}):
            voice = await stage.voice(**query)
            await voice.say("One fish.")
            await voice.until("session.done")
        assert len(stage.face.started) == 3


async def test_a_query_that_the_model_refuses_ends_the_connection() -> None:
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(voice="nobody")
        assert (await voice.until("error"))["param"] == "voice"
        assert (await voice.closed())[0] == 1008
        await stage.empty()


async def test_everything_may_be_sent_at_once_before_anything_is_read() -> None:
    async with staged(FakeFace()) as stage:
        voice = await stage.voice()
        await voice.send("session.config", **PCM | {"stream_audio": True})
        await voice.say("One fish.")
        await voice.send("session.config", voice="nobody")  # refused: the utterance is open
        await voice.say("Two.", context_id="b")
        await voice.send("session.close")
        assert await voice.closed() == (1000, "closed by the client")
        assert len(voice.audio) == pcm_bytes("One fish.") + pcm_bytes("Two.")
        assert [m["code"] for m in voice.told("error")] == ["invalid_value"]


# --- the end of a connection ----------------------------------------------------------------------------


async def test_fault_31_the_place_is_free_when_the_client_is_told_of_the_end() -> None:
    async with staged(FakeFace(), max_speech_requests=1) as stage:
        for n in range(10):
            voice = await stage.voice(**PCM)
            await voice.say("One fish.")
            if n % 2:
                await voice.send("session.close")
                assert (await voice.closed())[0] == 1000
            else:
                for _ in range(16):
                    await voice.ws.send("no JSON")
                assert (await voice.closed())[0] == 4400


class BareSocket:
    """Notes how many places are taken when it is told to close."""

    can_write = True

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.held: int | None = None

    def watch(self, on_blocked: object, on_writable: object) -> None: ...

    def write(self, frame: object) -> None: ...

    def close(self, code: int, reason: str) -> None:
        self.held = self.stage.synthesis.in_use


@pytest.mark.parametrize("how", ["client", "errors", "grace"])
async def test_fault_31_the_place_is_given_back_before_the_close_frame(how: str) -> None:
    async with staged(FakeFace(gate=asyncio.Semaphore(0))) as stage:
        bare = BareSocket(stage)
        connection = SpeechConnection(
            bare,
            stage.synthesis,
            LoopClock(),
            slow_reader_timeout_s=1.0,
            config_timeout_s=1.0,
            count=lambda code: None,
        )
        connection.open(None, stage.synthesis.places.take())
        assert stage.synthesis.in_use == 1
        if how == "client":
            connection.receive('{"type":"session.close"}')
        elif how == "errors":
            for _ in range(16):
                connection.receive("{")
        else:
            connection.receive('{"type":"session.config"}')
            connection.receive('{"type":"input.text","text":"One fish. Two "}')
            await stage.face.touched.wait()
            await connection.drain(0.0)
        assert bare.held == 0
        await connection.close()


async def test_fault_29_a_client_that_reads_nothing_loses_its_connection_by_name() -> None:
    face = EndlessFace()
    async with staged(face, slow_reader_timeout_s=0.05) as stage:
        voice = await stage.voice(**PCM)
        voice.ws.transport.pause_reading()
        await voice.say("On and on.")
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        await stage.empty()
        voice.ws.transport.resume_reading()
        assert await voice.closed() == (4408, "slow_reader")
        assert stage.gateway.runtime.metrics.errors[ErrorCode.SLOW_READER] == 1


async def test_a_client_that_asks_on_and_reads_nothing_filled_the_memory() -> None:
    async with staged(FakeFace(), slow_reader_timeout_s=60.0) as stage:
        voice = await stage.voice(**PCM)
        voice.ws.transport.pause_reading()
        question = json.dumps({"type": "input.cancel", "context_id": "x" * 100})
        with contextlib.suppress(ConnectionClosed):
            while True:
                await voice.ws.send(question)
        voice.ws.transport.resume_reading()
        with contextlib.suppress(AssertionError):  # a reset may overtake the close frame
            assert await voice.closed() == (4408, "slow_reader")
        await stage.empty()
        assert stage.gateway.runtime.metrics.errors[ErrorCode.SLOW_READER] == 1


async def test_fault_11_a_model_that_makes_nothing_ends_its_unit_by_name() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    async with staged(face, response_stall_s=0.05) as stage:
        voice = await stage.voice(**PCM)
        await voice.say("One fish.")
        assert (await voice.until("error"))["code"] == "adapter_failed"
        await voice.until("session.done")
        assert face.gate is not None
        face.gate.release()
        await voice.say("Two fish.")
        await voice.until("session.done")
        assert len(voice.audio) == pcm_bytes("Two fish.")


async def test_a_model_that_waits_for_text_is_not_one_that_hangs() -> None:
    face = FakeFace()
    async with staged(face, response_stall_s=0.05) as stage:
        voice = await stage.voice(**PCM, split_granularity="none", stream_text="true")
        await voice.send("input.text", text="One ")
        await voice.until("audio")
        await asyncio.sleep(0.15)  # three times as long as a model with text may take
        await voice.send("input.text", text="fish.")
        await voice.send("input.done")
        await voice.until("session.done")
        assert voice.told("error") == []
        assert len(voice.audio) == pcm_bytes("One fish.")


async def test_fault_33_a_client_that_reads_nothing_does_not_hold_up_a_drain() -> None:
    face = EndlessFace()
    async with staged(face, slow_reader_timeout_s=60.0) as stage:
        voice = await stage.voice(**PCM)
        await voice.say("On and on.")
        await voice.until("audio")
        voice.ws.transport.pause_reading()
        await asyncio.wait_for(stage.gateway.runtime.drain(), PATIENCE_S)
        await stage.empty()
        voice.ws.transport.resume_reading()
        assert await voice.closed() == (1012, "server draining")


# --- cancels --------------------------------------------------------------------------------------------


async def test_a_cancel_at_any_point_leaves_nothing_stale() -> None:
    """One conversation a point: the cancel is sent behind the n-th message that came."""
    async with staged(FakeFace()) as stage:
        for point in range(14):
            voice = await stage.voice(**PCM)
            await voice.say("One fish here. Two fishes there. Red.")
            for _ in range(point):
                if (await voice.next())["type"] == "session.done":
                    break
            await voice.send("input.cancel")
            cancelled = await voice.until("audio.cancelled")
            await voice.say("Blue fish.")
            over = await voice.until("session.done")
            after = voice.log[voice.log.index(cancelled) + 1 :]
            assert {m["utterance_index"] for m in after if m["type"] != "audio"} == {1}
            heard = b"".join(m["data"] for m in after if m["type"] == "audio")
            assert len(heard) == pcm_bytes("Blue fish.")
            assert over["utterance_index"] == 1
            await voice.ws.close()


async def test_a_cancel_while_the_client_does_not_read_purges_what_waits() -> None:
    face = EndlessFace()
    async with staged(face) as stage:
        voice = await stage.voice(**PCM)
        voice.ws.transport.pause_reading()
        await voice.say("On and on.")
        await asyncio.wait_for(face.touched.wait(), PATIENCE_S)
        await voice.send("input.cancel")
        await asyncio.wait_for(face.stopped.wait(), PATIENCE_S)
        voice.ws.transport.resume_reading()
        await voice.until("audio.cancelled")
        # no more than the transport and the kernel had taken before
        assert len(voice.audio) < 8 << 20
        await voice.send("input.done", context_id="b")
        await voice.until("session.done")
        assert voice.log[-1]["context_id"] == "b"


async def test_thirty_two_contexts_speak_at_once_and_none_hears_another() -> None:
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(**PCM)
        names = [f"context {n}" for n in range(32)]
        for name in names:
            await voice.send("input.text", text=f"I am {name}. I speak ", context_id=name)
        for name in reversed(names):
            await voice.send("input.text", text="by myself.", context_id=name)
            await voice.send("input.done", context_id=name)
        for _ in names:
            await voice.until("session.done")
        for name in names:
            mine = [m for m in voice.log if m.get("context_id") == name]
            assert mine[-1]["total_sentences"] == 2
            audio = b"".join(base64.b64decode(m["audio_b64"]) for m in mine if m["type"] == "audio.chunk")
            assert len(audio) == pcm_bytes(f"I am {name}. I speak by myself.")


# --- length -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "rate"), [("pcm", 24000), ("pcm", 44100), ("flac", 16000), ("opus", 24000)]
)
async def test_the_sample_clock_of_a_long_stream_is_exact(format: str, rate: int) -> None:
    """Ten minutes of one streamed unit. The hour is `benchmarks/speech.py --part hour`."""
    minutes = 10
    piece = "x" * 50  # one second
    async with staged(FakeFace()) as stage:
        voice = await stage.voice(
            response_format=format,
            sample_rate=rate,
            stream_audio="true",
            split_granularity="none",
            stream_text="true",
        )

        async def write() -> None:
            for _ in range(minutes * 60):
                await voice.send("input.text", text=piece)
            await voice.send("input.done")

        writing = asyncio.ensure_future(write())
        await voice.until("session.done")
        await writing
    samples = minutes * 60 * rate
    if format == "pcm":
        assert len(voice.audio) == samples * 2
        if rate == RATE:
            heard = np.frombuffer(voice.audio, "<i2").astype(np.float32) / 32768
            second = heard.reshape(-1, RATE)
            assert np.abs(second - second[0]).max() == 0.0  # no seam anywhere
    else:
        decoded, decoded_rate = decode_audio(voice.audio)
        assert len(decoded) * rate == samples * decoded_rate
