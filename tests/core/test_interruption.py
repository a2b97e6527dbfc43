"""Speech over the voice in virtual time: policies, ducking, what is overheard, and what is resumed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_driver import Driver

from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t
from duplex.core.commands import ClearInput
from duplex.core.interruption import Overlap, Verdict, counted_words, says_nothing


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("Mhm.", 0),
        ("Uh-huh, yeah, okay!", 0),
        ("Stop.", 1),
        ("Okay, stop it.", 2),
        ("I don't know", 3),
        ("等一下", 2),
        ("はい stop", 2),
        ("… — ?", 0),
    ],
)
def test_words_that_ask_for_the_floor_count(text: str, words: int) -> None:
    assert counted_words(text) == words


def test_what_says_nothing_depends_on_what_is_counted() -> None:
    assert says_nothing(" ", t.TurnDetection())
    assert not says_nothing("Mhm.", t.TurnDetection())
    assert says_nothing("Mhm.", t.TurnDetection(interrupt_min_words=1))


def voiced(**turns: Any) -> Driver:
    """A session in the middle of an answer: 2 s are sent, 1 s is heard."""
    driver = Driver(settings={"turn_detection": t.TurnDetection(**turns)})
    driver.create()
    driver.text("one two three four")
    for word in ("one", "two", "three", "four"):
        driver.sound(500, word)
    driver.wait(1.0)
    return driver


def transcript(driver: Driver, text: str, *, final: bool = False, at_ms: float = 100) -> list[ev.Event]:
    return driver.signal(t.Transcript(text=text, final=final, started_ms=at_ms))


def kinds(events: list[ev.Event]) -> list[type]:
    return [type(event) for event in events]


# --- policies -----------------------------------------------------------------------------------------


def test_on_speech_the_voice_yields_at_once() -> None:
    driver = voiced()
    assert kinds(driver.speak(100)) == [ev.UserSpeechStarted, ev.ResponseCancelled]
    assert driver.one(fx.AbortResponse)


def test_minimum_words_let_the_voice_go_on_until_there_are_so_many() -> None:
    driver = voiced(interrupt_min_words=2)
    assert driver.speak(100) == []
    assert transcript(driver, "Well,") == []
    events = transcript(driver, "Well, stop")
    assert kinds(events) == [ev.UserSpeechStarted, ev.ResponseCancelled, ev.UserTranscript]
    assert events[0] == ev.UserSpeechStarted(at_ms=100)
    order = [type(e) for e in driver.last]
    assert order.index(fx.AbortResponse) < order.index(fx.Send)


def test_minimum_length_is_told_by_the_detector() -> None:
    driver = voiced(interrupt_min_ms=600)
    driver.speak(100)
    assert driver.signal(t.SpeechContinued(speech_ms=599)) == []
    assert ev.ResponseCancelled in kinds(driver.signal(t.SpeechContinued(speech_ms=608)))


def test_minimum_length_is_seen_at_the_end_where_no_detector_tells_it() -> None:
    driver = voiced(interrupt_min_ms=600, prefix_padding_ms=300)
    driver.speak(100)
    events = driver.hush(1000)
    assert kinds(events) == [ev.UserSpeechStarted, ev.ResponseCancelled, ev.UserSpeechStopped]


def test_either_minimum_will_do() -> None:
    driver = voiced(interrupt_min_ms=600, interrupt_min_words=3)
    driver.speak(100)
    assert transcript(driver, "Wait a moment")
    driver = voiced(interrupt_min_ms=600, interrupt_min_words=3)
    driver.speak(100)
    assert driver.signal(t.SpeechContinued(speech_ms=600))


def test_off_means_that_speech_is_answered_when_the_voice_has_ended() -> None:
    driver = voiced(interrupt_response=False)
    driver.speak(100)
    driver.hush(900)
    transcript(driver, "And then?", final=True)
    driver.turn_ended()
    assert len(driver.turns) == 1
    driver.finish()
    assert driver.turn.index == 2
    assert driver.turn.history[0].text == "And then?"


def test_what_was_heard_of_nothing_yet_yields_to_any_speech() -> None:
    driver = Driver(settings={"turn_detection": t.TurnDetection(interrupt_min_words=3)})
    driver.create()
    driver.text("one two")
    assert kinds(driver.speak(100)) == [ev.UserSpeechStarted, ev.ResponseCancelled]


# --- overheard ----------------------------------------------------------------------------------------


def test_a_backchannel_is_overheard_and_the_voice_goes_on() -> None:
    driver = voiced(interrupt_min_words=1)
    driver.speak(100)
    assert driver.hush(500) == []
    assert transcript(driver, "Mhm.", final=True) == [ev.UserOverheard(at_ms=100, text="Mhm.")]
    assert driver.turn_ended() == []  # the model would answer it
    assert len(driver.turns) == 1
    assert driver.monitor.aborted == []
    assert [item.role for item in driver.session.conversation.items] == []
    driver.sound(500, "five")
    assert kinds(driver.finish()) == [ev.ResponseDone]


def test_words_that_were_overheard_are_not_answered_after_a_later_noise() -> None:
    driver = voiced(interrupt_min_words=1)
    driver.speak(100)
    driver.hush(500)
    transcript(driver, "Mhm.", final=True)
    driver.finish()
    driver.wait(5)
    driver.speak(9000)
    driver.hush(9200)
    transcript(driver, "", final=True, at_ms=9000)
    driver.turn_ended()  # a model that still has the first words
    assert len(driver.turns) == 1
    driver.speak(12000)
    driver.hush(12900)
    transcript(driver, "Go on.", final=True, at_ms=12000)
    driver.turn_ended()
    assert len(driver.turns) == 2


def test_a_model_that_writes_nothing_down_is_answered_after_it_was_overheard() -> None:
    driver = voiced(interrupt_min_ms=600)
    driver.speak(100)
    driver.hush(500)
    assert kinds(driver.turn_ended()) == [ev.UserOverheard]
    driver.finish()
    driver.wait(5)
    driver.speak(9000)
    driver.hush(9900)
    driver.turn_ended()
    assert len(driver.turns) == 2


def test_speech_that_outlasts_the_voice_is_a_turn() -> None:
    driver = voiced(interrupt_min_words=3)
    driver.speak(100)
    driver.finish()
    driver.wait(1.5)  # the rest has been played
    events = transcript(driver, "Thanks.", final=True)
    assert kinds(events) == [ev.UserSpeechStarted, ev.UserTranscript]
    assert kinds(driver.hush(900)) == [ev.UserSpeechStopped]
    driver.turn_ended()
    assert len(driver.turns) == 2


def test_a_turn_that_the_client_commits_over_the_voice_counts() -> None:
    driver = voiced(interrupt_min_words=3)
    driver.append(t.AudioWindow(pcm=bytes(640), sample_rate=16000))
    driver.speak(100)
    assert kinds(driver.commit()) == [ev.UserSpeechStarted, ev.ResponseCancelled]


def test_speech_over_the_voice_that_stalls_is_overheard() -> None:
    driver = voiced(interrupt_min_words=3, duck=True)
    driver.sound(20_000)
    driver.speak(100)
    driver.wait(6)
    assert [e for e in driver.events if isinstance(e, ev.UserOverheard)]
    assert isinstance(driver.events[-2], ev.PlaybackUnducked)
    assert driver.monitor.aborted == []


# --- ducking ------------------------------------------------------------------------------------------


def test_ducking_ends_with_the_cut_or_with_the_word_that_it_was_nothing() -> None:
    driver = voiced(interrupt_min_words=1, duck=True)
    (ducked,) = driver.speak(100)
    assert ducked == ev.PlaybackDucked(response_id=driver.turn.response_id, index=1)
    assert kinds(transcript(driver, "Mhm.", final=True)) == [ev.PlaybackUnducked, ev.UserOverheard]
    driver.speak(3000)
    events = transcript(driver, "Stop.", at_ms=3000)
    assert kinds(events) == [ev.UserSpeechStarted, ev.ResponseCancelled, ev.UserTranscript]


def test_ducking_ends_when_the_input_is_cleared() -> None:
    driver = voiced(interrupt_min_words=1, duck=True)
    driver.speak(100)
    assert ev.PlaybackUnducked in kinds(driver.feed(ClearInput()))
    assert driver.monitor.aborted == []


# --- false interruptions ------------------------------------------------------------------------------


def noise(driver: Driver, text: str = "") -> None:
    driver.speak(100)
    driver.hush(400)
    transcript(driver, text, final=True)


def test_a_voice_cut_by_a_noise_goes_on_where_it_stopped() -> None:
    driver = voiced()
    noise(driver)
    assert driver.turn.trigger is t.Trigger.RESUMED
    assert driver.turn.speak_text == "three four"
    assert driver.turn.index == 2
    items = driver.session.conversation.items
    assert [(item.text, item.interrupted) for item in items] == [("one two", True)]
    driver.text("three four")
    driver.sound(1000, "three four")
    driver.finish()
    assert [item.text for item in driver.session.conversation.items] == ["one two", "three four"]


def test_a_voice_that_had_ended_and_still_sounded_goes_on_too() -> None:
    driver = voiced()
    driver.finish()
    noise(driver)
    assert driver.turn.speak_text == "three four"


def test_where_words_are_counted_a_backchannel_is_a_noise() -> None:
    driver = voiced(interrupt_min_words=2, interrupt_min_ms=300)
    driver.speak(100)
    driver.signal(t.SpeechContinued(speech_ms=320))
    driver.hush(700)
    transcript(driver, "Uh-huh.", final=True)
    assert driver.turn.trigger is t.Trigger.RESUMED
    driver.turn_ended()
    assert len(driver.turns) == 2


def test_an_answer_that_had_not_begun_is_begun_anew() -> None:
    driver = Driver()
    driver.create()
    noise(driver)
    assert driver.turn.trigger is t.Trigger.RESUMED
    assert driver.turn.speak_text is None


def test_noise_that_the_model_says_nothing_about_is_given_up_and_resumed() -> None:
    driver = voiced()
    driver.speak(100)
    driver.hush(400)
    driver.wait(6)
    assert driver.turn.trigger is t.Trigger.RESUMED


def test_nothing_is_resumed_while_the_user_speaks_again() -> None:
    driver = voiced()
    driver.speak(100)
    driver.hush(400)
    driver.speak(800)
    transcript(driver, "", final=True)
    assert len(driver.turns) == 1
    driver.hush(1200)
    transcript(driver, "Stop.", final=True, at_ms=800)
    driver.turn_ended()
    assert driver.turn.trigger is t.Trigger.SPEECH
    assert len(driver.turns) == 2


@pytest.mark.parametrize(
    "turns", [{"resume_interrupted": False}, {"create_response": False}, {"interrupt_response": False}]
)
def test_nothing_is_resumed_where_the_settings_say_so(turns: dict[str, bool]) -> None:
    driver = voiced(**turns)
    noise(driver)
    assert len(driver.turns) == 1


def test_what_the_client_cancelled_is_not_resumed() -> None:
    driver = voiced()
    driver.cancel()
    noise(driver)
    assert len(driver.turns) == 1


def test_what_was_heard_by_the_client_s_word_is_not_said_again() -> None:
    driver = voiced()
    driver.speak(100)
    driver.ack(1500, 1)
    driver.hush(400)
    transcript(driver, "", final=True)
    assert driver.turn.speak_text == "four"


# --- any order ----------------------------------------------------------------------------------------

SIGNALS = st.one_of(
    st.builds(t.SpeechStarted, at_ms=st.floats(0, 5000)),
    st.builds(t.SpeechContinued, speech_ms=st.floats(0, 2000)),
    st.builds(t.SpeechStopped, at_ms=st.floats(0, 5000)),
    st.builds(
        t.Transcript,
        text=st.sampled_from(["", "mhm", "stop", "please stop it now"]),
        final=st.booleans(),
        started_ms=st.sampled_from([None, 0.0]),
    ),
    st.just(t.TurnEnded()),
)
POLICIES = st.builds(
    t.TurnDetection,
    interrupt_min_words=st.integers(1, 3),
    interrupt_min_ms=st.sampled_from([0, 300, 900]),
    duck=st.just(True),
)


@settings(deadline=None)
@given(policy=POLICIES, signals=st.lists(SIGNALS, max_size=12))
def test_an_overlap_interrupts_only_by_what_the_policy_asks_for(
    policy: t.TurnDetection, signals: list[t.Signal]
) -> None:
    overlap = Overlap(t.SpeechStarted(at_ms=0), policy, ducked=False)
    for signal in signals:
        verdict = overlap.heard(signal, voiced=True)
        if verdict is Verdict.INTERRUPTS:
            match signal:
                case t.Transcript():
                    assert counted_words(signal.text) >= policy.interrupt_min_words
                case t.SpeechContinued():
                    assert signal.speech_ms >= policy.interrupt_min_ms > 0
                case t.SpeechStopped():
                    assert signal.at_ms - overlap.started.at_ms > policy.interrupt_min_ms > 0
                case _:
                    raise AssertionError(signal)
        if verdict is not Verdict.OPEN:
            return
    assert overlap.heard(t.TurnEnded(), voiced=False) is Verdict.ALONE


@settings(deadline=None)
@given(
    policy=POLICIES,
    steps=st.lists(SIGNALS | st.sampled_from(["sound", "finish", "create", "wait", "long"]), max_size=25),
)
def test_every_duck_ends_and_nothing_is_told_of_speech_that_is_not_decided(
    policy: t.TurnDetection, steps: list[t.Signal | str]
) -> None:
    driver = Driver(settings={"turn_detection": policy})
    ducked = False
    for step in steps:
        before = len(driver.events)
        match step:
            case "sound":
                if driver.session.active_response:
                    driver.sound(500, "word")
            case "finish":
                if driver.session.active_response:
                    driver.finish()
            case "create":
                driver.create()
            case "wait" | "long":
                driver.wait(0.3 if step == "wait" else 7)
            case _:
                driver.signal(step)  # type: ignore[arg-type]
        for event in driver.events[before:]:
            match event:
                case ev.PlaybackDucked():
                    assert not ducked
                    ducked = True
                case ev.PlaybackUnducked() | ev.UserSpeechStarted():
                    ducked = False
                case ev.UserTranscript() | ev.UserSpeechStopped():
                    assert not ducked, "told of speech that is not decided"
    driver.finish() if driver.session.active_response else None
    driver.wait(30)
    for event in driver.events:
        ducked = isinstance(event, ev.PlaybackDucked) or (
            ducked and not isinstance(event, ev.PlaybackUnducked | ev.UserSpeechStarted)
        )
    assert not ducked
