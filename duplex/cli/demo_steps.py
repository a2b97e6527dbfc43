"""The three steps of `duplex demo`. Each uses a session as any client would, and judges what came back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.cli import talk as talking
from duplex.cli.clip import WINDOW_MS, probe
from duplex.cli.conversation import MICROPHONE_RATE, Answer, Conversation, conversation
from duplex.cli.gateway import COMMENTARY, SESSION_PATH, VIDEO_PATH, VOICE, Target
from duplex.cli.screen import Screen
from duplex.cli.sound import read_speech, write_sound, write_stereo
from duplex.cli.speaker import SAMPLE_RATE, Speaker
from duplex.cli.timeline import Timeline, level_dbfs
from duplex.cli.watch import Question, watch
from duplex.codecs import Resampler

PASSAGE: Final = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of"
    " foolishness, it was the epoch of belief, it was the epoch of incredulity."
)
"""Charles Dickens, 1859."""
AFTER_THE_CUT: Final = "The passage was cut in the middle of a word. Nothing of it was left over."
CUT_AFTER_MS: Final = 2400.0
LOUD_DBFS: Final = -32.0
"""A word is being spoken."""
QUESTION: Final = "What do you see?"
REPEATED: Final = "The train leaves at nine."
OVER_AFTER_MS: Final = 2500.0
"""So much of the first answer is heard before the user speaks over it."""
LEAD_MS: Final = 200.0
MUCH_LAG_MS: Final = 2000.0
WAIT_S: Final = 30.0


@dataclass(slots=True, kw_only=True)
class Step:
    """What a step found. Times in ms; None: it has no such number."""

    name: str
    first_audio_ms: float | None = None
    last_byte_ms: float | None = None
    """From the cut, by whatever it was made, to the last audio byte of what was cut."""
    cancelled_ms: float | None = None
    """From the cut to `response.cancelled`."""
    stale_bytes: int | None = None
    """Audio that came after its response had ended."""
    factor: float | None = None
    """Real-time factor: the time that it took, or the CPU time, over the length of the sound or clip."""
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What did not work."""

    def check(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the steps share."""

    gateway: Target
    timeline: Timeline
    out: Path

    @contextlib.asynccontextmanager
    async def voice(self) -> AsyncIterator[tuple[Conversation, Speaker]]:
        """A session with the voice model, and a speaker that plays by the clock."""
        speaker = Speaker(self.timeline)
        async with conversation(
            self.gateway.path(SESSION_PATH),
            timeline=self.timeline,
            token=self.gateway.token,
            model=VOICE,
            speaker=speaker,
            playing=speaker.by_the_clock(),
        ) as talk:
            yield talk, speaker


# --- 1: a passage, cut -----------------------------------------------------------------------------


async def passage(stage: Stage) -> Step:
    """Speak a passage, cut it in mid-word, then speak again."""
    step = Step(name="a spoken passage, cut mid-word")
    stage.timeline.begin("passage", "1  A spoken passage, cut in the middle of a word")
    async with stage.voice() as (talk, speaker):
        await _spoken_and_cut(step, talk, speaker)
        await _spoken_whole(step, talk)
        await talk.until(lambda: talk.quiet, "the sentence after the cut did not end", WAIT_S)
        _check_session(step, talk)
    write_sound(stage.out / "passage.wav", speaker.heard, SAMPLE_RATE)
    return step


async def _spoken_and_cut(step: Step, talk: Conversation, speaker: Speaker) -> None:
    timeline = talk.timeline
    asked_ms = timeline.now_ms
    await talk.speak(PASSAGE)
    await talk.until(lambda: talk.current and talk.current.first_audio_ms, "nothing was spoken", WAIT_S)
    answer = _current(talk)
    assert answer.first_audio_ms is not None
    step.first_audio_ms = answer.first_audio_ms - asked_ms
    await talk.until(lambda: _in_mid_word(speaker, answer.index), "the passage was not heard", WAIT_S)
    cut_ms = timeline.now_ms
    timeline.record("mark", name="response.cancel", strong=True)
    await talk.client.cancel()
    await talk.until(lambda: not answer.running, "the cut was not answered", WAIT_S)
    # what was on its way would be here by now
    await asyncio.sleep(0.5)
    assert answer.last_audio_ms is not None
    assert answer.ended_ms is not None
    step.last_byte_ms = max(0.0, answer.last_audio_ms - cut_ms)
    step.cancelled_ms = answer.ended_ms - cut_ms
    step.check(answer.status == "cancelled", f"the passage was {answer.status}, not cancelled")
    heard_text = (answer.heard_text or "").strip()
    step.check(
        bool(heard_text) and PASSAGE.startswith(heard_text) and len(heard_text) < len(PASSAGE),
        f"the gateway says that {heard_text!r} was heard",
    )
    step.notes.append(f"heard: {heard_text} …")


def _in_mid_word(speaker: Speaker, index: int) -> bool:
    """Enough was heard, and a word sounds now and for the next 60 ms."""
    played_ms, ahead = speaker.upcoming(index)
    near = ahead[: SAMPLE_RATE * 60 // 1000]
    return played_ms >= CUT_AFTER_MS and len(near) > 0 and level_dbfs(near) > LOUD_DBFS


async def _spoken_whole(step: Step, talk: Conversation) -> None:
    """The session goes on after the cut; and, with nothing held back, how fast is speech made?"""
    timeline = talk.timeline
    await talk.client.update({"max_run_ahead_ms": 0})
    await talk.until(
        lambda: any(row["type"] == "session.updated" for row in timeline.of("event")),
        "the settings were not taken",
        WAIT_S,
    )
    asked_ms = timeline.now_ms
    before = _current(talk).index
    await talk.speak(AFTER_THE_CUT)
    await talk.until(
        lambda: _current(talk).index > before and not _current(talk).running,
        "nothing was spoken after the cut",
        WAIT_S,
    )
    answer = _current(talk)
    step.check(answer.status == "done" and answer.audio_ms > 1000, "the sentence after the cut is not whole")
    if answer.last_audio_ms is not None and answer.audio_ms:
        step.factor = (answer.last_audio_ms - asked_ms) / answer.audio_ms


def _current(talk: Conversation) -> Answer:
    assert talk.current is not None
    return talk.current


def _check_session(step: Step, talk: Conversation) -> None:
    step.stale_bytes = sum(answer.stale_bytes for answer in talk.answers.values())
    step.check(step.stale_bytes == 0, f"{step.stale_bytes} bytes came after the end of their response")
    for error in talk.errors:
        step.check(False, f"the gateway said: {error.message}")


# --- 2: an exchange --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the recording. Times in ms of the recording."""

    text: str
    start_ms: float
    end_ms: float


async def exchange(stage: Stage) -> Step:
    """The bundled recording as the microphone: a question, another over its answer, and one more.

    The pauses between the lines are as recorded, and longer where the agent needs longer.
    """
    step = Step(name="a spoken exchange")
    stage.timeline.begin("exchange", "2  A spoken exchange: speech over the answer stops it")
    lines = [Line(**line) for line in json.loads(_media("exchange.json").read_text("utf-8"))["lines"]]
    samples = read_speech(_media("exchange.flac"), MICROPHONE_RATE)
    async with stage.voice() as (talk, speaker):
        talk.on_event = talking.Screen(talk, indent="    ").take
        begin_ms = stage.timeline.now_ms
        with _cpu() as used:
            said_at = await _hold(talk, lines, samples)
        step.factor = used() / (stage.timeline.now_ms - begin_ms)
        _judge_exchange(step, talk, lines, said_at)
        _write_exchange(stage.out / "exchange.wav", talk, speaker)
    return step


async def _hold(talk: Conversation, lines: list[Line], samples: NDArray[np.int16]) -> list[float]:
    """Say the lines, each in its turn; when they began, by the timeline."""
    turns = (
        lambda: True,
        lambda: _heard_ms(talk) >= OVER_AFTER_MS,
        lambda: len(talk.answers) > 1 and talk.quiet,
    )
    said_at = []
    at = 0
    for line, its_turn in zip(lines, turns, strict=True):
        begin = round((line.start_ms - LEAD_MS) * MICROPHONE_RATE / 1000)
        await talk.stream(samples[at:begin])
        await talk.stream(np.zeros(round(WAIT_S * MICROPHONE_RATE), np.int16), until=its_turn)
        said_at.append((talk.microphone_ms or 0.0) + _ms_of(talk.said) + LEAD_MS)
        at = round(line.end_ms * MICROPHONE_RATE / 1000)
        await talk.stream(samples[begin:at])
    await talking.play(talk, samples[at:])
    return said_at


def _heard_ms(talk: Conversation) -> float:
    """How much of the newest answer has sounded."""
    position = talk.speaker.position() if talk.speaker is not None else None
    return position[1] if position is not None else 0.0


def _ms_of(chunks: list[NDArray[np.int16]]) -> float:
    return sum(map(len, chunks)) / MICROPHONE_RATE * 1000


def _judge_exchange(step: Step, talk: Conversation, lines: list[Line], said_at: list[float]) -> None:
    answers = [talk.answers[index] for index in sorted(talk.answers)]
    heard = " ".join(text for _, text in talk.transcripts)
    said = " ".join(line.text for line in lines)
    step.check(words(heard) == words(said), f"said was {said!r}, understood {heard!r}")
    _check_session(step, talk)
    step.check(len(answers) == len(lines), f"{len(lines)} questions got {len(answers)} answers")
    if len(answers) != len(lines):
        return
    first, *rest = answers
    step.check(
        first.status == "cancelled" and first.reason == "turn_detected",
        f"speech over the first answer did not stop it: it was {first.status}",
    )
    if first.last_audio_ms is not None and first.ended_ms is not None:
        step.last_byte_ms = max(0.0, first.last_audio_ms - said_at[1])
        step.cancelled_ms = first.ended_ms - said_at[1]
    step.check(all(a.status == "done" for a in rest), "a question after the interruption was not answered")
    step.check(
        words(answers[-1].text) == words(REPEATED),
        f"the last answer should be {REPEATED!r}, it was {answers[-1].text!r}",
    )
    delays = [
        answer.first_audio_ms - at - (line.end_ms - line.start_ms)
        for answer, line, at in zip(answers, lines, said_at, strict=True)
        if answer.first_audio_ms is not None
    ]
    if delays:
        step.first_audio_ms = float(np.median(delays))


def _write_exchange(path: Path, talk: Conversation, speaker: Speaker) -> None:
    """Stereo: the user on the left, what was heard of the agent on the right, as they sounded together."""
    resampler = Resampler(MICROPHONE_RATE, SAMPLE_RATE)
    user = np.concatenate([resampler.feed(np.concatenate(talk.said)), resampler.flush()])
    lead_ms = (talk.microphone_ms or 0.0) - (speaker.started_ms or 0.0)
    agent = speaker.heard[max(0, round(lead_ms * SAMPLE_RATE / 1000)) :]
    write_stereo(path, user.astype(np.int16, copy=False), agent, SAMPLE_RATE)


# --- 3: a clip -------------------------------------------------------------------------------------


async def commentary(stage: Stage) -> Step:
    """The bundled clip as a camera, then a question about it."""
    step = Step(name="a clip, commented on")
    stage.timeline.begin("clip", "3  A clip, commented on as it plays")
    clip = probe(_media("clip.mp4"))
    shown = Screen(clip, indent="    ")
    async with conversation(
        stage.gateway.path(VIDEO_PATH),
        timeline=stage.timeline,
        token=stage.gateway.token,
        model=COMMENTARY,
        options={"output_modalities": "text"},
    ) as talk:
        question = Question(text=QUESTION, at_ms=float("inf"))
        with _cpu() as used:
            await watch(talk, clip, questions=[question], window_ms=WINDOW_MS, paced=True, screen=shown)
        step.factor = used() / clip.duration_ms
    shown.clear()
    _judge_comments(step, shown)
    comments = "".join(f"{comment.clip_ms / 1000:6.1f} s  {comment.text}\n" for comment in shown.comments)
    (stage.out / "comments.txt").write_text(comments, "utf-8")
    return step


def _judge_comments(step: Step, shown: Screen) -> None:
    said = " ".join(comment.text for comment in shown.comments if not comment.answer)
    seen = [thing for thing in ("car", "stop sign", "clock", "turns to the right") if thing in said]
    step.check(len(seen) >= 2, f"of the clip were only seen: {', '.join(seen) or 'nothing'}")
    lags = [comment.lag_ms for comment in shown.comments if comment.lag_ms is not None]
    step.check(bool(lags), "no comment names a moment of the clip")
    if lags:
        step.notes.append(
            f"said {np.median(lags) / 1000:.1f} s after the event, {max(lags) / 1000:.1f} s at most"
            + (": this machine is slow, or busy" if max(lags) > MUCH_LAG_MS else "")
        )
    answered = [comment.text for comment in shown.comments if comment.answer]
    step.check(bool(answered), f"{QUESTION!r} was not answered")


def film(every_s: float = 0.1) -> list[tuple[float, NDArray[np.uint8]]]:
    """Small pictures of the clip, each with its time in s."""
    import av

    pictures: list[tuple[float, NDArray[np.uint8]]] = []
    with av.open(str(_media("clip.mp4"))) as container:
        for frame in container.decode(video=0):
            at = frame.time or 0.0
            if at >= len(pictures) * every_s - 1e-6:
                picture = frame.to_ndarray(format="rgb24", width=256, height=144)
                pictures.append((at, picture.astype(np.uint8, copy=False)))
    return pictures


# --- shared ----------------------------------------------------------------------------------------


def _media(name: str) -> Path:
    return Path(str(files("duplex.cli") / "media" / name))


def words(text: str) -> list[str]:
    """Plain lower-case words: what a transcript is compared by."""
    return re.findall(r"[a-z0-9']+", text.lower())


@contextlib.contextmanager
def _cpu() -> Iterator[Any]:
    """A function that gives the CPU time of this process since the beginning, gateway included, in ms."""
    begin = time.process_time()
    yield lambda: (time.process_time() - begin) * 1000
