"""The user's turns and the conversation's items in the Realtime dialect."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from realtime_stage import SILENCE, Stage, only, types

from duplex.core.types import (
    AudioWindow,
    ImageWindow,
    Modality,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnEnded,
)

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()


def listening(**audio_input: Any) -> Stage:
    stage = Stage()
    source = {"transcription": {"model": "any"}, **audio_input}
    stage.send("session.update", session={"audio": {"input": source}})
    return stage


def test_detected_speech_has_the_standard_order() -> None:
    stage = listening()
    stage.append()
    messages = stage.hear("What time is it?", started_ms=120.4, stopped_ms=1500.6)
    assert types(messages) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
    ]
    item_id = messages[0]["item_id"]
    assert {m.get("item_id", item_id) for m in messages} == {item_id}
    assert (messages[0]["audio_start_ms"], messages[1]["audio_end_ms"]) == (120, 1501)
    assert messages[3]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert messages[6]["transcript"] == "What time is it?"
    assert messages[6]["usage"] == {"type": "duration", "seconds": 1.38}
    (got,) = stage.send("conversation.item.retrieve", item_id=item_id)
    assert got["item"]["content"] == [{"type": "input_audio", "transcript": "What time is it?"}]


def test_without_transcription_asked_for_none_is_told_but_the_item_knows() -> None:
    stage = Stage()
    messages = stage.hear("What time is it?")
    assert not [kind for kind in types(messages) if "transcription" in kind]
    assert stage.turn.history[-1].text == "What time is it?"


def test_items_follow_one_another() -> None:
    stage = listening()
    first = only(stage.hear("One?", started_ms=0), "input_audio_buffer.committed")
    assert first["previous_item_id"] is None
    answer = only(stage.answer(), "response.done")["response"]["output"][0]["id"]
    second = only(stage.hear("Two?", started_ms=5000), "input_audio_buffer.committed")
    assert second["previous_item_id"] == answer


def test_partials_are_told_as_deltas_of_what_two_agree_on() -> None:
    stage = listening()
    stage.signal(SpeechStarted(at_ms=0))
    partials = ["What", "What time", "What time it", "What time is it"]
    for text in partials:
        stage.signal(Transcript(text=text, started_ms=0))
    stage.signal(SpeechStopped(at_ms=900), Transcript(text="What time is it?", final=True, started_ms=0))
    kind = "conversation.item.input_audio_transcription"
    deltas = [m["delta"] for m in stage.log if m["type"] == f"{kind}.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == only(stage.log, f"{kind}.completed")["transcript"]


def test_a_transcript_that_was_changed_is_completed_as_it_is_now() -> None:
    stage = listening()
    stage.signal(SpeechStarted(at_ms=0))
    for text in ("Wet time is", "Wet time is", "What time is it"):
        stage.signal(Transcript(text=text, started_ms=0))
    messages = stage.signal(SpeechStopped(at_ms=900), Transcript(text="What time?", final=True, started_ms=0))
    assert (
        only(messages, "conversation.item.input_audio_transcription.completed")["transcript"] == "What time?"
    )


def test_noise_without_words_does_not_shift_the_transcripts() -> None:
    stage = listening()
    noise = stage.signal(SpeechStarted(at_ms=0), SpeechStopped(at_ms=300))
    messages = stage.hear("Hello.", started_ms=2000, stopped_ms=2800)
    completed = only(messages, "conversation.item.input_audio_transcription.completed")
    assert completed["item_id"] == messages[0]["item_id"] != noise[0]["item_id"]


# --- manual turns ------------------------------------------------------------------------------------


def test_a_manual_turn_is_committed_then_answered_when_asked() -> None:
    stage = listening(turn_detection=None)
    stage.append()
    assert stage.send("input_audio_buffer.commit") == []
    # the response is asked for before the model has heard everything: it waits
    assert stage.send("response.create") == []
    assert stage.turns == []
    stage.signal(Transcript(text="What time is it?", final=True))
    messages = stage.answer_commit()
    assert types(messages) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
    ]
    assert stage.turn.history[-1].text == "What time is it?"
    assert messages[4]["usage"]["seconds"] == 0.1


def test_a_manual_commit_starts_no_response() -> None:
    stage = listening(turn_detection=None)
    stage.append()
    stage.send("input_audio_buffer.commit")
    stage.answer_commit()
    assert stage.turns == []


@pytest.mark.parametrize("appended", [False, True])
def test_fault_16_an_empty_commit_is_an_error_and_no_item(appended: bool) -> None:
    stage = listening(turn_detection=None)
    if appended:
        stage.append()
    messages = stage.send("input_audio_buffer.commit", event_id="c")
    if appended:  # silence: the model heard nothing in it
        messages = stage.answer_commit(has_input=False)
    error = only(messages, "error")["error"]
    assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "c")
    assert not [kind for kind in types(stage.log) if kind.startswith("conversation.item")]


def test_fault_16_a_commit_after_the_detector_s_is_an_error_and_no_second_item() -> None:
    stage = listening()
    stage.append()
    stage.signal(SpeechStarted(at_ms=0), SpeechStopped(at_ms=300))
    stage.send("input_audio_buffer.commit", event_id="c")
    stage.signal(Transcript(text="Hello.", final=True, started_ms=0))
    messages = stage.answer_commit()
    assert only(messages, "error")["error"]["code"] == "input_audio_buffer_commit_empty"
    assert types(stage.log).count("conversation.item.added") == 1
    assert len(stage.turns) == 1  # and the turn is answered all the same


def test_a_commit_in_mid_speech_ends_the_turn_and_it_is_answered_once() -> None:
    stage = listening()
    stage.append()
    stage.signal(SpeechStarted(at_ms=0))
    stage.send("input_audio_buffer.commit")
    stage.signal(SpeechStopped(at_ms=300), Transcript(text="Hello.", final=True, started_ms=0))
    messages = stage.answer_commit()
    assert types(messages) == ["response.created"]
    assert types(stage.log).count("input_audio_buffer.committed") == 1
    assert len(stage.turns) == 1


def test_create_response_false_leaves_the_answer_to_the_client() -> None:
    stage = listening(turn_detection={"type": "server_vad", "create_response": False})
    stage.append()
    stage.signal(SpeechStarted(at_ms=0), SpeechStopped(at_ms=300))
    # asked for while the speech is still being written down: the answer waits for it
    assert stage.send("response.create") == []
    stage.signal(Transcript(text="Hello.", final=True, started_ms=0), TurnEnded())
    assert types(stage.answer_commit()) == ["response.created"]
    assert stage.turn.history[-1].text == "Hello."


def test_clear_forgets_what_is_in_no_turn_yet() -> None:
    stage = listening(turn_detection=None)
    stage.append(base64.b64encode(bytes(101)).decode())
    assert types(stage.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert stage.forgotten == 1
    error = only(stage.send("input_audio_buffer.commit"), "error")["error"]
    assert error["code"] == "input_audio_buffer_commit_empty"
    stage.append()
    window = stage.windows[-1]
    assert isinstance(window, AudioWindow)
    assert len(window.pcm) == len(base64.b64decode(SILENCE))  # no half of a sample is left over


def test_fault_15_speech_that_stalls_is_closed() -> None:
    from duplex.core.effects import TimerName

    stage = listening()
    stage.append()
    stage.signal(SpeechStarted(at_ms=0))
    stage.now += 10
    stage.carry_out(stage.session.timer(TimerName.INPUT_STALL, stage.now))
    names = types(stage.new())
    assert names[:2] == ["input_audio_buffer.speech_stopped", "input_audio_buffer.committed"]


def test_audio_that_is_no_base64_is_refused_and_nothing_is_nothing() -> None:
    stage = Stage()
    error = only(stage.send("input_audio_buffer.append", audio="a b", event_id="a"), "error")["error"]
    assert (error["code"], error["event_id"], error["param"]) == ("invalid_base64", "a", "audio")
    assert stage.append("") == []
    assert stage.windows == []


# --- items -------------------------------------------------------------------------------------------


def test_items_are_created_in_their_place_and_the_model_sees_them() -> None:
    stage = Stage()
    first = stage.say("One.", id="one")
    assert types(first) == ["conversation.item.added", "conversation.item.done"]
    assert first[0]["previous_item_id"] is None
    assert stage.say("Three.", id="three")[0]["previous_item_id"] == "one"
    system = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Zero."}]}
    (added, _) = stage.send("conversation.item.create", item=system, previous_item_id="root")
    assert added["previous_item_id"] is None
    reply = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two."}]}
    (added, _) = stage.send("conversation.item.create", item=reply, previous_item_id="one")
    assert added["previous_item_id"] == "one"
    stage.send("response.create")
    assert [(i.role, i.text) for i in stage.turn.history] == [
        ("system", "Zero."),
        ("user", "One."),
        ("assistant", "Two."),
        ("user", "Three."),
    ]
    assert stage.turn.question == "One.\nThree."


def test_created_texts_are_asked_once() -> None:
    stage = Stage()
    stage.say("One.")
    stage.send("response.create")
    stage.answer()
    stage.send("response.create")
    assert stage.turn.question is None
    assert [i.text for i in stage.turn.history] == ["One.", "It is noon."]


def test_deleted_items_are_forgotten_whatever_they_were() -> None:
    stage = listening()
    spoken = stage.hear("What time is it?")[0]["item_id"]
    answer = only(stage.answer(), "response.done")["response"]["output"][0]["id"]
    stage.say("Thanks.", id="mine")
    for item_id in (spoken, answer, "mine"):
        (deleted,) = stage.send("conversation.item.delete", item_id=item_id)
        assert deleted["type"] == "conversation.item.deleted"
        assert deleted["item_id"] == item_id
        error = only(stage.send("conversation.item.retrieve", item_id=item_id), "error")["error"]
        assert error["code"] == "item_retrieve_invalid_item_id"
    assert stage.session.conversation.items == ()
    error = only(stage.send("conversation.item.delete", item_id="mine"), "error")["error"]
    assert error["code"] == "item_delete_invalid_item_id"


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({"id": "mine"}, "item_create_invalid_item_id"),
        ({"role": "robot"}, "invalid_value"),
        ({"content": []}, "invalid_value"),
        ({"content": [{"type": "input_audio", "audio": "AAAA"}]}, "invalid_value"),
        ({"content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}, "invalid_value"),
        ({"type": "function_call_output"}, "invalid_value"),
        ({"type": "mcp_call"}, "invalid_value"),
    ],
)
def test_items_that_cannot_be_are_refused_by_name(item: dict[str, Any], code: str) -> None:
    stage = Stage()
    stage.say("One.", id="mine")
    given = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}], **item}
    error = only(stage.send("conversation.item.create", item=given, event_id="i"), "error")["error"]
    assert (error["code"], error["event_id"]) == (code, "i")
    assert len(stage.session.conversation.items) == 1


def test_images_go_to_models_that_see() -> None:
    content = [{"type": "input_image", "image_url": PNG}, {"type": "input_text", "text": "What is this?"}]
    item = {"type": "message", "role": "user", "content": content}
    stage = Stage()
    assert types(stage.send("conversation.item.create", item=item))[0] == "conversation.item.added"
    assert isinstance(stage.windows[0], ImageWindow)
    stage.send("response.create")
    assert stage.turn.question == "What is this?"
    alone = {**item, "content": content[:1]}
    assert types(stage.send("conversation.item.create", item=alone))[0] == "conversation.item.added"
    blind = Stage(inputs=(Modality.AUDIO, Modality.TEXT))
    error = only(blind.send("conversation.item.create", item=item), "error")["error"]
    assert error["code"] == "unsupported_modality"


def test_fault_37_items_do_not_grow_for_ever() -> None:
    stage = Stage()
    for number in range(700):
        stage.say(f"Text {number}.")
    assert len(stage.dialect._state.items._items) == 512
    assert len(stage.session.conversation.items) == 64
