"""From windows to turns to texts: the listener, its worker, and the writing down, with scripted models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hearing_alone import Floats, hear_alone, loud_is_speech
from numpy.typing import NDArray

from duplex.adapters.embedded.asr import CUT_AFTER_MS, Recognition
from duplex.adapters.embedded.ears import MAX_BACKLOG_MS, Ears
from duplex.adapters.embedded.hearing import Hearing, Task, hear_together
from duplex.adapters.embedded.listen import TAIL_MS, Draft, DraftKind, Listener, ListenEvent
from duplex.adapters.embedded.signals import SignalBox
from duplex.adapters.embedded.transcribe import Transcriber
from duplex.adapters.embedded.vad import ActivityModel
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioWindow,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnDetection,
    TurnEnded,
)

RATE = 16000
FRAME = 512


def listener(settings: TurnDetection | None = TurnDetection(), **options: float) -> Listener:  # noqa: B008
    return Listener(settings, **options)


def window(ms: float, level: int, playout_dbfs: float | None = None) -> AudioWindow:
    pcm = np.full(round(ms * RATE / 1000), level, "<i2").tobytes()
    return AudioWindow(pcm=pcm, sample_rate=RATE, playout_dbfs=playout_dbfs)


def hear(ear: Listener, *parts: tuple[float, int]) -> list[ListenEvent]:
    return hear_alone(loud_is_speech, ear, *(window(ms, level) for ms, level in parts))


def kinds(events: list[ListenEvent]) -> list[object]:
    return [event.kind if isinstance(event, Draft) else type(event) for event in events]


def test_a_turn_comes_with_its_pre_roll_and_its_tail() -> None:
    ear = listener()
    events = hear(ear, (960, 100), (1280, 8000), (960, 101))
    assert kinds(events) == [
        SpeechStarted,
        DraftKind.PARTIAL,
        DraftKind.PARTIAL,
        DraftKind.AHEAD,
        SpeechStopped,
        DraftKind.FINAL,
    ]
    ahead, final = events[3], events[5]
    assert isinstance(ahead, Draft)
    assert isinstance(final, Draft)
    assert ahead.end_ms == final.end_ms == 960 + 1280
    assert np.array_equal(ahead.samples, final.samples)
    values = np.rint(final.samples * 32768)
    speech = np.flatnonzero(values == 8000)
    assert 300 <= speech[0] * 1000 / RATE < 300 + 32  # whole frames that hold the pre-roll
    assert len(speech) == 1280 * RATE // 1000
    assert (values == 101).sum() == TAIL_MS * RATE // 1000


def test_speech_after_a_pause_goes_on_in_the_same_turn() -> None:
    events = hear(listener(), (960, 8000), (320, 100), (640, 8000), (640, 100))
    assert kinds(events).count(DraftKind.AHEAD) == 2
    assert kinds(events).count(DraftKind.FINAL) == 1
    assert kinds(events).count(SpeechStarted) == 1


def test_a_long_turn_is_given_out_in_segments_without_loss() -> None:
    ear = listener(max_turn_ms=120_000)
    parts = [(3008.0, 8000), (224.0, 100)] * 12
    events = hear(ear, *parts, (960, 100))
    segments = [e for e in events if isinstance(e, Draft) and e.kind in (DraftKind.SEGMENT, DraftKind.FINAL)]
    assert len(segments) >= 3
    speech = sum(int((np.rint(draft.samples * 32768) == 8000).sum()) for draft in segments)
    assert speech == 12 * 3008 * RATE // 1000
    assert all(len(draft.samples) < (CUT_AFTER_MS + 4000) * RATE / 1000 for draft in segments)


def test_manual_turns_end_by_finish_alone_and_make_no_speech_events() -> None:
    ear = listener(None)
    events = hear(ear, (640, 100), (1280, 8000), (5000, 100))
    assert kinds(events) == [DraftKind.PARTIAL, DraftKind.PARTIAL, DraftKind.AHEAD]
    assert ear.stall_timeout_ms is None
    assert kinds(hear_alone(loud_is_speech, ear, finish=True)) == [DraftKind.FINAL]
    assert hear_alone(loud_is_speech, ear, finish=True) == []


def test_fault_16_noise_and_silence_are_no_turn() -> None:
    ear = listener(None)
    assert hear(ear, (2000, 100), (64, 30000), (2000, 0)) == []
    assert hear_alone(loud_is_speech, ear, finish=True) == []


def test_fault_1_and_15_a_stalled_turn_ends_and_the_next_one_begins_fresh() -> None:
    ear = listener()
    hear(ear, (640, 100), (640, 8000))
    assert ear.stall_timeout_ms == 2000
    assert kinds(hear_alone(loud_is_speech, ear, finish=True)) == [SpeechStopped, DraftKind.FINAL]
    events = hear(ear, (320, 8000))
    assert isinstance(events[0], SpeechStarted)
    assert events[0].at_ms == pytest.approx(1280)


def test_positions_are_those_of_the_samples_after_a_finish_inside_a_frame() -> None:
    ear = listener()
    for _ in range(50):
        hear(ear, (20, 100))
        hear_alone(loud_is_speech, ear, finish=True)
    events = hear(ear, (320, 8000))
    assert isinstance(events[0], SpeechStarted)
    assert events[0].at_ms == pytest.approx(50 * 20 - 300)


def test_turn_detection_can_be_changed_in_a_turn() -> None:
    ear = listener(None)
    hear(ear, (640, 8000))
    ear.configure(TurnDetection(silence_duration_ms=64))
    assert kinds(hear(ear, (128, 100))) == [SpeechStopped, DraftKind.FINAL]


def test_our_own_echo_is_not_heard_as_a_turn() -> None:
    ear = listener()
    events = hear_alone(loud_is_speech, ear, window(3200, 2000, playout_dbfs=-5.0))
    assert events == []
    events = hear_alone(loud_is_speech, ear, window(640, 20000, playout_dbfs=-5.0))
    assert isinstance(events[0], SpeechStarted)


# --- the worker ------------------------------------------------------------------------------------


class Heard:
    """Ears around a listener, and what they told."""

    def __init__(self, ear: Listener, hearing: Hearing) -> None:
        self.events: list[ListenEvent] = []
        self.failures: list[Exception] = []
        self.told = asyncio.Event()
        self.ears = Ears(ear, hearing, self._on_events, self._on_failure)

    def _on_events(self, events: list[ListenEvent]) -> None:
        self.events += events
        if events:
            self.told.set()

    def _on_failure(self, error: Exception) -> None:
        self.failures.append(error)
        self.told.set()


def with_ears(
    test: Callable[[Heard], object], ear: Listener | None = None, model: ActivityModel = loud_is_speech
) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(2) as worker:
            heard = Heard(ear or listener(), Hearing(worker, model))
            await asyncio.wait_for(test(heard), 20)  # type: ignore[arg-type]
            await heard.ears.close()

    asyncio.run(run())


@pytest.mark.parametrize("chunk_ms", [1, 20, 33, 700, 6000])
def test_order_is_kept_for_any_chunks(chunk_ms: int) -> None:
    pcm = b"".join(window(ms, level).pcm for ms, level in [(960, 100), (1280, 8000), (960, 100)] * 3)
    expected = kinds(hear_alone(loud_is_speech, listener(), AudioWindow(pcm=pcm, sample_rate=RATE)))

    async def test(heard: Heard) -> None:
        size = chunk_ms * RATE // 1000 * 2
        for start in range(0, len(pcm), size):
            heard.ears.push(AudioWindow(pcm=pcm[start : start + size], sample_rate=RATE))
            if start % 7 == 0:
                await asyncio.sleep(0)
        await heard.ears.settle()
        assert kinds(heard.events) == expected

    with_ears(test)


def test_windows_shorter_than_a_frame_wait_for_it() -> None:
    async def test(heard: Heard) -> None:
        tasks: list[Task] = []
        hearing = heard.ears._hearing
        do = hearing.do
        hearing.do = lambda task: tasks.append(task) or do(task)  # type: ignore[func-returns-value, method-assign]
        for _ in range(100):
            heard.ears.push(window(20, 100))
            await asyncio.sleep(0)
            await heard.ears._idle.wait()
        assert len(tasks) <= 2000 / 32 + 1

    with_ears(test)


def test_too_much_at_once_is_refused_by_name_and_the_rest_is_heard() -> None:
    async def test(heard: Heard) -> None:
        for _ in range(30):
            heard.ears.push(window(MAX_BACKLOG_MS / 30, 0))
        with pytest.raises(DuplexError) as refused:
            heard.ears.push(window(MAX_BACKLOG_MS / 30, 0))
        assert refused.value.code is ErrorCode.INPUT_OVERFLOW
        await heard.ears.settle()
        heard.ears.push(window(960, 8000))
        await heard.ears.settle()
        assert SpeechStarted in kinds(heard.events)

    with_ears(test)


def test_fault_1_the_beginning_of_speech_is_told_before_the_rest_of_its_task_is_heard() -> None:
    rest = threading.Event()

    heard_frames = 0

    def stops_in_mid_task(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        nonlocal heard_frames
        heard_frames += 1
        if heard_frames > 12:
            assert rest.wait(20)
        return loud_is_speech(frames, states)

    async def test(heard: Heard) -> None:
        heard.ears.push(window(900, 8000))
        await heard.told.wait()
        assert kinds(heard.events) == [SpeechStarted]
        rest.set()
        await heard.ears.settle()
        assert kinds(heard.events)[-2:] == [SpeechStopped, DraftKind.FINAL]
        assert kinds(heard.events).count(SpeechStarted) == 1

    with_ears(test, model=stops_in_mid_task)


def test_fault_15_a_muted_microphone_ends_the_turn() -> None:
    async def test(heard: Heard) -> None:
        heard.ears.push(window(640, 8000))
        while SpeechStopped not in kinds(heard.events):
            heard.told.clear()
            await heard.told.wait()  # nothing more is pushed: only the timer can end it

    with_ears(test, listener(stall_timeout_ms=30))


def test_a_listener_that_fails_is_told_once() -> None:
    async def test(heard: Heard) -> None:
        heard.ears.push(AudioWindow(pcm=b"\0\0" * 100, sample_rate=3))
        heard.ears.push(window(640, 8000))
        await heard.told.wait()
        assert [type(error) for error in heard.failures] == [DuplexError]

    with_ears(test)


def test_closing_in_the_middle_of_a_task_waits_for_its_step_and_drops_the_rest() -> None:
    stepping, go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def slow(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        steps.append(len(frames))
        stepping.set()
        assert go_on.wait(20)
        return loud_is_speech(frames, states)

    async def test(heard: Heard) -> None:
        heard.ears.push(window(20_000, 8000))
        waiter = asyncio.ensure_future(heard.ears.settle())
        assert await asyncio.to_thread(stepping.wait, 20)
        closing = asyncio.ensure_future(heard.ears.close())
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert steps == [1]
        assert heard.events == heard.failures == []

    with_ears(test, model=slow)


# --- many sessions on one worker -------------------------------------------------------------------


def test_what_waits_of_many_sessions_is_heard_in_one_hop_and_in_one_run_of_the_model() -> None:
    started, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    def model(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        runs.append(len(frames))
        started.set()
        assert go_on.wait(20)
        return loud_is_speech(frames, states)

    async def run() -> None:
        with ThreadPoolExecutor(1) as worker:
            hearing = Hearing(worker, model)
            sessions = [Heard(listener(), hearing) for _ in range(20)]
            sessions[0].ears.push(window(32, 8000))
            assert await asyncio.to_thread(started.wait, 20)
            for session in sessions:
                session.ears.push(window(960, 8000))
            go_on.set()
            await asyncio.gather(*(session.ears.settle() for session in sessions))
            assert runs[0] == 1
            assert runs[1:31] in ([19] * 30, [20] * 30)  # the first may still be in its own hop
            assert sum(runs) == 1 + 20 * 30
            for session in sessions:
                assert kinds(session.events)[0] is SpeechStarted
                assert kinds(session.events).count(SpeechStopped) == 1
                await session.ears.close()

    asyncio.run(run())


def test_sessions_that_are_heard_together_are_heard_as_if_alone() -> None:
    def remembers(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        states = states * 0.5 + frames.max(axis=1, keepdims=True)
        return np.where(states[:, 0] > 0.1, 0.95, 0.02).astype(np.float32), states

    dice = np.random.default_rng(4)
    parts = [
        [window(float(dice.integers(1, 900)), int(level)) for level in dice.choice([0, 100, 8000], 30)]
        for _ in range(9)
    ]
    told: dict[int, list[ListenEvent]] = {n: [] for n in range(len(parts))}
    tasks = [
        Task(listener(), windows=part, finish=True, on_events=told[n].extend, on_done=lambda _: None)
        for n, part in enumerate(parts)
    ]
    hear_together(remembers, tasks, lambda task, events: task.on_events(events))
    for number, (task, part) in enumerate(zip(tasks, parts, strict=True)):
        expected = hear_alone(remembers, listener(), *part, finish=True)
        found = told[number] + task.events
        assert SpeechStarted in kinds(expected)
        assert kinds(found) == kinds(expected)
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, Draft):
                assert isinstance(other, Draft)
                assert np.array_equal(one.samples, other.samples)
            else:
                assert one == other


def test_a_session_that_fails_costs_the_others_nothing() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as worker:
            hearing = Hearing(worker, loud_is_speech)
            good, bad = Heard(listener(), hearing), Heard(listener(), hearing)
            bad.ears.push(AudioWindow(pcm=b"\0\0" * 100, sample_rate=3))
            good.ears.push(window(640, 8000))
            await good.ears.settle()
            await bad.told.wait()
            assert kinds(good.events)[0] is SpeechStarted
            assert good.failures == []
            assert [type(error) for error in bad.failures] == [DuplexError]
            for session in (good, bad):
                await session.ears.close()

    asyncio.run(run())


def test_a_model_that_fails_is_told_to_all_and_the_next_hop_goes_on() -> None:
    broken = True

    def model(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        if broken:
            raise RuntimeError("out of memory")
        return loud_is_speech(frames, states)

    async def run() -> None:
        nonlocal broken
        with ThreadPoolExecutor(1) as worker:
            hearing = Hearing(worker, model)
            sessions = [Heard(listener(), hearing) for _ in range(2)]
            for session in sessions:
                session.ears.push(window(640, 8000))
                await session.told.wait()
                assert [type(error) for error in session.failures] == [RuntimeError]
            broken = False
            later = Heard(listener(), hearing)
            later.ears.push(window(640, 8000))
            await later.ears.settle()
            assert kinds(later.events)[0] is SpeechStarted
            for session in (*sessions, later):
                await session.ears.close()

    asyncio.run(run())


def test_a_worker_that_is_shut_down_leaves_nobody_waiting() -> None:
    started, go_on = threading.Event(), threading.Event()

    def model(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        started.set()
        assert go_on.wait(20)
        return loud_is_speech(frames, states)

    async def run() -> None:
        worker = ThreadPoolExecutor(1)
        first, second = (Heard(listener(), Hearing(worker, model)) for _ in range(2))
        first.ears.push(window(32, 8000))
        assert await asyncio.to_thread(started.wait, 20)
        second.ears.push(window(32, 8000))  # waits for the thread
        worker.shutdown(wait=False, cancel_futures=True)
        go_on.set()
        for session in (first, second):
            await asyncio.wait_for(session.ears.close(), 20)

    asyncio.run(run())


# --- writing down ----------------------------------------------------------------------------------


def draft(kind: DraftKind, words: str, end_ms: float = 0.0) -> Draft:
    """Audio whose first samples stand for its words."""
    return Draft(kind=kind, samples=np.frombuffer(words.encode(), np.uint8).astype(np.float32), end_ms=end_ms)


class Writing:
    def __init__(self) -> None:
        self.decoded: list[str] = []
        self.told: list[tuple[str, bool]] = []
        self.failures: list[Exception] = []
        self.gate: asyncio.Semaphore | None = None
        self.busy = False
        self.confidence = 0.9
        self.transcriber = Transcriber(
            self._recognise,
            lambda: self.busy,
            lambda text, final: self.told.append((text, final)),
            self.failures.append,
        )

    async def _recognise(self, samples: NDArray[np.float32]) -> Recognition:
        words = bytes(samples.astype(np.uint8)).decode()
        if self.gate is not None:
            await self.gate.acquire()
        await asyncio.sleep(0)
        if words == "fail":
            raise RuntimeError("broken")
        self.decoded.append(words)
        return Recognition(text=words, confidence=self.confidence)


def writing(*drafts: Draft, at_once: bool = False, confidence: float = 0.9, busy: bool = False) -> Writing:
    async def run() -> Writing:
        written = Writing()
        written.confidence = confidence
        written.busy = busy
        for item in drafts:
            written.transcriber.put(item)
            if not at_once:
                await written.transcriber.idle()
        await written.transcriber.idle()
        await written.transcriber.close()
        return written

    return asyncio.run(run())


def test_partials_then_the_final_text_that_was_decoded_ahead() -> None:
    written = writing(
        draft(DraftKind.PARTIAL, "he was"),
        draft(DraftKind.PARTIAL, "he was"),
        draft(DraftKind.AHEAD, "he was not", 700),
        draft(DraftKind.FINAL, "he was not", 700),
    )
    assert written.told == [("he was", False), ("he was not", False), ("he was not", True)]
    assert written.decoded == ["he was", "he was", "he was not"]


def test_what_was_decoded_ahead_is_void_when_speech_goes_on() -> None:
    written = writing(draft(DraftKind.AHEAD, "he was", 700), draft(DraftKind.FINAL, "he was not", 1500))
    assert written.told[-1] == ("he was not", True)


def test_segments_are_kept_and_joined() -> None:
    written = writing(
        draft(DraftKind.SEGMENT, "one two."),
        draft(DraftKind.PARTIAL, "three"),
        draft(DraftKind.SEGMENT, "three four."),
        draft(DraftKind.FINAL, ""),
        draft(DraftKind.FINAL, "next"),
    )
    assert written.told == [
        ("one two.", False),
        ("one two. three", False),
        ("one two. three four.", False),
        ("one two. three four.", True),
        ("next", True),
    ]


def test_drafts_that_are_overtaken_are_not_decoded() -> None:
    written = writing(
        draft(DraftKind.PARTIAL, "a"),
        draft(DraftKind.PARTIAL, "b"),
        draft(DraftKind.AHEAD, "c", 1),
        draft(DraftKind.PARTIAL, "d"),
        draft(DraftKind.AHEAD, "e", 2),
        draft(DraftKind.FINAL, "e", 2),
        at_once=True,
    )
    assert written.decoded == ["e"]
    assert written.told[-1] == ("e", True)


def test_partials_give_way_when_others_wait() -> None:
    written = writing(draft(DraftKind.PARTIAL, "a"), draft(DraftKind.FINAL, "b"), busy=True)
    assert written.decoded == ["b"]


def test_fault_16_words_that_nobody_said_are_dropped() -> None:
    assert writing(draft(DraftKind.FINAL, "You"), confidence=0.4).told == [("", True)]


def test_a_recogniser_that_fails_is_told() -> None:
    written = writing(draft(DraftKind.PARTIAL, "fail"))
    assert [str(error) for error in written.failures] == ["broken"]


def test_closing_drops_what_is_not_written_down() -> None:
    async def run() -> None:
        written = Writing()
        written.gate = asyncio.Semaphore(0)
        written.transcriber.put(draft(DraftKind.FINAL, "late"))
        await asyncio.sleep(0)
        await written.transcriber.close()
        written.gate.release()
        await asyncio.sleep(0)
        assert written.told == []

    asyncio.run(run())


# --- signals ---------------------------------------------------------------------------------------


def test_signals_keep_order_and_unread_partials_are_replaced() -> None:
    async def run() -> None:
        box = SignalBox()
        for signal in (
            SpeechStarted(at_ms=1),
            Transcript(text="a"),
            Transcript(text="a b"),
            Transcript(text="a b c", final=True),
            TurnEnded(),
            Transcript(text="d"),
        ):
            box.put(signal)
        box.close()
        assert [signal async for signal in box.stream()] == [
            SpeechStarted(at_ms=1),
            Transcript(text="a b c", final=True),
            TurnEnded(),
            Transcript(text="d"),
        ]

    asyncio.run(run())


def test_taken_waits_until_the_reader_has_dealt_with_all() -> None:
    async def run() -> None:
        box = SignalBox()
        box.put(TurnEnded())
        await box.taken()  # nobody reads
        dealing = asyncio.Event()
        go_on = asyncio.Event()
        seen = []

        async def read() -> None:
            async for signal in box.stream():
                dealing.set()
                await go_on.wait()
                seen.append(signal)

        reader = asyncio.ensure_future(read())
        await dealing.wait()
        waiter = asyncio.ensure_future(box.taken())
        await asyncio.sleep(0)
        assert not waiter.done()
        go_on.set()
        await waiter
        assert seen == [TurnEnded()]
        box.close()
        await reader

    asyncio.run(run())


def test_a_failure_reaches_the_reader_after_the_signals() -> None:
    async def run() -> None:
        box = SignalBox()
        box.put(TurnEnded())
        box.fail(RuntimeError("deaf"))
        stream = box.stream()
        assert await anext(stream) == TurnEnded()
        with pytest.raises(RuntimeError, match="deaf"):
            await anext(stream)

    asyncio.run(run())
