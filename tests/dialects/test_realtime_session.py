"""The handshake and the session object of the Realtime dialect."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.realtime import SessionCreatedEvent
from realtime_stage import Stage, only, types

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioFormat, AudioWindow, Modality
from duplex.dialects.realtime import RealtimeDialect


def update(stage: Stage, **session: Any) -> dict[str, Any]:
    (message,) = stage.send("session.update", session={"type": "realtime", **session}, event_id="e1")
    return message


def test_session_created_is_the_first_message_and_has_the_reference_s_shape() -> None:
    stage = Stage()
    created = stage.log[0]
    assert created["type"] == "session.created"
    assert created["event_id"]
    session = created["session"]
    assert session["type"] == "realtime"
    assert session["object"] == "realtime.session"
    assert session["model"] == "model"
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert session["audio"]["input"]["transcription"] is None
    assert session["audio"]["output"]["voice"] == "heart"
    parsed = SessionCreatedEvent.model_validate(created)
    assert parsed.session.type == "realtime"


def test_a_model_without_a_voice_is_a_text_session() -> None:
    stage = Stage(outputs=(Modality.TEXT,), voices=())
    assert stage.log[0]["session"]["output_modalities"] == ["text"]
    quiet = Stage(default=(Modality.TEXT,))
    assert quiet.log[0]["session"]["output_modalities"] == ["text"]
    quiet.say("What do you see?")
    (created,) = quiet.send("response.create")
    assert created["response"]["output_modalities"] == ["text"]


@pytest.mark.parametrize(
    ("name", "model"), [("gpt-realtime", None), ("model", "model"), ("other", "other"), ("", None)]
)
def test_a_gpt_model_means_the_default_unless_it_is_served(name: str, model: str | None) -> None:
    request = RealtimeDialect(frozenset({"model"})).open({"model": name}, {})
    assert request.model == model
    served = RealtimeDialect(frozenset({"gpt-mine"})).open({"model": "gpt-mine"}, {})
    assert served.model == "gpt-mine"


def test_session_update_maps_onto_the_core_s_settings() -> None:
    stage = Stage()
    updated = update(
        stage,
        instructions="Be brief.",
        output_modalities=["text"],
        tools=[{"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}}],
        tool_choice={"type": "function", "name": "add"},
        audio={
            "input": {
                "format": {"type": "audio/pcmu"},
                "transcription": {"model": "whisper-1"},
                "turn_detection": {
                    "type": "server_vad",
                    "silence_duration_ms": 300,
                    "create_response": False,
                },
            },
            "output": {"format": {"type": "audio/pcma"}, "voice": "bella", "speed": 1.2},
        },
    )
    assert updated["type"] == "session.updated"
    settings = stage.session.settings
    assert settings.instructions == "Be brief."
    assert settings.output_modalities == (Modality.TEXT,)
    assert settings.voice == "bella"
    assert settings.output_format == AudioFormat(codec="g711_alaw", sample_rate=8000)
    assert settings.options == {"speed": 1.2}
    assert settings.tools[0].name == "add"
    assert settings.tool_choice == "add"
    assert settings.turn_detection is not None
    assert settings.turn_detection.silence_duration_ms == 300
    assert settings.turn_detection.prefix_padding_ms == 300
    assert not settings.turn_detection.create_response
    shown = updated["session"]
    assert shown["audio"]["output"]["voice"] == "bella"
    assert shown["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 300
    assert shown["audio"]["input"]["turn_detection"]["interrupt_response"] is True
    assert shown["tools"][0]["name"] == "add"


def test_an_update_changes_only_what_it_names() -> None:
    stage = Stage()
    update(stage, instructions="Be brief.", audio={"output": {"voice": "bella"}})
    shown = update(stage, audio={"input": {"turn_detection": None}})["session"]
    assert shown["instructions"] == "Be brief."
    assert shown["audio"]["output"]["voice"] == "bella"
    assert shown["audio"]["input"]["turn_detection"] is None
    assert stage.session.settings.turn_detection is None
    assert stage.session.settings.voice == "bella"


def test_openai_s_voices_are_the_model_s_own_and_are_shown_as_asked() -> None:
    stage = Stage()
    shown = update(stage, audio={"output": {"voice": "marin"}})["session"]
    assert stage.session.settings.voice is None
    assert shown["audio"]["output"]["voice"] == "marin"
    named = Stage(voices=("alloy",))
    update(named, audio={"output": {"voice": "alloy"}})
    assert named.session.settings.voice == "alloy"


@pytest.mark.parametrize("eagerness", ["low", "medium", "auto", "high"])
def test_semantic_vad_has_its_eagerness(eagerness: str) -> None:
    stage = Stage()
    turns = {"type": "semantic_vad", "eagerness": eagerness, "interrupt_response": False}
    shown = update(stage, audio={"input": {"turn_detection": turns}})["session"]
    settings = stage.session.settings.turn_detection
    assert settings is not None
    assert (settings.type, settings.eagerness) == ("semantic_vad", eagerness)
    assert not settings.interrupt_response
    assert shown["audio"]["input"]["turn_detection"] == {**turns, "create_response": True}


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"colour": "red"}, "unknown_parameter", "session.colour"),
        ({"audio": {"input": {"colour": 1}}}, "unknown_parameter", "session.audio.input.colour"),
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"output_modalities": ["video"]}, "invalid_value", "session.output_modalities"),
        ({"tool_choice": "always"}, "invalid_value", "session.tool_choice"),
        ({"tools": [{"type": "mcp"}]}, "invalid_value", "session.tools[0]"),
        (
            {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "idle_timeout_ms": 5000}}}},
            "unknown_parameter",
            "session.audio.input.turn_detection.idle_timeout_ms",
        ),
        (
            {"audio": {"input": {"turn_detection": {"interrupt_min_words": 2}}}},
            "unknown_parameter",
            "session.audio.input.turn_detection.interrupt_min_words",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "very"}}}},
            "invalid_value",
            "session.audio.input.turn_detection.eagerness",
        ),
        (
            {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 12345}}}},
            "invalid_value",
            "session.audio.output.format.rate",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            "invalid_value",
            "turn_detection.threshold",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(session: dict[str, Any], code: str, param: str) -> None:
    stage = Stage()
    before = stage.session.settings
    message = update(stage, **session)
    assert message["type"] == "error"
    assert message["error"]["code"] == code
    assert message["error"]["param"] == param
    assert message["error"]["event_id"] == "e1"
    assert stage.session.settings == before
    # nothing of it sticks
    assert update(stage)["session"]["output_modalities"] == ["audio"]


def test_audio_right_behind_a_change_of_format_is_in_the_new_one() -> None:
    stage = Stage(answers_updates=False)
    stage.send("session.update", session={"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    stage.append("/////w==")  # four samples of silence
    (window,) = stage.windows
    assert isinstance(window, AudioWindow)
    assert (window.sample_rate, window.pcm) == (8000, bytes(8))


def test_a_refused_change_of_format_takes_no_effect() -> None:
    stage = Stage(answers_updates=False)
    stage.send("session.update", session={"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    (about,) = stage.dialect._state._pending
    refused = DuplexError(ErrorCode.INVALID_VALUE, "no")
    stage.carry_out(stage.session.settings_refused(refused, stage.now, event_id=about))
    stage.append("AAAAAA==")
    window = stage.windows[0]
    assert isinstance(window, AudioWindow)
    assert (window.sample_rate, len(window.pcm)) == (24000, 4)


def test_all_rates_of_pcm_and_both_laws_come_in() -> None:
    stage = Stage()
    for format, rate, size in (
        ({"type": "audio/pcm", "rate": 16000}, 16000, 4),
        ({"type": "audio/pcma"}, 8000, 8),
        ({"type": "audio/pcm"}, 24000, 4),
    ):
        update(stage, audio={"input": {"format": format}})
        stage.append("AAAAAA==")
        window = stage.windows[-1]
        assert isinstance(window, AudioWindow)
        assert (window.sample_rate, len(window.pcm)) == (rate, size)


def test_what_a_client_secret_was_made_for_is_there_from_the_start() -> None:
    asked = {"instructions": "Be brief.", "audio": {"input": {"turn_detection": None}}, "model": "model"}
    stage = Stage(asked=asked)
    assert stage.request.model == "model"
    session = stage.log[0]["session"]
    assert session["instructions"] == "Be brief."
    assert session["audio"]["input"]["turn_detection"] is None
    assert stage.session.settings.turn_detection is None


def test_fault_39_the_extensions_can_be_asked_for_in_the_query() -> None:
    stage = Stage(query={"ext": "lifecycle,signals"})
    assert "resume_token" in stage.log[0]
    assert types(stage.send("session.heartbeat")) == ["session.heartbeat"]
    with pytest.raises(DuplexError) as caught:
        RealtimeDialect().open({"ext": "colours"}, {})
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_a_rate_in_the_query_without_a_format_was_ignored() -> None:
    """Audio was then heard at another speed."""
    formats = Stage(query={"input_rate": "16000", "output_rate": "48000"}).log[0]["session"]["audio"]
    assert formats["input"]["format"] == {"type": "audio/pcm", "rate": 16000}
    assert formats["output"]["format"] == {"type": "audio/pcm", "rate": 48000}
    for rate in ("5", "fast"):
        with pytest.raises(DuplexError) as caught:
            RealtimeDialect().open({"input_rate": rate}, {})
        assert caught.value.code is ErrorCode.BAD_CONFIG


def test_private_messages_are_unknown_to_who_has_not_asked() -> None:
    stage = Stage()
    error = only(stage.send("session.heartbeat", event_id="h"), "error")["error"]
    assert (error["code"], error["event_id"]) == ("invalid_event", "h")
    stage.send("session.update", extensions=["lifecycle"])
    assert types(stage.send("session.heartbeat")) == ["session.heartbeat"]


@pytest.mark.parametrize("frame", ["nonsense", "[]", "{}", '{"type": 3}', '{"type": "colour"}', b"\x00\xff"])
def test_what_is_no_event_is_an_invalid_event_and_the_session_lives(frame: str | bytes) -> None:
    stage = Stage()
    error = only(stage.send_raw(frame), "error")["error"]
    assert error["code"] == "invalid_event"
    assert error["type"] == "invalid_request_error"
    assert types(stage.say("hello")) == ["conversation.item.added", "conversation.item.done"]


def test_the_beta_s_names_and_flat_session() -> None:
    stage = Stage(headers={"openai-beta": "realtime=v1"})
    session = stage.log[0]["session"]
    assert session["modalities"] == ["text", "audio"]
    assert session["input_audio_format"] == "pcm16"
    assert session["turn_detection"]["type"] == "server_vad"
    (updated,) = stage.send(
        "session.update",
        session={
            "modalities": ["text", "audio"],
            "input_audio_format": "g711_ulaw",
            "output_audio_format": "g711_ulaw",
            "input_audio_transcription": {"model": "whisper-1"},
            "turn_detection": None,
            "temperature": 0.7,
            "max_response_output_tokens": 200,
        },
    )
    shown = updated["session"]
    assert (shown["input_audio_format"], shown["output_audio_format"]) == ("g711_ulaw", "g711_ulaw")
    assert shown["max_response_output_tokens"] == 200
    assert shown["turn_detection"] is None
    assert stage.session.settings.output_format.codec == "g711_ulaw"
    created = stage.say("hello")
    assert types(created) == ["conversation.item.created"]
    stage.send("response.create")
    names = types(stage.answer())
    assert "response.audio_transcript.delta" in names
    assert "response.audio.delta" in names
    assert not [name for name in names if "output_audio" in name or name.startswith("conversation.item.done")]
    done = only(stage.log, "response.done")["response"]
    assert done["modalities"] == ["text", "audio"]
    assert done["output"][0]["content"] == [{"type": "audio", "transcript": "It is noon."}]
