"""The stepper in virtual time: whatever comes, every frame arrives once, in order, and in time where it
can."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from fake_frames import FakeJob, FakeOptions, expected, finish_of
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_worker import Costs, VirtualWorker

from duplex.adapters.engine.settings import Policy

SIZES = st.sampled_from([(1,), (1, 2, 4), (1, 2, 4, 8, 16), (1, 3, 7), (1, 4, 25)])


@st.composite
def options(draw: st.DrawFn) -> FakeOptions:
    slots = draw(st.integers(1, 5))
    sizes = draw(SIZES)
    return FakeOptions(
        slots=slots,
        max_batch=draw(st.integers(1, slots)),
        prefill_rows=draw(st.integers(1, 20)),
        decode_frames=sizes,
        frames_kept=draw(st.integers(1, sizes[-1] + 8)),
        first_audible=draw(st.booleans()),
    )


COSTS = st.builds(
    Costs,
    frame=st.floats(0, 40),
    frame_slot=st.floats(0, 5),
    prefill=st.floats(0, 20),
    prefill_row=st.floats(0, 1),
    decode=st.floats(0, 40),
    decode_frame=st.floats(0, 1),
    launch=st.sampled_from([0, 0, 3]),
)
JOBS = st.builds(
    FakeJob,
    tone=st.just(0),
    text=st.text("abc", max_size=4),
    ended=st.booleans(),
    tail=st.integers(0, 20),
    rows=st.integers(2, 30),
    late_rows=st.integers(0, 1),
    most=st.none() | st.integers(1, 12),
)
POLICIES = st.builds(
    Policy,
    frame_depth=st.integers(1, 2),
    decode_depth=st.integers(1, 3),
    decode_work=st.integers(1, 40),
    comfort_ms=st.floats(0, 500),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), options=options(), costs=COSTS, policy=POLICIES)
def test_every_frame_arrives_once_and_in_order_whatever_happens(
    data: st.DataObject, options: FakeOptions, costs: Costs, policy: Policy
) -> None:
    """No slot leaks or is used twice, no frame is lost, doubled or foreign, one finish, nothing after an
    abort. The fake model checks every launch against the contract."""
    world = VirtualWorker(options, costs=costs, policy=policy)
    times = st.floats(0, 500)
    aborted = []
    for tone in range(data.draw(st.integers(1, 8), label="requests")):
        job = data.draw(JOBS.map(lambda job, tone=tone: _with_tone(job, tone)), label="job")
        if options.first_audible and not job.tail:
            job = msgspec.structs.replace(job, tail=1)
        begin = data.draw(times, label="at")
        window = data.draw(st.none() | st.integers(1, 10), label="window")
        client = world.ask(
            *(begin, job),
            window=window,
            first_frames=data.draw(st.integers(1, 4)),
            goes_on=data.draw(st.booleans(), label="goes on"),
        )
        if not job.ended:
            last = begin
            for piece in data.draw(st.lists(st.text("xyz", max_size=4), max_size=3), label="text"):
                last += data.draw(times)
                world.write(last, client, piece)
            world.write(last + data.draw(times), client, "", ended=True)
        if data.draw(st.sampled_from([False, False, True]), label="abort"):
            world.abort(begin + data.draw(times, label="abort after"), client)
            aborted.append(client)
    world.run()
    assert not world.model.slots
    assert world.stepper.scheduler.active == world.stepper.scheduler.waiting == 0
    for client in world.clients.values():
        whole = expected(client.job, client.text)
        assert client.failed is None
        if client.ended is not None:
            assert client in aborted
            np.testing.assert_array_equal(client.audio, whole[: len(client.audio)])
        else:
            assert client.finish == finish_of(client.job, client.text)
            np.testing.assert_array_equal(client.audio, whole)
            assert sum(client.chunk_frames) * options.frame_samples == len(whole)
            assert set(client.chunk_frames) <= set(options.decode_frames)
    assert world.model.worst_prefills <= 1, "running streams waited for two prefills"


def _with_tone(job: FakeJob, tone: int) -> FakeJob:
    return msgspec.structs.replace(job, tone=tone)


def _speech(tone: int, frames: int, rows: int = 2) -> FakeJob:
    return FakeJob(tone=tone, tail=frames, rows=rows)


@pytest.mark.parametrize(("depth", "load"), [(1, 0.95), (2, 0.85)])
@pytest.mark.parametrize(("streams", "batch"), [(6, 1), (8, 2), (12, 4), (15, 15)])
def test_no_client_runs_dry_as_long_as_the_device_can_keep_up(
    streams: int, batch: int, depth: int, load: float
) -> None:
    """Frames cost so much that `load` of the device is needed for all to play in real time, while the streams
    still come one after the other. Who makes a frame is settled a frame ahead with a depth of 2."""
    frame_ms = load * 80 * batch / streams
    world = VirtualWorker(
        FakeOptions(slots=streams, max_batch=batch, prefill_rows=8),
        costs=Costs(frame=frame_ms, frame_slot=0, prefill=0.1, prefill_row=0, decode=0.5, decode_frame=0),
        policy=Policy(frame_depth=depth),
    )
    clients = [world.ask(7.0 * tone, _speech(tone, 60)) for tone in range(streams)]
    world.run()
    assert [client.underruns for client in clients] == [0] * streams
    assert all(client.finish == "stop" for client in clients)


@settings(max_examples=100, deadline=None)
@given(
    starts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=4),
    cost=st.floats(15, 60),
)
def test_whoever_can_be_kept_from_running_dry_is(starts: list[tuple[int, int]], cost: float) -> None:
    """Some clients have played a part of what they have when the device comes back to them, one frame at a
    time. If any order of frames lets none of them run dry, the scheduler's does."""
    world = VirtualWorker(
        FakeOptions(slots=4, max_batch=1, decode_frames=(1,)),
        costs=Costs(frame=cost, frame_slot=0, prefill=0, prefill_row=0, decode=0, decode_frame=0),
        policy=Policy(frame_depth=1, comfort_ms=1e9),
    )
    clients = [
        world.ask(0, FakeJob(tone=tone, tail=99, most=has + needs, rows=2), credit=has)
        for tone, (has, needs) in enumerate(starts)
    ]
    world.run()
    back = min(client.play_end for client in clients) - 0.5 * cost
    begin = max(world.now, back)
    dry = [client.play_end for client in clients]
    if any(client.underruns for client in clients) or min(dry) < begin:
        return  # they ran dry before
    for client in clients:
        world.grant(begin, client, 99)
    world.run()
    assert all(client.finish == "length" for client in clients)
    if _some_order_does(dry, [needs for _, needs in starts], begin, cost):
        assert [client.underruns for client in clients] == [0] * len(clients)


def _some_order_does(dry: list[float], needs: list[int], begin: float, cost: float) -> bool:
    """All orders: the frame that ends at `begin + n * cost` has to be there before its client runs dry."""
    reached = {tuple(0 for _ in needs)}
    for made in range(1, sum(needs) + 1):
        ends = begin + made * cost
        reached = {
            (*state[:i], state[i] + 1, *state[i + 1 :])
            for state in reached
            for i in range(len(needs))
            if state[i] < needs[i] and ends <= dry[i] + state[i] * 80 - 1e-6
        }
    return bool(reached)


def test_later_requests_do_not_make_running_streams_run_dry() -> None:
    """A burst of long prompts while others play."""
    world = VirtualWorker(
        FakeOptions(slots=16, max_batch=16, prefill_rows=16),
        costs=Costs(frame=6, frame_slot=0.2, prefill=8, prefill_row=0.1, decode=3, decode_frame=0.1),
    )
    playing = [world.ask(0, _speech(tone, 100)) for tone in range(6)]
    burst = [world.ask(150, _speech(6 + tone, 40, rows=60)) for tone in range(9)]
    world.run()
    assert [client.underruns for client in playing + burst] == [0] * 15


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_streams_whose_clients_run_dry_first_make_the_frame(data: st.DataObject) -> None:
    """Seen from the clients: nobody who could have made the frame would run dry sooner than one who makes
    it."""
    streams = data.draw(st.integers(2, 10))
    batch = data.draw(st.integers(1, streams - 1))
    policy = Policy(comfort_ms=1e9)
    world = VirtualWorker(
        FakeOptions(slots=streams, max_batch=batch, frames_kept=1000),
        costs=Costs(frame=data.draw(st.floats(1, 30)), decode=data.draw(st.floats(0, 10))),
        policy=policy,
    )

    def dry(slot: int) -> float:
        client, state = world.client_of(slot), world.model.slots[slot]
        return client.play_end + (state.launched - client.frames) * world.frame_ms

    def plays(slot: int) -> bool:
        return world.client_of(slot).first_audio is not None

    def check(slots: Sequence[int]) -> None:
        others = [slot for slot in world.model.slots if slot not in slots and world.can_step(slot)]
        if others:
            assert len(slots) == batch
            chosen = [dry(slot) for slot in slots if plays(slot)]
            left = [dry(slot) for slot in others if plays(slot)]
            assert max(chosen, default=0) <= min(left, default=1e9) + 1e-6
            if len(chosen) < len(slots):
                assert min(left, default=1e9) >= world.now + policy.reserve_ms, "dry for a first audio"

    world.on_frame = check
    for tone in range(streams):
        world.ask(data.draw(st.floats(0, 300)), _speech(tone, data.draw(st.integers(5, 30))))
    world.run()
    assert all(client.finish == "stop" for client in world.clients.values())


def test_first_audio_comes_alone_then_chunks_grow_with_the_buffer() -> None:
    world = VirtualWorker(
        FakeOptions(decode_frames=(1, 2, 4, 8, 16)), costs=Costs(frame=2, decode=1, decode_frame=0.05)
    )
    client = world.ask(0, _speech(0, 64))
    world.run()
    assert client.chunk_frames[0] == 1
    assert client.chunk_frames[:7] == sorted(client.chunk_frames[:7])
    assert max(client.chunk_frames) == 16
    assert len(client.chunk_frames) < 16
    assert client.underruns == 0


def test_slow_frames_stay_in_small_chunks() -> None:
    """The model is hardly faster than speech: a large chunk would let the client run dry."""
    world = VirtualWorker(costs=Costs(frame=70, frame_slot=0, decode=1))
    client = world.ask(0, _speech(0, 40))
    world.run()
    assert client.underruns == 0
    assert max(client.chunk_frames[:10]) == 1


def test_what_is_there_goes_out_before_the_client_runs_dry() -> None:
    """One frame takes a second: the frames that were being gathered do not wait for it."""
    world = VirtualWorker(
        FakeOptions(decode_frames=(1, 16)), costs=Costs(frame=15, frame_slot=0), policy=Policy(frame_depth=1)
    )
    client = world.ask(0, _speech(0, 60))
    launched: list[int] = []

    def stall(slots: Sequence[int]) -> None:
        launched.append(client.frames)
        world.model.costs.frame = 2000 if len(launched) == 28 else 15

    world.on_frame = stall
    world.run(until=28 * 15 + 1500)
    assert launched[-1] < 27, "some were being gathered"
    assert client.frames == 27
    assert client.underruns == 0


def test_first_chunk_can_be_asked_to_be_larger() -> None:
    world = VirtualWorker()
    client = world.ask(0, _speech(0, 20), first_frames=4)
    world.run()
    assert client.chunk_frames[0] == 4


def test_what_is_left_at_the_end_is_flushed_and_the_last_chunk_carries_the_finish() -> None:
    world = VirtualWorker(
        FakeOptions(decode_frames=(1, 4, 16), frames_kept=64), costs=Costs(frame=0.5, decode=30)
    )
    client = world.ask(0, FakeJob(tone=0, tail=100, most=24, rows=2))
    world.run()
    assert sum(client.chunk_frames) == 24
    assert client.finish == "length"
    assert not world.model.slots


def test_stream_that_waits_for_text_is_played_out() -> None:
    """What it has is decoded at once: the client hears all there is, and the rest when its text has come."""
    world = VirtualWorker()
    client = world.ask(0, FakeJob(tone=0, text="abcdef", ended=False, rows=2))
    world.run(until=400)
    assert client.frames == 6
    world.write(1000, client, "gh", ended=True)
    world.run()
    np.testing.assert_array_equal(client.audio, expected(client.job, "abcdefgh"))


def test_prompt_that_waits_for_text_leaves_the_others_alone() -> None:
    world = VirtualWorker()
    waiting = world.ask(0, FakeJob(tone=0, ended=False, rows=10, late_rows=3))
    other = world.ask(1, _speech(1, 10))
    world.run()
    assert waiting.first_audio is None
    assert other.finish == "stop"
    world.write(2000, waiting, "a", ended=True)
    world.run()
    assert waiting.finish == "stop"


def test_stream_without_credit_skips_frames() -> None:
    world = VirtualWorker()
    client = world.ask(0, _speech(0, 40), window=5)
    frames: list[int] = []
    world.on_frame = lambda slots: frames.append(world.model.slots[slots[0]].launched - client.frames)
    world.run()
    assert max(frames) < 5
    assert client.finish == "stop"
    assert client.frames == 40


def test_streams_with_plenty_sit_out_while_another_has_no_audio() -> None:
    """The newcomer's frames are short: they have its row alone."""
    world = VirtualWorker(
        FakeOptions(slots=8, max_batch=8), costs=Costs(frame=1, frame_slot=2), policy=Policy(comfort_ms=500)
    )
    for tone in range(7):
        world.ask(0, _speech(tone, 300))
    first: list[int] = []

    def watch(slots: Sequence[int]) -> None:
        tones = [world.client_of(slot).job.tone for slot in slots]
        if 7 in tones and len(first) < 2:
            first.append(len(tones))

    world.on_frame = watch
    world.ask(1200, _speech(7, 30))
    world.run()
    assert first == [1, 1]
    assert all(client.underruns == 0 for client in world.clients.values())


def test_codec_is_kept_free_for_a_first_chunk() -> None:
    """Chunks of clients with plenty wait for the codec all the time; none is launched while the newcomer is
    on its way to its first one."""
    world = VirtualWorker(
        FakeOptions(slots=8, max_batch=8),
        costs=Costs(frame=5, decode=30),
        policy=Policy(comfort_ms=500, decode_work=8),
    )
    for tone in range(7):
        world.ask(0, _speech(tone, 300))
    decodes: list[tuple[float, int]] = []
    world.on_decode = lambda slots: decodes.append((world.now, world.client_of(slots[0]).job.tone))
    for begin in range(2000, 3000, 130):
        newcomer = world.ask(begin, FakeJob(tone=7 + (begin - 2000) // 130, tail=9, most=1, rows=60))
        world.run(until=begin + 129)
        assert newcomer.finish == "length"
        assert newcomer.first_audio is not None
        meanwhile = [tone for time, tone in decodes if begin < time < newcomer.first_audio]
        assert meanwhile == [newcomer.job.tone]


def test_finished_stream_gives_its_slot_to_who_waits_though_its_client_has_plenty() -> None:
    """A long prompt is on its way to its first audio meanwhile, for which chunks like these are put off."""
    world = VirtualWorker(
        FakeOptions(slots=2, max_batch=2, prefill_rows=10, frames_kept=64),
        costs=Costs(frame=1, prefill=20, decode=30),
        policy=Policy(comfort_ms=50),
    )
    world.ask(0, FakeJob(tone=0, tail=99, most=60, rows=2))
    world.ask(100, _speech(1, 5, rows=3000))
    world.ask(101, _speech(2, 5))
    world.run(until=1000)
    assert {state.job.tone for state in world.model.slots.values()} == {1, 2}
    world.run()
    assert {client.finish for client in world.clients.values()} == {"length", "stop"}


def test_next_frame_is_queued_just_before_the_last_one_ends() -> None:
    """So a request that comes meanwhile waits for one frame and not for two."""
    world = VirtualWorker(costs=Costs(frame=20, frame_slot=0, decode=0.1, prefill=1, prefill_row=0))
    world.ask(0, _speech(0, 60))
    gaps: list[float] = []
    world.on_frame = lambda slots: gaps.append(world.model.main_free - world.now)
    newcomer = world.ask(405, _speech(1, 5))
    world.run()
    early = [gap for gap in gaps if gap > 5]
    assert len(early) <= 8, "only before it is known how long a frame takes, and behind a prefill"
    assert sum(0 < gap <= 5 for gap in gaps) >= 50
    assert newcomer.first_audio is not None
    assert newcomer.first_audio - 405 < 20 + 1 + 20 + 2
    assert world.model.main_free < 70 * 21  # no gaps to speak of


def test_abort_frees_the_slot_for_the_next_at_once() -> None:
    world = VirtualWorker(FakeOptions(slots=1, max_batch=1), costs=Costs(frame=20))
    first = world.ask(0, _speech(0, 1000))
    second = world.ask(10, _speech(1, 5))
    world.abort(500, first)
    world.run()
    assert first.ended == 500
    assert second.first_audio is not None
    assert second.first_audio < 500 + 3 * 25
    np.testing.assert_array_equal(second.audio, expected(second.job))


@pytest.mark.parametrize("first_audible", [False, True])
def test_abort_frees_the_slot_within_one_frame(first_audible: bool) -> None:
    """Whatever the step thread is at: 64 streams, arrivals in crowds, and launches that cost it so much that
    a step of several is longer than a frame."""
    world = VirtualWorker(
        FakeOptions(slots=64, max_batch=64, prefill_rows=256, first_audible=first_audible),
        costs=Costs(frame=4.0, frame_slot=0.0125, launch=1.5),
    )
    frame_ms = 4.0 + 64 * 0.0125
    clients = [world.ask(200.0 * (index // 16), _speech(index, 400, rows=20)) for index in range(96)]
    for index, client in enumerate(clients):
        world.abort(301.7 + 17.3 * index + index * index % 7, client)
    world.run()
    assert world.stepper.scheduler.active == 0
    ended = [client for client in clients if client.ended is not None]
    assert len(ended) >= 60
    assert max(client.ended - client.aborted for client in ended if client.ended is not None) <= frame_ms


def test_first_frame_goes_to_the_codec_on_the_device_and_has_it_to_itself() -> None:
    """No result is waited for in between, and no second frame is launched before the audio is out."""
    launches: list[tuple[str, float]] = []
    world = VirtualWorker(
        FakeOptions(first_audible=True),
        costs=Costs(frame=3, frame_slot=0, prefill=1, prefill_row=0, decode=1),
    )
    world.on_frame = lambda slots: launches.append(("frame", world.now))
    world.on_decode = lambda slots: launches.append(("decode", world.now))
    client = world.ask(10, _speech(0, 20))
    world.run()
    assert client.finish == "stop"
    assert client.first_audio == pytest.approx(10 + 1 + 3 + 1.02)
    assert launches[:2] == [("frame", 10), ("decode", 10)]
    assert launches[2] == ("frame", client.first_audio)


def test_streams_that_play_are_not_held_for_a_first_chunk() -> None:
    """A codec that takes long for a newcomer's first frame makes nobody run dry."""
    world = VirtualWorker(
        FakeOptions(slots=4, first_audible=True),
        costs=Costs(frame=30, frame_slot=0, prefill=1, prefill_row=0, decode=30),
    )
    clients = [world.ask(400 * tone, _speech(tone, 30)) for tone in range(4)]
    world.run()
    assert [client.underruns for client in clients] == [0] * 4
    assert [client.frames for client in clients] == [30] * 4


def test_abort_of_a_request_that_waits_for_a_slot() -> None:
    world = VirtualWorker(FakeOptions(slots=1, max_batch=1))
    first = world.ask(0, _speech(0, 20))
    second = world.ask(1, _speech(1, 20))
    third = world.ask(2, _speech(2, 20))
    world.abort(3, second)
    world.run()
    assert second.ended == 3
    assert first.finish == third.finish == "stop"


def test_request_that_waits_long_for_a_slot_fails_by_name() -> None:
    """It failed as a broken model, with 500, when the gateway had waited for a minute."""
    world = VirtualWorker(
        FakeOptions(slots=1, max_batch=1), costs=Costs(frame=20), policy=Policy(wait_ms=400)
    )
    first = world.ask(0, _speech(0, 50))
    begins, goes_on = world.ask(100, _speech(1, 5)), world.ask(200, _speech(2, 5), goes_on=True)
    soon = world.ask(700, _speech(3, 5))
    world.run(until=499)
    assert begins.failed is None
    world.run(until=500)
    assert begins.failed is not None
    assert begins.failed.code == "server_full"
    assert "1 slots" in begins.failed.message
    world.run()
    assert goes_on.failed is not None
    assert goes_on.failed.code == "server_full"
    assert first.finish == soon.finish == "stop"
    assert world.stepper.scheduler.waiting == 0


def test_speech_that_goes_on_has_a_slot_before_speech_that_begins() -> None:
    world = VirtualWorker(FakeOptions(slots=1, max_batch=1))
    running = world.ask(0, _speech(0, 20))
    begins = [world.ask(1, _speech(1, 20)), world.ask(2, _speech(2, 20))]
    gone = world.ask(3, _speech(3, 20), goes_on=True)
    goes_on = [world.ask(4, _speech(4, 20), goes_on=True), world.ask(5, _speech(5, 20), goes_on=True)]
    world.abort(6, gone)
    world.run(until=7)
    assert world.stepper.scheduler.waiting == 4
    world.run()
    order = sorted([running, *begins, *goes_on], key=lambda client: client.first_audio or 0)
    assert order == [running, *goes_on, *begins]
    assert gone.ended == 6


def test_refused_jobs_and_bad_text_fail_alone() -> None:
    world = VirtualWorker(FakeOptions(slots=1, max_batch=1))
    refused = world.ask(0, FakeJob(tone=0, fault="refused"))
    bad = world.ask(1, FakeJob(tone=1, ended=False))
    world.write(5, bad, "\0")
    early = world.ask(2, FakeJob(tone=2, ended=False))
    world.write(3, early, "\0")  # it has no slot yet
    good = world.ask(6, _speech(3, 5))
    world.run()
    assert refused.failed is not None
    assert (refused.failed.code, refused.failed.param) == ("voice_not_found", "tone")
    assert bad.failed is not None
    assert bad.failed.code == "invalid_value"
    assert early.failed is not None
    assert good.finish == "stop"
    assert not world.model.slots


def test_request_behind_a_refused_one_has_its_slot_at_once() -> None:
    """Nothing else happens that could bring another step."""
    world = VirtualWorker(FakeOptions(slots=1, max_batch=1))
    refused = [world.ask(0, FakeJob(tone=tone, fault="refused")) for tone in range(3)]
    good = world.ask(0, _speech(3, 5))
    world.run()
    assert all(client.failed is not None for client in refused)
    assert good.finish == "stop"


def test_reader_that_stalls_holds_the_streams_as_if_without_credit() -> None:
    """The output thread waits from 200 ms to 5 s: at most `frames_kept` frames a stream are made meanwhile,
    and all of them arrive."""
    world = VirtualWorker(
        FakeOptions(frames_kept=20), reader=lambda time: time if not 200 <= time < 5000 else 5000.0
    )
    client = world.ask(0, _speech(0, 400))
    ahead: list[int] = []
    world.on_frame = lambda slots: ahead.append(world.model.slots[slots[0]].launched - client.frames)
    world.run()
    assert max(ahead) < 20
    np.testing.assert_array_equal(client.audio, expected(client.job))


def test_nothing_to_do_means_no_wake() -> None:
    world = VirtualWorker()
    world.ask(0, _speech(0, 10))
    world.ask(0, FakeJob(tone=1, ended=False))  # its text never comes
    world.run()
    assert world.stepper.wake is None


def test_shorter_prompts_overtake_long_ones_but_not_for_ever() -> None:
    world = VirtualWorker(
        FakeOptions(slots=30, max_batch=30, prefill_rows=10), costs=Costs(prefill=5, prefill_row=0)
    )
    long = world.ask(0, _speech(0, 5, rows=100))
    short = world.ask(0, _speech(1, 5, rows=10))
    crowd = [world.ask(20 + 5 * n, _speech(2 + n % 14, 5, rows=10)) for n in range(14)]
    world.run()
    assert short.first_audio is not None
    assert long.first_audio is not None
    assert short.first_audio < long.first_audio
    assert any(c.first_audio is not None and c.first_audio > long.first_audio for c in crowd)
