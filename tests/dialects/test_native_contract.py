"""What existing clients of the native protocol hold the server to, on a real gateway, line by line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from contract_peer import brief, endless, gateway_with, peer

from duplex.adapters.base import AdapterInfo
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions, ScriptedSession
from duplex.core.types import Delta, GateScore, Modality, TextDelta, Turn, WantsToSpeak

JPEG = "/9j/4AAQ"
VIDEO = {"kind": "video/mp4", "segment_id": "s1", "pts_ms": 0, "data": {"frames": [JPEG]}}
TOKEN = "correct horse"


# --- the door ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [{}, {"token": ""}, {"token": "wrong"}, {"token": TOKEN + " "}])
async def test_a_wrong_or_missing_token_is_closed_with_4401(query: dict[str, str]) -> None:
    async with gateway_with(auth_token=TOKEN) as gateway, peer(gateway, greeted=False, **query) as stranger:
        assert await stranger.closed() == (4401, "unauthorized")
        assert [message["type"] for message in stranger.log] == ["error"]


async def test_the_right_token_opens() -> None:
    async with gateway_with(auth_token=TOKEN) as gateway, peer(gateway, token=TOKEN) as friend:
        await friend.alive()


@pytest.mark.parametrize("session_id", ["", "a b", "a/b", "ä", "x" * 129])
async def test_a_bad_id_is_accepted_and_closed_with_4429(session_id: str) -> None:
    async with gateway_with() as gateway, peer(gateway, greeted=False, session_id=session_id) as odd:
        assert await odd.closed() == (4429, "invalid_session_id")


async def test_an_id_may_have_128_letters_digits_and_marks() -> None:
    session_id = ("aZ09-_." * 20)[:128]
    async with gateway_with() as gateway, peer(gateway, session_id=session_id) as long:
        assert long.log[0]["session_id"] == session_id


async def test_an_id_in_use_is_closed_with_4429() -> None:
    async with (
        gateway_with() as gateway,
        peer(gateway, session_id="mine") as first,
        peer(gateway, greeted=False, session_id="mine") as second,
    ):
        assert await second.closed() == (4429, "session_id_in_use")
        await first.alive()


async def test_no_free_slot_is_closed_with_4429_and_a_slot_is_free_the_moment_its_session_is_closed() -> None:
    async with gateway_with(max_sessions=1) as gateway:
        for number in range(3):
            async with peer(gateway, session_id="same") as holder:
                async with peer(gateway, greeted=False) as other:
                    assert await other.closed() == (4429, "server_full"), number
                await holder.send("close")
                assert (await holder.closed())[0] == 1000


async def test_both_addresses_speak_the_same_protocol() -> None:
    deaf = AdapterInfo(id="talker", input_modalities=(Modality.TEXT,), output_modalities=(Modality.TEXT,))
    async with gateway_with(ScriptedAdapter(respond=brief)) as gateway:
        for path in ("/v1/duplex", "/v1/mage-vl/duplex"):
            async with peer(gateway, path) as either:
                assert either.log[0]["model"] == "scripted"
                await either.alive()
    async with (
        gateway_with(ScriptedAdapter(respond=brief, info=deaf)) as gateway,
        peer(gateway, "/v1/mage-vl/duplex", greeted=False) as viewer,
    ):
        assert await viewer.closed() == (4404, "model_not_found")


# --- what the server sends --------------------------------------------------------------------------


async def test_messages_have_exactly_the_keys_of_the_table() -> None:
    async with gateway_with() as gateway, peer(gateway) as client:
        created = client.log[0]
        assert set(created) == {
            "type",
            "session_id",
            "model",
            "capabilities",
            "resume_token",
            "limits",
            "expires_at",
        }
        assert set(created["capabilities"]) == {"input_modalities", "output_modalities", "proactive"}
        await client.append("text", "hello")
        await client.send("input.commit")
        await client.expect("response.done")
        await client.send("response.cancel")
        await client.expect("response.cancelled")
        await client.send("nonsense")
        await client.expect("error")
        assert client.log[1:] == [
            {"type": "response.created", "response_index": 1},
            {"type": "response.delta", "response_index": 1, "modality": "text", "data": "yes"},
            {"type": "response.delta", "response_index": 1, "modality": "audio", "data": "BwAHAAcA" * 320},
            {"type": "response.done", "response_index": 1},
            {"type": "response.cancelled", "response_index": 1},
            {
                "type": "error",
                "message": "unknown message type: nonsense",
                "code": "unknown_type",
                "event_id": None,
                "param": "type",
                "fatal": False,
            },
        ]


async def test_a_failing_response_ends_with_an_error_and_its_terminal_message() -> None:
    async def fail(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text="well")
        raise RuntimeError("no")

    async with gateway_with(ScriptedAdapter(respond=fail)) as gateway, peer(gateway) as client:
        await client.send("response.create")
        await client.expect("response.cancelled", response_index=1)
        assert [message["type"] for message in client.log[1:]] == [
            "response.created",
            "response.delta",
            "error",
            "response.cancelled",
        ]
        assert client.log[-2]["code"] == "adapter_failed"


# --- messages ---------------------------------------------------------------------------------------

BAD_MESSAGES = ["nonsense", "[1, 2]", "null", '"text"', "{}", '{"type": 5}', '{"type": "what"}']


@pytest.mark.parametrize("text", [*BAD_MESSAGES, '{"type": "input.append", "data": "x"}'])
async def test_a_bad_message_is_answered_and_the_session_kept(text: str) -> None:
    async with gateway_with() as gateway, peer(gateway) as client:
        await client.socket.send(text)
        error = await client.next()
        assert error["type"] == "error"
        assert not error["fatal"]
        if not text.startswith('{"type": "'):
            assert "must be a JSON object" in error["message"]
        await client.alive()


async def test_sixteen_bad_messages_in_a_row_end_the_session_with_4400() -> None:
    async with gateway_with() as gateway, peer(gateway) as client:
        for _ in range(15):
            await client.socket.send("nonsense")
        await client.alive()  # a good one begins the count anew
        for _ in range(16):
            await client.socket.send("[]")
        assert await client.closed() == (4400, "too_many_errors")
        codes = [message["code"] for message in client.log if message["type"] == "error"]
        assert codes == ["invalid_json"] * 15 + ["not_an_object"] * 16 + ["too_many_errors"]
        assert client.log[-1]["fatal"]


@pytest.mark.parametrize("modality", ["audio", "image", "video", "codec_window", "smell"])
async def test_a_modality_that_the_model_lacks(modality: str) -> None:
    reader = AdapterInfo(id="reader", input_modalities=(Modality.TEXT,), output_modalities=(Modality.TEXT,))
    async with gateway_with(ScriptedAdapter(respond=brief, info=reader)) as gateway, peer(gateway) as client:
        await client.append(modality, "whatever", event_id="m1")
        error = await client.next()
        assert error["message"].startswith(f"unsupported input modality: {modality}")
        assert error["event_id"] == "m1"
        await client.alive()


async def test_a_message_over_the_limit_is_named_and_closed_with_1009() -> None:
    async with gateway_with(max_message_bytes=1000) as gateway, peer(gateway) as client:
        await client.append("text", "x" * 900)
        await client.append("text", "x" * 1000)
        assert (await client.closed())[0] == 1009
        assert client.log[-1]["code"] == "message_too_large"
        assert client.log[-1]["fatal"]


async def test_an_idle_session_is_told_so_and_closed() -> None:
    async with gateway_with(idle_timeout_s=0.05) as gateway, peer(gateway) as client:
        assert (await client.closed())[1] == "idle_timeout"
        assert client.log[-1]["type"] == "error"
        assert client.log[-1]["message"] == "idle timeout"


# --- barge-in ---------------------------------------------------------------------------------------


async def test_a_cancel_is_answered_while_the_model_and_its_gate_hang() -> None:
    hanging = asyncio.Event()  # set by nobody

    async def hang(session: ScriptedSession, *_: Any) -> None:
        await hanging.wait()

    async def silent(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        await hanging.wait()
        yield TextDelta(text="never")

    adapter = ScriptedAdapter(respond=silent, on_append=hang)
    async with gateway_with(adapter) as gateway, peer(gateway) as client:
        await client.append("video", VIDEO)
        await client.send("response.create")
        await client.expect("response.created")
        await client.send("response.cancel")
        assert await client.next() == {"type": "response.cancelled", "response_index": 1}


async def test_a_cancel_while_idle_is_answered() -> None:
    async with gateway_with() as gateway, peer(gateway) as client:
        await client.send("response.cancel")
        assert await client.next() == {"type": "response.cancelled", "response_index": 0}
        await client.send("response.cancel", response_index=3, event_id="c1")
        error = await client.next()
        assert (error["code"], error["event_id"]) == ("response_not_found", "c1")
        await client.alive()


async def test_nothing_of_a_response_follows_its_cancelled() -> None:
    async with gateway_with(ScriptedAdapter(respond=endless)) as gateway, peer(gateway) as client:
        for index in (1, 2, 3):
            await client.send("response.create")
            await client.expect("response.delta", response_index=index)
            await client.send("response.cancel", response_index=index)
            await client.expect("response.cancelled", response_index=index)
        await client.send("close")
        await client.closed()
    ended: set[int] = set()
    for message in client.log[1:]:
        assert message["response_index"] not in ended
        if message["type"] == "response.cancelled":
            ended.add(message["response_index"])
    assert ended == {1, 2, 3}


async def test_a_new_response_supersedes_the_running_one_which_ends_first() -> None:
    async with gateway_with(ScriptedAdapter(respond=endless)) as gateway, peer(gateway) as client:
        await client.send("response.create")
        await client.expect("response.delta", response_index=1)
        await client.send("response.create")
        await client.expect("response.delta", response_index=2)
        order = [(m["type"], m["response_index"]) for m in client.log[1:] if m["type"] != "response.delta"]
        assert order == [("response.created", 1), ("response.cancelled", 1), ("response.created", 2)]
        assert set(client.audio(2)) == {0, 2}


# --- the gate and what is seen ----------------------------------------------------------------------


async def test_text_before_a_video_window_is_a_question_that_a_silent_gate_does_not_stop() -> None:
    async def silent_gate(session: ScriptedSession, window: Any) -> None:
        session.emit(GateScore(score=0.0))

    adapter = ScriptedAdapter(respond=brief, on_append=silent_gate)
    async with gateway_with(adapter) as gateway, peer(gateway, session_id="s") as client:
        await client.append("video", VIDEO)
        await client.append("text", "What is this?")
        await client.append("video", VIDEO)
        await client.expect("response.done", response_index=1)
        (turn,) = adapter.open_sessions["s"].turns
        assert turn.question == "What is this?"
        assert turn.trigger == "question"
        assert len(turn.windows) == 2


async def test_without_text_the_models_gate_decides_and_answers_each_event_once() -> None:
    async def gate(session: ScriptedSession, window: Any) -> None:
        session.emit(WantsToSpeak(event_id=window.segment_id))

    adapter = ScriptedAdapter(ScriptedOptions(proactive=True), respond=brief, on_append=gate)
    async with gateway_with(adapter) as gateway, peer(gateway, session_id="s") as client:
        for segment in ("goal", "goal", "replay", "goal"):
            await client.append("video", VIDEO | {"segment_id": segment})
        await client.expect("response.done", response_index=2)
        await client.send("close")  # decisions that are pending finish first
        await client.closed()
    done = [message for message in client.log if message["type"] == "response.done"]
    assert [message["response_index"] for message in done] == [1, 2]


async def test_a_silent_gate_stays_silent() -> None:
    adapter = ScriptedAdapter(ScriptedOptions(proactive=True), respond=brief)
    async with gateway_with(adapter) as gateway, peer(gateway) as client:
        for _ in range(3):
            await client.append("video", VIDEO)
        await client.send("close")
        await client.closed()
    assert len(client.log) == 1


async def test_windows_are_a_bounded_history_of_the_session_itself() -> None:
    adapter = ScriptedAdapter(respond=brief)
    async with (
        gateway_with(adapter) as gateway,
        peer(gateway, session_id="a") as first,
        peer(gateway, session_id="b") as second,
    ):
        for number in range(70):
            await first.append("video", VIDEO | {"segment_id": f"a{number}"})
            await second.append("video", VIDEO | {"segment_id": f"b{number % 3}"})
        for client in (first, second):
            await client.alive()
        seen = {
            name: [window.segment_id for window in adapter.open_sessions[name].turns[0].windows]
            for name in ("a", "b")
        }
    assert seen["a"] == [f"a{number}" for number in range(6, 70)]
    assert set(seen["b"]) == {"b0", "b1", "b2"}


async def test_close_lets_the_running_response_finish() -> None:
    go = asyncio.Event()

    async def waiting(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        yield TextDelta(text="last ")
        await go.wait()
        yield TextDelta(text="words")

    async with gateway_with(ScriptedAdapter(respond=waiting)) as gateway, peer(gateway) as client:
        await client.send("response.create")
        await client.expect("response.delta")
        await client.send("close")
        await client.append("text", "too late", event_id="late")
        await client.expect("error", event_id="late")
        go.set()
        assert await client.closed() == (1000, "closed by the client")
        assert client.text(1) == "last words"
        assert client.log[-1] == {"type": "response.done", "response_index": 1}


# --- HTTP -------------------------------------------------------------------------------------------


async def test_health_ready_and_models() -> None:
    adapter = ScriptedAdapter(respond=brief)
    async with gateway_with(adapter) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert (await http.get("/ready")).json() == {"status": "ready", "active_sessions": 0}
        models = (await http.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["scripted"]
        async with peer(gateway):
            assert (await http.get("/ready")).json()["active_sessions"] == 1
        adapter.healthy = False
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "engine_down")
        assert (await http.get("/health")).status_code == 200
        async with peer(gateway, greeted=False) as client:
            assert await client.closed() == (1013, "engine_down")
