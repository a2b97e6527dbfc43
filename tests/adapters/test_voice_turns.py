"""How the embedded voice judges the ends of turns, and what it tells of speech: with scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hearing_alone import loud_is_speech
from numpy.typing import NDArray

pytest.importorskip("onnxruntime", reason="needs the embedded extra")
pytest.importorskip("hibari", reason="needs the embedded extra")

from duplex.adapters.embedded import smart_turn
from duplex.adapters.embedded.asr import Recognition
from duplex.adapters.embedded.hearing import Hearing
from duplex.adapters.embedded.listen import Listener
from duplex.adapters.embedded.llm import messages
from duplex.adapters.embedded.replies import SILENCE, ReplyRequest
from duplex.adapters.embedded.skills import STILL_THERE, Skills
from duplex.adapters.embedded.voice import VoiceAdapter, VoiceSession, create
from duplex.core.endings import patience_ms
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioWindow,
    HistoryItem,
    Signal,
    SpeechContinued,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnDetection,
    TurnEnded,
)

RATE = 16000
FRAME_MS = 32.0


class Models(VoiceAdapter):
    """The adapter without its models: what is heard is `text`, and is complete with `probability`."""

    def __init__(self, text: str, probability: float | None = None) -> None:
        super().__init__()
        self._smart_turn = None
        self.text = text
        self.probability = probability
        self.judged = asyncio.Event()

    async def recognise(self, samples: NDArray[np.float32]) -> Recognition:
        return Recognition(text=self.text, confidence=0.9)

    async def completeness(self, samples: NDArray[np.float32], text: str) -> float:
        found = await super().completeness(samples, text) if self.probability is None else self.probability
        self.judged.set()
        return found


class Talk:
    """One session: audio in, signals out."""

    def __init__(self, session: VoiceSession) -> None:
        self.session = session
        self.signals: list[Signal] = []
        self.heard_ms = 0.0

    async def hear(self, ms: float, *, speech: bool) -> None:
        pcm = np.full(round(ms * RATE / 1000), 8000 if speech else 100, "<i2").tobytes()
        await self.session.append(AudioWindow(pcm=pcm, sample_rate=RATE))
        self.heard_ms += ms

    async def read(self) -> None:
        async for signal in self.session.signals():
            self.signals.append(signal)

    async def silence_until_it_stops(self) -> float:
        """Milliseconds of silence, frame by frame, each heard before the next."""
        before = self.heard_ms
        while not any(isinstance(signal, SpeechStopped) for signal in self.signals):
            assert self.heard_ms - before < 20_000
            await self.hear(FRAME_MS, speech=False)
            await self.session._ears._idle.wait()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return self.heard_ms - before


def talk(models: Callable[[], Models], turns: TurnDetection, test: Callable[[Talk], Awaitable[None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as worker:
            hearing = Hearing(worker, loud_is_speech)
            talking = Talk(VoiceSession(models(), Listener(turns), hearing, turns))
            reading = asyncio.create_task(talking.read())
            await asyncio.wait_for(test(talking), 30)
            await talking.session.close()
            await reading

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "probability"), [("What time is it?", 0.9), ("Read me a story", 0.5), ("Read me a", 0.1)]
)
def test_semantic_vad_waits_by_the_words_that_were_heard(text: str, probability: float) -> None:
    turns = TurnDetection(type="semantic_vad", eagerness="high")

    async def test(talking: Talk) -> None:
        models = talking.session._adapter
        assert isinstance(models, Models)
        await talking.hear(640, speech=True)
        await talking.hear(224, speech=False)  # the pause is noticed, and judged
        await models.judged.wait()
        silence = 224 + await talking.silence_until_it_stops()
        expected = patience_ms(probability, "high")
        assert expected <= silence <= expected + 3 * FRAME_MS

    talk(lambda: Models(text), turns, test)


def test_a_judgement_by_sound_counts_as_it_is() -> None:
    turns = TurnDetection(type="semantic_vad", eagerness="medium")

    async def test(talking: Talk) -> None:
        models = talking.session._adapter
        assert isinstance(models, Models)
        await talking.hear(640, speech=True)
        await talking.hear(224, speech=False)
        await models.judged.wait()
        silence = 224 + await talking.silence_until_it_stops()
        assert silence == pytest.approx(patience_ms(0.75, "medium"), abs=3 * FRAME_MS)

    talk(lambda: Models("Read me a", 0.75), turns, test)


def test_server_vad_judges_nothing() -> None:
    async def test(talking: Talk) -> None:
        await talking.hear(640, speech=True)
        assert await talking.silence_until_it_stops() == pytest.approx(500, abs=2 * FRAME_MS)
        models = talking.session._adapter
        assert isinstance(models, Models)
        assert not models.judged.is_set()

    talk(lambda: Models("Read me a", 0.0), TurnDetection(), test)


def test_speech_that_lasts_is_told_once() -> None:
    async def test(talking: Talk) -> None:
        await talking.hear(1280, speech=True)
        await talking.silence_until_it_stops()
        told = [type(signal) for signal in talking.signals if not isinstance(signal, Transcript)]
        assert told[:3] == [SpeechStarted, SpeechContinued, SpeechStopped]

    talk(lambda: Models("Stop."), TurnDetection(interrupt_min_ms=600), test)


def test_speech_without_words_is_told_as_an_empty_final_and_is_no_turn() -> None:
    async def test(talking: Talk) -> None:
        await talking.hear(320, speech=True)
        await talking.silence_until_it_stops()
        await talking.session.finish()
        started = next(signal for signal in talking.signals if isinstance(signal, SpeechStarted))
        assert talking.signals[-1] == Transcript(text="", final=True, started_ms=started.at_ms)
        assert TurnEnded() not in talking.signals

    talk(lambda: Models(""), TurnDetection(), test)


# --- silence ------------------------------------------------------------------------------------------


def test_a_silent_user_is_asked_for() -> None:
    history = (HistoryItem(role="user", text="What time is it?"), HistoryItem(role="assistant", text="Noon."))
    request = ReplyRequest(history=history, silent=True)

    async def said() -> list[Any]:
        return [piece async for piece in Skills().reply(request)]

    assert asyncio.run(said()) == [STILL_THERE]
    wanted = messages(request)
    assert SILENCE in wanted[0]["content"]
    assert wanted[-1]["role"] == "user"
    assert SILENCE not in messages(ReplyRequest(history=history))[0]["content"]


# --- Smart Turn ---------------------------------------------------------------------------------------


def test_the_smart_turn_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "pipecat/audio/turn/smart_turn/data"
    data.mkdir(parents=True)
    (tmp_path / "pipecat/__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert smart_turn.find_model() is None
    for name in ("smart-turn-v3.1-cpu.onnx", "smart-turn-v3.2-cpu.onnx", "smart-turn-v3.2-gpu.onnx"):
        (data / name).touch()
    found = smart_turn.find_model()
    assert found is not None
    assert found.name == "smart-turn-v3.2-cpu.onnx"


def test_who_demands_the_smart_turn_model_is_told_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duplex.adapters.embedded.voice_options.find_model", lambda: None)
    with pytest.raises(DuplexError, match="pip install --no-deps pipecat-ai") as refused:
        create({"smart_turn": True})
    assert refused.value.code is ErrorCode.BAD_CONFIG


def test_the_features_are_whisper_s() -> None:
    """A tone of 1 kHz lies in the band whose triangle has its peak there, and all is scaled as Whisper's are:
    the loudest is 8 decades (2.0) above the softest."""
    filters = smart_turn.mel_filters(RATE, 400, smart_turn.MEL_BANDS)
    assert filters.shape == (80, 201)
    tone = np.sin(2 * np.pi * 1000 * np.arange(4 * RATE) / RATE).astype(np.float32)
    features = smart_turn.log_mel(tone, filters)
    assert features.shape == (80, 800)
    assert features.max() - features.min() == pytest.approx(2.0)
    silent, loud = features[:, :390], features[:, 410:]
    assert silent.max() < loud.max() - 1
    assert filters[loud.mean(axis=1).argmax()].argmax() in (24, 25, 26)  # bins of 40 Hz


def test_the_smart_turn_model_hears_whether_a_sentence_is_over() -> None:
    file = smart_turn.find_model()
    if file is None:
        pytest.skip("needs the model of pipecat-ai")
    import hibari

    model = smart_turn.SmartTurn(file)
    model.start()
    speech = np.asarray(hibari.Hibari()("It was the best of times, it was the worst of times."), np.float32)
    import soxr

    wave = soxr.resample(speech, 24000, RATE)
    pause = np.zeros(RATE // 5, np.float32)
    whole = model.complete(np.concatenate([wave, pause]))
    assert 0 <= whole <= 1
    assert whole > model.complete(np.concatenate([wave[: len(wave) * 2 // 3], pause]))
