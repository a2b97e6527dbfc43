"""What the scheduler reckons with: buffers, deadlines, chunk sizes, times of launches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.engine.chunks import Chunks
from duplex.adapters.engine.model import ModelInfo
from duplex.adapters.engine.scheduler import Scheduler
from duplex.adapters.engine.streams import State, Stream
from duplex.adapters.engine.timing import LaunchTimes


def stream(**fields: float | int | None) -> Stream:
    return Stream(id=1, arrived=0.0, frame_ms=80.0, **fields)  # type: ignore[arg-type]


def test_buffer_is_what_was_sent_less_the_time_since_and_what_is_being_decoded() -> None:
    one = stream(decoding=3)
    assert one.buffer_ms(1000) == 240
    assert not one.deliver(2, 1000)
    assert one.play_end == 1160
    assert one.buffer_ms(1100) == 60 + 80
    assert one.buffer_ms(2000) == 80, "it has run dry, and not into debt"


def test_client_that_ran_dry_plays_on_from_when_more_comes() -> None:
    one = stream(decoding=4)
    assert not one.deliver(1, 1000)
    assert not one.deliver(1, 1080)
    assert one.deliver(1, 1300), "late"
    assert one.play_end == 1380
    assert not one.deliver(1, 1380)
    assert one.play_end == 1460


def test_deadline_counts_all_that_was_made() -> None:
    one = stream(flying=2, ready=1, decoding=1)
    assert one.deadline(500) == 500 + 4 * 80
    one.deliver(1, 100)
    assert one.deadline(500) == 180 + 3 * 80


@given(
    sizes=st.sets(st.integers(2, 30), max_size=5).map(lambda more: (1, *sorted(more))),
    frames=st.integers(1, 200),
)
def test_largest_decode_that_frames_fill(sizes: tuple[int, ...], frames: int) -> None:
    chunks = Chunks(sizes, 80)
    largest = chunks.largest(frames)
    assert largest in sizes
    assert largest <= frames
    assert all(size <= largest or size > frames for size in sizes)
    assert chunks.wanted(frames * 80 + 79.9) == largest
    assert chunks.wanted(79.9) == 1


def test_times_are_learnt_by_batch_and_what_waited_for_a_prefill_is_only_counted() -> None:
    times = LaunchTimes()
    assert times.expect(1) is None
    assert times.longest() == 0
    times.add(1, 10)
    times.add(1, 20)
    times.add(1, 500, learn=False)
    assert times.expect(1) == 12
    assert times.expect(2) is None
    times.add(33, 30)
    assert times.expect(64) == times.longest() == 30
    assert times.take() == (4, 140)
    assert times.take() == (0, 0)
    assert times.expect(1) == 12


def test_slots_go_to_requests_in_the_order_in_which_they_came() -> None:
    info = ModelInfo(
        name="m",
        sample_rate=100,
        frame_samples=8,
        slots=2,
        max_batch=2,
        prefill_rows=1,
        decode_frames=(1,),
    )
    scheduler = Scheduler(info)
    for id in range(1, 6):
        scheduler.start(id, b"", now=0.0)
    with pytest.raises(ValueError, match="there already"):
        scheduler.start(3, b"", now=0.0)
    first = _admitted(scheduler)
    assert [s.id for s in first] == [1, 2]
    assert [s.state for s in first] == [State.PREFILLING] * 2
    assert (scheduler.active, scheduler.waiting) == (2, 3)
    scheduler.refused(first[0])
    assert first[0].state is State.OVER
    assert scheduler.abort(3)
    assert [s.id for s in _admitted(scheduler)] == [4]
    assert not scheduler.abort(3)
    assert not scheduler.abort(99)
    scheduler.abort(2)
    assert scheduler.admit() is None, "the model has not taken the slot back yet"
    assert scheduler.released() == [first[1].slot]
    assert [s.id for s in _admitted(scheduler)] == [5]


def _admitted(scheduler: Scheduler) -> list[Stream]:
    return list(iter(scheduler.admit, None))
