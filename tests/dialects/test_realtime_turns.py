"""Turn taking as a Realtime client sees it: all of `turn_detection`, silence, and policies by request."""

from __future__ import annotations

from typing import Any

import pytest
from realtime_stage import Message, Stage, only, types

from duplex.core.effects import TimerName
from duplex.core.types import SpeechStarted, SpeechStopped, Transcript, Trigger, TurnDetection, TurnEnded


def configured(query: dict[str, str] | None = None, **turns: Any) -> tuple[Stage, Message]:
    """A stage with this `turn_detection`, and what was answered."""
    stage = Stage(query=query)
    session = {"audio": {"input": {"turn_detection": turns}}}
    (answer,) = stage.send("session.update", session=session)
    return stage, answer


def test_every_parameter_of_server_vad_is_a_setting_and_is_shown() -> None:
    turns = {
        "type": "server_vad",
        "threshold": 0.7,
        "prefix_padding_ms": 200,
        "silence_duration_ms": 800,
        "idle_timeout_ms": 6000,
        "create_response": False,
        "interrupt_response": False,
    }
    stage, answer = configured(**turns)
    assert answer["session"]["audio"]["input"]["turn_detection"] == turns
    assert stage.session.settings.turn_detection == TurnDetection(**turns)


def test_a_turn_detection_takes_the_place_of_the_one_before_as_a_whole() -> None:
    stage, _ = configured(type="server_vad", threshold=0.9, idle_timeout_ms=5000)
    stage.send("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    assert stage.session.settings.turn_detection == TurnDetection(type="semantic_vad")


@pytest.mark.parametrize("value", [999, 3_600_001, -1])
def test_an_idle_timeout_out_of_range_is_refused(value: int) -> None:
    _, answer = configured(type="server_vad", idle_timeout_ms=value)
    assert answer["error"]["code"] == "invalid_value"
    assert answer["error"]["param"] == "turn_detection.idle_timeout_ms"


def fire_idle(stage: Stage) -> list[Message]:
    stage.carry_out(stage.session.timer(TimerName.USER_IDLE, stage.now))
    return stage.new()


def test_a_user_who_says_nothing_is_spoken_to() -> None:
    stage, _ = configured(type="server_vad", idle_timeout_ms=5000)
    stage.hear("What time is it?")
    stage.answer(ms=1000)
    stage.new()
    stage.now += 5.9
    assert fire_idle(stage) == []  # counted from the end of the sound
    stage.append()
    stage.now += 0.1
    told = fire_idle(stage)
    assert types(told) == [
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert {m["item_id"] for m in told[:2]} == {only(told, "conversation.item.added")["item"]["id"]}
    assert told[0]["audio_end_ms"] == 100
    assert told[0]["audio_start_ms"] == 0
    assert stage.turn.trigger is Trigger.IDLE
    stage.answer()
    stage.now += 60
    assert "input_audio_buffer.timeout_triggered" in types(fire_idle(stage))  # and again


def test_no_idle_timeout_before_the_model_has_spoken_or_while_the_user_speaks() -> None:
    stage, _ = configured(type="server_vad", idle_timeout_ms=5000)
    stage.now += 60
    assert fire_idle(stage) == []
    stage.hear("What time is it?")
    stage.answer()
    stage.signal(SpeechStarted(at_ms=2000))
    stage.now += 60
    assert fire_idle(stage) == []


# --- policies, by request ---------------------------------------------------------------------------

POLICY = {"type": "server_vad", "interrupt_min_words": 2, "duck": True}


def test_policies_are_settings_of_those_who_asked_for_signals() -> None:
    stage, answer = configured({"ext": "signals"}, **POLICY, resume_interrupted=False)
    settings = stage.session.settings.turn_detection
    assert settings is not None
    assert (settings.interrupt_min_words, settings.duck, settings.resume_interrupted) == (2, True, False)
    shown = answer["session"]["audio"]["input"]["turn_detection"]
    assert shown["interrupt_min_words"] == 2
    assert shown["resume_interrupted"] is False


def over_the_voice(ext: str) -> Stage:
    stage, _ = configured({"ext": ext}, **POLICY)
    stage.hear("Read to me.")
    stage.audio(3000, "It was the best of times")
    stage.new()
    return stage


def test_a_backchannel_over_the_voice_is_not_told_as_speech() -> None:
    stage = over_the_voice("signals,playback")
    told = stage.signal(SpeechStarted(at_ms=5000))
    assert types(told) == ["playback.duck"]
    assert told[0]["response_id"] == stage.turn.response_id
    told = stage.signal(
        SpeechStopped(at_ms=5600), Transcript(text="Mhm.", final=True, started_ms=5000), TurnEnded()
    )
    assert types(told) == ["playback.unduck", "input.overheard"]
    assert told[1]["text"] == "Mhm."
    assert stage.aborted == []
    assert len(stage.turns) == 1


def test_an_interruption_by_words_is_told_in_the_standard_order() -> None:
    stage = over_the_voice("signals,playback")
    stage.signal(SpeechStarted(at_ms=5000))
    stage.order.clear()
    told = stage.signal(Transcript(text="Stop it", started_ms=5000))
    assert stage.order[0] == "abort"
    assert types(told)[0] == "input_audio_buffer.speech_started"
    assert told[0]["audio_start_ms"] == 5000
    assert only(told, "response.done")["response"]["status_details"]["reason"] == "turn_detected"


def test_a_client_that_asked_for_nothing_sees_no_private_message() -> None:
    stage, _ = configured({"ext": "signals"}, **POLICY)
    stage.dialect._state.extensions = frozenset()  # the same session, another client
    stage.hear("Read to me.")
    stage.audio(3000, "It was the best of times")
    stage.new()
    told = stage.signal(SpeechStarted(at_ms=5000), Transcript(text="Mhm.", final=True, started_ms=5000))
    assert told == []


def test_a_voice_that_was_cut_by_a_noise_goes_on_where_it_stopped() -> None:
    stage = Stage()
    stage.hear("Read to me.")
    stage.text("It was the best of times, it was the worst of times.")
    stage.audio(1000, "It was the best of times,")
    stage.now += 1.0
    stage.signal(SpeechStarted(at_ms=5000))
    told = stage.signal(SpeechStopped(at_ms=5300), Transcript(text="", final=True, started_ms=5000))
    assert "response.created" in types(told)
    assert stage.turn.trigger is Trigger.RESUMED
    assert stage.turn.speak_text == "it was the worst of times."
    assert stage.session.conversation.items[-1].text == "It was the best of times,"
