"""Faults 30 to 40 that users of such systems reported: transport and resources. 30 at length is test_soak."""

from __future__ import annotations

import asyncio
import gc
import selectors
import signal
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

from faces import Client, Dialect, happens, line, loud
from gateway_peer import forever, tone, until
from gateway_process import serving

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.config import ServerConfig
from duplex.core.types import Delta, InputLag, OpenSession, TextDelta, Turn, WantsToSpeak, Window
from duplex.server.run import running_gateway

QUICK = ScriptedOptions(audio_ms=40, paced=False)


async def refused(gateway: Any, dialect: Dialect, **options: Any) -> tuple[str, int, str]:
    """Why a newcomer gets no session: the error's code, the close code and its reason."""
    client = await Client.connect(gateway, dialect, opened=False, **options)
    error = await client.expect("error")
    return (error.data["code"], *await client.until_closed())


async def test_fault_30_an_open_that_is_given_up_half_way_frees_its_slot(
    start_gateway: Any, dialect: Dialect
) -> None:
    entered = asyncio.Event()

    async def hangs(request: OpenSession) -> None:
        entered.set()
        await asyncio.Event().wait()

    adapter = ScriptedAdapter(on_open=hangs)
    gateway = await start_gateway(adapter, max_sessions=2)
    for _ in range(6):
        entered.clear()
        client = await Client.connect(gateway, dialect, opened=False)
        await happens(entered)
        client.peer.drop()
        await until(lambda: len(gateway.runtime.leases) == 0)
    adapter.hooks.clear()
    both = [await Client.connect(gateway, dialect) for _ in range(2)]
    assert [len(client.all("opened")) for client in both] == [1, 1]
    assert adapter.opened == 2


async def test_fault_31_the_slot_is_free_before_the_client_reads_of_the_end(
    start_gateway: Any, dialect: Dialect
) -> None:
    closing, gate = asyncio.Event(), asyncio.Event()

    async def takes_its_time(session: ScriptedSession) -> None:
        closing.set()
        await gate.wait()

    gateway = await start_gateway(ScriptedAdapter(on_close=takes_its_time), max_sessions=1, max_errors=3)
    client = await Client.connect(gateway, dialect)
    await client.create()
    await client.expect("audio", 1)
    for _ in range(3):
        await client.peer.ws.send(line("rubbish"))
    await happens(closing)
    ending = asyncio.create_task(client.until_closed())
    await asyncio.wait({ending}, timeout=0.1)
    assert not ending.done()
    assert client.all("cancelled") == []
    gate.set()
    assert await ending == (4400, "too_many_errors")
    assert len(client.all("cancelled")) == 1
    await Client.connect(gateway, dialect)


async def test_fault_32_one_session_s_bad_input_is_its_own_error(
    start_gateway: Any, dialect: Dialect
) -> None:
    async def chokes(session: ScriptedSession, window: Window) -> None:
        if getattr(window, "pcm", b"") == loud(13, 20):
            raise RuntimeError("cannot take it")

    gateway = await start_gateway(ScriptedAdapter(QUICK, on_append=chokes))
    bad, good = [await Client.connect(gateway, dialect) for _ in range(2)]
    await good.append(loud(1, 20))
    await bad.append(loud(13, 20), event_id="bad")
    error = await bad.expect("error")
    assert (error.data["code"], error.data["event_id"]) == ("adapter_failed", "bad")
    for client in (good, bad):
        await client.append(loud(2, 20))
        await client.create()
        assert await client.end_of(1) == "done"
    assert good.all("error") == []


async def test_fault_33_sigterm_gives_notice_lets_the_answer_end_and_exits_with_0(dialect: Dialect) -> None:
    async with serving(audio_ms=400, grace_s=10) as server:
        speaking = await Client.connect(server.gateway, dialect)
        idle = await Client.connect(server.gateway, dialect)
        await speaking.create()
        await speaking.expect("audio", 1)
        server.send(signal.SIGTERM)
        assert (await speaking.expect("notice")).data == 10_000
        assert await idle.until_closed() == (1012, "server draining")
        assert await speaking.end_of(1) == "done"
        assert await speaking.until_closed() == (1012, "server draining")
        assert speaking.sound_ms(1) == 400
        assert await server.exit_code() == 0


async def test_fault_34_what_was_said_before_the_line_broke_is_answered_on_return(
    start_gateway: Any, dialect: Dialect
) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def ponders(session: ScriptedSession) -> bool:
        asked.set()
        await gate.wait()
        return True

    adapter = ScriptedAdapter(QUICK, on_commit=ponders)
    gateway = await start_gateway(adapter)
    client = await Client.connect(gateway, dialect)
    await client.append(loud(5, 200))
    await client.commit()
    await happens(asked)
    client.peer.drop()
    await until(lambda: gateway.runtime.leases.detached == 1)
    gate.set()
    back = await Client.connect(gateway, dialect, resume=client)
    assert await back.end_of(1) == "done"
    (session,) = adapter.open_sessions.values()
    assert [window.pcm for window in session.appended] == [loud(5, 200)]  # type: ignore[union-attr]


async def test_fault_34_input_that_was_refused_meanwhile_is_named_on_return(
    start_gateway: Any, dialect: Dialect
) -> None:
    asked, gate, refusing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refuses(session: ScriptedSession, window: Window) -> None:
        asked.set()
        await gate.wait()
        refusing.set()
        raise RuntimeError

    gateway = await start_gateway(ScriptedAdapter(on_append=refuses))
    client = await Client.connect(gateway, dialect)
    await client.append(loud(5, 200), event_id="mine")
    await happens(asked)
    client.peer.drop()
    await until(lambda: gateway.runtime.leases.detached == 1)
    gate.set()
    await happens(refusing)
    back = await Client.connect(gateway, dialect, resume=client)
    error = await back.expect("error")
    assert error.data["code"] == "adapter_failed"
    if dialect == "native":
        assert error.data["event_id"] == "mine"


async def test_fault_35_a_half_open_socket_is_taken_over(start_gateway: Any, dialect: Dialect) -> None:
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(adapter, max_sessions=1)
    client = await Client.connect(gateway, dialect)
    await client.create()
    await client.expect("audio", 1)
    back = await Client.connect(gateway, dialect, resume=client)
    assert await client.until_closed() == (4409, "taken_over")
    await back.create()
    await back.expect("audio", 2)
    assert {heard.index for heard in back.all("audio")} == {2}
    assert (len(gateway.runtime.leases), adapter.opened) == (1, 1)


async def test_fault_36_messages_that_queue_up_are_drained_in_few_turns_of_the_loop(
    start_gateway: Any, dialect: Dialect
) -> None:
    first, gate, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    count = 800
    taken = 0

    async def counts(session: ScriptedSession, window: Window) -> None:
        nonlocal taken
        taken += 1
        if taken == 1:
            first.set()
            await gate.wait()
        if taken == count:
            last.set()

    client = await Client.connect(await start_gateway(ScriptedAdapter(on_append=counts)), dialect)
    for _ in range(count):
        await client.append(loud(1, 1))
    await happens(first)
    await client.settled()  # all have come in
    turns = 0
    gate.set()
    while not last.is_set():
        turns += 1
        await asyncio.sleep(0)
    assert turns < count / 20


class Counting(selectors.DefaultSelector):
    """Counts how often the loop looks for something to do."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


def test_fault_36_idle_sessions_do_not_poll(dialect: Dialect) -> None:
    selector = Counting()

    async def idle() -> int:
        config = ServerConfig(port=0, drain_grace_s=0.0)
        async with running_gateway(config, [ScriptedAdapter()]) as gateway:
            clients = [await Client.connect(gateway, dialect) for _ in range(8)]
            for client in clients:
                await client.settled()
            before = selector.turns
            await asyncio.sleep(1.0)
            return selector.turns - before

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        # the loop's lag is measured ten times a second, by a timer of the whole gateway
        assert runner.run(idle()) < 40


async def test_fault_37_hours_of_talk_leave_memory_flat(start_gateway: Any, dialect: Dialect) -> None:
    async def words(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text=f"Comment {turn.index}: " + "the ball rolls. " * 20)

    gateway = await start_gateway(ScriptedAdapter(respond=words))
    client = await Client.connect(gateway, dialect, output_modalities="text")

    async def talk(first: int, last: int) -> None:
        for index in range(first, last):
            await client.say(f"question {index} " + "and so on. " * 10)
            await client.create()
            await client.end_of(index)
            client.heard.clear()
            client.peer.log.clear()

    ours = [tracemalloc.Filter(True, "*/duplex/core/*"), tracemalloc.Filter(True, "*/duplex/dialects/*")]
    ours.append(tracemalloc.Filter(True, "*/duplex/runtime/*"))
    await talk(1, 300)  # past every bound
    tracemalloc.start()
    try:
        await talk(300, 800)  # and once more, so that what is kept is counted
        gc.collect()
        before = tracemalloc.take_snapshot().filter_traces(ours)
        await talk(800, 1100)
        gc.collect()
        after = tracemalloc.take_snapshot().filter_traces(ours)
    finally:
        tracemalloc.stop()
    kept = [sum(trace.size for trace in snapshot.traces) for snapshot in (before, after)]
    assert kept[1] - kept[0] < 16 * 1024  # one turn in ten that stayed would be more


async def test_fault_38_of_wishes_that_pile_up_the_newest_wins_and_the_lag_is_told(
    start_gateway: Any, dialect: Dialect
) -> None:
    gate = asyncio.Event()

    async def waits(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text="well")
        if turn.index == 1:
            await gate.wait()
        yield tone(20)

    adapter = ScriptedAdapter(ScriptedOptions(proactive=True), respond=waits)
    client = await Client.connect(await start_gateway(adapter), dialect)
    await client.create()
    await client.expect("created", 1)
    (session,) = adapter.open_sessions.values()
    for number in range(100):
        session.emit(WantsToSpeak(event_id=f"event {number}"))
    session.emit(InputLag(lag_ms=840.0, coalesced=99))
    lag = await client.expect("lag")
    assert (lag.data["lag_ms"], lag.data["coalesced"]) == (840.0, 99)
    gate.set()
    assert await client.end_of(2) == "done"
    await client.settled()
    assert [turn.event_id for turn in session.turns] == [None, "event 99"]


async def test_fault_39_all_options_can_be_in_the_address(start_gateway: Any, dialect: Dialect) -> None:
    options = {"voice": "anna", "instructions": "Be brief.", "output_modalities": "text"}
    if dialect == "native":
        options |= {"codec": "pcm_s16le", "sample_rate": "16000"}
    else:
        options |= {"output_format": "audio/pcm", "output_rate": "16000", "transcription": "any"}
    adapter = ScriptedAdapter(QUICK)
    gateway = await start_gateway(adapter, auth_token="sesame")
    client = await Client.connect(
        gateway, dialect, token="sesame", session_id="mine", turn_detection="none", **options
    )
    (session,) = adapter.open_sessions.values()
    settings = session.settings
    assert session.id == "mine"
    assert (settings.voice, settings.instructions, settings.turn_detection) == ("anna", "Be brief.", None)
    assert settings.output_format.sample_rate == 16000
    await client.create()
    assert await client.end_of(1) == "done"
    assert client.all("text")
    assert client.all("audio") == []


async def test_fault_40_each_reason_to_refuse_has_a_code_of_its_own(
    start_gateway: Any, dialect: Dialect
) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter, max_sessions=1, auth_token="sesame")
    key = {"token": "sesame"}
    assert await refused(gateway, dialect) == ("unauthorized", 4401, "unauthorized")
    assert (await refused(gateway, dialect, model="nobody", **key))[:2] == ("model_not_found", 4404)
    assert (await refused(gateway, dialect, turn_detection="loud", **key))[:2] == ("bad_config", 4400)
    await Client.connect(gateway, dialect, **key)
    assert (await refused(gateway, dialect, **key))[:2] == ("server_full", 4429)
    other = await start_gateway(adapter)
    adapter.healthy = False
    assert (await refused(other, dialect))[:2] == ("engine_down", 1013)
    adapter.healthy = True
    await other.runtime.drain()
    assert (await refused(other, dialect))[:2] == ("draining", 1012)
