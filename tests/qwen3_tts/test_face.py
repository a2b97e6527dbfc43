"""The speech face and sessions, on an engine without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from fake_engine import FRAME, FakeEngine
from test_utterances import Tap

from duplex.adapters.qwen3_tts.face import QwenSpeech, TextLayout
from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.adapters.qwen3_tts.references import References
from duplex.adapters.qwen3_tts.rules import Rules
from duplex.adapters.qwen3_tts.session import ReadingSession
from duplex.adapters.qwen3_tts.tiny import tiny_config
from duplex.adapters.speech import ReferenceAudio, SpeechChunk, SpeechRequest, UploadedVoice
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    AudioWindow,
    Delta,
    Modality,
    SessionSettings,
    TextDelta,
    TextWindow,
    Trigger,
    Turn,
)

POSITIONS = 512
RECORDING = ReferenceAudio(samples=np.linspace(-1, 1, 24000, dtype=np.float32), sample_rate=24000)


def face(
    engine: FakeEngine, kind: TtsModelType = "custom_voice", layout: TextLayout = "auto", **options: Any
) -> QwenSpeech:
    rules = Rules(tiny_config(kind), **options)
    return QwenSpeech(engine, rules, positions=POSITIONS, layout=layout)


async def once(*pieces: str) -> AsyncIterator[str]:
    for piece in pieces:
        yield piece


async def said(speech: QwenSpeech, *text: str, **fields: Any) -> list[SpeechChunk]:
    request = speech.validate(SpeechRequest(**fields))
    return [chunk async for chunk in speech.synthesise(request, once(*text))]


def frames(chunks: list[SpeechChunk]) -> list[int]:
    return [len(chunk.samples) // FRAME for chunk in chunks]


# --- one utterance ------------------------------------------------------------------------------------


async def test_a_text_becomes_a_job_and_its_audio_comes_back() -> None:
    engine = FakeEngine()
    chunks = await said(
        face(engine), "Hello there.", voice="Ryan", language="en", seed=7, instructions="calm"
    )
    (stream,) = engine.streams
    job = stream.job
    assert (job.text, job.ended, job.whole) == ("Hello there.", True, True)
    assert (job.speaker, job.language, job.instructions, job.seed) == ("ryan", "english", "calm", 7)
    assert (job.reference, job.max_frames) == (None, None)
    assert frames(chunks) == [1, 2, 4, 5]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert all(chunk.sample_rate == 24000 and chunk.words is None for chunk in chunks)
    assert chunks[0].samples.dtype == np.float32
    assert stream.over


@pytest.mark.parametrize(
    ("kind", "layout", "open_text", "whole", "ended"),
    [
        ("custom_voice", "auto", False, True, True),
        ("custom_voice", "auto", True, False, False),
        ("custom_voice", "streaming", False, False, True),
        ("custom_voice", "whole", True, True, True),
        ("base", "auto", False, False, True),
        ("base", "auto", True, False, False),
        ("base", "whole", False, True, True),
    ],
)
async def test_the_layout_of_the_text(
    kind: TtsModelType, layout: TextLayout, open_text: bool, whole: bool, ended: bool
) -> None:
    engine = FakeEngine()
    speech = face(engine, kind, layout)
    fields: dict[str, Any] = {"speaker_embedding": (0.0,) * 128} if kind == "base" else {}
    request = speech.validate(SpeechRequest(**fields))
    tap = Tap()
    tap.put("Some words")
    if not open_text:
        tap.put(None)

    async def speak() -> list[SpeechChunk]:
        return [chunk async for chunk in speech.synthesise(request, tap.pieces())]

    speaking = asyncio.ensure_future(speak())
    if open_text:
        for _ in range(10):
            await asyncio.sleep(0)
        tap.put(" and more.", None)
    chunks = await speaking
    (stream,) = engine.streams
    assert (stream.job.whole, stream.job.ended) == (whole, ended)
    assert stream.text == ("Some words and more." if open_text else "Some words")
    assert sum(frames(chunks)) == len(stream.text)


async def test_audio_comes_before_the_text_has_ended() -> None:
    engine = FakeEngine()
    speech = face(engine)
    tap = Tap()
    tap.put("First words, ")
    chunks = speech.synthesise(speech.validate(SpeechRequest()), tap.pieces())
    heard = 0
    while heard < len("First words, "):
        heard += len((await anext(chunks)).samples) // FRAME
    tap.put("then others.", None)
    rest = [chunk async for chunk in chunks]
    assert heard + sum(frames(rest)) == len("First words, then others.")
    assert rest[-1].finish_reason == "stop"
    (stream,) = engine.streams
    assert stream.ended


async def test_a_seed_is_drawn_when_none_is_given() -> None:
    engine = FakeEngine()
    speech = face(engine)
    await said(speech, "Hello.")
    await said(speech, "Hello.")
    await said(speech, "Hello.", seed=-1)
    first, second, given = (stream.job.seed for stream in engine.streams)
    assert first != second
    assert given == 2**64 - 1


@pytest.mark.parametrize("text", ["", " \n", "…", "***"])
async def test_a_text_without_words_touches_no_engine(text: str) -> None:
    engine = FakeEngine()
    assert await said(face(engine), text) == []
    assert not engine.streams


@pytest.mark.parametrize(("asked", "first"), [(None, 1), (0, 1), (5, 5)])
async def test_frames_of_the_first_chunk(asked: int | None, first: int) -> None:
    engine = FakeEngine()
    text = "The keeper climbed the stairs and lit the lamp. " * 12
    chunks = await said(face(engine), text, initial_codec_chunk_frames=asked)
    assert frames(chunks)[0] == first
    # what follows without a pause need not hurry
    assert [stream.first_frames for stream in engine.streams] == [first, 1, 1]


async def test_a_ceiling_cuts_with_finish_reason_length() -> None:
    engine = FakeEngine()
    chunks = await said(face(engine), "Hello there.", max_new_tokens=5)
    assert engine.streams[0].job.max_frames == 5
    assert sum(frames(chunks)) == 5
    assert chunks[-1].finish_reason == "length"


# --- long texts ---------------------------------------------------------------------------------------


async def test_a_long_text_is_spoken_in_utterances_with_one_seed() -> None:
    engine = FakeEngine()
    text = "The keeper climbed the stairs and lit the lamp. " * 20
    chunks = await said(face(engine), text)
    assert len(engine.streams) > 2
    assert "".join(stream.job.text for stream in engine.streams) == text
    assert len({stream.job.seed for stream in engine.streams}) == 1
    assert all(stream.job.whole for stream in engine.streams)
    # an utterance in the middle of a speech does not wait behind requests that nobody hears yet
    assert [stream.goes_on for stream in engine.streams] == [False] + [True] * (len(engine.streams) - 1)
    assert sum(frames(chunks)) == len(text)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert chunks[-1].finish_reason == "stop"
    values = [float(chunk.samples[0]) for chunk in chunks]
    assert values == sorted(values)  # one after the other


async def test_a_ceiling_counts_for_all_utterances_together() -> None:
    engine = FakeEngine()
    text = "The keeper climbed the stairs and lit the lamp. " * 20
    chunks = await said(face(engine), text, max_new_tokens=300)
    assert sum(frames(chunks)) == 300
    assert chunks[-1].finish_reason == "length"
    assert engine.streams[0].job.max_frames == 300
    assert len(engine.streams) == 2


async def test_a_ceiling_may_be_above_what_one_utterance_can_have() -> None:
    """It was refused above `positions`, though it is the bound of all utterances of a long text."""
    engine = FakeEngine()
    text = "The keeper climbed the stairs and lit the lamp. " * 40
    chunks = await said(face(engine), text, max_new_tokens=3 * POSITIONS)
    assert sum(frames(chunks)) == 3 * POSITIONS < len(text)
    assert chunks[-1].finish_reason == "length"


async def test_an_open_text_that_grows_long_goes_on_in_another_utterance() -> None:
    engine = FakeEngine()
    speech = face(engine)
    tap = Tap()

    async def write() -> None:
        for _ in range(20):
            tap.put("The keeper climbed the stairs ", "and lit the lamp. ")
            await asyncio.sleep(0)
        tap.put(None)

    writing = asyncio.ensure_future(write())
    request = speech.validate(SpeechRequest())
    chunks = [chunk async for chunk in speech.synthesise(request, tap.pieces())]
    await writing
    assert len(engine.streams) > 2
    texts = [stream.text for stream in engine.streams]
    assert "".join(texts) == "The keeper climbed the stairs and lit the lamp. " * 20
    assert all(text.endswith("lamp. ") for text in texts)
    assert sum(frames(chunks)) == len("".join(texts))


# --- ends ---------------------------------------------------------------------------------------------


async def test_closing_the_iterator_leaves_the_engine_at_once() -> None:
    engine = FakeEngine()
    speech = face(engine)
    tap = Tap()
    tap.put("Hello there, ")
    chunks = speech.synthesise(speech.validate(SpeechRequest()), tap.pieces())
    await anext(chunks)
    await chunks.aclose()
    assert not engine.running
    assert tap.closed


async def test_cancelling_while_the_engine_works_leaves_it_at_once() -> None:
    engine = FakeEngine(gate=asyncio.Semaphore(0))
    speech = face(engine)
    tap = Tap()
    tap.put("Hello there, ")

    async def speak() -> None:
        async for _ in speech.synthesise(speech.validate(SpeechRequest()), tap.pieces()):
            pass

    speaking = asyncio.ensure_future(speak())
    await engine.begun.wait()
    speaking.cancel()
    await asyncio.gather(speaking, return_exceptions=True)
    assert not engine.running
    assert tap.closed


async def test_a_text_that_fails_stops_the_engine() -> None:
    async def broken() -> AsyncIterator[str]:
        yield "Some words, "
        await asyncio.sleep(0.01)
        raise RuntimeError("the writer is gone")

    engine = FakeEngine()
    speech = face(engine)
    with pytest.raises(RuntimeError, match="the writer is gone"):
        async for _ in speech.synthesise(speech.validate(SpeechRequest()), broken()):
            pass
    assert not engine.running


async def test_a_fault_of_the_engine_comes_through_by_name() -> None:
    engine = FakeEngine()
    engine.healthy = False
    with pytest.raises(DuplexError) as caught:
        await said(face(engine), "Hello.")
    assert caught.value.code is ErrorCode.ENGINE_DOWN
    engine = FakeEngine()
    engine.fault = DuplexError(ErrorCode.ENGINE_DOWN, "the worker died")
    with pytest.raises(DuplexError, match="the worker died"):
        await said(face(engine), "Hello.")
    assert not engine.running


# --- cloned voices ------------------------------------------------------------------------------------


async def test_a_recording_is_encoded_once() -> None:
    engine = FakeEngine()
    speech = face(engine, "base")
    stored = UploadedVoice(name="ann", reference=RECORDING, text="her words")
    await said(speech, "Hello.", stored_voice=stored)
    await said(speech, "Again.", stored_voice=stored)
    await said(speech, "And again.", reference=RECORDING, reference_text="other words")
    await said(speech, "And again.", reference=RECORDING, x_vector_only_mode=True)
    (call,) = engine.calls
    assert (call.sample_rate, call.codes, call.samples) == (24000, True, RECORDING.samples.tobytes())
    references = [stream.job.reference for stream in engine.streams]
    assert all(reference is not None for reference in references)
    assert [reference.text for reference in references if reference] == [
        "her words",
        "her words",
        "other words",
        "",
    ]
    assert [len(reference.codes) for reference in references if reference] == [64, 64, 64, 0]
    assert len({reference.embedding for reference in references if reference}) == 1
    assert all(stream.job.speaker is None for stream in engine.streams)


async def test_numbers_are_taken_as_they_are() -> None:
    engine = FakeEngine()
    speech = face(engine, "base")
    embedding = tuple(np.linspace(-1, 1, 128).tolist())
    codes = (tuple(range(16)), tuple(range(100, 116)))
    await said(speech, "Hello.", speaker_embedding=embedding)
    profile = UploadedVoice(name="bob", embedding=embedding, codes=codes, text="his words")
    await said(speech, "Hello.", stored_voice=profile)
    await said(speech, "Hello.", stored_voice=profile, x_vector_only_mode=True)
    given, in_context, alone = (stream.job.reference for stream in engine.streams)
    assert given is not None
    assert in_context is not None
    assert alone is not None
    assert np.frombuffer(given.embedding, "<f4") == pytest.approx(embedding)
    assert given == alone
    assert np.frombuffer(in_context.codes, "<i2").reshape(-1, 16).tolist() == [list(row) for row in codes]
    assert in_context.text == "his words"
    assert not engine.calls


async def test_requests_for_one_voice_share_its_encoding_and_one_may_leave() -> None:
    engine = FakeEngine()
    engine.call_gate = asyncio.Event()
    references = References(engine.call)
    waiting = [asyncio.ensure_future(references.encode(RECORDING, codes=True)) for _ in range(3)]
    await asyncio.wait_for(engine.called.wait(), 10)
    waiting.append(asyncio.ensure_future(references.encode(RECORDING, codes=False)))
    await asyncio.sleep(0.02)
    waiting[0].cancel()
    engine.call_gate.set()
    first, *others = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert len(engine.calls) == 1
    assert len({reference.embedding for reference in others if not isinstance(reference, BaseException)}) == 1


async def test_an_encoding_that_failed_is_tried_again() -> None:
    engine = FakeEngine()
    references = References(engine.call)
    engine.fault = DuplexError(ErrorCode.ENGINE_DOWN, "no worker runs")
    with pytest.raises(DuplexError):
        await references.encode(RECORDING, codes=True)
    engine.fault = None
    assert (await references.encode(RECORDING, codes=True)).codes
    assert len(engine.calls) == 2


async def test_encodings_that_were_not_used_for_long_are_forgotten() -> None:
    engine = FakeEngine()
    references = References(engine.call, kept=2)
    recordings = [
        ReferenceAudio(samples=np.full(2400, value, np.int16), sample_rate=24000) for value in range(3)
    ]
    for index in (0, 1, 0, 2, 0, 1):
        await references.encode(recordings[index], codes=False)
    assert len(engine.calls) == 4  # 0, 1, 2, and 1 again


# --- sessions -----------------------------------------------------------------------------------------


def turn(text: str | None, settings: SessionSettings | None = None, **fields: Any) -> Turn:
    return Turn(
        response_id="resp_1",
        index=1,
        epoch=1,
        trigger=Trigger.COMMIT,
        settings=settings or SessionSettings(),
        modalities=fields.pop("modalities", (Modality.TEXT, Modality.AUDIO)),
        question=text,
        **fields,
    )


def session(
    engine: FakeEngine,
    kind: TtsModelType = "custom_voice",
    settings: SessionSettings | None = None,
    **options: Any,
) -> ReadingSession:
    rules = Rules(tiny_config(kind), **options)
    speech = QwenSpeech(engine, rules, positions=POSITIONS)
    return ReadingSession(speech, rules, settings or SessionSettings())


async def deltas(of: ReadingSession, given: Turn) -> list[Delta]:
    return [delta async for delta in of.respond(given)]


async def test_a_turn_is_read_aloud() -> None:
    engine = FakeEngine()
    settings = SessionSettings(voice="ryan", instructions="calm", options={"language": "en", "seed": 3})
    reading = session(engine, settings=settings)
    assert not await reading.commit()
    await reading.append(TextWindow(text="Hello there."))
    assert await reading.commit()
    text, *audio = await deltas(reading, turn("Hello there.", settings))
    assert text == TextDelta(text="Hello there.")
    assert all(isinstance(delta, AudioDelta) and delta.sample_rate == 24000 for delta in audio)
    assert sum(len(delta.samples) for delta in audio if isinstance(delta, AudioDelta)) == 12 * FRAME
    job = engine.streams[0].job
    assert (job.speaker, job.instructions, job.language, job.seed) == ("ryan", "calm", "english", 3)
    assert not await reading.commit()


async def test_exact_text_goes_before_the_question() -> None:
    engine = FakeEngine()
    await deltas(session(engine), turn("a question", speak_text="This."))
    assert engine.streams[0].job.text == "This."


async def test_without_audio_nothing_is_made() -> None:
    engine = FakeEngine()
    assert await deltas(session(engine), turn("Hello.", modalities=(Modality.TEXT,))) == [
        TextDelta(text="Hello.")
    ]
    assert not engine.streams


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (turn(None), ErrorCode.NOTHING_TO_RESPOND_TO),
        (turn("…"), ErrorCode.EMPTY_INPUT),
        (turn(None, speak_text=""), ErrorCode.EMPTY_INPUT),
    ],
)
async def test_turns_without_words(given: Turn, code: ErrorCode) -> None:
    with pytest.raises(DuplexError) as caught:
        await deltas(session(FakeEngine()), given)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (SessionSettings(voice="nobody"), ErrorCode.INVALID_VALUE),
        (SessionSettings(instructions="x" * 501), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"language": "sv"}), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"speed": 2.0}), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"seed": "x"}), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"vioce": "x"}), ErrorCode.UNKNOWN_FIELD),
    ],
)
async def test_settings_that_cannot_be_had_are_refused_when_they_come(
    settings: SessionSettings, code: ErrorCode
) -> None:
    with pytest.raises(DuplexError) as caught:
        session(FakeEngine(), settings=settings)
    assert caught.value.code is code
    reading = session(FakeEngine())
    with pytest.raises(DuplexError):
        await reading.update(settings)


async def test_a_designed_voice_is_described_by_the_instructions() -> None:
    engine = FakeEngine()
    reading = session(engine, "voice_design")  # they may come after the opening
    with pytest.raises(DuplexError, match="needs instructions"):
        await deltas(reading, turn("Hello."))
    settings = SessionSettings(instructions="an old man")
    await reading.update(settings)
    await deltas(reading, turn("Hello.", settings))
    assert engine.streams[0].job.instructions == "an old man"


async def test_a_base_session_speaks_with_a_precomputed_voice() -> None:
    engine = FakeEngine()
    stored = {"bob": UploadedVoice(name="bob", embedding=(0.0,) * 128)}
    with pytest.raises(DuplexError, match="needs a voice to clone"):
        await deltas(session(engine, "base", stored=stored), turn("Hello."))
    settings = SessionSettings(voice="Bob", instructions="x" * 2000)  # it follows none, however many
    await deltas(session(engine, "base", settings, stored=stored), turn("Hello.", settings))
    assert engine.streams[0].job.reference is not None


async def test_a_session_hears_nothing() -> None:
    with pytest.raises(DuplexError) as caught:
        await session(FakeEngine()).append(AudioWindow(pcm=b"\0\0", sample_rate=16000))
    assert caught.value.code is ErrorCode.UNSUPPORTED_MODALITY


async def test_a_cancelled_turn_leaves_the_engine_and_the_session_goes_on() -> None:
    engine = FakeEngine(gate=asyncio.Semaphore(1))
    reading = session(engine)
    responding = reading.respond(turn("Hello there."))
    await anext(responding)
    await anext(responding)
    await responding.aclose()
    assert not engine.running
    engine.gate = None
    assert len(await deltas(reading, turn("Again."))) > 1
