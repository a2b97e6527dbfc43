"""The speech stage: text goes on while its sentences are spoken, and a cancel stops both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_speech import RATE, FakeFace, FakeSpeechAdapter

from duplex.adapters.base import AdapterInfo, BaseSession
from duplex.adapters.scripted import ScriptedAdapter
from duplex.adapters.speech import SpeechChunk, SpeechRequest
from duplex.adapters.spoken import SpeechStage, Spoken, load_speech, speak
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    Delta,
    LengthReached,
    Modality,
    OpenSession,
    SessionSettings,
    TextDelta,
    ToolCallDelta,
    Trigger,
    Turn,
)

PATIENCE_S = 10


class Text:
    """Deltas that come when they are let through; `closed` when nobody takes them any more."""

    def __init__(self, *deltas: Delta | str, fault: Exception | None = None) -> None:
        self.deltas = [TextDelta(text=d) if isinstance(d, str) else d for d in deltas]
        self.fault = fault
        self.gate: asyncio.Semaphore | None = None
        self.written = 0
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        try:
            for delta in self.deltas:
                if self.gate is not None:
                    await self.gate.acquire()
                self.written += 1
                yield delta
            if self.fault is not None:
                raise self.fault
        finally:
            self.closed.set()

    def iterate(self) -> AsyncGenerator[Delta, None]:
        return self.__aiter__()


def voice(face: Any = None) -> FakeSpeechAdapter:
    return FakeSpeechAdapter(face or FakeFace())


async def spoken(text: Text, face: Any = None) -> list[Delta]:
    async with asyncio.timeout(PATIENCE_S):
        return [delta async for delta in speak(text.iterate(), voice(face), SpeechRequest())]


def words(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def said(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, AudioDelta))


async def test_each_sentence_is_spoken_and_the_audio_tells_what_it_says() -> None:
    face = FakeFace()
    deltas = await spoken(Text("A dog ", "runs. The ", "ball is", " red."), face)
    assert words(deltas) == said(deltas) == "A dog runs. The ball is red."
    assert face.started == ["A dog runs. ", "The ball is red."]
    assert all(len(d.samples) and d.sample_rate == RATE for d in deltas if isinstance(d, AudioDelta))


async def test_the_first_sentence_sounds_while_the_second_is_written() -> None:
    text = Text("One. ", "Two.")
    text.gate = asyncio.Semaphore(1)
    deltas = speak(text.iterate(), voice(), SpeechRequest())
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(deltas) == TextDelta(text="One. ")
        text.gate.release()
        rest = [await anext(deltas), await anext(deltas)]
        assert said(rest) == "One. "
        assert words(rest) == "Two."
        assert said([delta async for delta in deltas]) == "Two."


async def test_text_goes_on_while_the_voice_is_slow() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    text = Text("One. ", "Two. ", "Three. ", "Four.")
    deltas = speak(text.iterate(), voice(face), SpeechRequest())
    async with asyncio.timeout(PATIENCE_S):
        written = [await anext(deltas) for _ in range(4)]
        assert words(written) == "One. Two. Three. Four."
        face.gate = None
        speaking = [asyncio.ensure_future(anext(deltas))]
        await asyncio.wait(speaking, timeout=0.05)
        assert not speaking[0].done()  # it waits for the old gate
        speaking[0].cancel()
        await asyncio.wait(speaking)
    await deltas.aclose()


async def test_a_long_text_waits_for_the_voice_in_the_end() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    text = Text(*(f"Sentence {n}. " for n in range(500)))
    deltas = speak(text.iterate(), voice(face), SpeechRequest())
    taken = []

    async def take() -> None:
        taken.extend([delta async for delta in deltas])

    taking = asyncio.ensure_future(take())
    await asyncio.wait({taking}, timeout=0.2)
    assert 64 < text.written < 100  # bounded, whatever the voice does
    taking.cancel()
    await asyncio.wait({taking})
    await deltas.aclose()


async def test_closing_it_stops_the_writing_and_the_speaking() -> None:
    face = FakeFace(gate=asyncio.Semaphore(0))
    text = Text("One. ", "Two.")
    text.gate = asyncio.Semaphore(1)
    deltas = speak(text.iterate(), voice(face), SpeechRequest())
    async with asyncio.timeout(PATIENCE_S):
        await anext(deltas)
        text.gate.release()
        await anext(deltas)
        await face.touched.wait()
        await deltas.aclose()
        assert text.closed.is_set()
        assert face.stopped.is_set()


async def test_what_has_no_words_goes_with_the_sound_after_it_or_with_a_hush() -> None:
    face = FakeFace()
    deltas = await spoken(Text("*** \n\n", "Hello. ", "\U0001f600\n\n"), face)
    assert words(deltas) == said(deltas)
    assert await spoken(Text("***")) == [TextDelta(text="***")]


async def test_length_reached_comes_last_and_other_deltas_go_through() -> None:
    call = ToolCallDelta(call_id="c", name="f")
    deltas = await spoken(Text("One.", call, LengthReached()))
    assert deltas[-1] == LengthReached()
    assert call in deltas
    assert said(deltas) == "One."


class Mute(FakeFace):
    """Does not tell what its audio says, in several chunks."""

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        async for _ in text:
            for _ in range(3):
                yield SpeechChunk(samples=np.ones(100, np.float32), sample_rate=RATE)


async def test_a_voice_that_cannot_tell_speaks_the_whole_sentence_from_its_first_sound() -> None:
    deltas = await spoken(Text("One. ", "Two."), Mute())
    assert [d.text for d in deltas if isinstance(d, AudioDelta)] == ["One. ", "", "", "Two.", "", ""]


async def test_what_the_writer_fails_with_comes_behind_what_it_wrote() -> None:
    fault = DuplexError(ErrorCode.ADAPTER_FAILED, "the engine died")
    deltas = speak(Text("One. ", fault=fault).iterate(), voice(), SpeechRequest())
    assert await anext(deltas) == TextDelta(text="One. ")
    with pytest.raises(DuplexError, match="the engine died"):
        assert [delta async for delta in deltas]  # the sound of it may still come


class Dead(FakeFace):
    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        raise DuplexError(ErrorCode.ENGINE_DOWN, "worker 0 died")
        yield


async def test_a_voice_that_is_down_fails_the_response_and_not_the_session() -> None:
    with pytest.raises(DuplexError) as fault:
        await spoken(Text("One. ", "Two."), Dead())
    assert fault.value.code is ErrorCode.ADAPTER_FAILED
    assert not fault.value.fatal
    assert fault.value.message == f"the voice {voice().info.id} failed: worker 0 died"


# --- adapters -----------------------------------------------------------------------------------------


class Writer(BaseSession):
    settings: SessionSettings | None = None
    cleared = False

    async def update(self, settings: SessionSettings) -> None:
        self.settings = settings

    async def clear_input(self) -> None:
        self.cleared = True

    async def respond(self, turn: Turn) -> AsyncGenerator[Delta, None]:
        assert turn.settings.voice is None
        yield TextDelta(text="One. ")
        yield TextDelta(text="Two.")


class WriterAdapter:
    """A model that only writes."""

    info = AdapterInfo(id="writer", input_modalities=(Modality.TEXT,), output_modalities=(Modality.TEXT,))

    def __init__(self) -> None:
        self.session = Writer()
        self.running = False
        self.healthy = True
        self.fault: str | None = None

    async def start(self) -> None:
        self.running = True

    async def open(self, request: OpenSession) -> Writer:
        assert request.settings.voice is None
        return self.session

    async def stop(self) -> None:
        self.running = False


def turn(*modalities: Modality, voice: str | None = None) -> Turn:
    return Turn(
        response_id="r",
        index=1,
        epoch=1,
        trigger=Trigger.CREATE,
        settings=SessionSettings(voice=voice),
        modalities=modalities,
    )


async def test_a_writer_with_a_voice_gives_text_and_where_it_is_asked_for_audio() -> None:
    adapter = Spoken(WriterAdapter(), SpeechStage(voice()))
    assert adapter.info.output_modalities == (Modality.TEXT, Modality.AUDIO)
    assert adapter.info.default_output_modalities == (Modality.TEXT,)
    assert adapter.info.output_sample_rate == RATE
    await adapter.start()
    session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings(voice="tone")))
    written = [delta async for delta in session.respond(turn(Modality.TEXT))]
    assert written == [TextDelta(text="One. "), TextDelta(text="Two.")]
    heard = [delta async for delta in session.respond(turn(Modality.TEXT, Modality.AUDIO, voice="tone"))]
    assert said(heard) == words(heard) == "One. Two."
    await adapter.stop()


def test_a_writer_that_sounds_itself_was_listed_with_audio_twice() -> None:
    writer = WriterAdapter()
    both = (Modality.TEXT, Modality.AUDIO)
    writer.info = msgspec.structs.replace(writer.info, output_modalities=both)
    assert Spoken(writer, SpeechStage(voice())).info.output_modalities == both


async def test_a_voice_that_is_not_there_is_refused_when_it_is_named() -> None:
    writer = WriterAdapter()
    adapter = Spoken(writer, SpeechStage(voice()))
    with pytest.raises(DuplexError, match="unknown voice nobody"):
        await adapter.open(OpenSession(session_id="s", settings=SessionSettings(voice="nobody")))
    session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings()))
    with pytest.raises(DuplexError, match="unknown voice nobody"):
        await session.update(SessionSettings(voice="nobody"))
    await session.update(SessionSettings(voice="tone", instructions="x"))
    assert writer.session.settings == SessionSettings(instructions="x")
    await session.clear_input()
    assert writer.session.cleared


async def test_a_voice_that_cannot_start_leaves_no_writer_running() -> None:
    class Broken(FakeSpeechAdapter):
        async def start(self) -> None:
            raise DuplexError(ErrorCode.BAD_CONFIG, "no weights")

    writer = WriterAdapter()
    adapter = Spoken(writer, SpeechStage(Broken(FakeFace())))
    with pytest.raises(DuplexError, match="no weights"):
        await adapter.start()
    assert not writer.running


async def test_either_part_that_is_down_makes_it_unhealthy() -> None:
    writer = WriterAdapter()
    adapter = Spoken(writer, SpeechStage(voice()))
    assert adapter.healthy
    assert adapter.fault is None
    writer.healthy, writer.fault = False, "died"
    assert (adapter.healthy, adapter.fault) == (False, "died")


def test_an_adapter_without_a_speech_face_is_no_voice() -> None:
    with pytest.raises(DuplexError, match="it does not speak exact text") as fault:
        load_speech("duplex.adapters.scripted:create", {})
    assert fault.value.code is ErrorCode.BAD_CONFIG
    assert ScriptedAdapter  # the adapter that it names


async def test_the_embedded_voice_speaks_what_a_model_writes() -> None:
    pytest.importorskip("hibari", reason="needs hibari-tts: the extra embedded")
    pytest.importorskip("moonshine_voice", reason="needs moonshine-voice: the extra embedded")
    stage = SpeechStage(load_speech("embedded-voice", {}))
    adapter = Spoken(WriterAdapter(), stage)
    await adapter.start()
    try:
        session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings()))
        async with asyncio.timeout(60):
            heard = [delta async for delta in session.respond(turn(Modality.TEXT, Modality.AUDIO))]
        sound = [delta for delta in heard if isinstance(delta, AudioDelta)]
        assert said(heard) == words(heard) == "One. Two."
        assert {delta.sample_rate for delta in sound} == {adapter.info.output_sample_rate}
        seconds = sum(len(delta.samples) for delta in sound) / adapter.info.output_sample_rate
        assert 0.4 < seconds < 5
    finally:
        await adapter.stop()
