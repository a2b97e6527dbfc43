"""Whatever a socket may bring: commands or a named error, never anything else; and what goes in comes out."""

import base64
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.core import commands as c
from duplex.core import types as t
from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.native import NativeDialect
from duplex.dialects.native_frames import FrameKind, pack
from duplex.dialects.windows import MAX_CLOCK_MS

_ALL = (
    c.Append
    | c.Commit
    | c.CreateResponse
    | c.CancelResponse
    | c.PlaybackAck
    | c.UpdateSession
    | c.CloseSession
)

numbers = st.integers() | st.floats()
leaves = (
    st.none() | st.booleans() | numbers | st.text(max_size=30) | st.sampled_from(["AAAA", "AA==", "/9j/"])
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = """
    type event_id modality data response_index cursor session extensions response speak modalities
    audio_base64 sample_rate kind segment_id pts_ms duration_ms metadata video_base64 frames codec
"""
TYPES = """
    input.append input.commit response.create response.cancel playback.ack session.update close
"""
names = st.sampled_from(NAMES.split())
types = st.sampled_from(TYPES.split())
modalities = st.sampled_from([*map(str, t.Modality), "smell"])
near_misses = st.dictionaries(
    names,
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6)
    ),
    max_size=6,
)
messages = st.builds(
    lambda values, kind, modality: values | {"type": kind, "modality": modality},
    near_misses,
    types | leaves,
    modalities | leaves,
)


def decodes_or_names_the_fault(frame, **query):
    dialect = NativeDialect()
    dialect.open(query, {})
    fault = None
    decoded = []
    try:
        decoded = dialect.decode(frame)
    except DuplexError as error:
        fault = error
    assert all(isinstance(command, _ALL) for command in decoded)
    assert bool(decoded) == (fault is None)
    assert fault is None or 0 < len(fault.message) < 2000


@settings(max_examples=200, deadline=None)
@given(messages)
def test_near_misses(message):
    decodes_or_names_the_fault(json.dumps(message))


@settings(deadline=None)
@given(trees)
def test_any_json(value):
    decodes_or_names_the_fault(json.dumps(value))


@settings(deadline=None)
@given(st.text())
def test_any_text(text):
    decodes_or_names_the_fault(text)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["json", "binary"]))
def test_any_bytes(data, frames):
    decodes_or_names_the_fault(data, frames=frames)


@settings(deadline=None)
@given(
    st.sampled_from(FrameKind),
    st.binary(max_size=100)
    | trees.map(lambda v: msgspec.msgpack.encode(v, enc_hook=str) if _packs(v) else b""),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**64 - 1),
)
def test_any_frame(kind, payload, flags, pts):
    decodes_or_names_the_fault(pack(kind, payload, flags=flags, pts=pts), frames="binary")


def _packs(value):
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["frames", "ext", "sample_rate", "voice", "codec", "model"]), st.text())
)
def test_any_query(query):
    try:
        request = NativeDialect().open(query, {})
    except DuplexError as error:
        code = error.code
    else:
        assert request.model == (query.get("model") or None)
        return
    assert code is ErrorCode.BAD_CONFIG


def _append(message, **query):
    dialect = NativeDialect()
    dialect.open(query, {})
    frame = message if isinstance(message, bytes) else json.dumps(message)
    (command,) = dialect.decode(frame)
    assert isinstance(command, c.Append)
    return command.window


@settings(deadline=None)
@given(st.binary(min_size=1), st.integers(8000, 48000))
def test_audio_is_the_same_by_either_way(pcm, rate):
    data = {"audio_base64": base64.b64encode(pcm).decode(), "sample_rate": rate}
    as_json = _append({"type": "input.append", "modality": "audio", "data": data})
    as_frame = _append(pack(FrameKind.AUDIO_IN, pcm, flags=rate), frames="binary")
    assert as_json == as_frame == t.AudioWindow(pcm=pcm, sample_rate=rate)


finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=8), plain, min_size=1, max_size=5),
    st.text(min_size=1, max_size=20),
    st.floats(0, MAX_CLOCK_MS),
)
def test_codec_windows_are_the_same_by_either_way(codec, kind, pts):
    as_json, as_frame = _codec_window_messages(codec, kind, pts)
    window = t.CodecWindow(kind=kind, codec=codec, pts_ms=pts)
    assert _append(as_json) == _append(as_frame, frames="binary") == window


@settings(deadline=None)
@given(finite.filter(lambda ms: not 0 <= ms <= MAX_CLOCK_MS))
def test_codec_windows_beyond_the_clock_are_refused_by_either_way(pts):
    as_json, as_frame = _codec_window_messages({"residual_energy": 1.0}, "h264", pts)
    for message, query in ((as_json, {}), (as_frame, {"frames": "binary"})):
        with pytest.raises(DuplexError, match="must be from 0 to 1e15") as refused:
            _append(message, **query)
        assert refused.value.code is ErrorCode.INVALID_VALUE


def _codec_window_messages(codec, kind, pts):
    data = {"kind": kind, "codec": codec, "pts_ms": pts}
    as_frame = pack(FrameKind.CODEC_WINDOW, msgspec.msgpack.encode(data))
    return {"type": "input.append", "modality": "codec_window", "data": data}, as_frame


@settings(deadline=None)
@given(st.text(min_size=1))
def test_text_arrives_as_it_was(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(DuplexError):
            _append({"type": "input.append", "modality": "text", "data": text})
    else:
        assert _append({"type": "input.append", "modality": "text", "data": text}) == t.TextWindow(text=text)
