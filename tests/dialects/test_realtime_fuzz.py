"""Anything may come from the network: an error event by name at most, and the session lives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from realtime_stage import Stage, types

from duplex.core.facts import State
from duplex.dialects.realtime_commands import COMMANDS, PRIVATE
from duplex.dialects.realtime_items import MAX_ITEM_BYTES

WORDS = st.sampled_from(
    (
        *("type", "audio", "input", "output", "format", "rate", "voice", "turn_detection", "server_vad"),
        *("semantic_vad", "audio/pcm", "audio/pcmu", "pcm16", "user", "assistant", "content", "input_text"),
        *("function", "tools", "name", "tool_choice", "id", "item", "role", "", "root", "none", "message"),
        *("instructions", "output_modalities", "modalities", "speed", "metadata", "conversation", "text"),
        *("transcription", "transcript", "call_id", "arguments", "input_audio", "image_url", "id"),
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
GOOD: list[dict[str, Any]] = [
    {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}},
    {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "id": "a"}},
    {"type": "response.create"},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "response.cancel"},
]
MESSAGES = st.sampled_from(GOOD) | st.builds(
    lambda kind, rest: {**rest, "type": kind},
    st.sampled_from([*COMMANDS, *PRIVATE]),
    st.dictionaries(
        st.sampled_from(["session", "item", "response", "event_id", "item_id", "audio", "extensions"])
        | st.sampled_from(["audio_end_ms", "content_index", "previous_item_id", "response_id"]),
        VALUES,
        max_size=4,
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages=st.lists(MESSAGES, max_size=12), beta=st.booleans())
def test_any_messages_leave_a_session_that_lives(messages: list[dict[str, Any]], beta: bool) -> None:
    stage = Stage(
        headers={"openai-beta": "realtime=v1"} if beta else {}, query={"ext": "signals,playback,lifecycle"}
    )
    for message in messages:
        stage.send_raw(json.dumps(message))
        while stage.commits:
            stage.answer_commit()
    assert stage.session.state is not State.CLOSED
    fresh = stage.send("session.heartbeat")
    if "session.heartbeat" not in types(fresh):  # its extension was given up
        assert types(fresh) == ["error"]
    stage.send("session.update", session={})
    assert stage.log[-1]["type"] == "session.updated"


def test_null_in_a_response_s_overrides_is_the_session_s() -> None:
    stage = Stage(headers={"openai-beta": "realtime=v1"})
    (created,) = stage.send("response.create", response={"output_audio_format": None, "voice": None})
    assert created["response"]["output_audio_format"] == "pcm16"
    assert created["response"]["voice"] == "heart"


def test_null_leaves_what_cannot_be_null() -> None:
    stage = Stage()
    before = stage.send("session.update", session={})[0]["session"]
    nothing = {"format": None, "voice": None, "speed": None}
    (after,) = stage.send(
        "session.update",
        session={
            "audio": {"input": {"format": None}, "output": nothing},
            "output_modalities": None,
            "instructions": None,
        },
    )
    assert after["session"] == before


def test_large_sessions_and_items_are_bounded() -> None:
    stage = Stage()
    (error,) = stage.send("session.update", session={"prompt": {"id": "x" * 300_000}})
    assert error["error"]["param"] == "session"
    for _ in range(8):
        stage.say("x" * 1_000_000)
    kept = stage.dialect._state.items._items.values()
    assert sum(item.size for item in kept) <= MAX_ITEM_BYTES
    for name in list(stage.dialect._state.items._items):
        stage.send("conversation.item.delete", item_id=name)
    assert stage.dialect._state.items._bytes == 0
