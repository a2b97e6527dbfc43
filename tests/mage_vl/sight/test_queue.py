"""The line of windows, in virtual time: newest wins, order, fairness, bounds."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from duplex.adapters.mage_vl.sight.queue import LookQueue, Work

SESSIONS = st.integers(1, 6)


class Line(RuleBasedStateMachine):
    """Anything that may happen to a line, in any order. Windows are numbers that count up."""

    @initialize(most_patches=st.integers(4, 40), most_sessions=st.integers(1, 5))
    def begin(self, most_patches: int, most_sessions: int) -> None:
        self.queue: LookQueue[int] = LookQueue(most_patches=most_patches, most_sessions=most_sessions)
        self.now = 0.0
        self.submitted = 0
        self.fate: dict[int, str] = {}  # of each window that is in the line no more
        self.arrived: dict[int, float] = {}
        self.line: dict[int, list[int]] = {}  # windows of a session since its place was taken
        self.gates: dict[int, bool] = {}
        self.flying: dict[int, int] = {}
        self.last_taken: dict[int, int] = {}

    @rule(ms=st.floats(0, 1e4))
    def time_goes_by(self, ms: float) -> None:
        self.now += ms

    @rule(session=SESSIONS, patches=st.integers(1, 40), gate=st.booleans())
    def submit(self, session: int, patches: int, gate: bool) -> None:
        window = self.submitted
        if patches > self.queue.most_patches:
            with pytest.raises(ValueError):
                self.queue.submit(session, window, patches=patches, gate=gate, now=self.now)
            return
        self.submitted += 1
        self.arrived[window] = self.now
        old = self.queue.submit(session, window, patches=patches, gate=gate, now=self.now)
        waited = self.line.get(session)
        assert (old.window if old else None) == (waited[-1] if waited else None)
        if waited:
            self.fate[waited[-1]] = "merged"
            self.gates[session] |= gate
        else:
            self.gates[session] = gate
        self.line.setdefault(session, []).append(window)

    @rule()
    def take(self) -> None:
        ready = [session for session in self.line if session not in self.flying]
        patches = {session: self._waiting(session).patches for session in self.line}
        batch = self.queue.take()
        # the longest waits, and as many of them as there is room for
        assert [work.session for work in batch] == ready[: len(batch)]
        assert bool(batch) == bool(ready)
        total = sum(work.patches for work in batch)
        assert total <= self.queue.most_patches
        if len(batch) < len(ready):
            full = len(batch) == self.queue.most_sessions
            assert full or total + patches[ready[len(batch)]] > self.queue.most_patches
        for work in batch:
            self._taken(work)

    def _waiting(self, session: int) -> Work[int]:
        work = self.queue.waiting(session)
        assert work is not None
        return work

    def _taken(self, work: Work[int]) -> None:
        windows = self.line.pop(work.session)
        assert work.window == windows[-1], "newest wins"
        assert work.merged == len(windows) - 1
        assert work.gate == self.gates[work.session]
        assert work.arrived == self.arrived[windows[-1]]
        assert work.since == self.arrived[windows[0]]
        assert work.window > self.last_taken.get(work.session, -1), "in order"
        self.last_taken[work.session] = work.window
        self.flying[work.session] = work.window

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.flying)))
        self.queue.done(session)
        self.fate[self.flying.pop(session)] = "seen"

    @rule(session=SESSIONS)
    def drop(self, session: int) -> None:
        work = self.queue.drop(session)
        windows = self.line.pop(session, None)
        assert (work.window if work else None) == (windows[-1] if windows else None)
        if windows:
            self.fate[windows[-1]] = "dropped"

    @rule()
    def worker_dies(self) -> None:
        lost = sorted(work.window for work in self.queue.clear())
        assert lost == sorted([*self.flying.values(), *(windows[-1] for windows in self.line.values())])
        self.fate |= dict.fromkeys(lost, "lost")
        self.flying.clear()
        self.line.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.line)
        assert self.queue.flying == len(self.flying)
        assert self.queue.merged == Counter(self.fate.values())["merged"]
        assert self.queue.since() == min(
            (self.arrived[windows[0]] for windows in self.line.values()), default=None
        )
        assert all(self.queue.is_flying(session) == (session in self.flying) for session in range(1, 7))

    @invariant()
    def each_window_has_one_place_or_one_fate(self) -> None:
        places = [*self.flying.values(), *(windows[-1] for windows in self.line.values())]
        assert len(places) == len(set(places))
        assert not set(places) & set(self.fate)
        assert len(places) + len(self.fate) == self.submitted


TestLine = Line.TestCase


def test_line_without_room_is_refused() -> None:
    for bounds in ({"most_patches": 0, "most_sessions": 1}, {"most_patches": 1, "most_sessions": 0}):
        with pytest.raises(ValueError):
            LookQueue(**bounds)


@dataclass
class Gate:
    """A worker that takes `batch_ms` for a batch of any size, `depth` batches at once, and clients that send
    a window each `every_ms`. Windows are (session, number)."""

    queue: LookQueue[tuple[int, int]]
    every_ms: dict[int, float]
    batch_ms: float
    until_ms: float
    depth: int = 1
    seen: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)  # number, lag, merged
    batches: list[int] = field(default_factory=list)
    most_waiting: int = 0

    def run(self) -> None:
        events: list[tuple[float, int, str, object]] = []
        serial = 0

        def at(when: float, what: str, about: object) -> None:
            nonlocal serial
            serial += 1
            heapq.heappush(events, (when, serial, what, about))

        for session in self.every_ms:
            at(0.0, "window", (session, 0))
        running, free_at = 0, 0.0
        while events:
            now, _, what, about = heapq.heappop(events)
            if what == "window":
                session, number = about  # type: ignore[misc]
                self.queue.submit(session, (session, number), patches=10, gate=True, now=now)
                if now + self.every_ms[session] < self.until_ms:
                    at(now + self.every_ms[session], "window", (session, number + 1))
            else:
                running -= 1
                for work in about:  # type: ignore[attr-defined]
                    self.queue.done(work.session)
                    _, number = work.window
                    self.seen.setdefault(work.session, []).append((number, now - work.arrived, work.merged))
            self.most_waiting = max(self.most_waiting, len(self.queue))
            while running < self.depth and (batch := self.queue.take()):
                running += 1
                free_at = max(now, free_at) + self.batch_ms
                self.batches.append(len(batch))
                at(free_at, "batch", batch)


@pytest.mark.parametrize("depth", [1, 2])
def test_fault_38_gate_tasks_do_not_pile_up_when_windows_come_faster_than_the_model(depth: int) -> None:
    """100 windows a second on a gate that takes 0.7 s, for two minutes, in 32 sessions."""
    queue: LookQueue[tuple[int, int]] = LookQueue(most_patches=10_000, most_sessions=32)
    gate = Gate(queue, dict.fromkeys(range(32), 10.0), batch_ms=700, until_ms=120_000, depth=depth)
    gate.run()
    assert gate.most_waiting <= 32, "one a session"
    assert len(queue) == queue.flying == 0
    for windows in gate.seen.values():
        numbers = [number for number, _, _ in windows]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 11_999, "the newest is seen"
        assert len(numbers) + sum(merged for _, _, merged in windows) == 12_000, "all are accounted for"
        assert max(lag for _, lag, _ in windows) <= 2 * depth * 700, "what is in flight, and its own"
        assert max(merged for _, _, merged in windows) < depth * 700 / 10


@given(
    every_ms=st.lists(st.floats(5, 2000), min_size=1, max_size=8),
    batch_ms=st.floats(1, 500),
    most_sessions=st.integers(1, 8),
    depth=st.integers(1, 2),
)
def test_nobody_waits_longer_than_for_all_others_once(
    every_ms: list[float], batch_ms: float, most_sessions: int, depth: int
) -> None:
    """However fast some send: a window waits for the batches that run, and for one place of each session."""
    queue: LookQueue[tuple[int, int]] = LookQueue(most_patches=10_000, most_sessions=most_sessions)
    gate = Gate(queue, dict(enumerate(every_ms)), batch_ms=batch_ms, until_ms=5000, depth=depth)
    gate.run()
    rounds = -(-len(every_ms) // most_sessions)
    bound = (2 * depth + rounds) * batch_ms
    for windows in gate.seen.values():
        assert max(lag for _, lag, _ in windows) <= bound * (1 + 1e-9)
    assert max(gate.batches) <= most_sessions
    assert len(queue) == queue.flying == 0


def test_large_window_is_not_overtaken_for_ever() -> None:
    """What does not fit ends the batch, and is the first of the next."""
    queue: LookQueue[str] = LookQueue(most_patches=100, most_sessions=8)
    queue.submit(1, "small", patches=10, gate=True, now=0)
    queue.submit(2, "large", patches=95, gate=True, now=1)
    queue.submit(3, "late", patches=10, gate=True, now=2)
    assert [work.window for work in queue.take()] == ["small"]
    queue.submit(4, "later", patches=1, gate=True, now=3)
    assert [work.window for work in queue.take()] == ["large"]
    assert [work.window for work in queue.take()] == ["late", "later"]


def test_second_window_of_a_session_waits_for_the_first_and_holds_up_nobody() -> None:
    queue: LookQueue[str] = LookQueue(most_patches=100, most_sessions=8)
    queue.submit(1, "first", patches=10, gate=True, now=0)
    queue.take()
    queue.submit(1, "second", patches=10, gate=False, now=1)
    queue.submit(2, "other", patches=10, gate=True, now=2)
    assert [work.window for work in queue.take()] == ["other"]
    assert queue.take() == ()
    queue.done(1)
    assert [(work.window, work.gate) for work in queue.take()] == [("second", False)]
