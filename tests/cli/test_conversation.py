"""A command's session: what is sent, heard, cut and judged stale, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from talking_models import listener, loud, silence

from duplex.cli.conversation import Conversation, conversation
from duplex.cli.errors import CommandError, UsageError
from duplex.cli.speaker import SAMPLE_RATE, Speaker
from duplex.cli.talk import play
from duplex.cli.timeline import Timeline
from duplex.clients import AsyncDuplexClient, AudioDelta
from duplex.dialects.native_frames import FrameKind, pack
from duplex.server.run import Gateway

StartGateway = Callable[..., Awaitable[Gateway]]


def talk_to(gateway: Gateway, timeline: Timeline, speaker: Speaker):  # type: ignore[no-untyped-def]
    return conversation(
        f"{gateway.ws_url}/v1/duplex", timeline=timeline, speaker=speaker, playing=speaker.by_the_clock()
    )


async def test_speech_over_the_answer_stops_it_and_the_next_question_is_answered(
    start_gateway: StartGateway,
) -> None:
    gateway = await start_gateway(listener(["read to me", "what time is it"], answer_ms=8000))
    timeline = Timeline()
    speaker = Speaker(timeline)
    timeline.begin("talk", "A conversation")
    async with talk_to(gateway, timeline, speaker) as talk:
        await talk.stream(np.concatenate([loud(300), silence(300)]))
        await talk.stream(silence(10_000), until=lambda: (speaker.position() or (0, 0.0))[1] > 400)
        await talk.stream(np.concatenate([loud(300), silence(300)]))
        await talk.until(lambda: 2 in talk.answers and not talk.answers[2].running, "no answer", 20)
        first, second = talk.answers[1], talk.answers[2]
        assert [text for _, text in talk.transcripts] == ["read to me", "what time is it"]
        assert (first.status, first.reason) == ("cancelled", "turn_detected")
        assert (second.status, second.text) == ("done", "You said: what time is it")
        assert first.stale_bytes == second.stale_bytes == 0
        assert first.first_audio_ms is not None
        assert first.ended_ms is not None
        assert first.created_ms <= first.first_audio_ms < first.ended_ms
    kinds = {row["kind"] for row in timeline.rows}
    assert {"audio.sent", "audio.received", "audio.heard", "audio.cancelled", "event", "answer"} <= kinds
    dropped = [row for row in timeline.of("audio.cancelled") if row["response_index"] == 1]
    heard = [row for row in timeline.of("audio.heard") if row["response_index"] == 1]
    assert sum(row["ms"] for row in heard) >= 400
    assert dropped[0]["ms"] > 1000, "run-ahead that was received and never played"
    assert max(row["t_ms"] for row in heard) <= dropped[0]["t_ms"] + 40


async def test_what_is_heard_is_what_was_said_with_silence_around(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(listener(["hello"], answer_ms=400))
    timeline = Timeline()
    speaker = Speaker(timeline)
    async with talk_to(gateway, timeline, speaker) as talk:
        await play(talk, np.concatenate([loud(200), silence(300)]))
        assert talk.quiet
    heard = np.abs(speaker.heard) > 500
    sounding = np.flatnonzero(heard)
    assert (sounding[-1] - sounding[0]) / SAMPLE_RATE == pytest.approx(0.4, abs=0.03)
    assert not heard[: SAMPLE_RATE // 5].any()


async def test_waiting_ends_in_words_when_nothing_comes(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(listener([]))
    timeline = Timeline()
    async with talk_to(gateway, timeline, Speaker(timeline)) as talk:
        with pytest.raises(CommandError, match=r"no rain fell within 0\.05 s"):
            await talk.until(lambda: False, "no rain fell", 0.05)


async def test_waiting_ends_when_the_session_does(start_gateway: StartGateway) -> None:
    model = listener([])
    gateway = await start_gateway(model, idle_timeout_s=0.2)
    timeline = Timeline()
    async with talk_to(gateway, timeline, Speaker(timeline)) as talk:
        with pytest.raises(CommandError, match="the session ended: idle timeout"):
            await talk.until(lambda: False, "nothing happened", 30)


async def test_no_gateway_is_told_in_one_line() -> None:
    timeline = Timeline()
    with pytest.raises(CommandError, match=r"no connection to ws://127\.0\.0\.1:1") as caught:
        async with conversation("ws://127.0.0.1:1/v1/duplex", timeline=timeline):
            raise AssertionError("it opened")
    assert "\n" not in str(caught.value)


async def test_an_unknown_model_is_the_users_mistake(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(listener([]))
    with pytest.raises(UsageError, match="nonsense"):
        async with conversation(f"{gateway.ws_url}/v1/duplex", timeline=Timeline(), model="nonsense"):
            raise AssertionError("it opened")


def created(index: int) -> str:
    return json.dumps({"type": "response.created", "response_index": index})


def audio(index: int, samples: int) -> bytes:
    return pack(FrameKind.AUDIO_OUT, b"\0\0" * samples, response_index=index, pts=0, flags=24000)


@pytest.mark.parametrize("end", ["response.cancelled", "response.done"])
async def test_audio_after_the_end_of_its_response_is_stale(end: str) -> None:
    """Judged by the order on the wire, whatever the client makes of it."""
    timeline = Timeline()
    talk = Conversation(AsyncDuplexClient("ws://nowhere"), timeline, None)
    for frame in (created(1), audio(1, 10), json.dumps({"type": end, "response_index": 1}), created(2)):
        talk.frame_arrived(frame)
    assert talk.answers[1].stale_bytes == 0
    talk.frame_arrived(audio(1, 7))
    talk.frame_arrived(audio(2, 5))
    assert (talk.answers[1].stale_bytes, talk.answers[2].stale_bytes) == (14, 0)
    assert [(row["response_index"], row["bytes"]) for row in timeline.of("audio.stale")] == [(1, 14)]


# --- the speaker -----------------------------------------------------------------------------------


def delta(index: int, samples: np.ndarray, rate: int = SAMPLE_RATE) -> AudioDelta:
    return AudioDelta(response_index=index, data=samples.tobytes(), codec="pcm_s16le", sample_rate=rate)


def test_a_cut_drops_what_was_not_played_and_says_how_much() -> None:
    timeline = Timeline()
    speaker = Speaker(timeline)
    speaker.receive(delta(1, loud(1000, SAMPLE_RATE)))
    for _ in range(15):
        speaker.pull(480)
    played_ms, ahead = speaker.upcoming(1)
    assert played_ms == pytest.approx(300)
    assert len(ahead) == pytest.approx(700 * 24)
    speaker.cancel(1)
    (row,) = timeline.of("audio.cancelled")
    assert row["ms"] == pytest.approx(700, abs=20)
    assert len(row["levels_dbfs"]) == pytest.approx(35, abs=1)
    speaker.pull(480)  # the fade-out
    assert not speaker.pull(4800).any()


def test_another_rate_is_played_at_ours() -> None:
    timeline = Timeline()
    speaker = Speaker(timeline)
    speaker.receive(delta(1, loud(1000, 16000), 16000))
    speaker.finish(1)
    (row,) = timeline.of("audio.received")
    assert row["ms"] == pytest.approx(1000, abs=1)
    heard = np.concatenate([speaker.pull(480) for _ in range(60)])
    assert np.flatnonzero(np.abs(heard) > 500)[-1] / SAMPLE_RATE == pytest.approx(1.0, abs=0.03)


def test_a_speaker_without_a_log_keeps_nothing() -> None:
    """A conversation through the microphone has no end: it must not grow."""
    timeline = Timeline(keep=False)
    speaker = Speaker(timeline)
    for index in range(1, 30):
        speaker.receive(delta(index, loud(40, SAMPLE_RATE)))
        speaker.finish(index)
        for _ in range(5):
            speaker.pull(480)
    assert len(speaker.heard) == 0
    assert timeline.rows == []
    assert len(speaker._received) <= 2


async def test_the_clock_plays_on_when_nobody_speaks() -> None:
    speaker = Speaker(Timeline())
    pulled = asyncio.Event()
    async with speaker.by_the_clock():
        speaker.receive(delta(1, loud(200, SAMPLE_RATE)))
        speaker.finish(1)
        speaker.on_played = lambda: pulled.set() if speaker.unplayed_ms() == 0 else None
        await asyncio.wait_for(pulled.wait(), 10)
    assert (np.abs(speaker.heard) > 500).any()
