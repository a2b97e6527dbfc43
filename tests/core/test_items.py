"""What a dialect of items and responses needs of the core: items, tools, cleared input, truncation."""

from __future__ import annotations

import pytest
from session_driver import Driver

from duplex.core import commands as cmd
from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t
from duplex.core.errors import ErrorCode
from duplex.core.history import Conversation
from duplex.core.turns import TurnDetector

ADD = t.ToolSpec(name="add", description="adds", parameters={"type": "object"})


def user(text: str) -> t.HistoryItem:
    return t.HistoryItem(role="user", text=text)


def add(driver: Driver, item_id: str, item: t.HistoryItem, after: str | None = None) -> list[ev.Event]:
    return driver.feed(cmd.AddItem(item_id=item_id, item=item, after=after))


def test_items_are_placed_removed_and_bounded() -> None:
    conversation = Conversation()
    conversation.add("b", user("b"))
    conversation.add("a", user("a"), after="")
    conversation.add("ab", user("ab"), after="a")
    conversation.add("z", user("z"), after="unknown")
    said = conversation.user_said("spoken")
    assert [item.text for item in conversation.items] == ["a", "ab", "b", "z", "spoken"]
    conversation.remove("ab")
    conversation.remove(said)
    conversation.remove("")
    assert [item.text for item in conversation.items] == ["a", "b", "z"]
    for number in range(100):
        conversation.add(f"n{number}", user("x" * 2000))
    assert len(conversation.items) <= 64
    assert sum(len(item.text) for item in conversation.items) <= 64 * 1024


def test_an_added_text_is_the_question_once_and_in_history_once() -> None:
    driver = Driver()
    (told,) = add(driver, "one", user("What is this?"))
    assert isinstance(told, ev.Acknowledged)
    driver.create("mine")
    assert driver.turn.question == "What is this?"
    assert driver.asked == ["What is this?"]
    assert driver.one(ev.ResponseCreated).event_id == "mine"
    driver.finish()
    driver.create()
    assert driver.turn.question is None


def test_what_the_user_said_can_be_removed_by_the_id_of_its_transcript() -> None:
    driver = Driver()
    (heard,) = driver.signal(t.Transcript(text="Hello.", final=True, started_ms=20.0))
    assert isinstance(heard, ev.UserTranscript)
    assert heard.started_ms == 20.0
    driver.feed(cmd.RemoveItem(item_id=heard.item_id))
    assert driver.asked == []


def test_a_removed_answer_stays_away_whatever_is_heard_of_it_later() -> None:
    driver = Driver()
    driver.create()
    driver.text("One two.")
    driver.sound(2000, "One two.")
    driver.finish()
    driver.feed(cmd.RemoveItem(response_index=1))
    driver.wait(1.0)
    driver.speak()
    driver.ack(1000, 1)
    assert driver.told == []


def test_overrides_are_for_one_response_and_judged_before_it_starts() -> None:
    driver = Driver()
    driver.create(changes={"instructions": "Whisper.", "tools": [{"name": "add"}]})
    assert driver.turn.settings.instructions == "Whisper."
    assert driver.turn.settings.tools[0].name == "add"
    assert driver.session.settings.instructions == ""
    driver.create("bad", changes={"colour": "red"})
    assert driver.codes == [ErrorCode.UNKNOWN_FIELD]
    assert driver.one(ev.ErrorEvent).event_id == "bad"
    assert len(driver.turns) == 1


def test_an_answer_outside_the_conversation_leaves_no_trace_even_when_it_is_cut() -> None:
    driver = Driver()
    driver.create(history=(user("Classify this."),), record=False)
    assert [item.text for item in driver.turn.history] == ["Classify this."]
    driver.text("A question.")
    driver.sound(4000, "A question.")
    driver.wait(2.0)
    driver.speak()
    assert driver.session.conversation.items == ()


# --- commits that start no response -------------------------------------------------------------------


def test_a_quiet_commit_is_acknowledged_when_the_model_has_heard_it() -> None:
    driver = Driver(settings={"turn_detection": None})
    driver.hear()
    driver.feed(cmd.Commit(respond=False, event_id="c"))
    assert driver.of(fx.CommitInput)
    driver.create()
    assert driver.turns == [], "it waits for the words"
    driver.signal(t.Transcript(text="Hello.", final=True))
    driver.committed(event_id="c")
    assert driver.one(ev.Acknowledged).command.event_id == "c"
    assert [item.text for item in driver.turn.history] == ["Hello."]


@pytest.mark.parametrize("silent", [False, True])
def test_a_quiet_commit_of_nothing_is_told_unless_it_is_silent(silent: bool) -> None:
    driver = Driver(settings={"turn_detection": None})
    driver.feed(cmd.Commit(respond=False, silent=silent, event_id="c"))
    assert driver.codes == ([] if silent else [ErrorCode.COMMIT_EMPTY])
    driver.hear()
    driver.feed(cmd.Commit(respond=False, silent=silent, event_id="d"))
    driver.committed(False, event_id="d")
    assert driver.codes == ([] if silent else [ErrorCode.COMMIT_EMPTY])


def test_a_quiet_commit_is_answered_where_the_detector_would_have_been() -> None:
    driver = Driver()
    driver.hear()
    driver.speak()
    driver.feed(cmd.Commit(respond=False, event_id="c"))
    driver.hush()
    driver.committed(event_id="c")
    assert len(driver.turns) == 1
    assert driver.turn.trigger is t.Trigger.SPEECH


def test_a_response_that_waits_for_a_commit_starts_when_the_commit_fails() -> None:
    from duplex.core.errors import DuplexError

    driver = Driver(settings={"turn_detection": None})
    driver.hear()
    driver.feed(cmd.Commit(respond=False, event_id="c"))
    driver.create()
    driver.committed(event_id="c", error=DuplexError(ErrorCode.ADAPTER_FAILED, "deaf"))
    assert driver.codes == [ErrorCode.ADAPTER_FAILED]
    assert len(driver.turns) == 1


# --- clearing ----------------------------------------------------------------------------------------


def test_cleared_input_is_forgotten_with_its_half_sample() -> None:
    driver = Driver()
    driver.hear(bytes(3))
    driver.speak()
    driver.feed(cmd.ClearInput())
    assert driver.of(fx.ForgetInput)
    assert driver.hush() == []
    driver.commit("c")
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]
    driver.hear(bytes(4))
    assert driver.one(fx.AppendInput).window.pcm == bytes(4)


def test_cleared_output_is_silent_and_told_even_when_nothing_runs() -> None:
    driver = Driver()
    driver.feed(cmd.ClearOutput())
    assert [type(event) for event in driver.events[-1:]] == [ev.Acknowledged]
    driver.create()
    driver.sound(4000, "One two three four.")
    driver.feed(cmd.ClearOutput())
    assert driver.one(ev.ResponseCancelled).reason is ev.CancelReason.CLIENT
    assert driver.session.run_ahead_ms(driver.now) == 0


def test_the_turn_detector_forgets_speech_that_is_under_way() -> None:
    detector = TurnDetector()
    for frame in range(10):
        detector.feed(0.9, 32.0, -20.0, None, frame * 32.0)
    assert detector.speaking
    detector.reset()
    assert not detector.speaking
    assert detector.stall_timeout_ms is None
    assert detector.finish(400.0) == []


# --- truncation --------------------------------------------------------------------------------------


def test_truncation_is_the_client_s_word_in_both_directions() -> None:
    driver = Driver()
    driver.create()
    driver.text("One two three four.")
    driver.sound(4000, "One two three four.")
    driver.finish()
    for heard_ms, text in ((2000, "One two"), (0, None), (4000, "One two three four.")):
        (told,) = driver.feed(cmd.TruncateResponse(response_index=1, heard_ms=heard_ms))
        assert isinstance(told, ev.Acknowledged)
        assert told.heard_text == (text or "")
        assert driver.told == ([text] if text else [])
    assert driver.session.run_ahead_ms(driver.now) == 0


def test_truncating_what_runs_stops_it_and_what_never_was_is_refused() -> None:
    driver = Driver()
    driver.create()
    driver.sound(2000, "One two.")
    driver.feed(cmd.TruncateResponse(response_index=1, heard_ms=1000))
    assert driver.of(fx.AbortResponse)
    assert driver.told == ["One"]
    for index, heard_ms, code in (
        (2, 0, ErrorCode.RESPONSE_NOT_FOUND),
        (0, 0, ErrorCode.RESPONSE_NOT_FOUND),
        (1, -1, ErrorCode.INVALID_PLAYBACK_CURSOR),
        (1, float("nan"), ErrorCode.INVALID_PLAYBACK_CURSOR),
    ):
        driver.feed(cmd.TruncateResponse(response_index=index, heard_ms=heard_ms))
        assert driver.codes == [code]


# --- tools -------------------------------------------------------------------------------------------


def test_calls_are_told_and_remembered_when_the_response_is_complete() -> None:
    driver = Driver(settings={"tools": (ADD,)})
    driver.create()
    turn = driver.turn

    def call(arguments: str) -> None:
        delta = t.ToolCallDelta(call_id="c1", name="add", arguments=arguments)
        driver.do(driver.session.deliver(turn.epoch, delta, driver.now))

    call('{"a":')
    call(" 1}\ud800")
    assert driver.one(ev.ResponseToolCall).arguments == " 1}\ufffd"
    assert driver.session.conversation.items == ()
    driver.finish()
    (item,) = driver.session.conversation.items
    assert (item.role, item.name, item.call_id) == ("assistant", "add", "c1")
    call("late")
    assert driver.last == []
    assert driver.session.dropped_deltas == 1


def test_too_many_tools_are_refused() -> None:
    driver = Driver()
    driver.update(tools=[{"name": "add", "description": "x" * 70_000}])
    assert driver.codes == [ErrorCode.INVALID_VALUE]
    assert driver.one(ev.ErrorEvent).param == "tools"
