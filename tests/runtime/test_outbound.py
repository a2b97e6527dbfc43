"""The outbound queue, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_fakes import FakeSocket, ManualClock, PlainDialect, audio, text

from duplex.core.events import DrainNotice, Event, ResponseAudio, ResponseDone, SessionEnded, UserTranscript
from duplex.core.playback import PlayoutClock
from duplex.runtime.outbound import FLUSH_S, OutboundLimits, OutboundQueue


class Traffic:
    bytes_out = 0


class Client:
    """The listener: a client that plays what it gets."""

    def __init__(self, clock: ManualClock, most_ms: float = 0) -> None:
        self.clock = clock
        self.most_ms = most_ms
        self.playout = PlayoutClock()
        self.written: list[ResponseAudio] = []
        self.complaints: list[str] = []
        self.broken: list[Event] = []

    def run_ahead_ms(self) -> tuple[float, float]:
        return self.playout.unplayed_ms(self.clock.now()), self.most_ms

    def audio_written(self, event: ResponseAudio) -> None:
        self.written.append(event)
        self.playout.written(event.duration_ms, event.level_dbfs, self.clock.now())

    def too_slow(self, words: str) -> None:
        self.complaints.append(words)

    def cannot_encode(self, event: Event) -> None:
        self.broken.append(event)


class Bench:
    """A queue with fakes around it."""

    def __init__(self, most_ms: float = 0, dialect: Any = None, **limits: float) -> None:
        self.clock = ManualClock()
        self.socket = FakeSocket()
        self.client = Client(self.clock, most_ms)
        self.traffic = Traffic()
        self.queue = OutboundQueue(
            self.socket,
            dialect or PlainDialect(),
            self.client,
            limits=OutboundLimits(**limits),  # type: ignore[arg-type]
            clock=self.clock,
            traffic=self.traffic,
        )

    def put(self, *events: Event) -> None:
        for event in events:
            self.queue.put(event)

    @property
    def frames(self) -> list[Any]:
        return self.socket.frames


def test_an_event_is_written_at_once_when_nothing_is_in_its_way() -> None:
    bench = Bench()
    bench.put(text(1, "hi"), audio(1, 0))
    assert bench.frames == ["text 1 hi", "audio 1 0"]
    assert bench.traffic.bytes_out == len("text 1 hi") + len("audio 1 0")
    assert (bench.queue.bytes, bench.queue.audio_s, bench.clock.pending) == (0, 0, 0)


def test_everything_else_overtakes_audio() -> None:
    bench = Bench()
    bench.socket.block()
    bench.put(audio(1, 0), audio(1, 480), text(1, "a"), DrainNotice(grace_ms=1), text(1, "b"))
    bench.socket.unblock()
    assert bench.frames == ["text 1 a", "DrainNotice", "text 1 b", "audio 1 0", "audio 1 480"]


def test_purge_drops_one_response_and_nothing_else() -> None:
    bench = Bench()
    bench.socket.block()
    bench.put(audio(1, 0), text(1, "a"), audio(2, 0), text(2, "b"), UserTranscript(text="c", final=True))
    bench.queue.purge("r1")
    assert bench.queue.audio_s == pytest.approx(0.02)
    bench.socket.unblock()
    assert bench.frames == ["text 2 b", "UserTranscript", "audio 2 0"]
    assert bench.queue.bytes == 0


def test_audio_waits_for_playback_and_is_let_go_in_steps() -> None:
    bench = Bench(most_ms=400)
    bench.put(*(audio(1, n * 480) for n in range(60)))  # 1.2 s
    assert len(bench.client.written) == 20
    ahead, wakes = [], 0
    while bench.queue.audio_s:
        before = len(bench.client.written)
        bench.clock.advance(0.01)
        ahead.append(bench.client.run_ahead_ms()[0])
        wakes += len(bench.client.written) != before
    assert max(ahead) <= 400
    assert min(ahead) >= 270, "the client must not run low while audio waits"
    assert wakes <= 8, "one step for several frames"
    bench.clock.advance(1)
    assert bench.clock.pending == 0


def test_a_chunk_longer_than_the_limit_goes_out_when_the_client_is_dry() -> None:
    bench = Bench(most_ms=100)
    bench.put(audio(1, 0, ms=200), audio(1, 4800, ms=200))
    assert len(bench.client.written) == 1
    bench.clock.advance(0.19)
    assert len(bench.client.written) == 1
    bench.clock.advance(0.02)
    assert len(bench.client.written) == 2


def test_other_events_are_not_held_back_by_audio_that_is() -> None:
    bench = Bench(most_ms=20)
    bench.put(audio(1, 0), audio(1, 480), text(1, "now"))
    assert bench.frames == ["audio 1 0", "text 1 now"]


def test_raised_limit_lets_go_at_once() -> None:
    bench = Bench(most_ms=100)
    bench.put(*(audio(1, n * 480) for n in range(20)))
    assert len(bench.client.written) == 5
    bench.client.most_ms = 0
    bench.queue.release_held()
    assert len(bench.client.written) == 20


def test_audio_stays_in_order_when_the_socket_blocks_in_the_middle() -> None:
    bench = Bench(most_ms=200)
    bench.socket.takes = 3
    bench.put(*(audio(1, n) for n in range(30)))
    assert len(bench.frames) == 3
    bench.socket.unblock()
    for _ in range(100):
        bench.clock.advance(0.01)
    assert bench.frames == [f"audio 1 {n}" for n in range(30)]


def test_encoder_output_without_bytes_counts_as_sent_but_is_not_written() -> None:
    bench = Bench()
    bench.put(audio(1, 0, size=0))
    assert bench.frames == []
    assert len(bench.client.written) == 1


async def test_a_full_queue_makes_the_response_wait() -> None:
    bench = Bench(max_audio_s=1.0)
    bench.socket.block()
    for n in range(50):
        bench.put(audio(1, n))
    assert bench.queue.full
    waiting = asyncio.ensure_future(bench.queue.room())
    await asyncio.sleep(0)
    bench.socket.takes = 5
    bench.socket.blocked = False
    bench.queue._flush()
    await asyncio.sleep(0)
    assert not waiting.done(), "well below the bound, not just below it"
    bench.socket.unblock()
    await waiting
    assert not bench.queue.full


async def test_drained_waits_for_the_last_frame() -> None:
    bench = Bench(most_ms=20)
    bench.put(audio(1, 0), audio(1, 1), audio(1, 2))
    waiting = asyncio.ensure_future(bench.queue.drained())
    await asyncio.sleep(0)
    bench.clock.advance(0.025)
    await asyncio.sleep(0)
    assert not waiting.done()
    bench.clock.advance(0.1)
    await waiting
    assert len(bench.client.written) == 3


async def test_purge_and_detach_wake_who_waits() -> None:
    for end in ("purge", "detach"):
        bench = Bench()
        bench.socket.block()
        bench.put(audio(1, 0))
        waiting = asyncio.ensure_future(bench.queue.drained())
        await asyncio.sleep(0)
        if end == "purge":
            bench.queue.purge("r1")
        else:
            bench.queue.detach()
        await waiting


def test_reader_that_is_blocked_too_long_is_reported() -> None:
    bench = Bench(slow_reader_timeout_s=10.0)
    bench.socket.block()
    bench.clock.advance(9)
    bench.socket.unblock()
    bench.socket.block()
    bench.clock.advance(9)
    assert bench.client.complaints == []
    bench.clock.advance(2)
    assert bench.client.complaints == ["nothing was read for 10 s"]


def test_too_many_unread_events_are_reported() -> None:
    bench = Bench(max_bytes=4096)
    bench.socket.block()
    for _ in range(16):
        bench.put(DrainNotice(grace_ms=1))
    assert bench.client.complaints == []
    bench.put(DrainNotice(grace_ms=1))
    assert bench.client.complaints == ["more than 4096 bytes of events are unread"]


def test_text_of_a_response_stops_the_response_not_the_session() -> None:
    bench = Bench(max_bytes=4096)
    bench.socket.block()
    bench.put(text(1, "x" * 5000))
    assert bench.queue.full
    assert bench.client.complaints == []


def test_close_writes_what_is_queued_of_events_and_drops_audio() -> None:
    bench = Bench()
    bench.socket.block()
    bench.put(audio(1, 0), SessionEnded(code=1000, reason="bye"))
    bench.queue.close(1000, "bye")
    assert bench.socket.closed is None
    bench.socket.unblock()
    assert bench.frames == ["SessionEnded"]
    assert bench.socket.closed == (1000, "bye")
    assert bench.clock.pending == 0
    bench.put(text(1, "late"))
    assert bench.frames == ["SessionEnded"]


def test_close_without_flush_drops_all() -> None:
    bench = Bench()
    bench.socket.block()
    bench.put(text(1, "a"))
    bench.queue.close(1011, "x", flush=False)
    assert (bench.frames, bench.socket.closed) == ([], (1011, "x"))


def test_close_does_not_wait_for_ever() -> None:
    bench = Bench()
    bench.socket.block()
    bench.put(SessionEnded(code=4408, reason="slow"))
    bench.queue.close(4408, "slow")
    bench.clock.advance(FLUSH_S + 0.1)
    assert bench.socket.closed == (4408, "slow")
    assert bench.frames == ["SessionEnded"]
    assert bench.clock.pending == 0
    assert bench.client.complaints == []


def test_detached_queue_leaves_no_timer() -> None:
    bench = Bench(most_ms=20)
    bench.put(audio(1, 0), audio(1, 1))
    bench.socket.block()
    assert bench.clock.pending == 2
    bench.queue.detach()
    assert bench.clock.pending == 0
    bench.put(text(1, "late"))
    assert bench.frames == ["audio 1 0"]


def test_events_are_encoded_when_they_are_written() -> None:
    """A dialect with a state of its own must see what its client gets, in that order."""
    seen: list[str] = []

    class Stateful(PlainDialect):
        def encode(self, event: Event) -> list[Any]:
            seen.append(type(event).__name__)
            return super().encode(event)

    bench = Bench(dialect=Stateful())
    bench.socket.block()
    bench.put(audio(1, 0), text(1, "a"), ResponseDone(response_id="r1", index=1))
    assert seen == []
    bench.queue.purge("r1")
    bench.socket.unblock()
    assert seen == ["ResponseDone"]


def test_dialect_that_raises_is_reported() -> None:
    class Broken(PlainDialect):
        def encode(self, event: Event) -> list[Any]:
            raise ValueError

    bench = Bench(dialect=Broken())
    bench.put(text(1, "a"))
    assert len(bench.client.broken) == 1
