"""The playout clock and the ledger of what was heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.core.playback import ECHO_TAIL_S, LEVEL_STEP_S, PlaybackLedger, PlayoutClock

# --- the clock --------------------------------------------------------------------------------------------


def test_the_buffer_runs_dry_in_real_time_and_starts_again_from_nothing() -> None:
    clock = PlayoutClock()
    assert clock.unplayed_ms(0.0) == 0
    clock.written(500, -20, 0.0)
    clock.written(500, -20, 0.2)
    assert clock.unplayed_ms(0.2) == pytest.approx(800)
    assert clock.unplayed_ms(5.0) == 0
    clock.written(100, -20, 5.0)  # a gap is no debt
    assert clock.unplayed_ms(5.0) == pytest.approx(100)


def test_a_clock_may_begin_at_any_time() -> None:
    for now in (-1e6, 0.0, 1e9):
        clock = PlayoutClock()
        assert clock.unplayed_ms(now) == 0
        assert clock.level_dbfs(now) is None
        clock.written(1000, -20, now)
        assert clock.unplayed_ms(now) == pytest.approx(1000, abs=1e-3)


def test_the_level_is_the_loudest_that_may_be_in_the_air() -> None:
    clock = PlayoutClock()
    clock.written(1000, -30, 0.0)
    clock.written(1000, -10, 0.0)
    clock.written(1000, -40, 0.0)
    assert clock.level_dbfs(0.5) == -30
    assert clock.level_dbfs(1.2) == -10
    assert clock.level_dbfs(2.0 + ECHO_TAIL_S - 0.01) == -10
    assert clock.level_dbfs(2.0 + ECHO_TAIL_S + 0.01) == -40
    assert clock.level_dbfs(3.0 + ECHO_TAIL_S + 0.01) is None


def test_short_chunks_share_a_level_so_that_a_long_queue_stays_small() -> None:
    clock = PlayoutClock()
    for _ in range(1000):
        clock.written(20, -30, 0.0)
    clock.written(20, -10, 0.0)
    spans = len(clock._levels)
    assert spans <= 1001 * 0.02 / LEVEL_STEP_S + 1
    assert clock.level_dbfs(20.01) == -10


def test_removing_from_the_middle_moves_up_what_is_behind() -> None:
    clock = PlayoutClock()
    for level in (-10, -20, -30):
        clock.written(1000, level, 0.0)
    clock.removed(500, 1500, 0.5)  # at 0.5 s: 0.5 s of the first stay, the second and half of the rest go
    assert clock.unplayed_ms(0.5) == pytest.approx(1000)
    assert clock.level_dbfs(0.9) == -10
    assert clock.level_dbfs(1.0 + ECHO_TAIL_S + 0.01) == -30
    assert clock.level_dbfs(1.5 + ECHO_TAIL_S + 0.01) is None


def test_clearing_leaves_only_what_was_already_in_the_air() -> None:
    clock = PlayoutClock()
    clock.written(1000, -20, 0.0)
    clock.written(1000, -10, 0.0)
    clock.cleared(0.5)
    assert clock.unplayed_ms(0.5) == 0
    assert clock.level_dbfs(0.6) == -20
    assert clock.level_dbfs(0.5 + ECHO_TAIL_S + 0.01) is None


def test_acknowledgements_move_the_levels_with_the_sound() -> None:
    clock = PlayoutClock()
    clock.written(1000, -20, 0.0)
    clock.written(1000, -10, 0.0)
    clock.acknowledged(1500, 1.0)  # the client began half a second late
    assert clock.level_dbfs(1.4) == -20
    assert clock.level_dbfs(1.5) == -10
    clock.written(1000, -5, 1.6)
    assert clock.level_dbfs(2.4) == -10
    assert clock.level_dbfs(2.5) == -5
    clock.removed(100, 800, 2.6)
    assert clock.unplayed_ms(2.6) == pytest.approx(100)
    assert clock.level_dbfs(2.7 + ECHO_TAIL_S - 0.01) == -5
    assert clock.level_dbfs(2.7 + ECHO_TAIL_S + 0.01) is None


def test_a_client_that_goes_on_saying_it_is_done_makes_no_echo() -> None:
    clock = PlayoutClock()
    clock.written(1000, -20, 0.0)
    for now in range(1, 10):
        clock.acknowledged(0, float(now))
    assert clock.level_dbfs(9.0) is None


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "wait", "ack", "cut", "clear"]),
        st.floats(0, 3000),
        st.floats(0, 3000),
    ),
    max_size=40,
)


@given(steps)
def test_the_clock_agrees_with_a_player_that_plays_sample_by_sample(
    steps: list[tuple[str, float, float]],
) -> None:
    clock = PlayoutClock()
    now, held = 50.0, 0.0
    for step, first, second in steps:
        if step == "write":
            clock.written(first, -20, now)
            held += first
        elif step == "wait":
            now += first / 1000
            held = max(0.0, held - first)
        elif step == "ack":
            clock.acknowledged(first, now)
            held = first
        elif step == "cut":
            after = min(first, held)
            length = min(second, held - after)
            clock.removed(after, length, now)
            held -= length
        else:
            clock.cleared(now)
            held = 0.0
        assert clock.unplayed_ms(now) == pytest.approx(held, abs=1e-3)
        levels = list(clock._levels)
        assert all(start <= end for start, end, _ in levels)
        assert [start for start, _, _ in levels] == sorted(start for start, _, _ in levels)


# --- the ledger -------------------------------------------------------------------------------------------


def ledger_of(*segments: tuple[float, str], text: str = "", complete: bool = False) -> PlaybackLedger:
    ledger = PlaybackLedger(audible=True)
    if text:
        ledger.add_text(text)
    for duration_ms, said in segments:
        ledger.add_audio(duration_ms, said)
        ledger.add_sent(duration_ms)
    ledger.complete = complete
    return ledger


def test_what_is_heard_is_what_was_sent_less_what_is_unplayed() -> None:
    ledger = ledger_of((1000, "one"))
    ledger.add_audio(500, "two")
    assert (ledger.generated_ms, ledger.sent_ms) == (1500, 1000)
    assert ledger.heard_ms(300) == 700
    assert ledger.heard_ms(5000) == 0


def test_the_clients_word_goes_before_the_estimate() -> None:
    ledger = ledger_of((1000, "one"))
    assert ledger.acknowledge(200)
    assert ledger.heard_ms(0) == 200
    assert not ledger.acknowledge(100)
    assert ledger.heard_ms(0) == 200
    assert ledger.acknowledge(1e9)
    assert ledger.heard_ms(0) == 1000


def test_words_are_heard_with_their_audio_and_only_whole() -> None:
    ledger = ledger_of(
        (1000, "Hello there, "), (1000, "my dear friend."), text="Hello there, my dear friend."
    )
    assert ledger.heard_text(0) == ""
    assert ledger.heard_text(300) == ""
    assert ledger.heard_text(600) == "Hello"
    assert ledger.heard_text(1000) == "Hello there,"
    assert ledger.heard_text(1600) == "Hello there, my dear"
    assert ledger.heard_text(2000) == "Hello there, my dear friend."


def test_audio_without_its_own_text_goes_on_with_the_text_before_it() -> None:
    ledger = ledger_of((200, "Hello there"), (200, ""), (600, ""), text="Hello there")
    assert ledger.heard_text(400) == ""
    assert ledger.heard_text(600) == "Hello"
    assert ledger.heard_text(1000) == "Hello there"


def test_pieces_without_spaces_are_put_into_the_texts_own_spacing() -> None:
    ledger = ledger_of((500, "One."), (500, "Two."), (500, "Three."), text="One.  Two.\nThree.")
    assert ledger.heard_text(1000) == "One.  Two."


def test_pieces_without_any_text_deltas_are_joined_word_by_word() -> None:
    ledger = ledger_of((500, "One."), (500, "Two."), (500, " three"), (500, "四"), (500, "五"))
    assert ledger.final_text() == "One. Two. three四五"
    assert ledger.heard_text(2000) == "One. Two. three四"


def test_a_piece_that_ends_inside_a_word_does_not_leave_half_of_it() -> None:
    ledger = ledger_of((500, "Hello wo"), (500, "rld"), text="Hello world")
    assert ledger.heard_text(500) == "Hello"
    assert ledger.heard_text(1000) == "Hello world"


def test_a_piece_keeps_a_word_before_punctuation() -> None:
    ledger = ledger_of((500, "Hello"), (500, "world"), text="Hello, world!")
    assert ledger.heard_text(500) == "Hello"


def test_audio_that_says_something_else_than_the_text_is_believed() -> None:
    ledger = ledger_of((500, "two "), (500, "euros "), text="2 €")
    assert ledger.heard_text(500) == "two"


def test_scripts_without_spaces_are_cut_at_characters() -> None:
    ledger = ledger_of((1000, "你好世界"), text="你好世界")
    assert ledger.heard_text(500) == "你好"


def test_text_without_positions_is_divided_in_proportion_when_all_is_there() -> None:
    ledger = ledger_of((1000, ""), text="one two three four", complete=True)
    assert ledger.heard_text(500) == "one two"
    assert ledger.heard_text(1000) == "one two three four"


def test_text_that_runs_ahead_of_its_audio_is_not_heard_with_the_first_chunk() -> None:
    text = "word " * 100
    ledger = ledger_of((100, ""), text=text)
    assert ledger.heard_text(100) == ""
    long = ledger_of((10_000, ""), text=text)
    assert 20 <= len(long.heard_text(10_000).split()) <= 40  # 150 words a minute are 25 in 10 s


def test_text_before_its_audio_is_not_heard_unless_there_is_no_audio_at_all() -> None:
    spoken = PlaybackLedger(audible=True)
    spoken.add_text("soon")
    assert spoken.heard_text(0) == ""
    spoken.complete = True
    assert spoken.heard_text(0) == "soon"
    written = PlaybackLedger(audible=False)
    written.add_text("at once")
    assert written.heard_text(0) == "at once"


def test_rounding_loses_no_word() -> None:
    ledger = PlaybackLedger(audible=True)
    for _ in range(3):
        ledger.add_audio(0.1, "")
    ledger.add_audio(100.0 / 3, "end")
    ledger.add_sent(0.3 + 100.0 / 3 - 1e-9)
    assert ledger.heard_text(ledger.heard_ms(0)) == "end"


words = st.text(st.sampled_from("ab é.,\n四"), max_size=8)


@given(
    st.lists(st.tuples(st.floats(0, 500), words), max_size=12),
    st.lists(st.floats(0, 6000), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_heard_is_at_most_sent_is_at_most_generated_and_text_grows_with_time(
    segments: list[tuple[float, str]], unplayed: list[float], with_text: bool, complete: bool
) -> None:
    text = "".join(said for _, said in segments)
    ledger = PlaybackLedger(audible=True)
    if with_text:
        ledger.add_text(text)
    for number, (duration_ms, said) in enumerate(segments):
        ledger.add_audio(duration_ms, said)
        if number % 3:
            ledger.add_sent(duration_ms)
    ledger.complete = complete
    full = ledger.final_text()
    before = ""
    for left in sorted(unplayed, reverse=True):
        heard = ledger.heard_ms(left)
        assert 0 <= heard <= ledger.sent_ms <= ledger.generated_ms
        said = ledger.heard_text(heard)
        assert full.startswith(said)
        assert said.startswith(before.rstrip())
        cut = full[len(said) :]
        inside = cut and cut[0].isalpha() and said and said[-1].isalpha() and "四" not in (cut[0], said[-1])
        assert not inside, "half a word"
        before = said


@given(st.lists(st.tuples(st.floats(1, 500), st.booleans()), max_size=20), st.lists(st.floats(0, 1e4)))
def test_acknowledgements_only_rise_and_never_pass_what_was_sent(
    chunks: list[tuple[float, bool]], cursors: list[float]
) -> None:
    ledger = PlaybackLedger(audible=True)
    last = 0.0
    cursor = iter(cursors)
    for duration_ms, sent in chunks:
        ledger.add_audio(duration_ms, "")
        if sent:
            ledger.add_sent(duration_ms)
        ledger.acknowledge(next(cursor, 0.0))
        heard = ledger.heard_ms(0.0)
        assert last <= heard <= ledger.sent_ms
        last = heard
