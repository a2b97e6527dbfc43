"""The journal of a session's messages, alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.core.commands import TruncateResponse
from duplex.core.events import (
    Acknowledged,
    CancelReason,
    PlaybackCleared,
    ResponseCancelled,
    ResponseDone,
)
from duplex.core.journal import Journal, Missed


def journal(max_bytes: int = 10_000, max_s: float = 10.0) -> Journal:
    return Journal(max_bytes=max_bytes, max_s=max_s)


def seqs(missed: Missed) -> list[int]:
    return [entry.seq for entry in missed.entries]


def test_messages_are_numbered_from_one_and_binary_ones_count() -> None:
    kept = journal()
    frames = [kept.add('{"type":"a"}', 0), kept.add(b"\x01\x02", 0), kept.add('{"type":"b"}', 0)]
    assert json.loads(frames[0]) == {"type": "a", "seq": 1}
    assert frames[1] == b"\x01\x02"
    assert json.loads(frames[2]) == {"type": "b", "seq": 3}
    assert kept.last == 3


def test_what_is_replayed_is_what_was_written() -> None:
    kept = journal()
    written = [kept.add(f'{{"n":{n}}}', n) for n in range(5)]
    assert [entry.frame for entry in kept.missed(2, 5).entries] == written[2:]
    assert kept.missed(5, 5) == Missed(entries=[], lost=0, since=None, sound_ms=0)


CUTS = [
    ResponseCancelled(response_id="r1", index=1, reason=CancelReason.CLIENT),
    ResponseCancelled(response_id="", index=1, reason=CancelReason.CLIENT),
    PlaybackCleared(response_id="r1", index=1, heard_ms=0, heard_text=""),
    Acknowledged(command=TruncateResponse(response_index=1, heard_ms=0)),
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: type(cut).__name__)
def test_cut_sound_is_never_replayed(cut: Any) -> None:
    kept = journal()
    kept.add('{"type":"created"}', 0)
    kept.add(b"one", 0, sound_of=1, duration_ms=20)
    kept.add(b"two", 0, sound_of=2, duration_ms=20)
    waiting = kept.missed(0, 0).entries
    kept.note(cut)
    assert seqs(kept.missed(0, 0)) == [1, 3]
    assert [entry.seq for entry in waiting if not entry.void] == [1, 3]  # nor if its replay has begun


def test_a_response_that_is_done_keeps_its_sound() -> None:
    kept = journal()
    kept.add(b"one", 0, sound_of=1, duration_ms=20)
    kept.note(ResponseDone(response_id="r1", index=1))
    assert kept.missed(0, 1) == Missed(kept.missed(0, 1).entries, lost=0, since=0, sound_ms=20)
    assert seqs(kept.missed(0, 1)) == [1]


def test_what_is_too_old_is_lost_and_counted() -> None:
    kept = journal(max_s=10)
    for second in range(20):
        kept.add("{}", second)
    missed = kept.missed(3, 20)
    assert seqs(missed) == list(range(11, 21))
    assert missed.lost == 7
    assert kept.missed(15, 20).lost == 0


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(0, 3), st.booleans())), st.integers(0, 30))
def test_a_journal_stays_within_its_bounds(steps: list[tuple[int, float, bool]], seen: int) -> None:
    kept = journal(max_bytes=1000, max_s=5)
    now = 0.0
    for size, wait, cut in steps:
        now += wait
        kept.add(bytes(size), now, sound_of=1, duration_ms=1)
        if cut:
            kept.void(1)
        missed = kept.missed(0, now)
        assert kept.bytes == sum(len(entry.frame) for entry in missed.entries) <= 1000
        assert all(entry.at >= now - 5 for entry in missed.entries)
    missed = kept.missed(min(seen, kept.last), now)
    # each number is replayed, lost, or of sound that was cut; none is two of them, and they are in order
    assert seqs(missed) == sorted(set(seqs(missed)))
    assert all(number > seen + missed.lost for number in seqs(missed))
