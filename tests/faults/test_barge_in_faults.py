"""Faults 1 to 12 that users of such systems reported: barge-in and staleness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from faces import ENDS, RATE, Client, Dialect, happens, loud
from gateway_peer import forever, tone, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.clients.playback import PlaybackBuffer
from duplex.core.types import (
    AudioWindow,
    Delta,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    Transcript,
    Trigger,
    Turn,
    TurnEnded,
)

WORDS = ("one ", "two ", "three ", "four ", "five ", "six ")
WORD_MS = 500


async def counted(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """Six words of half a second each."""
    for word in WORDS:
        yield tone(WORD_MS, turn.index, word)


async def until_sounding(client: Client, index: int) -> None:
    await client.create()
    await client.expect("audio", index)


def only_session(adapter: ScriptedAdapter) -> ScriptedSession:
    (session,) = adapter.open_sessions.values()
    return session


async def test_fault_01_nothing_stale_after_the_user_talks_over_an_answer(
    start_gateway: Any, dialect: Dialect
) -> None:
    adapter = ScriptedAdapter(respond=forever)
    client = await Client.connect(await start_gateway(adapter), dialect)
    session = only_session(adapter)
    spoken = [loud(number, 20) for number in range(1, 26)]
    for index in (1, 2, 3):
        await until_sounding(client, index)
        mark = len(client.heard)
        session.emit(SpeechStarted(at_ms=0))
        for pcm in spoken:  # the user's words go on while the answer is cut
            await client.append(pcm)
        assert await client.end_of(index) == "cancelled"
        order = [heard.kind for heard in client.heard[mark:] if heard.kind in ("speech", *ENDS)]
        assert order == ["speech", "cancelled"]
        session.emit(SpeechStopped(at_ms=500))
    await client.settled()
    assert client.stale() == []
    assert [h.index for h in client.all("cancelled")] == [1, 2, 3]
    assert [turn.trigger for turn in session.turns] == 3 * [Trigger.CREATE]
    await until(lambda: len(session.appended) == 3 * len(spoken))
    windows = [w.pcm for w in session.appended if isinstance(w, AudioWindow)]
    assert b"".join(windows) == 3 * b"".join(spoken)


async def test_fault_02_a_cancel_does_not_wait_for_a_client_that_does_not_read(
    start_gateway: Any, dialect: Dialect
) -> None:
    aborted = asyncio.Event()

    async def endless(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        try:
            while True:
                yield tone(200, turn.index)
                await asyncio.sleep(0)
        finally:
            aborted.set()

    gateway = await start_gateway(ScriptedAdapter(respond=endless))
    client = await Client.connect(gateway, dialect, receive_buffer=4096)
    (runner,) = gateway.runtime.runners
    await client.create()
    await client.expect("created")
    client.peer.ws.transport.pause_reading()
    await until(lambda: runner.connection is not None and runner.connection.queue.full)
    await client.cancel()
    await happens(aborted)
    assert runner.connection is not None
    assert runner.connection.queue.audio_s == 0
    client.peer.ws.transport.resume_reading()
    assert await client.end_of(1) == "cancelled"
    await client.settled()
    assert client.stale() == []


async def test_fault_03_audio_made_before_a_cut_does_not_lead_the_next_answer(
    start_gateway: Any, dialect: Dialect
) -> None:
    made, asked_again = asyncio.Event(), asyncio.Event()

    async def reluctant(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        """Of its first answer it gives what it has made, long after it was told to stop."""
        yield TextDelta(text=f"answer {turn.index}")
        if turn.index == 1:
            made.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asked_again.wait()
        yield tone(200, turn.index)

    client = await Client.connect(await start_gateway(ScriptedAdapter(respond=reluctant)), dialect)
    await client.create()
    await happens(made)
    await client.cancel()
    assert await client.end_of(1) == "cancelled"
    await client.create()
    await client.expect("created", 2)
    asked_again.set()
    assert await client.end_of(2) == "done"
    await client.settled()
    assert set(client.sound(2)) == {2}
    assert len(client.sound(1)) == 0


async def test_fault_04_thirty_seconds_of_audio_do_not_play_on(start_gateway: Any, dialect: Dialect) -> None:
    async def thirty_seconds(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield tone(30_000, turn.index)

    client = await Client.connect(await start_gateway(ScriptedAdapter(respond=thirty_seconds)), dialect)
    await until_sounding(client, 1)
    await client.settled()
    assert client.sound_ms(1) <= 4000 + 600  # the run-ahead, and what has been played meanwhile
    await client.cancel()
    cut = await client.expect("cut", 1)
    assert cut.data <= client.sound_ms(1)
    sent_ms = client.sound_ms(1)
    await client.settled()
    assert client.sound_ms(1) == sent_ms
    assert client.stale() == []


async def test_fault_04_an_answer_that_is_done_and_still_sounds_is_cleared(
    start_gateway: Any, dialect: Dialect
) -> None:
    adapter = ScriptedAdapter(respond=counted)
    client = await Client.connect(await start_gateway(adapter), dialect)
    await client.create()
    assert await client.end_of(1) == "done"
    only_session(adapter).emit(SpeechStarted(at_ms=0))
    cut = await client.expect("cut", 1)
    assert cut.data < client.sound_ms(1) == WORD_MS * len(WORDS)


async def test_fault_05_who_returns_hears_no_stale_tail_and_no_other_session(
    start_gateway: Any, dialect: Dialect
) -> None:
    numbers: dict[str, int] = {}

    async def own(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        number = numbers.setdefault(session.id, 100 * (len(numbers) + 1))
        while True:
            yield tone(20, number + turn.index)
            await asyncio.sleep(0)

    gateway = await start_gateway(ScriptedAdapter(respond=own))
    client, other = [await Client.connect(gateway, dialect) for _ in range(2)]
    await until_sounding(client, 1)
    await until_sounding(other, 1)
    client.peer.drop()
    await until(lambda: gateway.runtime.leases.detached == 1)
    back = await Client.connect(gateway, dialect, resume=client)
    await back.settled()
    assert back.all("audio") == []
    await until_sounding(back, 2)
    await back.cancel()
    await back.end_of(2)
    assert set(back.sound(2)) == {102}
    assert back.all("audio") == [heard for heard in back.heard if heard.kind == "audio" and heard.index == 2]
    await other.cancel()
    await other.end_of(1)
    assert set(other.sound(1)) == {201}


async def test_fault_06_truncate_at_0_ms_means_that_nothing_was_heard(
    start_gateway: Any, dialect: Dialect
) -> None:
    async def unended(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        async for delta in counted(session, turn):
            yield delta
        if turn.index == 1:
            await asyncio.Event().wait()

    adapter = ScriptedAdapter(respond=unended)
    client = await Client.connect(await start_gateway(adapter), dialect)
    await until_sounding(client, 1)
    await client.cancel()
    await client.end_of(1)
    await client.heard_only(1, 0)
    await client.create()
    assert await client.end_of(2) == "done"
    assert client.all("error") == []
    turn = only_session(adapter).turns[1]
    assert [item.text for item in turn.history if item.role == "assistant" and item.text] == []


async def test_fault_07_history_is_what_was_heard(start_gateway: Any, dialect: Dialect) -> None:
    adapter = ScriptedAdapter(respond=counted)
    client = await Client.connect(await start_gateway(adapter), dialect)
    await client.create()
    assert await client.end_of(1) == "done"
    only_session(adapter).emit(SpeechStarted(at_ms=0))
    await client.expect("cut", 1)
    await client.heard_only(1, 2.4 * WORD_MS)
    await client.create()
    await client.expect("created", 2)
    await until(lambda: len(only_session(adapter).turns) == 2)
    said = [item for item in only_session(adapter).turns[1].history if item.role == "assistant"]
    assert [(item.text.split(), item.interrupted) for item in said] == [(["one", "two"], True)]


async def test_fault_09_speech_while_idle_interrupts_nothing_and_its_words_are_kept(
    start_gateway: Any, dialect: Dialect
) -> None:
    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=40, paced=False))
    gateway = await start_gateway(adapter)
    client = await Client.connect(gateway, dialect, transcription="any")
    session = only_session(adapter)
    session.emit(SpeechStarted(at_ms=0))
    session.emit(SpeechStopped(at_ms=700))
    session.emit(Transcript(text="What time is it?", final=True))
    session.emit(TurnEnded())
    assert await client.end_of(1) == "done"
    assert [heard.data for heard in client.all("transcript")] == ["What time is it?"]
    assert client.all("cut") == client.all("cancelled") == []
    assert [item.text for item in session.turns[0].history] == ["What time is it?"]


async def test_fault_10_a_cut_fades_out_in_the_player(start_gateway: Any, dialect: Dialect) -> None:
    """What was sent may be anywhere on its way, so it is the player that fades."""
    level = 12_000

    async def steady(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        while True:
            yield tone(20, level)
            await asyncio.sleep(0)

    client = await Client.connect(await start_gateway(ScriptedAdapter(respond=steady)), dialect)
    player = PlaybackBuffer(RATE)
    await client.create()
    while client.sound_ms(1) < 400:
        heard = await client.expect("audio", 1)
        player.push(1, np.frombuffer(heard.data, np.int16))
    played = [player.pull(480) for _ in range(10)]
    await client.cancel()
    await client.expect("cut", 1)
    player.cancel(1)
    played += [player.pull(480) for _ in range(10)]
    sound = np.concatenate(played).astype(int)
    assert sound.max() == level
    assert sound[-1] == 0
    fade = np.flatnonzero(sound == level)[-1]
    silent = np.flatnonzero(sound[fade:] == 0)[0]
    assert 10 <= silent / RATE * 1000 <= 30
    assert np.abs(np.diff(sound)).max() < level / 100


async def test_fault_11_a_response_that_never_ends_is_ended(start_gateway: Any, dialect: Dialect) -> None:
    async def silent(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        if turn.index == 1:
            await asyncio.Event().wait()
        yield tone(20, turn.index)

    gateway = await start_gateway(ScriptedAdapter(respond=silent), response_stall_s=0.2)
    client = await Client.connect(gateway, dialect)
    await client.create()
    assert await client.end_of(1) == "failed"
    await client.create()
    assert await client.end_of(2) == "done"
    assert client.stale() == []


async def test_fault_12_a_cancel_stops_only_the_response_that_it_names(
    start_gateway: Any, dialect: Dialect
) -> None:
    async def first_for_ever(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        while turn.index == 1:
            yield tone(20, turn.index)
            await asyncio.sleep(0)
        yield tone(20, turn.index)

    adapter = ScriptedAdapter(respond=first_for_ever)
    client = await Client.connect(await start_gateway(adapter), dialect, transcription="any")
    session = only_session(adapter)
    await until_sounding(client, 1)
    session.emit(SpeechStarted(at_ms=0))
    await client.end_of(1)
    await client.create()
    await client.end_of(2)
    await client.cancel(2)  # it is over: nothing else is to be hit
    await client.say("and what is that?")
    await client.settled()
    session.emit(SpeechStopped(at_ms=700))
    session.emit(Transcript(text="Stop.", final=True))
    session.emit(TurnEnded())
    assert await client.end_of(3) == "done"
    assert [heard.data for heard in client.all("transcript")] == ["Stop."]
    asked = [item.text for item in session.turns[2].history if item.role == "user"]
    assert sorted(asked) == ["Stop.", "and what is that?"]
