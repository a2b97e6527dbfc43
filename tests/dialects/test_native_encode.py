"""Server to client: exactly the keys of the contract; private events only for those who asked."""

import base64
import json
import struct

import pytest

from duplex.core import events as e
from duplex.core.errors import ErrorCode
from duplex.core.types import AudioFormat, Modality, SessionSettings
from duplex.dialects import native_events as wire
from duplex.dialects.native import NativeDialect

EVENTS: list[e.Event] = [
    e.SessionCreated(
        session_id="s",
        model="m",
        input_modalities=(Modality.TEXT, Modality.CODEC_WINDOW),
        output_modalities=(Modality.AUDIO,),
        proactive=True,
        settings=SessionSettings(voice="anna"),
        resume_token="r",
        resumed=True,
        limits={"max_message_bytes": 10},
        expires_at=12.5,
    ),
    e.SessionUpdated(settings=SessionSettings(voice="anna"), event_id="u1"),
    e.ResponseCreated(response_id="r1", index=1, modalities=(Modality.TEXT,)),
    e.ResponseText(response_id="r1", index=1, text="é\u2028👋"),
    e.ResponseAudio(
        response_id="r1", index=1, payload=b"\x01\x02", format=AudioFormat(), pts=480, duration_ms=1.0
    ),
    e.ResponseDone(response_id="r1", index=1, text="x", audio_ms=20.0),
    e.ResponseCancelled(
        response_id="r1",
        index=2,
        reason=e.CancelReason.SPEECH,
        heard_ms=5.0,
        heard_text="I",
        event_id="c1",
    ),
    e.PlaybackCleared(response_id="r1", index=1, heard_ms=3.0, heard_text="a"),
    e.UserSpeechStarted(at_ms=1.0),
    e.UserSpeechStopped(at_ms=2.0),
    e.UserTranscript(text="hello", final=True),
    e.GateDecided(score=0.5, speak=True, pts_ms=1.0, segment_id="g"),
    e.InputLagged(lag_ms=100.0, coalesced=2),
    e.DrainNotice(grace_ms=1000.0),
    e.ErrorEvent(code=ErrorCode.INVALID_VALUE, message="no", event_id="x", param="p"),
    e.ResponseFailed(response_id="r1", index=3, code=ErrorCode.ADAPTER_FAILED, message="broke"),
    e.SessionEnded(code=1000, reason="bye"),
]


def opened(**query: str) -> NativeDialect:
    dialect = NativeDialect()
    dialect.open(query, {})
    return dialect


def messages(dialect: NativeDialect, *events: e.Event) -> list[dict]:
    frames = [frame for event in events for frame in dialect.encode(event)]
    assert all(isinstance(frame, str) for frame in frames)
    return [json.loads(frame) for frame in frames]


def test_a_client_that_asks_for_nothing_gets_the_public_messages_key_by_key():
    assert messages(opened(), *EVENTS) == [
        {
            "type": "session.created",
            "session_id": "s",
            "model": "m",
            "capabilities": {
                "input_modalities": ["text", "codec_window"],
                "output_modalities": ["audio"],
                "proactive": True,
            },
            "resume_token": "r",
            "limits": {"max_message_bytes": 10},
            "expires_at": 12.5,
        },
        {"type": "response.created", "response_index": 1},
        {"type": "response.delta", "response_index": 1, "modality": "text", "data": "é\u2028👋"},
        {"type": "response.delta", "response_index": 1, "modality": "audio", "data": "AQI="},
        {"type": "response.done", "response_index": 1},
        {"type": "response.cancelled", "response_index": 2},
        {
            "type": "error",
            "message": "no",
            "code": "invalid_value",
            "event_id": "x",
            "param": "p",
            "fatal": False,
        },
        {
            "type": "error",
            "message": "broke",
            "code": "adapter_failed",
            "event_id": None,
            "param": None,
            "fatal": False,
        },
        {"type": "response.cancelled", "response_index": 3},
    ]


def test_times_of_a_playback_are_sent_to_a_tenth_of_a_millisecond():
    dialect = opened(ext="playback")
    cut = e.ResponseCancelled(
        response_id="r", index=1, reason=e.CancelReason.CLIENT, heard_ms=260.04166666666669, heard_text=""
    )
    cleared = e.PlaybackCleared(response_id="r", index=1, heard_ms=1 / 3, heard_text="")
    done = e.ResponseDone(response_id="r", index=1, text="", audio_ms=19.999999)
    cut_sent, cleared_sent, done_sent = (
        json.loads(dialect.encode(event)[0]) for event in (cut, cleared, done)
    )
    assert (cut_sent["heard_ms"], cleared_sent["heard_ms"]) == (260.0, 0.3)
    assert done_sent["audio_ms"] == 20.0


PRIVATE = {
    "signals": [
        {"type": "input.speech_started", "at_ms": 1.0},
        {"type": "input.speech_stopped", "at_ms": 2.0},
        {"type": "input.transcript", "text": "hello", "final": True},
        {"type": "gate.score", "score": 0.5, "speak": True, "pts_ms": 1.0, "segment_id": "g"},
        {"type": "input.lag", "lag_ms": 100.0, "coalesced": 2},
    ],
    "playback": [
        {"type": "response.done", "response_index": 1, "audio_ms": 20.0},
        {
            "type": "response.cancelled",
            "response_index": 2,
            "reason": "turn_detected",
            "heard_ms": 5.0,
            "heard_text": "I",
            "event_id": "c1",
        },
        {"type": "playback.clear", "response_index": 1, "heard_ms": 3.0, "heard_text": "a"},
        {"type": "response.cancelled", "response_index": 3, "reason": "failed"},
    ],
    "lifecycle": [{"type": "drain.notice", "grace_ms": 1000.0}],
}


@pytest.mark.parametrize("extension", PRIVATE)
@pytest.mark.parametrize("how", ["query", "update"])
def test_an_extension_adds_its_own_messages_and_fields(extension, how):
    dialect = opened(ext=extension) if how == "query" else opened()
    if how == "update":
        dialect.decode(json.dumps({"type": "session.update", "extensions": [extension]}))
    plain = messages(opened(), *EVENTS)
    added = [message for message in messages(dialect, *EVENTS) if message not in plain]
    if extension == "lifecycle":
        created, updated, *added = added
        assert created["resumed"] is True
        assert created["session"]["voice"] == "anna"
        assert updated["type"] == "session.updated"
        assert updated["event_id"] == "u1"
        assert updated["session"]["output_format"] == {"codec": "pcm_s16le", "sample_rate": 24000}
    assert added == PRIVATE[extension]


def test_an_update_replaces_the_extensions_and_a_refused_one_does_not():
    dialect = opened(ext="signals")
    started = e.UserSpeechStarted(at_ms=1.0)
    with pytest.raises(Exception, match="session must be an object"):
        dialect.decode('{"type": "session.update", "extensions": ["playback"], "session": 1}')
    assert dialect.encode(started)
    dialect.decode('{"type": "session.update", "extensions": []}')
    assert not dialect.encode(started)


def test_binary_audio_carries_index_position_and_rate():
    dialect = opened(frames="binary")
    event = e.ResponseAudio(
        response_id="r7",
        index=7,
        payload=b"pcm!",
        format=AudioFormat(sample_rate=48000),
        pts=960,
        duration_ms=20.0,
    )
    (frame,) = dialect.encode(event)
    assert isinstance(frame, bytes)
    assert struct.unpack("<BBHIQ", frame[:16]) == (1, 2, 48000, 7, 960)
    assert frame[16:] == b"pcm!"
    (text,) = dialect.encode(e.ResponseText(response_id="r7", index=7, text="a"))
    assert json.loads(text)["data"] == "a"


@pytest.mark.parametrize("frames", ["json", "binary"])
def test_an_encoder_that_gave_nothing_yet_sends_nothing(frames):
    event = e.ResponseAudio(
        response_id="r", index=1, payload=b"", format=AudioFormat(), pts=0, duration_ms=20.0
    )
    assert opened(frames=frames).encode(event) == []


def test_audio_deltas_of_changing_responses():
    dialect = opened()
    for index in (1, 1, 2, 1, 4_000_000_000):
        payload = bytes(str(index), "ascii")
        event = e.ResponseAudio(
            response_id="r", index=index, payload=payload, format=AudioFormat(), pts=0, duration_ms=1.0
        )
        assert messages(dialect, event) == [
            {
                "type": "response.delta",
                "response_index": index,
                "modality": "audio",
                "data": base64.b64encode(payload).decode(),
            }
        ]


def test_a_hostile_error_text_is_not_sent_back_at_length():
    event = e.ErrorEvent(code=ErrorCode.UNKNOWN_FIELD, message="k" * 1_000_000, param="k" * 1_000_000)
    (frame,) = opened().encode(event)
    assert len(frame) < 2000


def test_every_message_of_the_table_has_a_type_of_its_own():
    tags = [kind.__struct_config__.tag for kind in wire.ServerMessage.__args__]
    assert len(set(tags)) == len(tags) == 19
