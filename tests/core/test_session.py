"""How a session behaves: commands, turns, waiting responses, playback, settings, closing."""

from __future__ import annotations

import math

import msgspec
import pytest
from session_driver import MODEL, VIDEO, Driver

from duplex.core import commands as c
from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.inputs import MAX_COMMITS, MAX_QUESTION
from duplex.core.session import ModelFacts, SessionLimits, State
from duplex.core.settings import MAX_UPDATES

TEXT = t.Modality.TEXT
AUDIO = t.Modality.AUDIO


# --- a response from its beginning to its end -------------------------------------------------------------


def test_a_text_turn_from_question_to_done() -> None:
    driver = Driver()
    assert driver.session.state is State.IDLE
    driver.say("Hello.")
    assert driver.session.state is State.LISTENING
    driver.commit("c1")
    assert driver.last == [fx.CommitInput(event_id="c1")]
    created = driver.committed(True, event_id="c1")
    assert created == [
        ev.ResponseCreated(response_id="resp_s_1", index=1, modalities=(TEXT, AUDIO), event_id="c1")
    ]
    assert driver.session.state is State.RESPONDING
    turn = driver.turn
    assert (turn.trigger, turn.question, turn.index) == (t.Trigger.COMMIT, "Hello.", 1)
    assert [i.text for i in turn.history] == ["Hello."]
    assert driver.text("Hi ") == [ev.ResponseText(response_id="resp_s_1", index=1, text="Hi ")]
    assert driver.text("there.") == [ev.ResponseText(response_id="resp_s_1", index=1, text="there.")]
    assert driver.finish() == [ev.ResponseDone(response_id="resp_s_1", index=1, text="Hi there.")]
    assert driver.session.state is State.IDLE
    assert driver.told == ["Hi there."]


def test_a_model_may_speak_only_when_it_is_asked_to() -> None:
    model = msgspec.structs.replace(MODEL, default_output_modalities=(TEXT,))
    driver = Driver(model=model)
    driver.create()
    driver.create(speak_text="Hello.")
    driver.create(modalities=(AUDIO,))
    assert [turn.modalities for turn in driver.turns] == [(TEXT,), (TEXT, AUDIO), (AUDIO,)]
    asked = Driver(model=model, settings={"output_modalities": (TEXT, AUDIO)})
    asked.create()
    assert asked.turn.modalities == (TEXT, AUDIO)


def test_blank_text_is_nothing_to_respond_to() -> None:
    driver = Driver()
    driver.say("  \n")
    driver.commit("c1")
    driver.committed(False, event_id="c1")
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]
    driver.say(" ")
    driver.say("So?")
    driver.commit("c2")
    driver.committed(True, event_id="c2")
    assert driver.turn.question == " \nSo?"


def test_audio_has_one_sample_clock_and_counts_as_sent_when_it_is_written() -> None:
    driver = Driver()
    driver.create()
    (first,) = driver.sound(20, "Hi", write=False)
    (second,) = driver.sound(30, write=False)
    assert isinstance(first, ev.ResponseAudio)
    assert isinstance(second, ev.ResponseAudio)
    assert (first.pts, first.duration_ms, first.text) == (0, 20, "Hi")
    assert (second.pts, second.duration_ms) == (480, 30)
    assert driver.session.run_ahead_ms(driver.now) == 0
    driver.write()
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(50)
    (done,) = driver.finish()
    assert isinstance(done, ev.ResponseDone)
    assert done.audio_ms == pytest.approx(50)


def test_sound_that_its_encoder_still_holds_goes_with_the_next_payload() -> None:
    driver = Driver()
    driver.create()

    def deliver(payload: bytes, samples: int, text: str, level: float) -> list[ev.Event]:
        delta = t.EncodedAudio(
            payload=payload, samples=samples, sample_rate=24000, text=text, level_dbfs=level
        )
        return driver.do(driver.session.deliver(driver.turn.epoch, delta, driver.now))

    assert deliver(b"", 240, "one ", -10.0) == []
    assert deliver(b"", 240, "", -30.0) == []
    (event,) = deliver(b"opus", 480, "two", -20.0)
    assert isinstance(event, ev.ResponseAudio)
    assert (event.pts, event.duration_ms, event.text, event.level_dbfs) == (0, 40, "one two", -10.0)
    (tail,) = deliver(b"tail", 0, "", -120.0)
    assert isinstance(tail, ev.ResponseAudio)
    assert (tail.pts, tail.duration_ms) == (960, 0)
    driver.write()
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(40)


def test_output_that_was_not_asked_for_is_not_sent() -> None:
    driver = Driver()
    driver.create(modalities=(TEXT,))
    assert driver.sound(100) == []
    driver.text("read this")
    (done,) = driver.finish()
    assert isinstance(done, ev.ResponseDone)
    assert (done.text, done.audio_ms) == ("read this", 0)

    driver.create(modalities=(AUDIO,))
    assert driver.text("hear this") == []
    driver.sound(100, "hear this")
    driver.finish()
    assert driver.told == ["read this", "hear this"]


def test_text_is_whole_characters_and_its_deltas_join_to_the_final_text() -> None:
    driver = Driver()
    driver.create(modalities=(TEXT,))
    pieces = ["a", "\ud83d", "\ude00 b", "\udc00", "c\ud800", "d", "\ud83d"]
    sent = [event.text for piece in pieces for event in driver.text(piece)]  # type: ignore[union-attr]
    last, done = driver.finish()
    assert isinstance(last, ev.ResponseText)
    assert isinstance(done, ev.ResponseDone)
    assert "".join([*sent, last.text]) == done.text == "a\U0001f600 b\ufffdc\ufffdd\ufffd"


def test_a_cut_text_response_counts_as_read_as_far_as_it_was_sent() -> None:
    driver = Driver(settings={"output_modalities": (TEXT,)})
    driver.create()
    driver.text("as far as ")
    driver.text("this")
    driver.cancel()
    assert driver.one(ev.ResponseCancelled).heard_text == "as far as this"
    assert driver.told == ["as far as this"]


def test_a_failed_response_leaves_the_session_and_what_was_sent_of_it() -> None:
    driver = Driver()
    driver.create()
    driver.sound(500, "It was ")
    driver.sound(500, "a dark ", write=False)
    driver.fail()
    assert [type(e) for e in driver.last] == [fx.AbortResponse, fx.Send]
    failed = driver.one(ev.ResponseFailed)
    assert (failed.code, failed.message) == (ErrorCode.ADAPTER_FAILED, "it broke")
    assert driver.told == ["It was"]
    assert driver.session.state is State.IDLE
    driver.wait(0.2)
    driver.cancel()  # what was sent still plays, and can be cut
    assert driver.one(ev.ResponseCancelled).heard_ms == pytest.approx(200)
    assert driver.told == ["It"]


def test_a_fatal_failure_ends_the_session_with_one_terminal_event_for_the_response() -> None:
    driver = Driver()
    driver.create()
    events = driver.fail(ErrorCode.ENGINE_DOWN)
    assert [type(e) for e in events] == [ev.ResponseFailed, ev.ErrorEvent, ev.SessionEnded]
    assert driver.one(fx.CloseTransport).code == 1013
    assert driver.session.state is State.CLOSED


# --- input ------------------------------------------------------------------------------------------------


def test_half_a_sample_waits_for_its_other_half() -> None:
    driver = Driver()
    stream = bytes(range(11))
    got = b""
    for start in range(0, len(stream), 3):
        driver.hear(stream[start : start + 3])
        for effect in driver.of(fx.AppendInput):
            got += effect.window.pcm
    assert got == stream[:10]
    driver.commit("odd")
    assert driver.codes == [ErrorCode.ODD_AUDIO_BYTES]
    assert driver.of(fx.CommitInput)
    driver.hear(b"\1\2")  # the next turn begins with a whole sample
    assert driver.one(fx.AppendInput).window.pcm == b"\1\2"


def test_half_a_sample_of_another_rate_is_not_joined() -> None:
    driver = Driver()
    driver.hear(b"\1", rate=16000)
    assert driver.of(fx.AppendInput) == []
    driver.hear(b"\2\3", rate=24000)
    assert driver.one(fx.AppendInput).window.pcm == b"\2\3"


def test_a_single_byte_is_no_turn() -> None:
    driver = Driver()
    driver.hear(b"\1")
    driver.commit()
    assert driver.codes == [ErrorCode.ODD_AUDIO_BYTES, ErrorCode.COMMIT_EMPTY]


@pytest.mark.parametrize(
    ("window", "code"),
    [
        (t.TextWindow(text=""), ErrorCode.EMPTY_INPUT),
        (t.AudioWindow(pcm=b"", sample_rate=16000), ErrorCode.EMPTY_INPUT),
        (t.AudioWindow(pcm=b"12", sample_rate=0), ErrorCode.INVALID_AUDIO),
        (t.ImageWindow(data=b""), ErrorCode.EMPTY_INPUT),
        (t.VideoWindow(kind="video/mp4"), ErrorCode.EMPTY_INPUT),
        (t.VideoWindow(kind="video/mp4", frames=(b"",)), ErrorCode.EMPTY_INPUT),
        (t.TextWindow(text="x" * MAX_QUESTION), ErrorCode.INPUT_OVERFLOW),
    ],
)
def test_bad_input_is_refused_by_name_and_changes_nothing(window: t.Window, code: ErrorCode) -> None:
    driver = Driver()
    driver.append(window, "bad")
    assert driver.codes == [code]
    assert driver.one(ev.ErrorEvent).event_id == "bad"
    assert driver.of(fx.AppendInput) == []
    assert driver.session.state is State.IDLE
    assert driver.session.windows.items == ()


def test_a_modality_that_the_model_lacks_is_refused() -> None:
    model = ModelFacts(id="m", input_modalities=(TEXT,), output_modalities=(TEXT,))
    driver = Driver(model=model)
    driver.append(VIDEO)
    assert driver.codes == [ErrorCode.UNSUPPORTED_MODALITY]
    assert driver.one(ev.ErrorEvent).message == "unsupported input modality: video"
    driver.create(modalities=(AUDIO,))
    assert driver.codes == [ErrorCode.UNSUPPORTED_MODALITY]
    driver.update(output_modalities=["audio"])
    assert driver.codes == [ErrorCode.UNSUPPORTED_MODALITY]


def test_a_flood_of_small_texts_is_bounded() -> None:
    driver = Driver()
    for _ in range(MAX_QUESTION // 2):
        driver.session.feed(c.Append(window=t.TextWindow(text="x")), driver.now)
    driver.say("x")
    assert driver.codes == [ErrorCode.INPUT_OVERFLOW]


def test_text_before_a_video_window_is_a_question_and_the_commit_behind_it_says_nothing_new() -> None:
    driver = Driver()
    driver.say("what is")
    driver.say("on the table?")
    driver.append(VIDEO)
    assert driver.last[0] == fx.AppendInput(window=VIDEO)
    turn = driver.turn
    assert (turn.trigger, turn.question) == (t.Trigger.QUESTION, "what is\non the table?")
    assert turn.windows == (VIDEO,)
    driver.text("A cup.")
    driver.finish()  # a quick model
    assert driver.commit() == []
    assert driver.last == []
    driver.commit()
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]


def test_windows_are_a_bounded_rolling_history() -> None:
    driver = Driver(limits=SessionLimits(window_history=3))
    for number in range(5):
        driver.append(t.ImageWindow(data=bytes([number])))
    driver.create()
    assert [w.data for w in driver.turn.windows] == [b"\2", b"\3", b"\4"]  # type: ignore[union-attr]


# --- commits under way ------------------------------------------------------------------------------------


def test_a_second_commit_needs_new_input() -> None:
    driver = Driver()
    driver.say("one")
    driver.commit()
    driver.commit("again")
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]
    driver.committed(True)
    assert len(driver.turns) == 1


def test_two_turns_under_way_are_two_turns_each_with_its_own_words() -> None:
    driver = Driver()
    driver.say("one")
    driver.commit("a")
    driver.say("two")
    driver.commit("b")
    driver.committed(True, event_id="a")
    assert driver.turn.question == "one"
    driver.committed(True, event_id="b")
    assert driver.turn.question == "two"
    assert driver.of(ev.ResponseCancelled)
    assert [i.text for i in driver.turn.history] == ["one", "two"]


def test_a_commit_that_the_adapter_could_not_answer_is_an_error_of_that_commit() -> None:
    driver = Driver()
    driver.say("one")
    driver.commit("a")
    driver.say("two")
    driver.commit("b")
    driver.committed(False, event_id="a", error=DuplexError(ErrorCode.INVALID_MEDIA, "no", event_id="a"))
    assert (driver.codes, driver.one(ev.ErrorEvent).event_id) == ([ErrorCode.INVALID_MEDIA], "a")
    driver.committed(True, event_id="b")
    assert driver.turn.question == "two"


def test_an_answer_also_settles_commits_before_it_that_were_never_answered() -> None:
    driver = Driver()
    driver.say("one")
    driver.commit("a")
    driver.say("two")
    driver.commit("b")
    driver.committed(True, event_id="b")
    assert driver.turn.question == "two"
    driver.finish()
    driver.wish("w")  # nothing is in its way any more
    assert driver.turn.trigger is t.Trigger.PROACTIVE


def test_a_cancel_while_a_commit_is_under_way_withdraws_its_response_and_keeps_the_words() -> None:
    driver = Driver()
    driver.say("never mind")
    driver.commit()
    driver.cancel()
    assert driver.one(ev.ResponseCancelled).response_id == ""
    assert driver.committed(True) == []
    assert driver.turns == []
    assert driver.asked == ["never mind"]


def test_a_create_takes_the_turn_that_a_commit_is_still_deciding() -> None:
    driver = Driver()
    driver.say("one")
    driver.commit()
    driver.say("two")
    driver.create()
    assert driver.turn.question == "one\ntwo"
    assert driver.committed(True) == []
    assert len(driver.turns) == 1


def test_an_end_of_speech_takes_the_turn_that_a_commit_is_still_deciding() -> None:
    driver = Driver()
    driver.speak()
    driver.hear()
    driver.commit()
    driver.turn_ended()
    assert driver.turn.trigger is t.Trigger.SPEECH
    assert driver.committed(False) == []
    assert len(driver.turns) == 1


def test_commits_under_way_are_bounded() -> None:
    driver = Driver()
    for _ in range(MAX_COMMITS):
        driver.say("x")
        driver.commit()
        assert driver.codes == []
    driver.say("x")
    driver.commit()
    assert driver.codes == [ErrorCode.INPUT_OVERFLOW]


def test_an_answer_to_no_commit_starts_nothing() -> None:
    driver = Driver()
    assert driver.committed(True) == []
    assert driver.turns == []


def test_a_commit_under_way_is_answered_before_a_closing_session_ends() -> None:
    driver = Driver()
    driver.say("one more thing")
    driver.commit()
    driver.close()
    driver.do(driver.session.input_finished(driver.now))
    assert driver.session.state is State.CLOSING
    driver.committed(True)
    assert driver.turn.question == "one more thing"
    driver.text("Yes?")
    driver.finish()
    assert driver.session.state is State.CLOSED
    assert driver.one(ev.SessionEnded).code == 1000


def test_a_commit_with_nothing_in_it_lets_a_closing_session_end() -> None:
    driver = Driver()
    driver.hear()
    driver.commit()
    driver.close()
    driver.do(driver.session.input_finished(driver.now))
    driver.committed(False)
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]
    assert driver.session.state is State.CLOSED


# --- cancels ----------------------------------------------------------------------------------------------


def test_a_cancel_while_idle_is_answered() -> None:
    driver = Driver()
    (answer,) = driver.cancel(event_id="x")
    assert answer == ev.ResponseCancelled(
        response_id="", index=0, reason=ev.CancelReason.CLIENT, event_id="x"
    )


def test_a_cancel_of_a_response_that_never_was_is_an_error() -> None:
    driver = Driver()
    driver.create()
    for index in (0, -1, 2, 2**40):
        driver.cancel(index)
        assert driver.codes == [ErrorCode.RESPONSE_NOT_FOUND]
    assert driver.session.state is State.RESPONDING


def test_a_cancel_of_an_ended_response_leaves_the_running_one() -> None:
    driver = Driver()
    driver.create()
    driver.finish()
    driver.create()
    (answer,) = driver.cancel(1)
    assert isinstance(answer, ev.ResponseCancelled)
    assert (answer.response_id, answer.index) == ("", 1)
    assert driver.session.active_response == "resp_s_2"


def test_a_cancel_while_idle_cuts_what_sounds_and_says_what_was_heard() -> None:
    driver = Driver()
    for words in ("one two ", "three four "):
        driver.create()
        driver.sound(1000, words)
        driver.finish()
    driver.wait(0.6)
    answer, cleared = driver.cancel()
    assert isinstance(answer, ev.ResponseCancelled)
    assert isinstance(cleared, ev.PlaybackCleared)
    assert (answer.response_id, answer.index, answer.heard_ms) == ("", 2, 0)
    assert (cleared.index, cleared.heard_ms, cleared.heard_text) == (1, pytest.approx(600), "one")
    assert driver.told == ["one"]
    assert driver.of(fx.AbortResponse) == []  # nothing of them runs any more
    (again,) = driver.cancel()
    assert isinstance(again, ev.ResponseCancelled)
    assert driver.told == ["one"]


def test_a_later_interruption_does_not_shorten_what_had_been_played() -> None:
    driver = Driver()
    driver.create()
    driver.sound(1000, "one two")
    driver.ack(300)
    driver.finish()
    driver.wait(5)
    driver.cancel()
    driver.speak()
    assert driver.told == ["one two"]


def test_a_last_acknowledgement_of_long_ago_is_not_all_that_was_heard() -> None:
    driver = Driver()
    driver.create()
    driver.sound(1000, "one two")
    driver.ack(300)
    driver.finish()
    driver.wait(5)
    driver.cancel(1)
    assert driver.one(ev.ResponseCancelled).heard_ms == 1000
    assert driver.one(ev.ResponseCancelled).heard_text == "one two"


def test_speech_does_not_interrupt_where_the_settings_say_so() -> None:
    driver = Driver(settings={"turn_detection": t.TurnDetection(interrupt_response=False)})
    driver.create()
    driver.sound(1000)
    (started,) = driver.speak()
    assert isinstance(started, ev.UserSpeechStarted)
    assert driver.session.state is State.RESPONDING
    driver.hush()
    driver.turn_ended()  # what is said is answered when the voice has ended
    assert not driver.of(ev.ResponseCancelled)
    assert driver.turn.index == 1
    driver.finish()
    assert driver.turn.index == 2
    assert driver.turn.trigger is t.Trigger.SPEECH


# --- playback ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [math.nan, math.inf, -math.inf, -1.0])
def test_a_cursor_that_is_no_time_is_an_error(cursor: float) -> None:
    driver = Driver()
    driver.create()
    driver.sound(1000)
    driver.ack(cursor)
    assert driver.codes == [ErrorCode.INVALID_PLAYBACK_CURSOR]
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(1000)


def test_a_cursor_without_any_audio_is_an_error_and_one_of_no_response_too() -> None:
    driver = Driver()
    driver.create()
    driver.ack(10)
    assert driver.codes == [ErrorCode.INVALID_PLAYBACK_CURSOR]
    driver.ack(10, 2)
    assert driver.codes == [ErrorCode.RESPONSE_NOT_FOUND]
    assert driver.ack(10, 1) == []


def test_acknowledgements_correct_the_clock_and_decide_what_was_heard() -> None:
    driver = Driver()
    driver.create()
    for word in ("one ", "two ", "three ", "four "):
        driver.sound(500, word)
    driver.wait(1.0)
    driver.ack(400)  # the client started late
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(1600)
    driver.wait(0.2)
    driver.ack(550)
    driver.ack(500)  # late
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(1450)
    driver.cancel()
    assert driver.one(ev.ResponseCancelled).heard_ms == 550
    assert driver.told == ["one"]


def test_a_cursor_beyond_what_was_sent_is_all_that_was_sent() -> None:
    driver = Driver()
    driver.create()
    driver.sound(500, "one ")
    driver.sound(500, "two ", write=False)
    driver.ack(1e12)
    assert driver.session.run_ahead_ms(driver.now) == 0
    driver.cancel()
    assert driver.one(ev.ResponseCancelled).heard_ms == 500
    assert driver.told == ["one"]


def test_a_paused_player_that_repeats_its_cursor_stops_the_clock() -> None:
    driver = Driver()
    driver.create()
    driver.sound(2000)
    for _ in range(10):
        driver.wait(1.0)
        driver.ack(300)
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(1700)


def test_a_cursor_of_an_older_response_counts_what_is_queued_behind_it() -> None:
    driver = Driver()
    driver.create()
    driver.sound(1000, "one two ")
    driver.finish()
    driver.create()
    driver.sound(500, "three ")
    driver.wait(0.5)
    driver.ack(250, 1)
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(750 + 500)
    driver.wait(0.5)
    driver.ack(1000, 1)  # to its end: the next may have begun
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(500)
    driver.wait(0.25)
    driver.ack(1000, 1)
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(250)
    driver.ack(100, 2)
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(400)
    driver.ack(800, 1)  # late
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(400)


def test_a_response_that_has_not_begun_says_nothing_of_those_before_it() -> None:
    driver = Driver()
    driver.create()
    driver.sound(1000)
    driver.finish()
    driver.create()
    driver.sound(500)
    driver.wait(0.4)
    driver.ack(0, 2)
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(600 + 500)


def test_the_clients_word_corrects_a_cut_in_both_directions() -> None:
    driver = Driver()
    driver.create()
    for word in ("one ", "two ", "three ", "four "):
        driver.sound(500, word)
    driver.wait(1.0)
    driver.cancel()
    assert driver.told == ["one two"]
    driver.ack(600, 1)
    assert driver.told == ["one"]
    driver.ack(1600, 1)
    assert driver.told == ["one two three"]
    assert driver.session.run_ahead_ms(driver.now) == 0


def test_sound_behind_a_superseded_response_moves_up() -> None:
    driver = Driver()
    driver.create()
    driver.sound(1000, "old ")
    driver.finish()
    driver.create()
    driver.sound(1000, "cut ")
    driver.wait(0.4)
    driver.create()  # the second had not begun; the first plays on
    assert driver.one(ev.ResponseCancelled).heard_ms == 0
    assert driver.of(ev.PlaybackCleared) == []
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(600)
    driver.sound(200, "new ")
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(800)
    driver.wait(0.7)
    driver.speak()
    assert driver.one(ev.ResponseCancelled).heard_ms == pytest.approx(100)
    assert driver.told == ["old "]


def test_no_run_ahead_limit_is_a_limit_of_zero_and_costs_no_memory() -> None:
    driver = Driver(settings={"max_run_ahead_ms": 0})
    assert driver.session.settings.max_run_ahead_ms == 0
    driver.create()
    for _ in range(3000):
        driver.sound(20)
    driver.effects.clear()
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(60_000)
    driver.wait(30)
    driver.hear()
    assert driver.one(fx.AppendInput).window.playout_dbfs == -20.0
    driver.cancel()
    assert driver.one(ev.ResponseCancelled).heard_ms == pytest.approx(30_000)


# --- settings ---------------------------------------------------------------------------------------------


def test_settings_change_when_the_adapter_takes_them() -> None:
    driver = Driver()
    driver.update(event_id="u", voice="anna")
    proposal = driver.one(fx.UpdateAdapter)
    assert (proposal.settings.voice, proposal.event_id) == ("anna", "u")
    assert driver.session.settings.voice is None
    (updated,) = driver.do(driver.session.settings_applied(proposal.settings, driver.now, event_id="u"))
    assert updated == ev.SessionUpdated(settings=proposal.settings, event_id="u")
    assert driver.session.settings.voice == "anna"


def test_of_two_changes_under_way_the_second_does_not_carry_what_the_first_was_refused_for() -> None:
    driver = Driver()
    driver.update(event_id="a", voice="nobody")
    first = driver.one(fx.UpdateAdapter)
    driver.update(event_id="b", instructions="be brief")
    assert driver.of(fx.UpdateAdapter) == []
    refused = DuplexError(ErrorCode.INVALID_VALUE, "no such voice")
    driver.do(driver.session.settings_refused(refused, driver.now, event_id=first.event_id))
    assert driver.one(ev.ErrorEvent).event_id == "a"
    second = driver.one(fx.UpdateAdapter)
    assert (second.settings.voice, second.settings.instructions) == (None, "be brief")
    driver.do(driver.session.settings_applied(second.settings, driver.now, event_id="b"))
    assert driver.session.settings == second.settings


def test_a_change_is_judged_at_once_and_again_when_its_turn_comes() -> None:
    driver = Driver(model=ModelFacts(id="m", input_modalities=(TEXT,), output_modalities=(TEXT, AUDIO)))
    driver.update(event_id="a", options={"x": "y" * 60_000})
    first = driver.one(fx.UpdateAdapter)
    driver.update(event_id="b", options={"z": "y" * 60_000})
    assert driver.last == []
    driver.update(event_id="c", options={"z": "y" * 70_000})
    assert driver.one(ev.ErrorEvent).event_id == "c"
    driver.do(driver.session.settings_applied(first.settings, driver.now, event_id="a"))
    assert driver.one(ev.ErrorEvent).event_id == "b"  # together they are too much
    assert driver.of(fx.UpdateAdapter) == []


def test_changes_under_way_are_bounded() -> None:
    driver = Driver()
    for number in range(MAX_UPDATES):
        driver.update(voice=str(number))
    driver.update(event_id="last", voice="x")
    assert driver.codes == [ErrorCode.INPUT_OVERFLOW]
    for _ in range(MAX_UPDATES):
        settings = [e for e in driver.effects if isinstance(e, fx.UpdateAdapter)][-1].settings
        driver.do(driver.session.settings_applied(settings, driver.now))
    assert driver.session.settings.voice == str(MAX_UPDATES - 1)


def test_a_response_asked_for_behind_a_change_of_settings_has_the_new_ones() -> None:
    driver = Driver()
    driver.say("hello")
    driver.update(voice="anna")
    proposal = driver.one(fx.UpdateAdapter)
    driver.create()
    assert driver.turns == []
    driver.do(driver.session.settings_applied(proposal.settings, driver.now))
    assert (driver.turn.settings.voice, driver.turn.question) == ("anna", "hello")


def test_a_response_that_waits_for_settings_can_be_cancelled_and_superseded() -> None:
    driver = Driver()
    driver.update(voice="anna")
    proposal = driver.one(fx.UpdateAdapter)
    driver.say("one")
    driver.create(speak_text="first")
    driver.create(speak_text="second")
    driver.do(driver.session.settings_applied(proposal.settings, driver.now))
    assert (driver.turn.speak_text, driver.turn.question) == ("second", "one")
    driver.finish()

    driver.update(voice="bert")
    proposal = driver.one(fx.UpdateAdapter)
    driver.say("two")
    driver.create()
    assert isinstance(driver.cancel()[0], ev.ResponseCancelled)
    driver.do(driver.session.settings_applied(proposal.settings, driver.now))
    assert len(driver.turns) == 1
    assert driver.asked == ["one", "two"]


def test_settings_that_come_while_the_client_is_away_are_told_when_it_is_back() -> None:
    driver = Driver()
    driver.update(voice="anna")
    proposal = driver.one(fx.UpdateAdapter)
    driver.detach()
    driver.do(driver.session.settings_applied(proposal.settings, driver.now))
    (created,) = driver.attach()
    assert isinstance(created, ev.SessionCreated)
    assert created.settings.voice == "anna"


def test_settings_that_come_after_the_end_change_nothing() -> None:
    driver = Driver()
    driver.update(voice="anna")
    proposal = driver.one(fx.UpdateAdapter)
    driver.do(driver.session.end(1000, "bye", driver.now))
    assert driver.session.settings_applied(proposal.settings, driver.now) == []
    error = DuplexError(ErrorCode.INVALID_VALUE, "no")
    assert driver.session.settings_refused(error, driver.now) == []


# --- proactive --------------------------------------------------------------------------------------------


def test_a_wish_to_speak_is_answered_once() -> None:
    driver = Driver()
    driver.wish("goal")
    assert (driver.turn.trigger, driver.turn.event_id) == (t.Trigger.PROACTIVE, "goal")
    driver.finish()
    assert driver.wish("goal") == []
    assert len(driver.turns) == 1


def test_a_wish_does_not_supersede_and_the_newest_waits() -> None:
    driver = Driver()
    driver.create()
    driver.wish("a")
    driver.wish("b")
    assert len(driver.turns) == 1
    driver.finish()
    assert driver.turn.event_id == "b"
    driver.wish("a")  # it was never answered
    driver.cancel()
    assert driver.turn.event_id == "a"


def test_a_wish_leaves_the_turn_that_the_user_has_begun() -> None:
    driver = Driver()
    driver.say("what about")
    driver.wish("goal")
    assert driver.turn.question is None
    driver.finish()
    driver.commit()
    driver.committed(True)
    assert driver.turn.question == "what about"


def test_a_wish_waits_while_the_user_has_the_floor() -> None:
    driver = Driver()
    driver.speak()
    driver.wish("goal")
    driver.hush()
    assert driver.turns == []  # the model has not said yet what it makes of the speech
    driver.turn_ended()
    assert driver.turn.trigger is t.Trigger.SPEECH
    driver.finish()
    assert driver.turn.trigger is t.Trigger.PROACTIVE


def test_a_wish_does_not_wait_for_ever_for_a_turn_that_nobody_ends() -> None:
    driver = Driver()
    driver.speak()
    driver.wish("goal")
    driver.hush()
    for _ in range(300):
        driver.hear()
        driver.wait(0.02)
    assert driver.turn.trigger is t.Trigger.PROACTIVE


def test_a_wish_waits_for_a_commit_under_way_and_for_settings() -> None:
    driver = Driver()
    driver.hear()
    driver.commit()
    driver.wish("a")
    assert driver.turns == []
    driver.committed(False)
    assert driver.turn.event_id == "a"
    driver.finish()
    driver.update(voice="anna")
    proposal = driver.one(fx.UpdateAdapter)
    driver.wish("b")
    assert len(driver.turns) == 1
    driver.do(driver.session.settings_applied(proposal.settings, driver.now))
    assert driver.turn.event_id == "b"


def test_a_user_who_left_in_mid_speech_does_not_keep_the_floor() -> None:
    driver = Driver()
    driver.speak()
    driver.wish("goal")
    driver.detach()
    driver.attach()
    assert driver.turn.trigger is t.Trigger.PROACTIVE


def test_a_wish_while_the_client_is_away_waits_for_it() -> None:
    driver = Driver()
    driver.detach()
    driver.wish("a")
    assert driver.turns == []
    driver.attach()
    assert driver.turn.event_id == "a"


# --- signals ----------------------------------------------------------------------------------------------


def test_speech_events_come_in_pairs() -> None:
    driver = Driver()
    driver.hush()
    driver.speak()
    driver.speak()
    driver.hush()
    driver.hush()
    assert [type(e) for e in driver.events[1:]] == [ev.UserSpeechStarted, ev.UserSpeechStopped]


def test_what_the_model_reports_reaches_the_client_whole() -> None:
    driver = Driver()
    assert driver.signal(t.GateScore(score=0.5, pts_ms=40.0, segment_id="s1")) == [
        ev.GateDecided(score=0.5, speak=True, pts_ms=40.0, segment_id="s1")
    ]
    assert driver.signal(t.GateScore(score=0.49)) == [ev.GateDecided(score=0.49, speak=False)]
    assert driver.signal(t.InputLag(lag_ms=120.0, coalesced=2)) == [ev.InputLagged(lag_ms=120.0, coalesced=2)]
    assert driver.signal(t.Transcript(text="hel")) == [ev.UserTranscript(text="hel", final=False)]
    assert driver.asked == []
    driver.signal(t.Transcript(text="hello \ud83d", final=True))
    assert driver.asked == ["hello \ufffd"]


def test_a_rejected_window_never_ends_the_session_whatever_its_name() -> None:
    driver = Driver()
    (event,) = driver.signal(t.InputRejected(code=ErrorCode.INTERNAL_ERROR, message="broken \udcff"))
    assert event == ev.ErrorEvent(code=ErrorCode.INTERNAL_ERROR, message="broken \ufffd", fatal=False)
    assert driver.session.state is State.IDLE


def test_an_end_of_turn_without_server_side_turns_starts_nothing() -> None:
    for turns in (None, t.TurnDetection(create_response=False)):
        driver = Driver(settings={"turn_detection": turns})
        driver.speak()
        driver.hear()
        driver.hush()
        driver.turn_ended()
        assert driver.turns == []
        driver.commit()
        driver.committed(True)
        assert driver.turn.trigger is t.Trigger.COMMIT


# --- errors, timers, closing ------------------------------------------------------------------------------


def test_bad_messages_in_a_row_end_the_session_and_a_good_one_starts_the_count_again() -> None:
    driver = Driver(limits=SessionLimits(max_errors=3))

    def bad() -> list[ev.Event]:
        error = DuplexError(ErrorCode.INVALID_JSON, "no")
        return driver.do(driver.session.reject(error, driver.now))

    bad()
    bad()
    driver.cancel()
    bad()
    bad()
    assert driver.session.state is State.IDLE
    first, second, ended = bad()
    assert isinstance(first, ev.ErrorEvent)
    assert isinstance(second, ev.ErrorEvent)
    assert (first.code, first.fatal) == (ErrorCode.INVALID_JSON, False)
    assert (second.code, second.fatal) == (ErrorCode.TOO_MANY_ERRORS, True)
    assert isinstance(ended, ev.SessionEnded)
    assert driver.one(fx.CloseTransport).code == 4400
    assert driver.session.reject(DuplexError(ErrorCode.INVALID_JSON, "no"), driver.now) == []


def test_a_message_that_is_too_large_ends_the_session_at_once() -> None:
    driver = Driver()
    driver.do(driver.session.reject(DuplexError(ErrorCode.MESSAGE_TOO_LARGE, "9 MiB"), driver.now))
    assert driver.one(fx.CloseTransport).code == 1009


def test_a_session_is_idle_from_the_last_activity_and_not_while_it_speaks() -> None:
    driver = Driver(limits=SessionLimits(idle_timeout_s=10, response_stall_s=1000))
    driver.wait(9)
    driver.create()
    driver.wait(60)
    driver.sound(5000)
    driver.finish()
    driver.wait(14.9)
    assert driver.session.state is State.IDLE
    driver.wait(0.2)
    assert driver.codes == [ErrorCode.IDLE_TIMEOUT]
    assert driver.one(fx.CloseTransport).code == 4408


def test_input_is_activity() -> None:
    driver = Driver(limits=SessionLimits(idle_timeout_s=10))
    for _ in range(5):
        driver.wait(8)
        driver.hear()
    assert driver.session.state is State.LISTENING


def test_timers_that_fire_early_or_late_do_no_harm() -> None:
    driver = Driver(limits=SessionLimits(resume_grace_s=5, close_grace_s=5))
    for name in fx.TimerName:
        driver.timer(name)
    assert driver.session.state is State.IDLE
    driver.detach()
    driver.wait(3)
    driver.timer(fx.TimerName.IDLE)
    driver.attach()
    driver.timer(fx.TimerName.RESUME_GRACE)  # of the absence that is over
    driver.detach()
    driver.wait(3)
    driver.timer(fx.TimerName.RESUME_GRACE)
    assert driver.session.state is State.IDLE
    driver.wait(3)
    assert driver.session.state is State.CLOSED


def test_closing_lets_the_running_response_finish_and_refuses_input_once_by_name() -> None:
    driver = Driver()
    driver.create()
    driver.close()
    assert [type(e) for e in driver.last] == [fx.FinishInput, fx.SetTimer]
    assert driver.session.state is State.CLOSING
    driver.append(t.AudioWindow(pcm=bytes(640), sample_rate=16000), "mic")
    error = driver.one(ev.ErrorEvent)
    assert (error.code, error.event_id, error.fatal) == (ErrorCode.SESSION_CLOSING, "mic", False)
    for _ in range(50):
        driver.hear()
        assert driver.last == []
    driver.create("late")
    assert driver.one(ev.ErrorEvent).event_id == "late"
    driver.do(driver.session.input_finished(driver.now))
    driver.text("the end")
    events = driver.finish()
    assert [type(e) for e in events] == [ev.ResponseDone, ev.SessionEnded]
    assert driver.one(fx.CloseTransport) == fx.CloseTransport(code=1000, reason="closed by the client")


def test_what_the_model_still_decides_is_answered_one_after_the_other_before_the_end() -> None:
    driver = Driver(settings={"turn_detection": t.TurnDetection(interrupt_response=False)})
    driver.create()
    driver.speak()
    driver.hear()
    driver.close()
    driver.turn_ended()
    driver.wish("goal")
    driver.do(driver.session.input_finished(driver.now))
    assert len(driver.turns) == 1  # the running response is not superseded any more
    driver.finish()
    assert driver.turn.trigger is t.Trigger.SPEECH
    driver.finish()
    assert driver.turn.trigger is t.Trigger.PROACTIVE
    driver.finish()
    assert driver.session.state is State.CLOSED


def test_a_cancel_while_closing_ends_the_wait() -> None:
    driver = Driver()
    driver.create()
    driver.close()
    driver.do(driver.session.input_finished(driver.now))
    events = driver.cancel()
    assert [type(e) for e in events] == [ev.ResponseCancelled, ev.SessionEnded]


def test_speech_that_cuts_the_last_response_while_closing_ends_the_wait() -> None:
    driver = Driver()
    driver.create()
    driver.close()
    driver.speak()
    assert driver.session.state is State.CLOSING
    driver.do(driver.session.input_finished(driver.now))
    assert driver.session.state is State.CLOSED


def test_a_session_that_does_not_finish_in_time_is_ended() -> None:
    driver = Driver(limits=SessionLimits(close_grace_s=5))
    driver.create()
    driver.close()
    driver.close()
    driver.wait(4.9)
    driver.close()  # asking again does not move the deadline
    driver.wait(0.2)
    assert [type(e) for e in driver.events[-2:]] == [ev.ResponseCancelled, ev.SessionEnded]


def test_draining_tells_the_client_and_bounds_a_close_that_was_under_way() -> None:
    driver = Driver(limits=SessionLimits(close_grace_s=60))
    driver.create()
    driver.close()
    (notice,) = driver.do(driver.session.drain(2.0, driver.now))
    assert notice == ev.DrainNotice(grace_ms=2000)
    driver.wait(3)
    assert driver.session.state is State.CLOSED
    assert driver.one(fx.CloseTransport).code == 1000


def test_draining_closes_with_its_own_code() -> None:
    driver = Driver()
    driver.do(driver.session.drain(2.0, driver.now))
    driver.do(driver.session.input_finished(driver.now))
    assert driver.one(fx.CloseTransport) == fx.CloseTransport(code=1012, reason="server draining")


def test_draining_ends_a_session_without_a_client_at_once() -> None:
    driver = Driver()
    driver.detach()
    driver.do(driver.session.drain(2.0, driver.now))
    assert driver.session.state is State.CLOSED
    assert driver.of(fx.Send) == []


def test_a_client_that_leaves_a_closing_session_ends_it() -> None:
    driver = Driver()
    driver.create()
    driver.close()
    driver.detach()
    assert driver.of(fx.ReleaseSlot)
    assert driver.session.state is State.CLOSED


def test_nothing_happens_after_the_end() -> None:
    driver = Driver()
    driver.say("x")
    driver.create()
    turn = driver.turn
    driver.do(driver.session.end(1000, "bye", driver.now))
    session, now = driver.session, driver.now
    error = DuplexError(ErrorCode.INTERNAL_ERROR, "no")
    assert session.feed(c.CreateResponse(), now) == []
    assert session.deliver(turn.epoch, t.TextDelta(text="x"), now) == []
    assert session.response_finished(turn.epoch, now) == []
    assert session.response_failed(turn.epoch, error, now) == []
    assert session.committed(True, now) == []
    assert session.signal(t.WantsToSpeak(event_id="a"), now) == []
    assert session.input_finished(now) == []
    assert session.opened(now) == session.attach(now) == session.detach(now) == []
    assert session.drain(1, now) == session.end(1000, "again", now) == session.fail(error, now) == []
    for name in fx.TimerName:
        assert session.timer(name, now) == []
    assert session.windows.items == ()


def test_an_error_before_the_session_is_open_is_told() -> None:
    driver = Driver(opened=False)
    error = DuplexError(ErrorCode.ENGINE_DOWN, "no engine")
    events = driver.do(driver.session.fail(error, driver.now))
    assert [type(e) for e in events] == [ev.ErrorEvent, ev.SessionEnded]
    assert driver.one(fx.CloseTransport).code == 1013


def test_what_a_client_misses_is_bounded() -> None:
    driver = Driver()
    driver.detach()
    for _ in range(1000):
        driver.signal(t.InputRejected(code=ErrorCode.INVALID_MEDIA, message="bad"))
        driver.signal(t.Transcript(text="x"))
    events = driver.attach()
    assert len(events) <= 1 + 64
    assert not [e for e in events if isinstance(e, ev.UserTranscript)]


def test_the_opening_event_says_what_the_session_is() -> None:
    driver = Driver(opened=False)
    (created,) = driver.do(driver.session.opened(driver.now, resume_token="tok", expires_at=5.0))
    assert isinstance(created, ev.SessionCreated)
    assert (created.session_id, created.model, created.proactive) == ("s", MODEL.id, True)
    assert (created.resume_token, created.resumed, created.expires_at) == ("tok", False, 5.0)
    assert created.limits["idle_timeout_s"] == 300.0
