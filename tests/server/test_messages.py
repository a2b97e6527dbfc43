"""Bad input gets its named error; the session and the others go on."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from gateway_peer import Peer, until

from duplex.adapters.base import AdapterInfo
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioWindow, Modality, SessionSettings, Window

EARS = AdapterInfo(
    id="ears", input_modalities=(Modality.AUDIO, Modality.TEXT), output_modalities=(Modality.AUDIO,)
)
MIB = 1024 * 1024


def pcm(samples: int) -> str:
    return base64.b64encode(b"\x01\x00" * samples).decode()


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("not json", "invalid_json"),
        ("[1, 2]", "not_an_object"),
        ("{}", "missing_type"),
        ('{"type": 7}', "missing_type"),
        ('{"type": "input.apend"}', "unknown_type"),
        ('{"type": "input.append", "data": "x"}', "missing_modality"),
        ('{"type": "input.append", "modality": "smell", "data": "x"}', "unknown_modality"),
        ('{"type": "input.append", "modality": "video", "data": "x"}', "unsupported_modality"),
        ('{"type": "input.append", "modality": "audio", "data": "%%%"}', "invalid_base64"),
        ('{"type": "input.append", "modality": "audio", "data": ""}', "empty_input"),
        ('{"type": "playback.ack", "cursor": NaN}', "invalid_json"),
        ('{"type": "response.cancel", "response_index": 9}', "response_not_found"),
        ('{"type": "input.commit"}', "commit_empty"),
        ('{"type": "session.update", "session": {"colour": "red"}}', "unknown_field"),
        (b"\x00\x01", "invalid_frame"),
    ],
)
async def test_bad_message_is_named_and_the_session_lives(
    start_gateway: Any, raw: str | bytes, code: str
) -> None:
    gateway = await start_gateway(ScriptedAdapter(ScriptedOptions(audio_ms=20), info=EARS))
    peer, other = await Peer.connect(gateway), await Peer.connect(gateway)
    await peer.ws.send(raw)
    error = await peer.expect("error")
    assert (error["code"], error["fatal"]) == (code, False)
    for client in (peer, other):
        await client.say("hello")
        await client.send("response.create")
        await client.expect("response.done", response_index=1)
        assert (await client.close())[0] == 1000
    assert f'duplex_errors_total{{code="{code}"}} 1.0' in gateway.runtime.metrics.render().decode()


@pytest.mark.parametrize(
    ("mib", "shape"), [(9, "text"), (9, "binary"), (9, "fragments"), (40, "text"), (40, "fragments")]
)
async def test_too_large_message_gets_an_error_then_1009(start_gateway: Any, mib: int, shape: str) -> None:
    gateway = await start_gateway()
    peer, other = await Peer.connect(gateway), await Peer.connect(gateway)

    async def send() -> None:
        match shape:
            case "text":
                await peer.ws.send("x" * (mib * MIB))
            case "binary":
                await peer.ws.send(b"x" * (mib * MIB))
            case _:
                await peer.ws.send(["x" * MIB] * mib)

    sending = asyncio.ensure_future(send())
    code, _ = await peer.until_closed()
    await asyncio.wait({sending})
    sending.exception()
    assert peer.log[-1]["code"] == "message_too_large"
    assert code == 1009
    assert (await other.close())[0] == 1000
    await until(lambda: len(gateway.runtime.leases) == 0)


async def test_message_of_the_largest_size_is_taken(start_gateway: Any) -> None:
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter, max_message_bytes=4096)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    shell = len(json.dumps({"type": "input.append", "modality": "text", "data": ""}))
    await peer.say("x" * (4096 - shell))
    await until(lambda: len(session.appended) == 1)
    await peer.ws.send("ä" * 2049)  # 2049 characters, 4098 bytes
    assert (await peer.until_closed())[0] == 1009


async def test_too_many_bad_messages_in_a_row_end_the_session(start_gateway: Any) -> None:
    gateway = await start_gateway(max_errors=3)
    peer = await Peer.connect(gateway)
    await peer.ws.send("1")
    await peer.ws.send("2")
    await peer.say("a good one between")
    for bad in "345":
        await peer.ws.send(bad)
    assert await peer.until_closed() == (4400, "too_many_errors")
    assert [e["code"] for e in peer.of("error")] == ["not_an_object"] * 5 + ["too_many_errors"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DuplexError(ErrorCode.INVALID_MEDIA, "a truncated file"), "invalid_media"),
        (RuntimeError("internals"), "adapter_failed"),
        (asyncio.CancelledError(), "adapter_failed"),
    ],
)
async def test_window_that_the_adapter_refuses_is_tied_to_its_message(
    start_gateway: Any, error: BaseException, code: str
) -> None:
    async def on_append(session: ScriptedSession, window: Window) -> None:
        if getattr(window, "text", "") == "bad":
            raise error

    adapter = ScriptedAdapter(on_append=on_append)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    await peer.say("bad", event_id="e-17")
    told = await peer.expect("error")
    assert (told["code"], told["event_id"], told["fatal"]) == (code, "e-17", False)
    assert "internals" not in told["message"]
    (session,) = adapter.open_sessions.values()
    await peer.say("good")
    await until(lambda: len(session.appended) == 1)


async def test_failing_commit_and_update_are_tied_to_their_messages(start_gateway: Any) -> None:
    async def on_commit(session: ScriptedSession) -> bool:
        raise DuplexError(ErrorCode.COMMIT_EMPTY, "no speech in it")

    async def on_update(session: ScriptedSession, settings: SessionSettings) -> None:
        if settings.voice == "nobody":
            raise DuplexError(ErrorCode.INVALID_VALUE, "no such voice", param="voice")

    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=20), on_commit=on_commit, on_update=on_update)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, ext="lifecycle")
    await peer.say("x")
    await peer.send("input.commit", event_id="c1")
    error = await peer.expect("error")
    assert (error["code"], error["event_id"]) == ("commit_empty", "c1")
    await peer.send("session.update", session={"voice": "nobody"}, event_id="u1")
    error = await peer.expect("error")
    assert (error["code"], error["event_id"], error["param"]) == ("invalid_value", "u1", "voice")
    await peer.send("session.update", session={"voice": "anna"}, event_id="u2")
    assert (await peer.expect("session.updated"))["session"]["voice"] == "anna"


async def test_input_is_handed_over_before_the_response_that_asks_about_it(start_gateway: Any) -> None:
    """A response must not start before a slow `append` of what it is about."""
    gate = asyncio.Event()
    order: list[str] = []

    async def on_append(session: ScriptedSession, window: Window) -> None:
        await gate.wait()
        order.append("append")

    adapter = ScriptedAdapter(ScriptedOptions(audio_ms=20), on_append=on_append)
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    await peer.say("x")
    await peer.send("response.create")
    await peer.expect("response.created")
    assert session.turns == []
    gate.set()
    await peer.expect("response.done")
    assert order == ["append"]
    assert len(session.turns) == 1


async def test_hung_append_never_blocks_the_reader(start_gateway: Any) -> None:
    """A model that hangs: cancel and close are still answered, and input over the bound is refused."""

    async def on_append(session: ScriptedSession, window: Window) -> None:
        await asyncio.Event().wait()

    gateway = await start_gateway(
        ScriptedAdapter(on_append=on_append), close_grace_s=0.05, abort_timeout_s=0.5
    )
    peer = await Peer.connect(gateway)
    await peer.say("x")
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")
    data = pcm(160)
    for _ in range(1100):
        await peer.send("input.append", modality="audio", data=data, event_id="late")
    error = await peer.expect("error")
    assert (error["code"], error["event_id"]) == ("input_overflow", "late")
    await peer.send("close")
    assert (await peer.until_closed())[0] == 1000
    assert len(gateway.runtime.leases) == 0


async def test_call_that_hangs_for_ever_ends_its_session_alone(start_gateway: Any) -> None:
    async def on_commit(session: ScriptedSession) -> bool:
        if session.id == "stuck":
            await asyncio.Event().wait()
        return True

    gateway = await start_gateway(
        ScriptedAdapter(ScriptedOptions(audio_ms=20), on_commit=on_commit), response_stall_s=0.1
    )
    stuck, fine = await Peer.connect(gateway, session_id="stuck"), await Peer.connect(gateway)
    for peer in (stuck, fine):
        await peer.say("x")
        await peer.send("input.commit")
    assert await stuck.until_closed() == (1011, "adapter_stuck")
    await fine.expect("response.done")


async def test_half_a_sample_is_carried_over(start_gateway: Any) -> None:
    """18: after a chunk of an odd byte count the rest was white noise."""
    adapter = ScriptedAdapter()
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway)
    (session,) = adapter.open_sessions.values()
    sound = bytes(range(1, 9))
    for piece in (sound[:3], sound[3:6], sound[6:]):
        await peer.send("input.append", modality="audio", data=base64.b64encode(piece).decode())
    await until(lambda: len(session.appended) == 3)
    windows = [window for window in session.appended if isinstance(window, AudioWindow)]
    assert b"".join(window.pcm for window in windows) == sound
    assert all(len(window.pcm) % 2 == 0 for window in windows)


async def test_a_broken_frame_closes_only_its_own_connection(start_gateway: Any) -> None:
    gateway = await start_gateway()
    peer, other = await Peer.connect(gateway), await Peer.connect(gateway)
    peer.ws.transport.write(b"\xff" * 64)  # reserved bits, an unknown opcode
    assert (await peer.until_closed())[0] == 1002
    assert (await other.close())[0] == 1000


async def test_idle_timeout_says_so(start_gateway: Any) -> None:
    gateway = await start_gateway(idle_timeout_s=0.05)
    peer = await Peer.connect(gateway)
    code, reason = await peer.until_closed()
    assert (code, reason) == (4408, "idle_timeout")
    assert peer.log[-1]["message"] == "idle timeout"
