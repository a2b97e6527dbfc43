"""The embedded-commentary adapter through its contract, with scripted detectors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from commentary_scenes import ManualExecutor, ScriptedDetector, noisy, seen
from video_clips import encode, still, texture

from duplex.adapters.base import Adapter, AdapterSession
from duplex.adapters.embedded import commentary
from duplex.adapters.embedded.commentary import CommentarySession, create
from duplex.adapters.embedded.commentary_analysis import MAX_BYTES, MAX_WINDOWS, Analysis, Models
from duplex.adapters.embedded.events import Event, Kind
from duplex.codecs.number_arrays import pack_numbers
from duplex.codecs.video_split import split_clip
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    AudioWindow,
    CodecWindow,
    GateScore,
    ImageWindow,
    InputLag,
    InputRejected,
    Modality,
    OpenSession,
    SessionSettings,
    TextDelta,
    TextWindow,
    Trigger,
    Turn,
    VideoWindow,
    WantsToSpeak,
)

H, W = 72, 128
PERSON = seen("person")


@pytest.fixture(scope="module")
def clip() -> bytes:
    """Two shots of one second."""
    return encode(noisy([texture(H, W, 1)] * 25 + [texture(H, W, 2)] * 25))


@pytest.fixture(scope="module")
def windows(clip) -> list[VideoWindow]:
    return [
        VideoWindow(kind=w.kind, data=w.data, pts_ms=w.pts_ms, duration_ms=w.duration_ms, segment_id=str(i))
        for i, w in enumerate(split_clip(clip, window_ms=400))
    ]


def turn(trigger: Trigger, *, settings: SessionSettings | None = None, audio: bool = False, **facts) -> Turn:
    return Turn(
        response_id="resp_1",
        index=1,
        epoch=1,
        trigger=trigger,
        settings=settings or SessionSettings(),
        modalities=(Modality.TEXT, Modality.AUDIO) if audio else (Modality.TEXT,),
        **facts,
    )


async def text_of(deltas: AsyncIterator) -> str:
    return "".join([d.text async for d in deltas if isinstance(d, TextDelta)])


class Heard:
    """Collects a session's signals; waits for what a test needs."""

    def __init__(self, session: CommentarySession) -> None:
        self.signals: list = []
        self._grown = asyncio.Condition()
        self.task = asyncio.create_task(self._listen(session))

    async def _listen(self, session: CommentarySession) -> None:
        async for signal in session.signals():
            async with self._grown:
                self.signals.append(signal)
                self._grown.notify_all()

    def of(self, kind: type) -> list:
        return [s for s in self.signals if isinstance(s, kind)]

    async def until(self, kind: type, count: int) -> list:
        async with self._grown:
            await asyncio.wait_for(self._grown.wait_for(lambda: len(self.of(kind)) >= count), 30)
        return self.of(kind)


@asynccontextmanager
async def opened(
    *, detector=None, settings: SessionSettings | None = None, speech=None, reader=None
) -> AsyncIterator[tuple[CommentarySession, Heard]]:
    adapter = create({"objects": False, "tags": False, "text": False, "speech": False, "threads": 1})
    assert isinstance(adapter, Adapter)
    await adapter.start()
    adapter.models = Models(detector=detector, reader=reader)
    adapter.synthesiser = speech
    session = await adapter.open(OpenSession(session_id="s", settings=settings or SessionSettings()))
    assert isinstance(session, AdapterSession)
    heard = Heard(session)
    try:
        yield session, heard
    finally:
        await session.close()
        await asyncio.wait_for(heard.task, 5)
        await adapter.stop()


def test_it_writes_unless_it_is_asked_to_speak():
    assert create({}).info.default_output_modalities == (Modality.TEXT,)


async def test_each_event_is_said_once(windows):
    async with opened(detector=ScriptedDetector((0, [PERSON]))) as (session, heard):
        for window in windows:
            await session.append(window)
        await session.finish()
        wishes = await heard.until(WantsToSpeak, 2)
        assert len({w.event_id for w in wishes}) == len(wishes) == 2
        last = turn(Trigger.PROACTIVE, event_id=wishes[-1].event_id)
        said = await text_of(session.respond(last))
        assert "person" in said
        assert "at 1 second" in said.lower()
        assert await text_of(session.respond(last)) == ""
        assert await text_of(session.respond(turn(Trigger.PROACTIVE, event_id=wishes[0].event_id))) == ""


async def test_a_wish_that_came_in_the_middle_of_a_response_is_kept_for_its_own():
    async with opened() as (session, _):
        first = Event(number=1, kind=Kind.OPENING, at_ms=0.0)
        second = Event(number=2, kind=Kind.CUT, at_ms=500.0)
        session._noticed([first, second])
        assert "begins" in await text_of(session.respond(turn(Trigger.PROACTIVE, event_id=first.id)))
        assert "cut" in (await text_of(session.respond(turn(Trigger.PROACTIVE, event_id=second.id)))).lower()


async def test_append_does_not_wait_and_a_question_does(windows):
    detector = ScriptedDetector((0, [PERSON]))
    gate = threading.Event()
    detector.before = lambda: gate.wait(30)
    async with opened(detector=detector) as (session, _):
        for window in windows[:2]:
            await session.append(window)  # the worker is stuck in its first detection
        answering = asyncio.create_task(
            text_of(session.respond(turn(Trigger.QUESTION, question="How many people do you see?")))
        )
        await asyncio.sleep(0)
        assert not answering.done()
        gate.set()
        assert await answering == "I make out a person. There may be more."


async def test_an_answer_comes_even_when_the_analysis_is_stuck(windows, monkeypatch):
    monkeypatch.setattr(commentary, "ANSWER_WAIT_S", 0.01)
    detector = ScriptedDetector((0, []))
    gate = threading.Event()
    detector.before = lambda: gate.wait(30)
    async with opened(detector=detector) as (session, _):
        await session.append(windows[0])
        answered = await text_of(session.respond(turn(Trigger.QUESTION, question="What do you see?")))
        assert answered == "I have seen no picture yet."
        gate.set()


async def test_a_commit_describes_what_is_there(windows):
    async with opened(detector=ScriptedDetector((0, [PERSON]))) as (session, _):
        assert await session.commit() is False
        await session.append(windows[0])
        assert await session.commit() is True
        said = await text_of(session.respond(turn(Trigger.COMMIT)))
        assert "I make out a person." in said


async def test_given_text_is_spoken_as_it_is(windows):
    async with opened() as (session, _):
        assert await text_of(session.respond(turn(Trigger.CREATE, speak_text="Just this."))) == "Just this."


@pytest.mark.parametrize(
    ("window", "code"),
    [
        (VideoWindow(kind="video/avi", data=b"RIFF"), ErrorCode.UNSUPPORTED_FORMAT),
        (VideoWindow(kind="video/mp4", data=b"no video at all"), ErrorCode.INVALID_MEDIA),
        (VideoWindow(kind="video/mp4"), ErrorCode.EMPTY_INPUT),
        (VideoWindow(kind="frames", frames=(b"x", b"")), ErrorCode.EMPTY_INPUT),
        (ImageWindow(data=b""), ErrorCode.EMPTY_INPUT),
        (AudioWindow(pcm=b"\0\0", sample_rate=16000), ErrorCode.UNSUPPORTED_MODALITY),
    ],
)
async def test_windows_that_are_refused_at_once(window, code, windows):
    async with opened() as (session, heard):
        with pytest.raises(DuplexError) as caught:
            await session.append(window)
        assert caught.value.code is code
        await session.append(windows[0])
        assert await heard.until(GateScore, 1), "the session lives on"


async def test_windows_that_are_refused_later(clip, windows):
    bad = [
        VideoWindow(kind="video/mp4", data=clip[: len(clip) // 2]),
        ImageWindow(data=still(texture(H, W))[:200]),
        ImageWindow(data=b"GIF89a" + bytes(50)),
        CodecWindow(kind="h264", codec={"motion_vectors": [[1], [2, 3]]}),
        CodecWindow(kind="h264", codec={"motion_vectors": [[float("nan"), 1.0]]}),
        CodecWindow(kind="h264", codec={"motion_vectors": [[10**400, 1]]}),
        CodecWindow(
            kind="h264", codec={"motion_vectors": {"dtype": "f8", "shape": [1, 2], "data": bytes(16)}}
        ),
        CodecWindow(kind="h264", codec={"motion_vectors": {"dtype": "u1", "shape": [1, 1], "data": "AA=="}}),
    ]
    async with opened() as (session, heard):
        for window in bad:
            await session.append(window)
        refused = await heard.until(InputRejected, len(bad))
        assert [r.code for r in refused] == [
            ErrorCode.INVALID_MEDIA,
            ErrorCode.INVALID_MEDIA,
            ErrorCode.UNSUPPORTED_FORMAT,
            *[ErrorCode.INVALID_VALUE] * 5,
        ]
        assert [r.param for r in refused][3:] == ["data.codec.motion_vectors"] * 5
        await session.append(windows[0])
        assert await heard.until(WantsToSpeak, 1)


async def test_a_detector_that_fails_costs_one_window(windows):
    detector = ScriptedDetector((0, [PERSON]))
    failures = iter([RuntimeError("boom")])

    def fail_once() -> None:
        for error in failures:
            raise error

    detector.before = fail_once
    async with opened(detector=detector) as (session, heard):
        await session.append(windows[0])
        assert await heard.until(InputRejected, 1)
        whole = encode([texture(H, W, 1)] * 12)
        await session.append(VideoWindow(kind="mp4", data=whole))
        assert await heard.until(WantsToSpeak, 1)


async def test_the_gate_threshold_decides_what_is_worth_saying(windows):
    async with opened(settings=SessionSettings(gate_threshold=0.95)) as (session, heard):
        for window in windows:
            await session.append(window)
        await session.finish()
        scores = await heard.until(GateScore, len(windows))
        assert heard.of(WantsToSpeak) == []
        assert [s.segment_id for s in scores] == [w.segment_id for w in windows]
        assert max(s.score for s in scores) == pytest.approx(0.9)
        await session.update(SessionSettings(gate_threshold=0.5))


async def test_a_lone_image_is_described_by_its_own_mirror():
    detector = ScriptedDetector((0, [PERSON]))
    async with opened(detector=detector) as (session, heard):
        await session.append(ImageWindow(data=still(texture(H, W))))
        (wish,) = await heard.until(WantsToSpeak, 1)
        said = await text_of(session.respond(turn(Trigger.PROACTIVE, event_id=wish.event_id)))
        assert "a person" in said
        assert len(detector.asked) == 2


async def test_frames_and_codec_windows():
    stills = tuple(still(p, "mjpeg") for p in noisy([texture(H, W, 1)] * 4))
    async with opened(detector=ScriptedDetector((0, [PERSON]))) as (session, heard):
        await session.append(VideoWindow(kind="frames", frames=stills, pts_ms=0.0, duration_ms=2000.0))
        await heard.until(WantsToSpeak, 1)
        calm, wild = [[0.1, 0.0]] * 50, [[20.0, 5.0]] * 50
        for number, vectors in enumerate((calm, wild, pack_numbers(np.array(wild)))):
            await session.append(
                CodecWindow(kind="h264", codec={"motion_vectors": vectors}, pts_ms=2000.0 + number * 500)
            )
        scores = await heard.until(GateScore, 4)
        assert scores[1].score < 0.1
        assert scores[2].score > 0.9
        assert scores[3].score == scores[2].score
        assert len(await heard.until(WantsToSpeak, 2)) == 2, "strong motion is said once"


async def test_unknown_options_are_refused_by_name():
    with pytest.raises(DuplexError, match="colour") as caught:
        create({"colour": True})
    assert caught.value.code is ErrorCode.BAD_CONFIG
    async with opened() as (session, _):
        with pytest.raises(DuplexError, match="zoom") as caught:
            await session.update(SessionSettings(options={"zoom": 2}))
        assert caught.value.code is ErrorCode.UNKNOWN_FIELD
        with pytest.raises(DuplexError, match="no voice") as caught:
            await session.update(SessionSettings(voice="heart"))
        assert caught.value.code is ErrorCode.INVALID_VALUE


async def test_text_windows_and_close_in_any_state(windows):
    async with opened() as (session, heard):
        await session.append(TextWindow(text="What is this?"))
        assert await session.commit() is False
        await session.append(windows[0])
        await session.close()
        await session.finish()
        assert heard.of(InputRejected) == []


class SlowSpeech:
    """A synthesiser whose second piece waits for the test."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.made = 0

    def check(self, **_: object) -> None: ...

    def stop(self) -> None: ...

    def speak(self, text: str, *, voice: str | None = None):
        for piece in ("one ", "two"):
            if self.made:
                self.go_on.wait(30)
            self.made += 1
            yield SimpleNamespace(samples=np.zeros(2400, np.float32), text=piece)


async def test_speech_comes_with_its_text_and_stops_when_cancelled():
    speech = SlowSpeech()
    async with opened(speech=speech) as (session, _):
        got: list = []

        async def collect() -> None:
            async for delta in session.respond(turn(Trigger.CREATE, speak_text="one two", audio=True)):
                got.append(delta)
                if len(got) == 2:
                    both.set()

        both = asyncio.Event()
        task = asyncio.create_task(collect())
        await both.wait()
        assert isinstance(got[0], TextDelta)
        assert isinstance(got[1], AudioDelta)
        assert (got[1].sample_rate, got[1].text) == (24000, "one ")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        speech.go_on.set()
        assert len(got) == 2
        again = [d async for d in session.respond(turn(Trigger.CREATE, speak_text="one two", audio=True))]
        assert [type(d) for d in again] == [TextDelta, AudioDelta, AudioDelta]


async def test_speech_is_left_out_when_only_text_is_asked_for():
    speech = SlowSpeech()
    async with opened(speech=speech) as (session, _):
        got = [d async for d in session.respond(turn(Trigger.CREATE, speak_text="one two"))]
        assert [type(d) for d in got] == [TextDelta]
        assert speech.made == 0


# --- keeping up: the analysis alone, run by hand -----------------------------------------------------


class Bench:
    """An analysis whose worker and clock the test drives."""

    def __init__(self, detector=None, reader=None) -> None:
        self.now = 100.0
        self.workers, self.readers = ManualExecutor(), ManualExecutor()
        self.notices: list = []
        self.analysis = Analysis(
            Models(detector=detector, reader=reader),
            self.workers,
            self.readers,
            self.notices.extend,
            clock=lambda: self.now,
        )

    def of(self, kind: type) -> list:
        return [n for n in self.notices if isinstance(n, kind)]


def test_windows_faster_than_the_analysis_are_skimmed_and_the_newest_is_not(windows):
    detector = ScriptedDetector((0, [PERSON]))
    bench = Bench(detector)
    for window in windows:
        bench.analysis.submit(window)
    bench.now += 5.0
    bench.workers.run()
    newest = windows[-1]
    assert detector.asked
    assert min(detector.asked) >= newest.pts_ms - 100
    cuts = [e for e in bench.of(Event) if e.kind is Kind.CUT]
    assert [c.at_ms for c in cuts] == pytest.approx([1000], abs=1), "skimming still finds the cut"
    lags = bench.of(InputLag)
    assert sum(lag.coalesced for lag in lags) == len(windows) - 1
    assert lags[0].lag_ms == pytest.approx(5000)
    assert bench.analysis.done == bench.analysis.submitted


def test_windows_in_time_get_the_full_look_and_report_little_lag(windows):
    detector = ScriptedDetector((0, [PERSON]))
    bench = Bench(detector)
    for window in windows:
        bench.analysis.submit(window)
        bench.now += 0.4
        bench.workers.run()
    assert sum(lag.coalesced for lag in bench.of(InputLag)) == 0
    assert all(lag.lag_ms <= 400 for lag in bench.of(InputLag))
    assert len(bench.of(InputLag)) < len(windows), "at most one report a second"
    assert min(detector.asked) == 0


def test_beyond_the_queue_the_oldest_windows_are_dropped_and_decoding_begins_anew(windows):
    bench = Bench()
    keyed = encode(noisy([texture(H, W, 3)] * 12))
    bench.analysis.submit(windows[0])
    bench.workers.run()
    for _ in range(MAX_WINDOWS - 1):
        bench.analysis.submit(windows[1])
    for _ in range(8):
        bench.analysis.submit(VideoWindow(kind="video/mp4", data=keyed))
    assert len(bench.analysis._queue) == MAX_WINDOWS
    bench.now += 9.0
    bench.workers.run()
    assert bench.of(InputRejected) == [], "frames that lack their key frame are our own doing"
    lags = bench.of(InputLag)
    assert sum(lag.coalesced for lag in lags) >= 7
    assert bench.analysis.done == bench.analysis.submitted


def test_side_information_that_waits_is_counted_and_what_nobody_reads_is_not_kept():
    bench = Bench()
    data = bytes(8 << 20)
    for _ in range(20):
        codec = {"motion_vectors": {"dtype": "u1", "shape": [1 << 22, 2], "data": data}, "bit_cost": data}
        bench.analysis.submit(CodecWindow(kind="h264", codec=codec, metadata={"a": "b"}))
    kept = [waiting.window for waiting in bench.analysis._queue]
    assert len(kept) == MAX_BYTES // len(data) - 1
    assert all(list(window.codec) == ["motion_vectors"] and not window.metadata for window in kept)
    bench.workers.run()
    assert [refused.code for refused in bench.of(InputRejected)] == [ErrorCode.MEDIA_TOO_LARGE] * len(kept)
    assert bench.analysis._bytes == 0


def test_close_stops_at_the_next_frame(windows):
    detector = ScriptedDetector((0, [PERSON]))
    bench = Bench(detector)
    detector.before = bench.analysis.close
    for window in windows:
        bench.analysis.submit(window)
    bench.workers.run()
    assert len(detector.asked) == 1
    assert bench.of(Event) == []
    assert bench.analysis.submit(windows[0]) == len(windows) + 1
    assert bench.workers.run() == 0


class ScriptedReader:
    def __init__(self, *lines: Sequence[str]) -> None:
        self.lines = iter(lines)

    def read(self, pixels: np.ndarray) -> tuple[str, ...]:
        assert pixels.shape == (H, W, 3)
        return tuple(next(self.lines))


def test_words_on_the_screen_are_read_apart_and_said_by_the_worker(windows):
    bench = Bench(reader=ScriptedReader(("GOAL",)))
    for window in windows[:2]:
        bench.analysis.submit(window)
        bench.workers.run()
    assert len(bench.readers.tasks) == 1
    assert [e.kind for e in bench.of(Event)] == [Kind.OPENING]
    bench.readers.run()
    bench.workers.run()
    assert [e.lines for e in bench.of(Event) if e.kind is Kind.TEXT] == [("GOAL",)]


def test_a_reader_that_fails_is_asked_again_in_the_next_shot(windows):
    bench = Bench(reader=ScriptedReader())
    for window in windows:
        bench.analysis.submit(window)
        bench.workers.run()
        bench.readers.run()
    assert bench.of(InputRejected) == []
