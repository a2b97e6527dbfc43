"""Client to server: every message of the native dialect, and every way to get it wrong."""

import base64
import json
import struct

import msgspec
import pytest

from duplex.core import commands as c
from duplex.core import events as e
from duplex.core import types as t
from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.native import NativeDialect

PCM = bytes(range(64))
JPEG = b"\xff\xd8\xff\xe0rest"
PNG = b"\x89PNG\r\n\x1a\nrest"
WEBP = b"RIFF\x00\x00\x00\x00WEBPrest"
CODEC = {"kind": "h264", "codec": {"a": 1}}
RATE = "data.sample_rate"
MP4 = b"\x00\x00\x00\x18ftypisom" + bytes(12)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def opened(**query: str) -> NativeDialect:
    dialect = NativeDialect()
    dialect.open(query, {})
    return dialect


def decode(message: object, dialect: NativeDialect | None = None) -> c.Command:
    (command,) = (dialect or opened()).decode(json.dumps(message))
    return command


def append(modality: str, data: object) -> t.Window:
    command = decode({"type": "input.append", "modality": modality, "data": data})
    assert isinstance(command, c.Append)
    return command.window


def refused(message: object, dialect: NativeDialect | None = None) -> DuplexError:
    text = message if isinstance(message, str | bytes) else json.dumps(message)
    with pytest.raises(DuplexError) as caught:
        (dialect or opened()).decode(text)
    return caught.value


def refused_data(modality: str, data: object) -> DuplexError:
    error = refused({"type": "input.append", "modality": modality, "data": data, "event_id": "x"})
    assert error.event_id == "x"
    return error


# --- appending --------------------------------------------------------------------------------------


def test_text():
    assert append("text", "grüß dich 👋") == t.TextWindow(text="grüß dich 👋")


def test_audio_without_a_rate_is_16_khz():
    assert append("audio", b64(PCM)) == t.AudioWindow(pcm=PCM, sample_rate=16000)


def test_audio_with_its_rate():
    window = append("audio", {"audio_base64": b64(PCM), "sample_rate": 48000})
    assert window == t.AudioWindow(pcm=PCM, sample_rate=48000)
    for rate in ({}, {"sample_rate": None}):
        assert append("audio", {"audio_base64": b64(PCM)} | rate) == t.AudioWindow(pcm=PCM, sample_rate=16000)


def test_odd_audio_is_for_the_core_to_carry_over():
    assert append("audio", b64(PCM[:33])) == t.AudioWindow(pcm=PCM[:33], sample_rate=16000)


@pytest.mark.parametrize("picture", [JPEG, PNG, WEBP])
def test_image(picture):
    assert append("image", b64(picture)) == t.ImageWindow(data=picture)


def test_video():
    window = append(
        "video",
        {
            "kind": "video/mp4",
            "segment_id": "s1",
            "pts_ms": 500,
            "duration_ms": 250.5,
            "metadata": {"camera": 2},
            "data": {"video_base64": b64(MP4)},
        },
    )
    assert window == t.VideoWindow(
        kind="video/mp4",
        data=MP4,
        segment_id="s1",
        pts_ms=500,
        duration_ms=250.5,
        metadata={"camera": 2},
    )


@pytest.mark.parametrize("wrap", [lambda inner: {"data": inner}, lambda inner: inner])
def test_video_as_stills(wrap):
    window = append("video", wrap({"frames": [b64(JPEG), b64(PNG)]}) | {"segment_id": 7, "pts_ms": None})
    assert window == t.VideoWindow(kind="image", frames=(JPEG, PNG), segment_id="7")


def test_video_without_a_kind_is_known_by_its_bytes():
    assert append("video", {"data": {"video_base64": b64(MP4)}}).kind == "video/mp4"


def test_codec_window():
    codec = {"motion_vectors": [[1, 2], [3.5, -4]], "residual_energy": [0.25]}
    window = append("codec_window", {"kind": "h264", "segment_id": "s", "pts_ms": 0, "codec": codec})
    assert window == t.CodecWindow(kind="h264", codec=codec, segment_id="s", pts_ms=0.0)


@pytest.mark.parametrize(
    ("modality", "data", "code", "param"),
    [
        ("text", "", ErrorCode.EMPTY_INPUT, "data"),
        ("text", None, ErrorCode.INVALID_VALUE, "data"),
        ("text", {"text": "x"}, ErrorCode.INVALID_VALUE, "data"),
        ("audio", "", ErrorCode.EMPTY_INPUT, "data"),
        ("audio", None, ErrorCode.INVALID_VALUE, "data"),
        ("audio", [1, 2], ErrorCode.INVALID_VALUE, "data"),
        ("audio", {}, ErrorCode.INVALID_VALUE, "data.audio_base64"),
        ("audio", {"audio_base64": 5}, ErrorCode.INVALID_VALUE, "data.audio_base64"),
        ("audio", {"audio_base64": ""}, ErrorCode.EMPTY_INPUT, "data.audio_base64"),
        ("audio", {"audio_base64": "AAAA", "sample_rate": 7999}, ErrorCode.INVALID_VALUE, RATE),
        ("audio", {"audio_base64": "AAAA", "sample_rate": 2**63}, ErrorCode.INVALID_VALUE, RATE),
        ("audio", {"audio_base64": "AAAA", "sample_rate": 0}, ErrorCode.INVALID_VALUE, RATE),
        ("audio", {"audio_base64": "AAAA", "sample_rate": True}, ErrorCode.INVALID_VALUE, RATE),
        ("audio", {"audio_base64": "AAAA", "sample_rate": "16k"}, ErrorCode.INVALID_VALUE, RATE),
        ("image", "", ErrorCode.EMPTY_INPUT, "data"),
        ("image", b64(b"GIF89a"), ErrorCode.UNSUPPORTED_FORMAT, "data"),
        ("image", b64(b"\xff\xd8"), ErrorCode.UNSUPPORTED_FORMAT, "data"),
        ("image", {"url": "file:///etc/passwd"}, ErrorCode.INVALID_VALUE, "data"),
        ("video", "AAAA", ErrorCode.INVALID_VALUE, "data"),
        ("video", {}, ErrorCode.INVALID_VALUE, "data.data"),
        ("video", {"kind": "video/mp4", "data": {}}, ErrorCode.INVALID_VALUE, "data.data"),
        ("video", {"kind": "video/mp4", "data": "AAAA"}, ErrorCode.INVALID_VALUE, "data.data"),
        ("video", {"data": {"video_base64": ""}}, ErrorCode.EMPTY_INPUT, "data.data.video_base64"),
        ("video", {"data": {"video_base64": "AA"}}, ErrorCode.INVALID_BASE64, "data.data.video_base64"),
        ("video", {"data": {"video_base64": "AAAA"}}, ErrorCode.INVALID_MEDIA, None),
        ("video", {"kind": [], "data": {"video_base64": "AAAA"}}, ErrorCode.INVALID_VALUE, "data.kind"),
        ("video", {"kind": 3, "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.kind"),
        ("video", {"kind": "k" * 513, "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.kind"),
        ("video", {"pts_ms": -1e9, "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.pts_ms"),
        ("video", {"pts_ms": 1e18, "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.pts_ms"),
        ("video", {"duration_ms": 2e15, "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.duration_ms"),
        ("video", {"pts_ms": "1", "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.pts_ms"),
        ("video", {"duration_ms": -1, "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.duration_ms"),
        ("video", {"metadata": [], "frames": [b64(JPEG)]}, ErrorCode.INVALID_VALUE, "data.metadata"),
        ("video", {"segment_id": "s" * 513, "frames": []}, ErrorCode.INVALID_VALUE, "data.frames"),
        ("codec_window", CODEC | {"segment_id": "s" * 513}, ErrorCode.INVALID_VALUE, "data.segment_id"),
        ("video", {"frames": []}, ErrorCode.INVALID_VALUE, "data.frames"),
        ("video", {"frames": [b64(JPEG)] * 257}, ErrorCode.INVALID_VALUE, "data.frames"),
        ("video", {"frames": [b64(JPEG), 1]}, ErrorCode.INVALID_VALUE, "data.frames"),
        ("video", {"frames": [b64(JPEG), "@"]}, ErrorCode.INVALID_BASE64, "data.frames[1]"),
        ("video", {"data": {"frames": [b64(PCM)]}}, ErrorCode.UNSUPPORTED_FORMAT, "data.data.frames[0]"),
        ("codec_window", {}, ErrorCode.INVALID_VALUE, "data.kind"),
        ("codec_window", {"kind": "h264"}, ErrorCode.INVALID_VALUE, "data.codec"),
        ("codec_window", {"kind": "", "codec": {"a": 1}}, ErrorCode.INVALID_VALUE, "data.kind"),
        ("codec_window", {"kind": "h264", "codec": {}}, ErrorCode.EMPTY_INPUT, "data.codec"),
        ("codec_window", {"kind": "h264", "codec": [1]}, ErrorCode.INVALID_VALUE, "data.codec"),
        ("codec_window", CODEC | {"kind": 3}, ErrorCode.INVALID_VALUE, "data.kind"),
        ("codec_window", CODEC | {"pts_ms": -1}, ErrorCode.INVALID_VALUE, "data.pts_ms"),
        ("codec_window", CODEC | {"pts_ms": 10**310}, ErrorCode.INVALID_VALUE, "data.pts_ms"),
    ],
)  # fmt: skip
def test_data_of_the_wrong_shape_is_named(modality, data, code, param):
    error = refused_data(modality, data)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(
    "text",
    ["A", "AA", "AAA", "AAA=AAAA", "AA==AAAA", "AAAA\n", " AAAA", "AA-_", "====", "AAAA=", "ä===", "A\x00=="],
)
def test_base64_is_the_standard_alphabet_with_padding_and_nothing_else(text):
    error = refused_data("audio", text)
    assert (error.code, error.param) == (ErrorCode.INVALID_BASE64, "data")


# --- the other messages -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ({"type": "input.commit"}, c.Commit()),
        ({"type": "input.commit", "event_id": "e1", "extra": [1]}, c.Commit(event_id="e1")),
        ({"type": "input.commit", "event_id": None}, c.Commit()),
        ({"type": "response.create"}, c.CreateResponse()),
        ({"type": "response.create", "response": {}}, c.CreateResponse()),
        (
            {
                "type": "response.create",
                "response": {"speak": "hi", "modalities": ["audio"]},
                "event_id": "e",
            },
            c.CreateResponse(speak_text="hi", modalities=(t.Modality.AUDIO,), event_id="e"),
        ),
        ({"type": "response.cancel"}, c.CancelResponse()),
        ({"type": "response.cancel", "response_index": 3}, c.CancelResponse(response_index=3)),
        ({"type": "response.cancel", "response_index": None}, c.CancelResponse()),
        ({"type": "playback.ack", "cursor": 12}, c.PlaybackAck(cursor_ms=12.0)),
        (
            {"type": "playback.ack", "cursor": 0.5, "response_index": 2},
            c.PlaybackAck(cursor_ms=0.5, response_index=2),
        ),
        ({"type": "playback.ack", "cursor": 2**63}, c.PlaybackAck(cursor_ms=float(2**63))),
        ({"type": "session.update", "session": {"voice": "a"}}, c.UpdateSession(changes={"voice": "a"})),
        ({"type": "session.update", "extensions": ["signals"]}, c.UpdateSession(changes={})),
        ({"type": "close"}, c.CloseSession()),
    ],
)
def test_commands(message, command):
    assert decode(message) == command


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"type": None}, ErrorCode.MISSING_TYPE, "type"),
        ({"type": 5}, ErrorCode.MISSING_TYPE, "type"),
        ({}, ErrorCode.MISSING_TYPE, "type"),
        ({"type": "input.apend"}, ErrorCode.UNKNOWN_TYPE, "type"),
        ({"type": "response.delta"}, ErrorCode.UNKNOWN_TYPE, "type"),
        ({"type": "x" * 10_000}, ErrorCode.UNKNOWN_TYPE, "type"),
        ({"type": "input.append", "data": "x"}, ErrorCode.MISSING_MODALITY, "modality"),
        ({"type": "input.append", "modality": 1, "data": "x"}, ErrorCode.MISSING_MODALITY, "modality"),
        ({"type": "input.append", "modality": "smell", "data": "x"}, ErrorCode.UNKNOWN_MODALITY, "modality"),
        ({"type": "response.cancel", "response_index": "1"}, ErrorCode.INVALID_VALUE, "response_index"),
        ({"type": "response.cancel", "response_index": 1.5}, ErrorCode.INVALID_VALUE, "response_index"),
        ({"type": "response.cancel", "response_index": True}, ErrorCode.INVALID_VALUE, "response_index"),
        ({"type": "playback.ack"}, ErrorCode.INVALID_VALUE, "cursor"),
        ({"type": "playback.ack", "cursor": "5"}, ErrorCode.INVALID_VALUE, "cursor"),
        ({"type": "playback.ack", "cursor": -(10**400)}, ErrorCode.INVALID_VALUE, "cursor"),
        ({"type": "session.update"}, ErrorCode.INVALID_VALUE, "session"),
        ({"type": "session.update", "session": []}, ErrorCode.INVALID_VALUE, "session"),
        ({"type": "session.update", "extensions": "signals"}, ErrorCode.INVALID_VALUE, "extensions"),
        ({"type": "session.update", "extensions": ["taste"]}, ErrorCode.INVALID_VALUE, "extensions"),
        ({"type": "response.create", "response": 1}, ErrorCode.INVALID_VALUE, "response"),
        ({"type": "response.create", "response": {"speek": "x"}}, ErrorCode.UNKNOWN_FIELD, "response.speek"),
        ({"type": "response.create", "response": {"speak": ""}}, ErrorCode.INVALID_VALUE, "response.speak"),
        ({"type": "response.create", "response": {"speak": 1}}, ErrorCode.INVALID_VALUE, "response.speak"),
        (
            {"type": "response.create", "response": {"speak": "x" * 131_073}},
            ErrorCode.INVALID_VALUE,
            "response.speak",
        ),
        (
            {"type": "response.create", "response": {"modalities": []}},
            ErrorCode.INVALID_VALUE,
            "response.modalities",
        ),
        (
            {"type": "response.create", "response": {"modalities": ["text", "text"]}},
            ErrorCode.INVALID_VALUE,
            "response.modalities",
        ),
        (
            {"type": "response.create", "response": {"modalities": ["smell"]}},
            ErrorCode.INVALID_VALUE,
            "response.modalities",
        ),
    ],
)
def test_wrong_messages_are_named_and_tied_to_the_event_id(message, code, param):
    error = refused(message | {"event_id": "mine"})
    assert (error.code, error.param, error.event_id) == (code, param, "mine")
    assert len(error.message) < 300


@pytest.mark.parametrize("event_id", [1, ["a"], "x" * 513])
def test_event_id_is_a_short_string(event_id):
    error = refused({"type": "close", "event_id": event_id})
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, "event_id")


@pytest.mark.parametrize("text", ["not json", "[1]", "null", '"x"', "{}", '{"type": 1}'])
def test_what_is_no_message_is_told_what_a_message_must_be(text):
    assert "must be a JSON object" in refused(text).message


def test_a_modality_that_the_model_lacks_is_refused_whatever_its_data():
    dialect = opened()
    dialect.encode(
        e.SessionCreated(
            session_id="s",
            model="m",
            input_modalities=(t.Modality.TEXT,),
            output_modalities=(t.Modality.TEXT,),
            proactive=False,
            settings=t.SessionSettings(),
        )
    )
    error = refused({"type": "input.append", "modality": "audio", "data": "!"}, dialect)
    assert (error.code, error.message) == (
        ErrorCode.UNSUPPORTED_MODALITY,
        "unsupported input modality: audio",
    )
    error = refused({"type": "input.append", "modality": "smell", "data": "!"}, dialect)
    assert error.message.startswith("unsupported input modality: smell")
    assert decode({"type": "input.append", "modality": "text", "data": "hi"}, dialect)


# --- binary frames ----------------------------------------------------------------------------------


def frame(
    kind: int, payload: bytes, *, pts: int = 0, flags: int = 0, index: int = 0, version: int = 1
) -> bytes:
    """The header as the contract writes it, byte by byte."""
    return struct.pack("<BBHIQ", version, kind, flags, index, pts) + payload


def decode_frame(data: bytes) -> t.Window:
    (command,) = opened(frames="binary").decode(data)
    assert isinstance(command, c.Append)
    return command.window


def test_binary_audio():
    assert decode_frame(frame(1, PCM, pts=320)) == t.AudioWindow(pcm=PCM, sample_rate=16000)
    assert decode_frame(frame(1, PCM, flags=24000)) == t.AudioWindow(pcm=PCM, sample_rate=24000)


def test_binary_image_and_video():
    assert decode_frame(frame(3, PNG, pts=40)) == t.ImageWindow(data=PNG, pts_ms=40.0)
    assert decode_frame(frame(4, MP4, pts=80, flags=500)) == t.VideoWindow(
        kind="video/mp4", data=MP4, pts_ms=80.0, duration_ms=500.0
    )


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (MP4, "video/mp4"),
        (b"\x1aE\xdf\xa3webm", "video/webm"),
        ((b"\x47" + bytes(187)) * 2, "video/mp2t"),
        (b"\x00\x00\x00\x01\x67\x42\x00\x1e", "video/h264"),
        (b"\x00\x00\x01\x09\xf0", "video/h264"),
        (b"\x00\x00\x00\x01\x40\x01\x0c\x01", "video/hevc"),
        (b"\x00\x00\x01\x42\x01\x01", "video/hevc"),
        (b"\x00\x00\x01\x46\x01\x10", "video/hevc"),
    ],
)
def test_binary_video_is_known_by_its_bytes(data, kind):
    assert decode_frame(frame(4, data)).kind == kind


def test_binary_codec_window():
    vectors = bytes(range(200))
    payload = msgspec.msgpack.encode(
        {"kind": "h264", "segment_id": "s", "codec": {"motion_vectors": vectors, "energy": [0.5, 2]}}
    )
    assert decode_frame(frame(5, payload, pts=120)) == t.CodecWindow(
        kind="h264",
        segment_id="s",
        pts_ms=120.0,
        codec={"motion_vectors": vectors, "energy": [0.5, 2]},
    )
    own = msgspec.msgpack.encode({"kind": "h264", "pts_ms": 7, "codec": {"a": 1}})
    assert decode_frame(frame(5, own, pts=120)).pts_ms == 7.0


def test_json_goes_beside_binary_frames():
    assert decode({"type": "input.commit"}, opened(frames="binary")) == c.Commit()


def test_binary_frames_must_be_asked_for():
    error = refused(frame(1, PCM))
    assert error.code is ErrorCode.INVALID_FRAME
    assert "must be a JSON object" in error.message


PACKED = msgspec.msgpack.encode
EXT = msgspec.msgpack.Ext(1, b"")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_FRAME),
        (frame(1, b"")[:15], ErrorCode.INVALID_FRAME),
        (frame(1, PCM, version=2), ErrorCode.INVALID_FRAME),
        (frame(0, PCM), ErrorCode.INVALID_FRAME),
        (frame(6, PCM), ErrorCode.INVALID_FRAME),
        (frame(2, PCM), ErrorCode.INVALID_FRAME),
        (frame(1, PCM, index=1), ErrorCode.INVALID_FRAME),
        (frame(1, b""), ErrorCode.EMPTY_INPUT),
        (frame(1, PCM, flags=7999), ErrorCode.INVALID_VALUE),
        (frame(1, PCM, flags=48001), ErrorCode.INVALID_VALUE),
        (frame(3, b""), ErrorCode.EMPTY_INPUT),
        (frame(3, JPEG, pts=2**63), ErrorCode.INVALID_VALUE),
        (frame(3, b"GIF89a"), ErrorCode.UNSUPPORTED_FORMAT),
        (frame(4, b"what is this"), ErrorCode.INVALID_MEDIA),
        (frame(5, b"\xc1"), ErrorCode.INVALID_FRAME),
        (frame(5, b"\xdf\xff\xff\xff\xff"), ErrorCode.INVALID_FRAME),
        (frame(5, b"\x91" * 100_000), ErrorCode.INVALID_FRAME),
        (frame(5, b"\x81\xa5codec" + b"\x81\xa1a" * 100_000), ErrorCode.INVALID_FRAME),
        (frame(5, PACKED([1])), ErrorCode.INVALID_FRAME),
        (frame(5, PACKED({1: 2})), ErrorCode.INVALID_FRAME),
        (frame(5, PACKED({"kind": "h264"})), ErrorCode.INVALID_FRAME),
        (frame(5, PACKED({"kind": 1, "codec": {"a": 1}})), ErrorCode.INVALID_VALUE),
        (frame(5, PACKED({"kind": "h264", "codec": {"a": float("nan")}})), ErrorCode.INVALID_VALUE),
        (frame(5, PACKED({"kind": "h264", "codec": {"a": [[float("inf")]]}})), ErrorCode.INVALID_VALUE),
        (frame(5, PACKED({"kind": "h264", "codec": {"a": {1: 2}}})), ErrorCode.INVALID_VALUE),
        (frame(5, PACKED({"kind": "h264", "codec": {"a": EXT}})), ErrorCode.INVALID_VALUE),
        (frame(5, PACKED({"kind": "h264", "codec": {}})), ErrorCode.EMPTY_INPUT),
        (frame(5, b"\x82\xa4kind\xa1a\xa4kind\xa1b"), ErrorCode.INVALID_FRAME),
        (frame(5, PACKED({"kind": "h264", "codec": {"a": [{}] * 600_000}})), ErrorCode.MEDIA_TOO_LARGE),
    ],
)  # fmt: skip
def test_wrong_frames_are_named(data, code):
    assert refused(data, opened(frames="binary")).code is code


def test_arrays_as_bin_may_be_large():
    payload = PACKED({"kind": "h264", "codec": {"motion_vectors": bytes(2_000_000)}})
    window = decode_frame(frame(5, payload))
    assert len(window.codec["motion_vectors"]) == 2_000_000


@pytest.mark.parametrize("head", [b"\x83", b"\xde\x00\x03", b"\xdf\x00\x00\x00\x03"])
def test_arrays_with_their_shape_may_be_large(head):
    array = {"dtype": "u1", "shape": [2, 1_000_000], "data": bytes(2_000_000)}
    entries = PACKED(array)[1:]
    window = decode_frame(frame(5, b"\x82\xa4kind\xa4h264\xa5codec\x81\xa8bit_cost" + head + entries))
    assert window.codec == {"bit_cost": array}


@pytest.mark.parametrize(
    "value",
    [
        {"dtype": "u1", "shape": [1] * 200_000, "data": b"1"},
        {"dtype": "u1", "shape": [1], "data": [1] * 200_000},
        {"dtype": "u1", "shape": [1], "data": {"data": bytes(200_000)}},
        {str(key): "x" for key in range(50_000)},
        {1: bytes(200_000), 2: 3, 4: 5},
    ],
)
def test_what_is_loose_in_a_field_is_bounded(value):
    error = refused(frame(5, PACKED({"kind": "h264", "codec": {"bit_cost": value}})), opened(frames="binary"))
    assert error.code is ErrorCode.MEDIA_TOO_LARGE
    assert "{dtype, shape, data: bin}" in error.message


def test_keys_of_a_field_that_are_there_twice_hide_nothing():
    twice = b"\x83\xa4data" + PACKED(bytes(200_000)) + b"\xa4data\xc4\x011\xa5shape\x91\x01"
    error = refused(frame(5, b"\x82\xa4kind\xa4h264\xa5codec\x81\xa1a" + twice), opened(frames="binary"))
    assert error.code is ErrorCode.MEDIA_TOO_LARGE


# --- the handshake ----------------------------------------------------------------------------------


def test_open_reads_the_query():
    request = NativeDialect().open(
        {
            "session_id": "a.b",
            "model": "m",
            "resume": "token",
            "frames": "binary",
            "ext": "signals, playback",
            "voice": "anna",
            "instructions": "Be brief.",
            "output_modalities": "text,audio",
            "codec": "opus",
            "sample_rate": "48000",
            "gate_threshold": "0.25",
            "max_run_ahead_ms": "0",
            "turn_detection": "none",
            "utm_source": "ignored",
        },
        {},
    )
    assert request.session_id == "a.b"
    assert request.model == "m"
    assert request.resume_token == "token"
    assert request.binary
    assert request.extensions == {"signals", "playback"}
    assert request.settings == {
        "voice": "anna",
        "instructions": "Be brief.",
        "output_modalities": ["text", "audio"],
        "output_format": {"codec": "opus", "sample_rate": 48000},
        "gate_threshold": 0.25,
        "max_run_ahead_ms": 0,
        "turn_detection": None,
    }


def test_open_without_a_query():
    request = NativeDialect().open({}, {})
    assert (request.session_id, request.model, request.resume_token) == (None, None, None)
    assert not request.binary
    assert request.extensions == frozenset()
    assert request.settings == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames", "protobuf"),
        ("ext", "signals,taste"),
        ("codec", "ogg"),
        ("sample_rate", "24k"),
        ("sample_rate", "23999"),
        ("gate_threshold", "nan"),
        ("gate_threshold", "2"),
        ("max_run_ahead_ms", "-1"),
        ("output_modalities", ""),
        ("output_modalities", "smell"),
        ("output_modalities", "text,text"),
        ("turn_detection", "semantic"),
    ],
)
def test_a_bad_option_is_a_bad_config(name, value):
    with pytest.raises(DuplexError) as caught:
        NativeDialect().open({name: value}, {})
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert name in f"{caught.value.param} {caught.value.message}"


def test_a_whole_number_is_asked_for_by_its_name():
    with pytest.raises(DuplexError, match="max_run_ahead_ms must be a whole number in digits"):
        NativeDialect().open({"max_run_ahead_ms": "1e99"}, {})
