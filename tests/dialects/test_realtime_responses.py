"""The course of a response in the Realtime dialect: order, ids, cuts, function calls."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from realtime_stage import Stage, only, types

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, SpeechStarted, SpeechStopped, Transcript, TurnEnded

CLOSED = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
    "rate_limits.updated",
]
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}


def asked(stage: Stage, **response: Any) -> dict[str, Any]:
    """A text is asked and the answer has begun."""
    stage.say("What time is it?")
    return only(stage.send("response.create", response=response), "response.created")["response"]


def check_with_the_sdk(messages: list[dict[str, Any]]) -> None:
    """Every message parses as the event of OpenAI's SDK that has its type, all required fields there."""
    adapter: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    for message in messages:
        parsed = adapter.validate_python(message)
        assert (parsed.type, parsed.event_id) == (message["type"], message["event_id"])


def test_a_spoken_answer_has_the_standard_order_and_ids_on_everything() -> None:
    stage = Stage()
    response = asked(stage)
    assert (response["status"], response["output"]) == ("in_progress", [])
    messages = [
        *stage.text("It is "),
        *stage.text("noon."),
        *stage.audio(200, "It is noon."),
        *stage.finish(),
    ]
    assert types(messages) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        *CLOSED,
    ]
    item_id = messages[0]["item"]["id"]
    for message in messages[2:9]:
        if "item_id" in message:
            assert message["item_id"] == item_id
            assert message["response_id"] == response["id"]
            assert (message["output_index"], message["content_index"]) == (0, 0)
    assert len(base64.b64decode(messages[5]["delta"])) == 2 * 24000 // 5
    done = messages[-2]["response"]
    assert (done["status"], done["status_details"]) == ("completed", None)
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "It is noon."}]
    assert done["usage"]["output_token_details"] == {"audio_tokens": 4, "text_tokens": 3}
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]
    ids = [message["event_id"] for message in stage.log]
    assert len(set(ids)) == len(ids)


def test_all_events_parse_with_the_sdk() -> None:
    stage = Stage()
    stage.send("session.update", session={"audio": {"input": {"transcription": {"model": "any"}}}})
    stage.hear("What time is it?")
    stage.answer()
    stage.send("session.update", session={"tools": [TOOL]})
    asked(stage)
    stage.call("add", "{}")
    stage.finish()
    stage.append()
    stage.now += 5.0
    stage.send("input_audio_buffer.clear")
    asked(stage)
    stage.audio(1000, "Hello there.")
    item = only(stage.send("response.cancel"), "conversation.item.truncated")["item_id"]
    stage.send("conversation.item.retrieve", item_id=item)
    stage.send("conversation.item.delete", item_id=item)
    stage.send("response.cancel", event_id="e")
    check_with_the_sdk(stage.log)


def test_words_that_come_only_with_the_audio_are_the_transcript() -> None:
    stage = Stage()
    asked(stage)
    stage.audio(100, "One.")
    stage.audio(100, "Two.")
    done = only(stage.finish(), "response.output_audio_transcript.done")
    assert done["transcript"] == "One. Two."
    deltas = [m["delta"] for m in stage.log if m["type"] == "response.output_audio_transcript.delta"]
    assert "".join(deltas) == "One. Two."


def test_a_text_response_has_text_events_alone() -> None:
    stage = Stage()
    assert asked(stage, output_modalities=["text"])["output_modalities"] == ["text"]
    assert stage.turn.modalities == (Modality.TEXT,)
    messages = [*stage.text("It is noon."), *stage.finish()]
    assert types(messages) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        *CLOSED[2:],
    ]
    assert messages[2]["part"] == {"type": "text", "text": ""}
    assert messages[-2]["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "It is noon."}
    ]


def test_overrides_hold_for_one_response() -> None:
    stage = Stage()
    response = asked(
        stage,
        instructions="Whisper.",
        metadata={"client_event_id": "x1"},
        max_output_tokens=50,
        audio={"output": {"voice": "bella", "format": {"type": "audio/pcmu"}}},
    )
    assert response["metadata"] == {"client_event_id": "x1"}
    assert response["max_output_tokens"] == 50
    assert response["audio"]["output"] == {"format": {"type": "audio/pcmu"}, "voice": "bella"}
    assert stage.turn.settings.instructions == "Whisper."
    assert stage.turn.settings.voice == "bella"
    assert stage.turn.settings.output_format.codec == "g711_ulaw"
    done = only(stage.answer(), "response.done")["response"]
    assert done["metadata"] == {"client_event_id": "x1"}
    again = asked(stage)
    assert again["metadata"] is None
    assert stage.turn.settings.instructions == ""


def test_out_of_band_responses_leave_the_conversation_alone() -> None:
    stage = Stage()
    asked(stage)
    stage.answer()
    before = stage.session.conversation.items
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Classify this."}]}
    (created,) = stage.send("response.create", response={"conversation": "none", "input": [item]})
    assert created["response"]["conversation_id"] is None
    assert [i.text for i in stage.turn.history] == ["Classify this."]
    messages = stage.answer("A question.")
    assert not [kind for kind in types(messages) if kind.startswith("conversation.item")]
    assert stage.session.conversation.items == before


def test_fault_13_create_while_active_has_its_code_and_the_session_lives() -> None:
    stage = Stage()
    asked(stage)
    error = only(stage.send("response.create", event_id="second"), "error")["error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert error["event_id"] == "second"
    assert only(stage.answer(), "response.done")["response"]["status"] == "completed"


def test_fault_14_the_refusal_names_the_client_s_message_when_the_server_was_first() -> None:
    stage = Stage()
    stage.hear("What time is it?")
    assert len(stage.turns) == 1
    error = only(stage.send("response.create", event_id="mine"), "error")["error"]
    assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "mine")
    assert len(stage.turns) == 1


def test_cancel_while_idle_is_an_error_that_clients_know() -> None:
    stage = Stage()
    error = only(stage.send("response.cancel", event_id="c"), "error")["error"]
    assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c")
    asked(stage)
    error = only(stage.send("response.cancel", response_id="resp_other", event_id="d"), "error")["error"]
    assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "d")
    assert stage.session.active_response is not None


def test_faults_1_and_2_speech_aborts_first_and_tells_in_order() -> None:
    stage = Stage()
    asked(stage)
    stage.text("One two three four.")
    stage.audio(4000, "One two three four.")
    stage.now += 1.0
    stage.order.clear()
    messages = stage.signal(SpeechStarted(at_ms=500))
    assert stage.order[:2] == ["abort", "input_audio_buffer.speech_started"]
    assert types(messages)[1:] == [*CLOSED, "conversation.item.truncated"]
    done = only(messages, "response.done")["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done["output"][0]["status"] == "incomplete"
    assert messages[-1]["audio_end_ms"] == 1000
    assert stage.session.conversation.items[-1].text == "One"
    # nothing stale: what the model still yields is dropped
    assert stage.audio(100, "five") == []
    assert stage.finish() == []


def test_fault_4_an_answer_that_ended_but_still_sounds_is_cut() -> None:
    stage = Stage()
    asked(stage)
    stage.answer("One two three four.", ms=4000)
    stage.now += 2.0
    messages = stage.signal(SpeechStarted(at_ms=0))
    assert types(messages) == ["input_audio_buffer.speech_started", "conversation.item.truncated"]
    assert messages[1]["audio_end_ms"] == 2000
    item = only(
        stage.send("conversation.item.retrieve", item_id=messages[1]["item_id"]),
        "conversation.item.retrieved",
    )
    assert item["item"]["content"] == [{"type": "output_audio", "transcript": "One two"}]


def test_fault_9_speech_while_idle_interrupts_nothing() -> None:
    stage = Stage()
    asked(stage)
    stage.answer("One.", ms=500)
    stage.now += 3.0
    assert types(stage.signal(SpeechStarted(at_ms=0))) == ["input_audio_buffer.speech_started"]


def test_fault_6_truncate_at_0_ms_means_nothing_was_heard() -> None:
    stage = Stage()
    asked(stage)
    item_id = stage.text("One two three four.")[0]["item"]["id"]
    stage.audio(4000, "One two three four.")
    stage.finish()
    (message,) = stage.send(
        "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0, event_id="t"
    )
    assert message["type"] == "conversation.item.truncated"
    assert message["audio_end_ms"] == 0
    assert [item.text for item in stage.session.conversation.items] == ["What time is it?"]


def test_fault_7_history_is_what_the_client_says_was_heard() -> None:
    stage = Stage()
    asked(stage)
    item_id = stage.text("One two three four.")[0]["item"]["id"]
    stage.audio(4000, "One two three four.")
    stage.now += 3.0
    stage.signal(SpeechStarted(at_ms=0))
    assert stage.session.conversation.items[-1].text == "One two three"
    # the client knows better, in both directions, and as often as it likes
    for heard_ms, text in ((1000, "One"), (2000, "One two"), (99_000, "One two three four.")):
        (message,) = stage.send(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=heard_ms
        )
        assert message["audio_end_ms"] == min(heard_ms, 4000)
        assert stage.session.conversation.items[-1].text == text


def test_truncating_the_active_answer_stops_it() -> None:
    stage = Stage()
    asked(stage)
    item_id = stage.text("One two.")[0]["item"]["id"]
    stage.audio(2000, "One two.")
    messages = stage.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=1000)
    assert only(messages, "response.done")["response"]["status"] == "cancelled"
    assert messages[-1]["type"] == "conversation.item.truncated"
    assert messages[-1]["audio_end_ms"] == 1000
    assert stage.session.conversation.items[-1].text == "One"


@pytest.mark.parametrize("fields", [{"item_id": "item_none", "audio_end_ms": 0}, {"audio_end_ms": 0}])
def test_truncating_what_is_no_answer_is_refused_by_name(fields: dict[str, Any]) -> None:
    stage = Stage()
    stage.say("hello", id="mine")
    fields = {"item_id": "mine", **fields}
    error = only(stage.send("conversation.item.truncate", content_index=0, event_id="t", **fields), "error")
    assert error["error"]["code"] == "item_truncate_invalid_item_id"
    assert error["error"]["event_id"] == "t"


def test_fault_11_a_failed_response_ends_too() -> None:
    stage = Stage()
    asked(stage)
    stage.text("One")
    failed = DuplexError(ErrorCode.ADAPTER_FAILED, "the engine hiccuped")
    stage.carry_out(stage.session.response_failed(stage.turn.epoch, failed, stage.now))
    done = only(stage.new(), "response.done")["response"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["code"] == "adapter_failed"
    asked(stage)
    assert only(stage.answer(), "response.done")["response"]["status"] == "completed"


def test_fault_12_cancel_takes_only_the_response() -> None:
    stage = Stage()
    stage.send("session.update", session={"audio": {"input": {"transcription": {"model": "any"}}}})
    asked(stage)
    stage.text("One")
    stage.signal(SpeechStarted(at_ms=0), SpeechStopped(at_ms=500))
    stage.send("response.cancel")
    messages = stage.signal(Transcript(text="And tomorrow?", final=True, started_ms=0), TurnEnded())
    completed = only(messages, "conversation.item.input_audio_transcription.completed")
    assert completed["transcript"] == "And tomorrow?"
    assert stage.turn.history[-1].text == "And tomorrow?"


def test_output_audio_buffer_clear_stops_what_runs_and_sounds() -> None:
    stage = Stage()
    response = asked(stage)
    stage.text("One two three four.")
    stage.audio(4000, "One two three four.")
    messages = stage.send("output_audio_buffer.clear", event_id="o")
    assert only(messages, "response.done")["response"]["status"] == "cancelled"
    assert only(messages, "output_audio_buffer.cleared")["response_id"] == response["id"]
    assert stage.session.run_ahead_ms(stage.now) == 0
    assert types(stage.send("output_audio_buffer.clear")) == ["output_audio_buffer.cleared"]


# --- function calls ----------------------------------------------------------------------------------


def test_a_function_call_and_its_answer() -> None:
    stage = Stage()
    stage.send("session.update", session={"tools": [TOOL], "tool_choice": "required"})
    asked(stage)
    assert [tool.name for tool in stage.turn.settings.tools] == ["add"]
    messages = [*stage.call("add", '{"a":'), *stage.call("add", " 1}"), *stage.finish()]
    assert types(messages) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
        "rate_limits.updated",
    ]
    assert messages[4]["arguments"] == '{"a": 1}'
    assert messages[4]["name"] == "add"
    item = messages[-2]["response"]["output"][0]
    assert (item["type"], item["call_id"], item["status"]) == ("function_call", "call_1", "completed")
    stage.send(
        "conversation.item.create",
        item={"type": "function_call_output", "call_id": "call_1", "output": "3"},
    )
    stage.send("response.create")
    call, output = stage.turn.history[-2:]
    assert (call.role, call.name, call.text, call.call_id) == ("assistant", "add", '{"a": 1}', "call_1")
    assert (output.role, output.text, output.call_id) == ("tool", "3", "call_1")


def test_calls_behind_speech_wait_for_its_end_and_none_is_inside_another() -> None:
    stage = Stage()
    asked(stage)
    stage.text("Let me look.")
    assert stage.call("add", "{}", "call_1") == []
    assert stage.call("subtract", "{}", "call_2") == []
    assert types(stage.audio(500, "Let me look.")) == ["response.output_audio.delta"]
    messages = stage.finish()
    opened = 0
    for message in messages:
        opened += {"response.output_item.added": 1, "response.output_item.done": -1}.get(message["type"], 0)
        assert opened <= 1
    output = only(messages, "response.done")["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    indexes = [m["output_index"] for m in messages if m["type"] == "response.function_call_arguments.done"]
    assert indexes == [1, 2]


def test_a_cancelled_response_s_calls_are_not_remembered() -> None:
    stage = Stage()
    asked(stage)
    stage.call("add", "{")
    done = only(stage.send("response.cancel"), "response.done")["response"]
    assert done["status_details"]["reason"] == "client_cancelled"
    assert done["output"][0]["status"] == "incomplete"
    assert [item.text for item in stage.session.conversation.items] == ["What time is it?"]


@pytest.mark.parametrize("of", ["session", "response"])
def test_a_response_without_tokens_left_is_incomplete(of: str) -> None:
    stage = Stage()
    if of == "session":
        stage.send("session.update", session={"max_output_tokens": 7})
        stage.send("response.create")
    else:
        stage.send("session.update", session={"max_output_tokens": 9})
        stage.send("response.create", response={"max_output_tokens": 7})
    assert stage.turn.settings.max_output_tokens == 7
    stage.text("It is")
    stage.audio(300, "It is")
    messages = stage.run_out()
    done = only(messages, "response.done")["response"]
    assert done["status"] == "incomplete"
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert done["output"][0]["status"] == "incomplete"
    assert done["max_output_tokens"] == 7
    stage.send("session.update", session={"max_output_tokens": "inf"})
    stage.send("response.create")
    assert stage.turn.settings.max_output_tokens is None
    assert only(stage.answer(), "response.done")["response"]["status"] == "completed"


@pytest.mark.parametrize("bad", [0, -1, "many", 1.5, True, []])
def test_no_number_of_tokens(bad: object) -> None:
    (error,) = Stage().send("session.update", session={"max_output_tokens": bad})
    assert error["error"]["code"] == "invalid_value"
    assert error["error"]["param"] == "session.max_output_tokens"
