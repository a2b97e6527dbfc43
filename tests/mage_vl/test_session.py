"""A session against parts that do what they are told: input, signals, answers, ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec
import pytest
from mage_fakes import Fakes, Watched, clip, happens, opened, until
from video_clips import encode, texture

from duplex.adapters.engine.language import EngineInfo
from duplex.adapters.mage_vl.options import PROMPT
from duplex.adapters.mage_vl.windows.backends import WindowOptions
from duplex.adapters.mage_vl.windows.pairing import Pairing
from duplex.adapters.mage_vl.windows.preparing import Threads
from duplex.codecs.video_split import split_clip
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioWindow,
    CodecWindow,
    GateScore,
    HistoryItem,
    ImageWindow,
    InputLag,
    InputRejected,
    LengthReached,
    SessionSettings,
    TextDelta,
    TextWindow,
    Trigger,
    VideoWindow,
    WantsToSpeak,
)


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


@pytest.fixture
async def watched(fakes: Fakes) -> AsyncIterator[Watched]:
    async with opened(fakes) as watched:
        yield watched


async def show(watched: Watched, *names: str) -> None:
    """Send windows, each when the one before was looked at."""
    for number, name in enumerate(names):
        before = len(watched.all(InputLag))
        await watched.session.append(clip(name, pts_ms=1000.0 * number))
        await watched.until(lambda before=before: len(watched.all(InputLag)) > before)


# --- input --------------------------------------------------------------------------------------------


async def test_a_window_is_looked_at_and_its_score_told(fakes: Fakes, watched: Watched) -> None:
    fakes.sight.scores["a"] = 0.25
    await show(watched, "a")
    assert watched.all(GateScore) == [GateScore(score=0.25, pts_ms=0.0, segment_id="a")]
    assert watched.all(WantsToSpeak) == []
    (lag,) = watched.all(InputLag)
    assert lag.lag_ms >= 0
    assert lag.coalesced == 0


async def test_append_never_waits_for_the_threads_or_the_model(fakes: Fakes, watched: Watched) -> None:
    fakes.backend.gate = threading.Event()
    fakes.sight.slow = asyncio.Event()
    for number in range(50):
        sending = watched.session.append(clip(str(number)))
        with pytest.raises(StopIteration):  # it is done without having waited once
            sending.send(None)
    fakes.backend.gate.set()
    fakes.sight.slow.set()
    await watched.session.finish()
    assert fakes.backend.prepared == [str(n) for n in range(50)]


async def test_fault_38_windows_that_come_faster_than_the_gate_are_coalesced_and_the_newest_wins(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.sight.slow = asyncio.Event()
    await watched.session.append(clip("first"))
    await happens(fakes.sight.looking)
    for number in range(30):
        await watched.session.append(clip(str(number)))
        await until(lambda number=number: len(fakes.backend.prepared) == number + 2)
    await until(lambda: watched.session._watching._ready)
    assert fakes.sight.blocked == 1  # no pile of looks
    assert len(watched.session._watching._ready) == 1
    fakes.sight.slow.set()
    await watched.session.finish()
    await watched.until(lambda: len(watched.all(InputLag)) == 2)
    assert fakes.sight.looked == ["first", "29"]
    assert [lag.coalesced for lag in watched.all(InputLag)] == [0, 29]
    assert [f.value for f in fakes.adapter.figures() if f.name == "windows_coalesced"] == [29]
    assert [score.segment_id for score in watched.all(GateScore)] == ["first", "29"]


async def test_fault_38_windows_that_come_faster_than_they_can_be_prepared_are_dropped_oldest_first(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.backend.gate = threading.Event()
    for number in range(200):
        await watched.session.append(clip(str(number)))
    waiting = watched.session._watching._waiting
    assert len(waiting) == 64
    fakes.backend.gate.set()
    await watched.session.finish()
    assert fakes.backend.prepared[-64:] == [str(n) for n in range(136, 200)]
    assert fakes.backend.resets == 1
    assert sum(lag.coalesced for lag in watched.all(InputLag)) + len(fakes.sight.looked) == 200


async def test_windows_whose_key_frame_was_dropped_are_coalesced_and_no_fault_of_the_client(
    fakes: Fakes, watched: Watched
) -> None:
    def piece(name: str, more: bytes = b"") -> VideoWindow:
        data = b"\x00\x00\x00\x01\x67" + more
        return VideoWindow(kind="video/h264", data=data, segment_id=name, pts_ms=0.0, duration_ms=1000.0)

    fakes.backend.gate = threading.Event()
    for number in range(70):  # those at the end go on where a dropped one had the key frame
        await watched.session.append(piece(str(number), b"no key frame" if number > 60 else b""))
    for number in range(70, 130):
        await watched.session.append(piece(str(number), b"no key frame" if number < 80 else b""))
    fakes.backend.gate.set()
    await watched.session.finish()
    assert not watched.all(InputRejected)
    looked = len(fakes.sight.looked)
    assert sum(lag.coalesced for lag in watched.all(InputLag)) + looked == 130
    await watched.session.append(piece("unusable", b"no key frame"))
    await watched.session.finish()
    await watched.until(lambda: len(watched.all(InputRejected)) == 1)


async def test_lone_images_are_all_looked_at_up_to_a_bound(fakes: Fakes, watched: Watched) -> None:
    fakes.sight.slow = asyncio.Event()
    await watched.session.append(clip("first"))
    await happens(fakes.sight.looking)
    await watched.session.append(clip("video"))
    for _ in range(10):
        await watched.session.append(ImageWindow(data=b"image"))
    await watched.session.append(clip("newer"))
    watching = watched.session._watching
    await until(lambda: not watching._waiting and len(watching._open) == 1)
    assert len(watching._ready) == 9
    fakes.sight.slow.set()
    await watched.session.finish()
    assert fakes.sight.looked == ["first", *[""] * 8, "newer"]
    await watched.until(lambda: sum(lag.coalesced for lag in watched.all(InputLag)) == 3)
    await watched.said(question="what?")
    (prompt,) = fakes.engine.prompts
    assert len(prompt["pictures"]) == 9  # the last 8 windows: 7 images, and a video of two


async def test_what_waits_to_be_prepared_is_bounded_in_bytes(fakes: Fakes, watched: Watched) -> None:
    fakes.backend.gate = threading.Event()
    megabytes = b"x" * (9 << 20)
    for _ in range(20):
        await watched.session.append(clip(data=megabytes))
    assert watched.session._watching._bytes <= 64 << 20
    fakes.backend.gate.set()
    await watched.session.finish()
    assert watched.session._watching._bytes == 0


async def test_side_information_that_waits_is_counted_and_what_nobody_reads_is_not_kept(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.backend.gate = threading.Event()
    watching = watched.session._watching
    watching._pairing = Pairing()
    for number in range(40):
        name = str(number)
        codec = {"packet_bytes": "x" * (5 << 20), "unknown": "x" * (5 << 20)}
        watching.submit(CodecWindow(kind="h264", codec=codec, segment_id=name, metadata={"x": "x"}))
        watching.submit(msgspec.structs.replace(clip(name), metadata={"x": "x" * (5 << 20)}))
    assert 6 <= len(watching._waiting) <= 12  # of 5 MiB, in 64
    assert watching._bytes <= 64 << 20
    for window in watching._waiting:
        assert window.codec is not None
        assert (list(window.codec.codec), window.codec.metadata) == (["packet_bytes"], {})
        assert isinstance(window.media, VideoWindow)
        assert window.media.metadata == {}
    fakes.backend.gate.set()
    await watched.session.finish()
    assert watching._bytes == 0


async def test_a_window_that_cannot_be_used_is_told_and_the_next_one_is_seen(
    fakes: Fakes, watched: Watched
) -> None:
    for name, data in (("a", b"bad"), ("b", b"broken"), ("c", b"good")):
        await watched.session.append(clip(name, data=data))
    await watched.session.finish()
    first, second = watched.all(InputRejected)
    assert (first.code, first.message) == (ErrorCode.INVALID_MEDIA, "not a picture")
    assert second.code is ErrorCode.INVALID_MEDIA
    assert "a fault" not in second.message
    assert fakes.sight.looked == ["c"]


@pytest.mark.parametrize(
    ("window", "code"),
    [
        (VideoWindow(kind="video/mp4"), ErrorCode.EMPTY_INPUT),
        (VideoWindow(kind="", frames=(b"a", b"")), ErrorCode.EMPTY_INPUT),
        (VideoWindow(kind="text/plain", data=b"hello"), ErrorCode.UNSUPPORTED_FORMAT),
        (ImageWindow(data=b""), ErrorCode.EMPTY_INPUT),
        (AudioWindow(pcm=b"\0\0", sample_rate=16000), ErrorCode.UNSUPPORTED_MODALITY),
        (CodecWindow(kind="h264", codec={"motion_vectors": []}), ErrorCode.UNSUPPORTED_MODALITY),
    ],
)
async def test_what_is_wrong_at_first_sight_is_refused_at_once(
    watched: Watched, window: VideoWindow, code: ErrorCode
) -> None:
    with pytest.raises(DuplexError) as fault:
        await watched.session.append(window)
    assert fault.value.code is code


async def test_a_commit_is_answered_when_something_was_shown(watched: Watched) -> None:
    await watched.session.append(TextWindow(text="hello"))
    assert not await watched.session.commit()
    await watched.session.append(clip("a"))
    assert await watched.session.commit()


# --- the gate -----------------------------------------------------------------------------------------


async def test_a_score_above_the_session_s_threshold_asks_to_speak_once(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.sight.score = 0.6
    await watched.session.update(SessionSettings(gate_threshold=0.7))
    await show(watched, "a")
    assert watched.all(WantsToSpeak) == []
    await watched.session.update(SessionSettings(gate_threshold=0.5))
    await show(watched, "b")
    await show(watched, "b")  # sent again after a broken line
    assert [wish.event_id for wish in watched.all(WantsToSpeak)] == ["b@0"]


async def test_a_wish_that_nobody_has_heard_yet_is_replaced_by_a_newer_one(fakes: Fakes) -> None:
    fakes.sight.score = 0.9
    await fakes.adapter.start()
    session = await fakes.open()
    for number in range(400):
        await session.append(clip(str(number)))
        await session._watching.settled(session._watching.submitted)
    heard = []
    signals = session.signals()
    while (signal := await anext(signals)) and len(heard) < 255:
        heard.append(signal)
    wishes = [signal.event_id for signal in heard if isinstance(signal, WantsToSpeak)]
    assert wishes == ["399@0"]
    await session.close()
    await fakes.adapter.stop()


async def test_without_a_gate_there_are_no_scores_and_questions_are_answered() -> None:
    fakes = Fakes(None)
    assert not fakes.adapter.info.proactive
    async with opened(fakes) as watched:
        await show(watched, "a", "b")
        assert watched.all(GateScore) == []
        assert await watched.said(question="what?") == "a dog runs"


async def test_a_window_that_the_eye_loses_is_told_by_name_and_the_next_one_is_seen(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.sight.fault_of = {"a"}
    for name in ("a", "b"):
        await watched.session.append(clip(name))
        await watched.session._watching.settled(watched.session._watching.submitted)
    await watched.until(lambda: watched.all(GateScore))
    (lost,) = watched.all(InputRejected)
    assert (lost.code, lost.message) == (ErrorCode.ADAPTER_FAILED, "a window was lost: the worker died")
    assert watched.all(GateScore)[0].segment_id == "b"


# --- responses ----------------------------------------------------------------------------------------


async def test_text_comes_token_by_token(fakes: Fakes, watched: Watched) -> None:
    fakes.engine.gate = asyncio.Semaphore(0)
    await show(watched, "a")
    deltas = watched.session.respond(watched.turn())
    for word in ("a ", "dog ", "runs"):
        fakes.engine.gate.release()
        async with asyncio.timeout(10):
            assert await anext(deltas) == TextDelta(text=word)
    assert [delta async for delta in deltas] == []
    assert fakes.engine.running == 0


async def test_a_comment_is_asked_for_as_the_model_learnt_it(fakes: Fakes, watched: Watched) -> None:
    await show(watched, "a", "b")
    history = (HistoryItem(role="user", text="hello"), HistoryItem(role="assistant", text="hi"))
    assert await watched.said(Trigger.PROACTIVE, event_id="e", history=history) == "a dog runs"
    (prompt,) = fakes.engine.prompts
    assert prompt == {
        "pictures": ["a-0", "a-1", "b-0", "b-1"],
        "question": PROMPT,
        "instructions": "",
        "said": [],
    }
    (sampling,) = fakes.engine.samplings
    assert (sampling.max_tokens, sampling.temperature) == (80, 0.0)


async def test_a_question_goes_with_the_conversation_before_it(fakes: Fakes, watched: Watched) -> None:
    await show(watched, "a")
    history = (
        *(HistoryItem(role="user", text=f"old {n}") for n in range(9)),
        HistoryItem(role="assistant", text="a dog"),
        HistoryItem(role="assistant", text="{}", call_id="c", name="f"),
        HistoryItem(role="user", text="what colour?"),
    )
    settings = SessionSettings(instructions="Be brief.")
    await watched.said(question="what colour?", history=history, settings=settings)
    (prompt,) = fakes.engine.prompts
    assert prompt["said"] == [*(f"old {n}" for n in range(4, 9)), "a dog"]
    assert (prompt["question"], prompt["instructions"]) == ("what colour?", "Be brief.")


async def test_a_question_waits_for_the_windows_before_it(fakes: Fakes, watched: Watched) -> None:
    fakes.sight.slow = asyncio.Event()
    await watched.session.append(clip("a"))
    answering = asyncio.ensure_future(watched.said(Trigger.QUESTION, question="what?"))
    await happens(fakes.sight.looking)
    assert not fakes.engine.prompts
    fakes.sight.slow.set()
    assert await answering == "a dog runs"
    assert fakes.engine.prompts[0]["pictures"] == ["a-0", "a-1"]


def piece(name: str, data: bytes = b"") -> VideoWindow:
    """A piece of a stream."""
    return VideoWindow(kind="h264", data=b"\x00\x00\x00\x01\x67" + data, segment_id=name)


@pytest.mark.parametrize("question", ["what?", ""])
async def test_an_answer_sees_a_clip_that_the_decoder_held_back_altogether(
    fakes: Fakes, watched: Watched, question: str
) -> None:
    await watched.session.append(piece("one", b"held"))
    assert await watched.said(question=question) == "a dog runs"
    assert fakes.engine.prompts[0]["pictures"] == ["one-0", "one-1"]
    # a live stream that goes on all the same is not the client's fault until its next key frame
    await watched.session.append(piece("two", b"no key frame"))
    await watched.session.append(piece("three"))
    await watched.until(lambda: any(lag.coalesced == 1 for lag in watched.all(InputLag)))
    assert not watched.all(InputRejected)
    assert fakes.sight.looked == ["one", "three"]


async def test_a_question_does_not_end_a_stream_of_which_more_comes(
    fakes: Fakes, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duplex.adapters.mage_vl.session.REST_S", 60.0)
    await watched.session.append(piece("a", b"held"))
    answering = asyncio.ensure_future(watched.said(question="what?"))
    await until(lambda: fakes.backend.prepared == ["a"])
    await watched.session.append(piece("b"))
    async with asyncio.timeout(20):
        assert await answering == "a dog runs"
    assert fakes.engine.prompts[0]["pictures"] == ["b-0", "b-1"]
    # now that something was seen, nothing waits for what is held back
    await watched.session.append(piece("c", b"held"))
    assert await watched.said(question="what?") == "a dog runs"
    assert fakes.backend.finished == 0


@pytest.mark.parametrize("backend", ["frames", "codec"])
async def test_a_question_about_one_coded_frame_sees_it(
    fakes: Fakes, backend: Literal["frames", "codec"]
) -> None:
    picture = encode([texture(64, 64)], options={"bf": "3"})
    (window,) = split_clip(picture)
    options = WindowOptions(backend=backend, codec_max_pixels=4096)
    with ThreadPoolExecutor(1) as pool:
        fakes.backend.open = Threads.of(options, pool).open
        async with opened(fakes) as watched:
            await watched.session.append(VideoWindow(kind=window.kind, data=window.data, segment_id="one"))
            assert await watched.said() == "a dog runs"
    assert fakes.engine.prompts[0]["pictures"]


async def test_a_comment_does_not_wait_for_windows_that_came_since(fakes: Fakes, watched: Watched) -> None:
    await show(watched, "a")
    fakes.sight.slow = asyncio.Event()
    await watched.session.append(clip("b"))
    assert await watched.said(Trigger.PROACTIVE, event_id="a@0") == "a dog runs"
    assert fakes.engine.prompts[0]["pictures"] == ["a-0", "a-1"]


async def test_an_eye_that_is_far_behind_is_not_waited_for() -> None:
    fakes = Fakes(answer_wait_s=0.01)
    async with opened(fakes) as watched:
        fakes.sight.slow = asyncio.Event()
        await watched.session.append(clip("a"))
        with pytest.raises(DuplexError, match="the eye is behind") as fault:
            await watched.answer(question="what?")
        assert fault.value.code is ErrorCode.ADAPTER_FAILED
        fakes.sight.slow.set()
        await watched.until(lambda: watched.all(GateScore))
        fakes.sight.slow = asyncio.Event()
        await watched.session.append(clip("b"))
        assert await watched.said(question="what?") == "a dog runs"


async def test_nothing_shown_and_nothing_asked_is_an_error_of_its_own(watched: Watched) -> None:
    with pytest.raises(DuplexError) as fault:
        await watched.answer()
    assert fault.value.code is ErrorCode.NOTHING_TO_RESPOND_TO


async def test_a_question_needs_no_video(fakes: Fakes, watched: Watched) -> None:
    assert await watched.said(question="who are you?") == "a dog runs"
    assert fakes.engine.prompts[0]["pictures"] == []


async def test_a_given_text_is_said_and_not_answered(fakes: Fakes, watched: Watched) -> None:
    assert await watched.said(speak_text="Good morning.") == "Good morning."
    assert await watched.answer(speak_text="") == []
    assert fakes.engine.prompts == []


async def test_an_answer_that_has_as_many_tokens_as_it_may_says_so(fakes: Fakes, watched: Watched) -> None:
    await show(watched, "a")
    settings = SessionSettings(max_output_tokens=2)
    deltas = await watched.answer(settings=settings)
    assert deltas == [TextDelta(text="a "), TextDelta(text="dog"), LengthReached()]
    assert fakes.engine.samplings[0].max_tokens == 2


async def test_options_of_the_session_go_over_those_of_the_adapter(fakes: Fakes, watched: Watched) -> None:
    await show(watched, "a")
    options = {"prompt": "What is new?", "max_new_tokens": 5, "temperature": 0.5, "seed": 3}
    await watched.said(settings=SessionSettings(options=options))
    (sampling,) = fakes.engine.samplings
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (5, 0.5, 3)
    assert fakes.engine.prompts[0]["question"] == "What is new?"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"options": {"volume": 3}}, ErrorCode.UNKNOWN_FIELD),
        ({"options": {"seed": "x"}}, ErrorCode.INVALID_VALUE),
        ({"options": {"seed": 2**70}}, ErrorCode.INVALID_VALUE),
        ({"options": {"max_new_tokens": 0}}, ErrorCode.INVALID_VALUE),
        ({"options": {"temperature": 3.0}}, ErrorCode.INVALID_VALUE),
        ({"voice": "ryan"}, ErrorCode.INVALID_VALUE),
    ],
)
async def test_settings_that_the_model_does_not_have_are_refused(
    fakes: Fakes, watched: Watched, settings: dict[str, object], code: ErrorCode
) -> None:
    with pytest.raises(DuplexError) as fault:
        await watched.session.update(SessionSettings(**settings))  # type: ignore[arg-type]
    assert fault.value.code is code
    with pytest.raises(DuplexError) as fault:
        await fakes.open(**settings)
    assert fault.value.code is code
    assert fakes.sight.eyes == 1  # the refused session left none


async def test_a_cancel_aborts_the_engine_s_request_and_the_session_goes_on(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.engine.gate = asyncio.Semaphore(1)
    await show(watched, "a")
    answering = asyncio.ensure_future(watched.said())
    await until(lambda: fakes.engine.running and fakes.engine.gate.locked())
    answering.cancel()
    await asyncio.wait({answering})
    assert (fakes.engine.running, fakes.engine.aborted) == (0, 1)
    fakes.engine.gate = None
    assert await watched.said(question="and now?") == "a dog runs"


async def test_a_cancel_while_the_eye_is_slow_is_done_at_once(fakes: Fakes, watched: Watched) -> None:
    fakes.sight.slow = asyncio.Event()
    await watched.session.append(clip("a"))
    answering = asyncio.ensure_future(watched.said(question="what?"))
    await happens(fakes.sight.looking)
    answering.cancel()
    await asyncio.wait({answering})
    assert answering.cancelled()
    assert fakes.sight.blocked == 1  # it is still at it, and nobody waits for it


async def test_an_engine_that_dies_fails_the_response_by_name(fakes: Fakes, watched: Watched) -> None:
    fakes.engine.dies_after = 1
    await show(watched, "a")
    with pytest.raises(DuplexError, match="the engine died") as fault:
        await watched.answer()
    assert fault.value.code is ErrorCode.ADAPTER_FAILED
    fakes.engine.dies_after = None
    assert await watched.said() == "a dog runs"


async def test_an_engine_that_is_being_started_again_costs_a_response_and_not_the_session(
    fakes: Fakes, watched: Watched
) -> None:
    await show(watched, "a")
    fakes.engine.healthy = False
    with pytest.raises(DuplexError, match="the engine is down") as fault:
        await watched.answer()
    assert not fault.value.fatal


# --- the context --------------------------------------------------------------------------------------


async def test_the_window_slides_when_the_prompt_and_the_answer_would_not_fit(
    fakes: Fakes, watched: Watched
) -> None:
    # 12 words of a prompt, 10 tokens of an answer, 2 of a window
    fakes.engine.info = EngineInfo(model="fake", prompts=("chat",), context_tokens=12 + 10 + 5)
    settings = SessionSettings(max_output_tokens=10)
    await show(watched, *"abcdefgh")
    for _ in range(2):
        await watched.said(settings=settings)
    assert [prompt["pictures"][::2] for prompt in fakes.engine.prompts] == [["g-0", "h-0"]] * 2
    await show(watched, "i")
    await watched.said(settings=settings)
    assert fakes.engine.prompts[-1]["pictures"] == ["h-0", "h-1", "i-0", "i-1"]


async def test_an_answer_that_may_be_longer_than_the_context_leaves_half_of_it_to_the_prompt(
    fakes: Fakes, watched: Watched
) -> None:
    fakes.engine.info = EngineInfo(model="fake", prompts=("chat",), context_tokens=30)
    await show(watched, "a", "b", "c")
    assert await watched.said() == "a dog runs"  # 80 tokens are asked for
    assert fakes.engine.prompts[-1]["pictures"] == ["c-0", "c-1"]


async def test_a_question_that_is_too_long_is_refused_before_the_engine_sees_it(
    fakes: Fakes, watched: Watched
) -> None:
    with pytest.raises(DuplexError) as fault:
        await watched.answer(question="word " * 2000)
    assert fault.value.code is ErrorCode.INPUT_OVERFLOW
    assert fakes.engine.prompts == []


# --- the end ------------------------------------------------------------------------------------------


async def test_finish_waits_for_the_gate_and_for_what_was_held_back(fakes: Fakes, watched: Watched) -> None:
    fakes.sight.slow = asyncio.Event()
    fakes.sight.scores["held"] = 0.9
    await watched.session.append(clip("a"))
    await watched.session.append(clip("held", data=b"held"))
    finishing = asyncio.ensure_future(watched.session.finish())
    await happens(fakes.sight.looking)
    await until(lambda: fakes.backend.prepared == ["a", "held"])
    assert not finishing.done()
    fakes.sight.slow.set()
    async with asyncio.timeout(10):
        await finishing
    await watched.until(lambda: watched.all(WantsToSpeak))
    assert fakes.sight.looked == ["a", "held"]


async def test_a_session_that_was_shown_nothing_finishes_at_once(watched: Watched) -> None:
    async with asyncio.timeout(10):
        await watched.session.finish()


async def test_close_frees_everything_while_the_eye_and_a_thread_are_busy(fakes: Fakes) -> None:
    await fakes.adapter.start()
    session = await fakes.open()
    fakes.sight.slow = asyncio.Event()
    await session.append(clip("a"))
    await happens(fakes.sight.looking)
    fakes.backend.gate = threading.Event()
    await session.append(clip("b"))
    waiting = asyncio.ensure_future(session.finish())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await session.close()
        await waiting
    assert (fakes.sight.eyes, fakes.sight.blocked, fakes.backend.closed) == (0, 0, 1)
    assert len(session.history) == 0
    fakes.backend.gate.set()
    await session.append(clip("late"))  # what is on its way when it closes does no harm
    await fakes.adapter.stop()


async def test_sessions_see_only_their_own(fakes: Fakes) -> None:
    async with opened(fakes) as one:
        other = Watched(await fakes.open())
        fakes.sight.scores |= {"mine": 0.9, "yours": 0.1}
        await show(one, "mine")
        await show(other, "yours")
        assert [wish.event_id for wish in one.all(WantsToSpeak)] == ["mine@0"]
        assert other.all(WantsToSpeak) == []
        await other.said()
        await one.said()
        assert [prompt["pictures"][0] for prompt in fakes.engine.prompts] == ["yours-0", "mine-0"]
        await other.close()
