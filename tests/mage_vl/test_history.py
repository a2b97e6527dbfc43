"""What a session remembers of the video, and what fits into a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mage_fakes import FakeWriter, glance

from duplex.adapters.mage_vl.history import History, Slide, fit
from duplex.adapters.mage_vl.ports import Draft, Picture
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import HistoryItem


def names(glances: Sequence[object]) -> list[str]:
    return [g.segment_id for g in glances]  # type: ignore[attr-defined]


def history(count: int, *, most: int = 64, most_bytes: int = 10**9) -> History:
    kept = History(most, most_bytes)
    for number in range(count):
        kept.add(glance(str(number), images=2))
    return kept


def test_the_oldest_windows_go_when_there_are_too_many() -> None:
    kept = history(10, most=3)
    assert names(kept.last(64)) == ["7", "8", "9"]
    assert (len(kept), kept.count, kept.size) == (3, 10, 3 * 20)


def test_the_oldest_windows_go_when_they_are_too_large() -> None:
    assert names(history(10, most_bytes=50).last(64)) == ["8", "9"]


def test_the_newest_window_stays_however_large_it_is() -> None:
    kept = history(3, most_bytes=5)
    assert names(kept.last(64)) == ["2"]
    assert kept.size == 20


def test_cleared_it_holds_nothing() -> None:
    kept = history(4)
    kept.clear()
    assert (len(kept), kept.size, kept.last(4)) == (0, 0, ())


def test_prompts_begin_alike_until_half_of_the_windows_go_at_once() -> None:
    kept = History(64, 10**9)
    slide = Slide(kept, 4)
    shown = []
    for number in range(8):
        kept.add(glance(str(number)))
        shown.append("".join(names(slide.windows())))
    assert shown == ["0", "01", "012", "0123", "234", "2345", "456", "4567"]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 64])
def test_a_prompt_never_shows_more_windows_than_it_may(most: int) -> None:
    kept = History(64, 10**9)
    slide = Slide(kept, most)
    for number in range(200):
        kept.add(glance(str(number)))
        shown = names(slide.windows())
        assert 1 <= len(shown) <= most
        assert shown[-1] == str(number)


def test_windows_that_had_no_room_are_left_behind() -> None:
    kept = history(6)
    slide = Slide(kept, 6)
    assert names(slide.windows()) == list("012345")
    slide.leave(2)
    assert names(slide.windows()) == list("2345")
    slide.leave(0)
    assert names(slide.windows()) == list("2345")


def test_windows_that_fell_out_of_the_history_are_not_counted_twice() -> None:
    kept = history(3, most=4)
    slide = Slide(kept, 4)
    assert names(slide.windows()) == list("012")
    for number in range(3, 5):
        kept.add(glance(str(number)))
    slide.leave(1)  # of 0 and what is left of it: 1 to 4
    assert names(slide.windows()) == list("234")


# --- what fits ----------------------------------------------------------------------------------------


SAID = [HistoryItem(role="user", text=f"word{n} word") for n in range(4)]


def fitted(room: int | None, windows: int = 3, said: Sequence[HistoryItem] = SAID) -> tuple[dict, int]:  # type: ignore[type-arg]
    """A prompt of windows of 3 images, 10 tokens each, and of a question of 2 words."""
    writer = FakeWriter()

    def draft(pictures: Sequence[Picture], words: Sequence[HistoryItem]) -> Draft:
        return writer.draft(pictures, "what happens", said=words)

    glances = [glance(str(n), images=3, tokens=10) for n in range(windows)]
    found = fit(draft, glances, said, room)
    assert room is None or found.draft.tokens <= room
    message = found.draft.prompt.messages[0]  # type: ignore[union-attr]
    return dict(message), found.left_out


def test_all_of_it_goes_where_there_is_room() -> None:
    for room in (None, 100):
        message, left_out = fitted(room)
        assert (len(message["pictures"]), len(message["said"]), left_out) == (9, 4, 0)


def test_the_oldest_windows_go_first() -> None:
    message, left_out = fitted(99)
    assert (message["pictures"][0], len(message["said"]), left_out) == ("1-0", 4, 1)
    message, left_out = fitted(40)
    assert (message["pictures"][0], len(message["said"]), left_out) == ("2-0", 4, 2)


def test_then_what_was_said_oldest_first() -> None:
    message, _ = fitted(36)
    assert message["said"] == ["word2 word", "word3 word"]
    assert message["pictures"] == ["2-0", "2-1", "2-2"]


def test_then_the_oldest_images_of_the_last_window() -> None:
    message, left_out = fitted(24)
    assert message["said"] == []
    assert message["pictures"] == ["2-1", "2-2"]
    assert left_out == 2
    assert fitted(12)[0]["pictures"] == ["2-2"]


@pytest.mark.parametrize("windows", [0, 1, 3])
def test_what_cannot_fit_is_refused_by_name(windows: int) -> None:
    with pytest.raises(DuplexError) as fault:
        fitted(1, windows=windows)
    assert fault.value.code is ErrorCode.INPUT_OVERFLOW
    assert "1 is all that the model has room for" in fault.value.message


def test_a_long_fit_asks_for_few_drafts() -> None:
    drafts = 0
    writer = FakeWriter()

    def draft(pictures: Sequence[Picture], words: Sequence[HistoryItem]) -> Draft:
        nonlocal drafts
        drafts += 1
        return writer.draft(pictures, "q", said=words)

    fit(draft, [glance("a", images=500, tokens=10)], SAID * 16, 100)
    assert drafts < 12
