"""A user who says nothing: `idle_timeout_ms`, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_driver import Driver

from duplex.core import commands as c
from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t


def spoken(**turns: Any) -> Driver:
    """A session whose model has just been sent to its end: 2 s of sound are still to be played."""
    driver = Driver(settings={"turn_detection": t.TurnDetection(**{"idle_timeout_ms": 5000, **turns})})
    driver.create()
    driver.sound(2000, "words")
    driver.finish()
    return driver


def idles(driver: Driver) -> list[ev.UserIdle]:
    return [event for event in driver.events if isinstance(event, ev.UserIdle)]


def test_it_is_counted_from_the_end_of_the_sound_and_a_response_follows() -> None:
    driver = spoken()
    driver.wait(6.9)
    assert not idles(driver)
    driver.wait(0.2)
    assert len(idles(driver)) == 1
    assert driver.turn.trigger is t.Trigger.IDLE
    assert driver.turn.index == 2


def test_it_is_counted_from_what_the_client_says_that_it_played() -> None:
    driver = spoken()
    driver.wait(1.0)
    driver.ack(200, 1)  # it began late
    driver.wait(6.7)
    assert not idles(driver)
    driver.wait(0.2)
    assert len(idles(driver)) == 1


def test_each_answer_is_followed_by_it_again() -> None:
    driver = spoken()
    driver.wait(7.5)
    driver.sound(1000, "still there?")
    driver.finish()
    driver.wait(7)
    assert len(idles(driver)) == 2


def test_it_names_the_silent_piece_of_the_input() -> None:
    driver = spoken()
    second = t.AudioWindow(pcm=bytes(32000), sample_rate=16000)
    for _ in range(8):
        driver.append(second)
        driver.wait(1)
    assert idles(driver) == [ev.UserIdle(start_ms=2000, end_ms=7000)]


def test_without_create_response_it_is_told_and_nothing_starts() -> None:
    driver = spoken(create_response=False)
    driver.wait(60)
    assert len(idles(driver)) == 1
    assert len(driver.turns) == 1


@pytest.mark.parametrize("how", ["before", "speaking", "asked", "typed", "off", "away"])
def test_it_does_not_come(how: str) -> None:
    driver = (
        spoken()
        if how != "before"
        else Driver(settings={"turn_detection": t.TurnDetection(idle_timeout_ms=5000)})
    )
    match how:
        case "speaking":
            driver.speak(100)
            driver.append(t.AudioWindow(pcm=bytes(640), sample_rate=16000))
        case "asked":
            driver.create()
        case "typed":
            driver.say("what is this")
        case "off":
            driver.feed(c.UpdateSession(changes={"turn_detection": {"idle_timeout_ms": None}}))
            (update,) = driver.of(fx.UpdateAdapter)
            driver.do(driver.session.settings_applied(update.settings, driver.now))
        case "away":
            driver.detach()
    driver.wait(4.9 if how == "speaking" else 20)
    assert not idles(driver)


def test_it_is_watched_when_it_is_set_after_the_model_has_spoken() -> None:
    driver = spoken(idle_timeout_ms=None)
    driver.wait(10)
    driver.feed(c.UpdateSession(changes={"turn_detection": {"idle_timeout_ms": 5000}}))
    (update,) = driver.of(fx.UpdateAdapter)
    driver.do(driver.session.settings_applied(update.settings, driver.now))
    driver.wait(0.1)
    assert len(idles(driver)) == 1


def test_a_noise_puts_it_off() -> None:
    driver = spoken()
    driver.wait(4)
    driver.speak(100)
    driver.hush(300)
    driver.signal(t.Transcript(text="", final=True, started_ms=100))
    driver.wait(4)
    assert not idles(driver)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["speak", "hush", "ended", "noise", "create", "sound", "finish", "wait", "ack"]),
        max_size=30,
    )
)
def test_it_never_comes_into_speech_or_earlier_than_it_may(steps: list[str]) -> None:
    driver = Driver(settings={"turn_detection": t.TurnDetection(idle_timeout_ms=2000)})
    quiet_since: float | None = None
    for step in steps:
        before = len(driver.events)
        match step:
            case "speak":
                driver.speak(100)
            case "hush":
                driver.hush(200)
            case "ended":
                driver.turn_ended()
            case "noise":
                driver.signal(t.Transcript(text="", final=True))
            case "create":
                driver.create()
            case "sound" if driver.session.active_response:
                driver.sound(700, "word")
            case "finish" if driver.session.active_response:
                driver.finish()
                quiet_since = driver.now
            case "ack" if driver.turns:
                driver.ack(100, None)
            case "wait":
                driver.wait(1.1)
        if any(isinstance(event, ev.UserIdle) for event in driver.events[before:]):
            assert quiet_since is not None
            assert driver.now - quiet_since >= 2.0
            assert driver.turn.trigger is t.Trigger.IDLE
            quiet_since = None
