"""Faults that users of such systems reported, each as a test of the core that it could come from."""

from __future__ import annotations

import tracemalloc

import pytest
from session_driver import MODEL, VIDEO, Driver

from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t
from duplex.core.commands import Append
from duplex.core.errors import ErrorCode
from duplex.core.session import Session, SessionLimits, State


def kinds(effects: list[fx.Effect]) -> list[type]:
    """Types of effects, of what is sent the type of the event."""
    return [type(e.event) if isinstance(e, fx.Send) else type(e) for e in effects]


def answering(**options: object) -> Driver:
    """A session whose first response is being generated."""
    driver = Driver(**options)  # type: ignore[arg-type]
    driver.say("tell me a story")
    driver.create()
    return driver


def test_fault_01_nothing_stale_after_the_user_talks_over_an_answer() -> None:
    driver = answering()
    driver.text("Once upon a time ")
    driver.sound(2000, "Once upon a time")
    driver.wait(1.0)
    driver.speak(at_ms=700)
    assert kinds(driver.last) == [
        fx.AbortResponse,
        ev.UserSpeechStarted,
        ev.ResponseCancelled,
        fx.SetTimer,
    ]
    cancelled = driver.one(ev.ResponseCancelled)
    assert cancelled.reason is ev.CancelReason.SPEECH
    assert cancelled.heard_ms == pytest.approx(1000)
    # what the model, its encoder and its task still bring comes too late
    assert driver.text("there was") == []
    assert driver.sound(20) == []
    assert driver.finish() == []
    assert driver.fail() == []
    assert driver.session.dropped_deltas == 2
    assert driver.session.run_ahead_ms(driver.now) == 0


def test_fault_02_a_cancel_of_what_the_client_did_not_read_aborts_before_it_tells() -> None:
    driver = answering()
    for _ in range(50):
        driver.sound(20, write=False)
    driver.cancel()
    assert kinds(driver.last) == [fx.AbortResponse, ev.ResponseCancelled]
    assert driver.one(ev.ResponseCancelled).heard_ms == 0


def test_fault_02_a_frame_that_was_being_written_during_the_cancel_is_not_played() -> None:
    driver = answering()
    driver.sound(100)
    (frame,) = driver.sound(20, write=False)
    driver.cancel()
    assert isinstance(frame, ev.ResponseAudio)
    driver.session.written(frame, driver.now)
    assert driver.session.run_ahead_ms(driver.now) == 0
    assert kinds(driver.session.signal(t.SpeechStarted(at_ms=0), driver.now))[0] is ev.UserSpeechStarted


def test_fault_03_audio_of_an_answer_cut_before_playback_does_not_reach_the_next_one() -> None:
    driver = answering()
    first = driver.turn
    driver.sound(100, write=False)
    driver.cancel()
    assert driver.session.epoch > first.epoch
    driver.create()
    assert driver.sound(100, turn=first) == []
    assert driver.text("late", turn=first) == []
    assert driver.finish(first) == []
    (fresh,) = driver.sound(100)
    assert isinstance(fresh, ev.ResponseAudio)
    assert (fresh.index, fresh.pts) == (2, 0)


def test_fault_04_thirty_queued_seconds_stop_and_count_as_unheard() -> None:
    driver = answering()
    for number in range(300):
        driver.sound(100, f"word{number} ")
    driver.finish()
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(30_000)
    driver.wait(1.0)
    driver.speak()
    cleared = driver.one(ev.PlaybackCleared)
    assert cleared.heard_ms == pytest.approx(1000)
    assert driver.told == [" ".join(f"word{n}" for n in range(10))]
    assert driver.session.run_ahead_ms(driver.now) == 0


def test_fault_05_a_client_that_left_in_mid_speech_hears_nothing_stale_on_its_return() -> None:
    driver = answering()
    first = driver.turn
    driver.sound(4000, "a long tale")
    driver.wait(0.5)
    driver.detach()
    assert kinds(driver.last) == [fx.AbortResponse, fx.SetTimer, fx.ClearTimer]
    driver.sound(100, turn=first)
    driver.finish(first)
    driver.wait(1.0)
    created, cancelled = driver.attach()
    assert isinstance(created, ev.SessionCreated)
    assert created.resumed
    assert isinstance(cancelled, ev.ResponseCancelled)
    assert cancelled.reason is ev.CancelReason.CLIENT_GONE
    assert driver.session.run_ahead_ms(driver.now) == 0
    assert driver.sound(100, turn=first) == []


def test_fault_05_what_was_done_but_unplayed_is_cleared_for_a_client_that_returns() -> None:
    driver = answering()
    driver.sound(4000, "a long tale")
    driver.finish()
    driver.detach()
    created, cleared = driver.attach()
    assert isinstance(created, ev.SessionCreated)
    assert isinstance(cleared, ev.PlaybackCleared)
    assert driver.told == []


@pytest.mark.parametrize("before", [True, False], ids=["before the cut", "after the cut"])
def test_fault_06_truncate_at_zero_means_that_nothing_was_heard(before: bool) -> None:
    driver = answering()
    driver.text("One two three")
    driver.sound(1000, "One two three")
    driver.wait(0.9)
    if before:
        assert driver.ack(0, 1) == []
        driver.cancel()
        assert driver.one(ev.ResponseCancelled).heard_ms == 0
    else:
        driver.cancel()
        assert driver.told == ["One two"]
        assert driver.ack(0, 1) == []
    assert driver.told == []


def test_fault_07_history_is_only_what_was_heard() -> None:
    driver = answering()
    driver.text("One two three four five six seven eight nine ten")
    driver.sound(500, "One two three four five ")
    driver.sound(500, "six seven eight nine ten")
    driver.wait(0.5)
    driver.speak()
    assert driver.told == ["One two three four five"]
    (item,) = [i for i in driver.session.conversation.items if i.role == "assistant"]
    assert item.interrupted
    driver.turn_ended()
    assert driver.turn.history[-1].text == "One two three four five"


def test_fault_07_text_whose_sound_has_not_begun_was_not_heard() -> None:
    driver = answering()
    driver.text("The whole answer, ahead of its sound.")
    driver.speak()
    assert driver.told == []
    assert driver.one(ev.ResponseCancelled).heard_text == ""


def test_fault_07_both_answers_that_sound_are_cut_to_what_was_heard() -> None:
    driver = answering()
    for word in ("one ", "two ", "three ", "four "):
        driver.sound(500, word)
    driver.finish()
    driver.create()
    for word in ("five ", "six "):
        driver.sound(500, word)
    driver.wait(1.0)  # of 2 s and 1 s
    driver.speak()
    assert driver.one(ev.ResponseCancelled).heard_ms == 0
    assert driver.one(ev.PlaybackCleared).heard_ms == pytest.approx(1000)
    assert driver.told == ["one two"]


def test_fault_08_microphone_audio_carries_the_level_of_what_plays() -> None:
    driver = answering()
    driver.hear()
    assert driver.one(fx.AppendInput).window.playout_dbfs is None
    driver.sound(1000)
    driver.hear()
    assert driver.one(fx.AppendInput).window.playout_dbfs == -20.0
    driver.wait(1.2)
    driver.hear()  # the room still answers
    assert driver.one(fx.AppendInput).window.playout_dbfs == -20.0
    driver.wait(0.3)
    driver.hear()
    assert driver.one(fx.AppendInput).window.playout_dbfs is None


def test_fault_08_a_cancel_leaves_only_the_echo() -> None:
    driver = answering()
    driver.sound(5000)
    driver.wait(1.0)
    driver.cancel()
    driver.hear()
    assert driver.one(fx.AppendInput).window.playout_dbfs == -20.0
    driver.wait(0.5)
    driver.hear()
    assert driver.one(fx.AppendInput).window.playout_dbfs is None


def test_fault_09_speech_while_idle_interrupts_nothing_and_keeps_the_words() -> None:
    driver = answering()
    driver.text("done")
    driver.sound(100, "done")
    driver.finish()
    driver.wait(0.2)
    driver.speak()
    assert kinds(driver.last) == [ev.UserSpeechStarted, fx.SetTimer]
    driver.signal(t.Transcript(text="and then?", final=True))
    driver.hush()
    driver.turn_ended()
    assert driver.turn.trigger is t.Trigger.SPEECH
    assert [i.text for i in driver.turn.history] == ["tell me a story", "done", "and then?"]


def test_fault_11_a_response_that_stalls_fails_and_the_session_goes_on() -> None:
    driver = answering(limits=SessionLimits(response_stall_s=10))
    driver.text("I ")
    driver.wait(9.0)
    driver.text("think ")
    driver.wait(9.5)
    assert driver.session.state is State.RESPONDING
    driver.wait(1.0)
    failed = driver.events[-1]
    assert isinstance(failed, ev.ResponseFailed)
    assert failed.code is ErrorCode.ADAPTER_FAILED
    assert [type(e) for e in driver.effects if isinstance(e, fx.AbortResponse)]
    driver.create()
    driver.text("again")
    assert isinstance(driver.finish()[0], ev.ResponseDone)


def test_fault_11_writing_and_acknowledging_are_progress() -> None:
    driver = answering(limits=SessionLimits(response_stall_s=10))
    driver.sound(60_000, write=False)
    driver.wait(9)
    driver.write()
    driver.wait(9)
    driver.ack(9000)
    driver.wait(9)
    assert driver.session.state is State.RESPONDING


def test_fault_12_a_cancel_stops_only_the_response_that_it_names() -> None:
    driver = answering()
    driver.sound(2000, "one two")
    driver.finish()
    driver.create()
    driver.sound(1000, "three four")
    driver.wait(0.5)
    driver.cancel(1)
    answer = driver.one(ev.ResponseCancelled)
    assert (answer.response_id, answer.index, answer.heard_ms) == ("", 1, pytest.approx(500))
    assert driver.session.active_response == driver.turn.response_id
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(1000)
    driver.wait(0.6)
    driver.cancel(2)
    assert driver.one(ev.ResponseCancelled).heard_ms == pytest.approx(600)


def test_fault_12_a_cancel_of_the_newer_answer_lets_the_older_one_sound() -> None:
    driver = answering()
    driver.sound(2000, "one two")
    driver.finish()
    driver.create()
    driver.sound(1000, "three four")
    driver.wait(0.5)
    driver.cancel(2)
    assert driver.of(ev.PlaybackCleared) == []
    assert driver.session.run_ahead_ms(driver.now) == pytest.approx(1500)
    driver.wait(2.0)
    assert driver.told == ["one two"]


def test_fault_12_a_cancel_leaves_the_open_turn_of_the_user() -> None:
    driver = answering()
    driver.say("what about this")
    driver.hear()
    driver.signal(t.Transcript(text="heard meanwhile", final=True))
    driver.cancel()
    driver.commit()
    driver.committed(True)
    assert driver.turn.question == "what about this"
    assert "heard meanwhile" in [i.text for i in driver.turn.history]


def test_fault_13_a_second_create_is_refused_by_its_exact_code_where_the_dialect_wants_so() -> None:
    driver = answering(while_active="refuse")
    driver.create(event_id="e7")
    error = driver.one(ev.ErrorEvent)
    assert error.code is ErrorCode.RESPONSE_ALREADY_ACTIVE
    assert error.code == "conversation_already_has_active_response"
    assert (error.event_id, error.fatal) == ("e7", False)
    driver.text("still here")
    assert driver.finish()[0].index == 1  # type: ignore[union-attr]


def test_fault_13_a_second_create_supersedes_elsewhere_and_there_are_never_two_voices() -> None:
    driver = answering()
    first = driver.turn
    driver.sound(500)
    driver.create()
    assert kinds(driver.last)[:4] == [
        fx.AbortResponse,
        ev.ResponseCancelled,
        ev.ResponseCreated,
        fx.StartResponse,
    ]
    assert driver.one(ev.ResponseCancelled).reason is ev.CancelReason.SUPERSEDED
    assert driver.sound(20, turn=first) == []
    assert driver.session.run_ahead_ms(driver.now) == 0


def test_fault_14_every_refusal_names_the_message_that_caused_it() -> None:
    driver = Driver()
    driver.commit(event_id="a")
    driver.cancel(9, event_id="b")
    driver.append(t.TextWindow(text=""), event_id="c")
    driver.update(event_id="d", nonsense=1)
    driver.create(event_id="e", modalities=(t.Modality.VIDEO,))
    errors = [e for e in driver.events if isinstance(e, ev.ErrorEvent)]
    assert [e.event_id for e in errors] == ["a", "b", "c", "d", "e"]
    driver.say("hm")
    driver.commit(event_id="f")
    driver.cancel(event_id="g")
    assert driver.one(ev.ResponseCancelled).event_id == "g"


def test_fault_15_input_that_stalls_in_mid_speech_closes_the_turn() -> None:
    driver = Driver(limits=SessionLimits(input_stall_s=5))
    driver.speak()
    for _ in range(100):
        driver.hear()
        driver.wait(0.02)
    driver.wait(4.9)
    assert driver.of(fx.CommitInput) == []
    driver.wait(0.2)
    assert driver.one(ev.UserSpeechStopped).at_ms == pytest.approx(2000)
    assert driver.of(fx.CommitInput)
    driver.committed(True)
    assert driver.turn.trigger is t.Trigger.SPEECH


def test_fault_15_a_stalled_turn_without_words_is_no_error_of_the_client() -> None:
    driver = Driver()
    driver.speak()
    driver.wait(6)
    assert driver.committed(False) == []
    assert driver.session.state is State.IDLE


@pytest.mark.parametrize("after", ["nothing", "speech", "create"])
def test_fault_16_an_empty_commit_is_an_error_and_makes_no_response(after: str) -> None:
    driver = Driver()
    if after == "speech":
        driver.speak()
        driver.hear()
        driver.hush()
        driver.turn_ended()
        driver.finish()
    if after == "create":
        driver.say("x")
        driver.create()
        driver.finish()
    count = len(driver.turns)
    driver.commit(event_id="empty")
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]
    assert driver.one(ev.ErrorEvent).event_id == "empty"
    assert len(driver.turns) == count


def test_fault_16_a_commit_in_which_the_model_finds_nothing_is_an_error() -> None:
    driver = Driver()
    driver.hear()
    driver.commit(event_id="noise")
    driver.committed(False, event_id="noise")
    assert driver.codes == [ErrorCode.COMMIT_EMPTY]
    assert driver.one(ev.ErrorEvent).event_id == "noise"
    assert driver.turns == []
    assert driver.asked == []


def test_fault_17_a_client_that_leaves_for_good_gives_its_slot_back() -> None:
    driver = answering(limits=SessionLimits(resume_grace_s=0))
    driver.sound(500, write=False)
    driver.detach()
    assert kinds(driver.last)[:2] == [fx.AbortResponse, fx.ReleaseSlot]
    assert driver.session.state is State.CLOSED


def test_fault_17_the_grace_of_a_client_that_does_not_return_is_bounded() -> None:
    driver = answering(limits=SessionLimits(resume_grace_s=30))
    driver.detach()
    driver.wait(29)
    assert driver.session.state is not State.CLOSED
    driver.wait(2)
    assert driver.of(fx.ReleaseSlot)
    assert driver.session.state is State.CLOSED


@pytest.mark.parametrize("how", ["end", "fatal", "close", "grace", "idle", "drain"])
def test_fault_31_the_slot_is_free_before_the_client_reads_of_the_end(how: str) -> None:
    driver = answering(limits=SessionLimits(close_grace_s=1, idle_timeout_s=20, response_stall_s=1000))
    if how == "end":
        driver.do(driver.session.end(1000, "bye", driver.now))
    elif how == "fatal":
        driver.fail(ErrorCode.ENGINE_DOWN)
    elif how == "close":
        driver.close()
        driver.do(driver.session.input_finished(driver.now))
        driver.finish()
    elif how == "grace":
        driver.close()
        driver.wait(2)
    elif how == "idle":
        driver.finish()
        driver.wait(50)
    else:
        driver.do(driver.session.drain(1, driver.now))
        driver.wait(2)
    order = kinds(driver.last)
    assert fx.ReleaseSlot in order  # that it is before all that is sent is checked of every step
    assert order[-1] is fx.CloseTransport
    assert ev.SessionEnded in order
    assert driver.session.state is State.CLOSED


def test_fault_34_a_turn_committed_before_the_connection_broke_is_answered_after_it() -> None:
    driver = Driver()
    driver.say("are you there?")
    driver.commit()
    driver.detach()
    assert driver.committed(True) == []
    assert driver.turns == []
    driver.attach()
    assert driver.turn.question == "are you there?"
    assert driver.turn.trigger is t.Trigger.COMMIT


def test_fault_34_speech_that_ended_while_the_client_was_away_is_answered_on_its_return() -> None:
    driver = Driver()
    driver.speak()
    driver.hear()
    driver.detach()
    driver.signal(t.Transcript(text="hello?", final=True))
    driver.turn_ended()
    driver.attach()
    assert driver.turn.trigger is t.Trigger.SPEECH
    assert driver.turn.history[-1].text == "hello?"


def test_fault_34_input_that_was_refused_meanwhile_is_named_on_return() -> None:
    driver = Driver()
    driver.append(VIDEO)
    driver.detach()
    driver.signal(t.InputRejected(code=ErrorCode.INVALID_MEDIA, message="truncated", param="data"))
    driver.attach()
    assert driver.codes == [ErrorCode.INVALID_MEDIA]
    assert [event.param for event in driver.of(ev.ErrorEvent)] == ["data"]


def test_fault_35_a_second_socket_takes_the_session_over_from_a_half_open_one() -> None:
    driver = answering()
    driver.sound(4000, "a long tale")
    created, cancelled = driver.attach()
    assert isinstance(created, ev.SessionCreated)
    assert isinstance(cancelled, ev.ResponseCancelled)
    assert driver.session.attached
    driver.create()
    driver.text("here")
    assert isinstance(driver.finish()[0], ev.ResponseDone)


def test_fault_37_hours_of_commentary_leave_memory_flat() -> None:
    session = Session(session_id="s", model=MODEL, limits=SessionLimits(window_history=8))
    session.opened(0.0)

    def comment(number: int) -> None:
        now = float(number)
        window = t.VideoWindow(kind="video/mp4", data=bytes(2000))
        session.feed(Append(window=window), now)
        effects = session.signal(t.WantsToSpeak(event_id=f"event {number}"), now)
        (epoch,) = [e.turn.epoch for e in effects if isinstance(e, fx.StartResponse)]
        session.deliver(epoch, t.TextDelta(text=f"Comment {number}: " + "the ball rolls. " * 8), now)
        for _ in range(10):
            chunk = t.EncodedAudio(payload=bytes(9), samples=2400, sample_rate=24000, text="the ball rolls ")
            for effect in session.deliver(epoch, chunk, now):
                assert isinstance(effect, fx.Send)
                assert isinstance(effect.event, ev.ResponseAudio)
                session.written(effect.event, now)
        session.response_finished(epoch, now)

    tracemalloc.start()
    try:
        for number in range(1100):  # past every bound of the core
            comment(number)
        before = tracemalloc.take_snapshot()
        for number in range(1100, 2000):
            comment(number)
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    grown = [stat.size_diff for stat in after.compare_to(before, "filename")]
    assert sum(grown) < 64 * 1024  # one comment in ten that stayed would be 200 kB
    assert len(session.windows.items) == 8
    assert len(session.conversation.items) == 64


def test_fault_38_of_wishes_that_pile_up_the_newest_wins() -> None:
    driver = answering()
    for number in range(100):
        driver.wish(f"event {number}")
    driver.finish()
    assert driver.turn.event_id == "event 99"
    assert driver.finish()[1:] == []
    driver.wish("event 99")
    assert len(driver.turns) == 2
