"""Scripted models for the commands: one that hears loudness, one that watches windows go by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.core.types import (
    AudioDelta,
    AudioWindow,
    Delta,
    GateScore,
    ImageWindow,
    InputLag,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    Transcript,
    Trigger,
    Turn,
    TurnEnded,
    VideoWindow,
    WantsToSpeak,
    Window,
)

LOUD = 3000
QUIET_MS = 200.0


def loud(ms: float, rate: int = 16000) -> np.ndarray:
    """A tone that counts as speech."""
    t = np.arange(round(ms * rate / 1000)) / rate
    return (9000 * np.sin(2 * np.pi * 300 * t)).astype(np.int16)


def silence(ms: float, rate: int = 16000) -> np.ndarray:
    return np.zeros(round(ms * rate / 1000), np.int16)


def listener(texts: Sequence[str], *, answer_ms: int = 1500) -> ScriptedAdapter:
    """Whatever is loud is speech; the n-th utterance is understood as `texts[n]`. It answers with its words
    and a tone."""
    state: dict[str, dict[str, float]] = {}

    async def hear(session: ScriptedSession, window: Window) -> None:
        if not isinstance(window, AudioWindow):
            return
        s = state.setdefault(session.id, {"at": 0.0, "speaking": 0.0, "quiet": 0.0, "said": 0.0})
        s["at"] += window.duration_ms
        if np.abs(np.frombuffer(window.pcm, "<i2")).max() > LOUD:
            s["quiet"] = 0.0
            if not s["speaking"]:
                s["speaking"] = 1.0
                session.emit(SpeechStarted(at_ms=s["at"]))
        elif s["speaking"]:
            s["quiet"] += window.duration_ms
            if s["quiet"] >= QUIET_MS:
                text = texts[int(s["said"])]
                s.update(speaking=0.0, said=s["said"] + 1)
                session.emit(Transcript(text=text[: len(text) // 2]))
                session.emit(SpeechStopped(at_ms=s["at"]))
                session.emit(Transcript(text=text, final=True))
                session.emit(TurnEnded())

    async def answer(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        text = turn.speak_text or f"You said: {turn.history[-1].text}"
        yield TextDelta(text=text)
        chunk = (8000 * np.sin(2 * np.pi * 440 * np.arange(480) / 24000)).astype(np.int16)
        for number in range(answer_ms // 20):
            yield AudioDelta(samples=chunk, sample_rate=24000, text=text if number == 0 else "")

    return ScriptedAdapter(ScriptedOptions(id="listener"), respond=answer, on_append=hear)


def watcher(*, each: int = 2, tells: bool = True, says: str | None = None) -> ScriptedAdapter:
    """Has something to say of every `each`-th window, and answers questions by the number of windows."""

    async def look(session: ScriptedSession, window: Window) -> None:
        if not isinstance(window, VideoWindow):
            return
        number = 1 + sum(isinstance(w, VideoWindow) for w in session.appended)
        if number % each == 0:
            session.emit(WantsToSpeak(event_id=f"{window.pts_ms}"))
        if tells:
            session.emit(GateScore(score=0.9, pts_ms=window.pts_ms))

    async def comment(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        await asyncio.sleep(0)
        if turn.trigger is Trigger.PROACTIVE:
            named = f"At {float(turn.event_id or 0) / 1000:g} seconds a window came."
            yield TextDelta(text=says or named)
        else:
            count = sum(isinstance(w, VideoWindow) for w in turn.windows)
            yield TextDelta(text=f"{turn.question} I have seen {count} windows.")

    options = ScriptedOptions(id="watcher", proactive=True)
    return ScriptedAdapter(options, respond=comment, on_append=look)


def beholder() -> ScriptedAdapter:
    """Says nothing unasked, and counts what it was shown."""

    async def look(session: ScriptedSession, window: Window) -> None:
        if isinstance(window, VideoWindow):
            session.emit(InputLag(lag_ms=1.0))

    async def count(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        images = sum(isinstance(w, ImageWindow) for w in turn.windows)
        windows = sum(isinstance(w, VideoWindow) for w in turn.windows)
        yield TextDelta(text=f"{turn.question} of {images} image{'s' * (images != 1)} ")
        yield TextDelta(text=f"and {windows} window{'s' * (windows != 1)}")

    return ScriptedAdapter(ScriptedOptions(id="beholder"), respond=count, on_append=look)


def lines_of(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Lines of standard output and of standard error so far."""
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()
