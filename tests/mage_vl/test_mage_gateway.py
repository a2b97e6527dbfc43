"""Mage-VL behind the gateway, over real sockets at its own endpoint, with parts that do as they are told."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_speech import MS_PER_CHARACTER, FakeFace, FakeSpeechAdapter
from gateway_peer import PATIENCE_S, Peer
from mage_fakes import Fakes, happens, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.adapters.spoken import SpeechStage, Spoken
from duplex.server.run import Gateway

StartGateway = Callable[..., Awaitable[Gateway]]

PATH = "/v1/mage-vl/duplex"
# the core looks at what a window says it is; the fake backend does not
PICTURE = base64.b64encode(b"\xff\xd8\xff picture").decode()


async def connect(gateway: Gateway, **query: str) -> Peer:
    return await Peer.connect(gateway, PATH, **{"ext": "signals", **query})


async def show(peer: Peer, name: str, pts_ms: float = 0.0) -> None:
    window = {"segment_id": name, "pts_ms": pts_ms, "frames": [PICTURE]}
    await peer.send("input.append", modality="video", data=window)


def text_of(peer: Peer, index: int) -> list[str]:
    return [m["data"] for m in peer.of("response.delta") if m["response_index"] == index]


async def ready(gateway: Gateway) -> tuple[int, dict[str, Any]]:
    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{gateway.url}/ready", timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(ask)


# --- the contract of the endpoint ---------------------------------------------------------------------


async def test_a_session_says_what_the_model_is(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(Fakes().adapter)
    peer = await connect(gateway)
    assert peer.created["model"] == "mage-vl"
    assert peer.created["capabilities"] == {
        "input_modalities": ["text", "image", "video"],
        "output_modalities": ["text"],
        "proactive": True,
    }
    await peer.send("input.append", modality="audio", data="AAAA")
    error = await peer.expect("error")
    assert error["message"] == "unsupported input modality: audio"


async def test_the_endpoint_s_model_is_the_one_that_it_is_named_after(start_gateway: StartGateway) -> None:
    other = ScriptedAdapter(ScriptedOptions(id="another"))
    gateway = await start_gateway(other, Fakes().adapter)
    assert (await connect(gateway)).created["model"] == "mage-vl"
    assert (await connect(gateway, model="another")).created["model"] == "another"
    alone = await start_gateway(ScriptedAdapter(ScriptedOptions(id="another")))
    assert (await connect(alone)).created["model"] == "another"


async def test_the_gate_speaks_unasked_token_by_token(start_gateway: StartGateway) -> None:
    fakes = Fakes()
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "dull")
    await peer.expect("gate.score", segment_id="dull", speak=False)
    fakes.sight.score = 0.9
    await show(peer, "goal", 1000)
    await peer.expect("gate.score", segment_id="goal", speak=True)
    await peer.expect("response.done", response_index=1)
    assert text_of(peer, 1) == ["a ", "dog ", "runs"]
    assert fakes.engine.prompts[0]["pictures"] == ["dull-0", "dull-1", "goal-0", "goal-1"]


async def test_an_event_that_was_answered_is_not_answered_again(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "goal", 1000)
    await peer.expect("response.done", response_index=1)
    await show(peer, "goal", 1000)
    await peer.expect("gate.score")
    await show(peer, "foul", 2000)
    await peer.expect("response.done", response_index=2)
    assert len(fakes.engine.prompts) == 2


async def test_text_before_a_video_window_bypasses_a_silent_gate(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.0)
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await peer.say("What is it?")
    await show(peer, "a")
    await peer.expect("response.done", response_index=1)
    assert fakes.engine.prompts[0]["question"] == "What is it?"
    assert fakes.engine.prompts[0]["pictures"] == ["a-0", "a-1"]


async def test_a_question_supersedes_a_comment_and_the_old_one_ends(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    fakes.engine.gate = asyncio.Semaphore(1)
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "a")
    await peer.expect("response.delta", response_index=1)
    fakes.engine.gate = None
    await peer.say("What is it?")
    await peer.send("input.commit")
    await peer.expect("response.cancelled", response_index=1)
    await peer.expect("response.done", response_index=2)
    assert text_of(peer, 1) == ["a "]
    assert (fakes.engine.aborted, fakes.engine.running) == (1, 0)


async def test_a_close_lets_the_gate_decide_and_the_comment_be_given(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    fakes.sight.slow = asyncio.Event()
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "a")
    await happens(fakes.sight.looking)
    closing = asyncio.ensure_future(peer.close())
    await until(lambda: any(runner.session.state == "closing" for runner in gateway.runtime.runners))
    fakes.sight.slow.set()
    assert (await closing)[0] == 1000
    assert len(peer.of("response.done")) == 1
    assert fakes.sight.eyes == 0


async def test_bad_windows_are_errors_and_the_session_lives(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.0)
    fakes.sight.fault_of = {"lost"}
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "lost")
    error = await peer.expect("error")
    assert (error["code"], error["message"]) == ("adapter_failed", "a window was lost: the worker died")
    await show(peer, "b")
    await peer.expect("gate.score", segment_id="b")


# --- many sessions ------------------------------------------------------------------------------------


async def test_a_slow_gate_of_32_sessions_delays_no_cancel(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    fakes.sight.slow = asyncio.Event()
    gateway = await start_gateway(fakes.adapter)
    peers = [await connect(gateway) for _ in range(32)]
    for number, peer in enumerate(peers):
        await peer.say("What is it?")
        await show(peer, f"w{number}")
        await peer.expect("response.created")
    await until(lambda: fakes.sight.blocked == 32)
    for peer in peers:
        await peer.send("response.cancel")
        await peer.expect("response.cancelled", response_index=1)
    assert fakes.sight.blocked == 32  # every gate is still at it: nobody has waited for one
    assert fakes.engine.prompts == []
    fakes.sight.slow.set()
    fakes.sight.slow = None
    for peer in peers:  # and the sessions go on: the gate's late word is heard
        await peer.expect("gate.score", speak=True)
        await peer.expect("response.done", response_index=2)


async def test_a_slow_gate_delays_no_cancel_of_a_response_that_is_being_written(
    start_gateway: StartGateway,
) -> None:
    fakes = Fakes(0.0)
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "a")
    await peer.expect("gate.score")
    fakes.engine.gate = asyncio.Semaphore(1)
    await peer.send("response.create")
    await peer.expect("response.delta")
    fakes.sight.slow = asyncio.Event()
    await show(peer, "b")
    await until(lambda: fakes.sight.blocked == 1)
    await peer.send("response.cancel")
    await peer.expect("response.cancelled", response_index=1)
    assert fakes.sight.blocked == 1
    await until(lambda: not fakes.engine.running)
    assert fakes.engine.aborted == 1
    fakes.sight.slow.set()


async def test_no_session_waits_for_another(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    fakes.sight.slow = asyncio.Event()
    gateway = await start_gateway(fakes.adapter)
    stuck = await connect(gateway)
    await show(stuck, "stuck")
    await until(lambda: fakes.sight.blocked == 1)
    slow, fakes.sight.slow = fakes.sight.slow, None
    fakes.engine.gate = asyncio.Semaphore(0)
    peers = [await connect(gateway) for _ in range(31)]
    for number, peer in enumerate(peers):
        await show(peer, f"w{number}")
        await peer.expect("response.created")
    await until(lambda: fakes.engine.running == 31)  # all of them at once
    gate, fakes.engine.gate = fakes.engine.gate, None
    for _ in peers:
        gate.release()
    for peer in peers:
        await peer.expect("response.done")
    assert fakes.sight.blocked == 1
    slow.set()
    await stuck.expect("gate.score")


# --- hours --------------------------------------------------------------------------------------------


async def test_fault_37_hours_of_commentary_hold_no_more_than_minutes(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    (runner,) = gateway.runtime.runners
    session: Any = runner._adapter
    serial = 0

    async def comments(count: int) -> None:
        nonlocal serial
        for _ in range(count):
            serial += 1
            await show(peer, f"w{serial}", serial * 8000.0)
            await peer.expect("response.done", response_index=serial)
            peer.log.clear()
            fakes.engine.prompts.clear()
            fakes.engine.samplings.clear()
            fakes.sight.looked.clear()
            fakes.backend.prepared.clear()

    await comments(150)  # 20 minutes of windows of 8 s
    held = len(session.history)
    gc.collect()
    tracemalloc.start()
    await comments(300)  # 40 more
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    await comments(300)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held == len(session.history) == 8
    assert session._watching.submitted == serial
    assert after - before < 100_000  # bytes: less than the history of one client's words
    assert not session._signals


# --- parts that die -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["engine", "sight"])
async def test_a_part_that_is_down_makes_the_gateway_unready_and_is_named(
    start_gateway: StartGateway, part: str
) -> None:
    fakes = Fakes()
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    broken: Any = getattr(fakes, part)
    broken.healthy, broken.fault = False, f"{part}: killed by signal 9"
    status, body = await ready(gateway)
    assert status == 503
    assert f"{part}: killed by signal 9" in json.dumps(body)
    newcomer = await Peer.connect(gateway, PATH, opened=False)
    error = await newcomer.expect("error")
    assert (error["code"], (await newcomer.until_closed())[0]) == ("engine_down", 1013)
    broken.healthy, broken.fault = True, None
    assert (await ready(gateway))[0] == 200
    await show(peer, "a")  # whoever was there stays
    await peer.expect("gate.score")
    await connect(gateway)


async def test_an_engine_that_dies_ends_the_response_by_name_and_not_the_session(
    start_gateway: StartGateway,
) -> None:
    fakes = Fakes()
    fakes.engine.dies_after = 2
    gateway = await start_gateway(fakes.adapter)
    peer = await connect(gateway)
    await show(peer, "a")
    await peer.send("response.create")
    error = await peer.expect("error")
    assert (error["code"], error["message"]) == ("adapter_failed", "the engine died")
    await peer.expect("response.cancelled", response_index=1)
    fakes.engine.dies_after = None
    await peer.send("response.create")
    await peer.expect("response.done", response_index=2)


# --- other dialects -----------------------------------------------------------------------------------


async def test_a_realtime_client_shows_a_picture_and_asks(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.0)
    gateway = await start_gateway(fakes.adapter)
    peer = await Peer.connect(gateway, "/v1/realtime", model="mage-vl")
    image = "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8\xff picture").decode()
    content = [{"type": "input_image", "image_url": image}, {"type": "input_text", "text": "What is it?"}]
    item = {"type": "message", "role": "user", "content": content}
    await peer.send("conversation.item.create", item=item)
    await peer.send("response.create")
    done = await peer.expect("response.done")
    assert done["response"]["status"] == "completed"
    assert [m["delta"] for m in peer.of("response.output_text.delta")] == ["a ", "dog ", "runs"]
    (prompt,) = fakes.engine.prompts
    assert (prompt["question"], len(prompt["pictures"])) == ("What is it?", 1)


# --- a voice ------------------------------------------------------------------------------------------


async def test_a_spoken_comment_is_cut_with_its_writing(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.0)
    face = FakeFace(gate=asyncio.Semaphore(1))
    gateway = await start_gateway(Spoken(fakes.adapter, SpeechStage(FakeSpeechAdapter(face))))
    peer = await connect(gateway, output_modalities="text,audio")
    assert peer.created["capabilities"]["output_modalities"] == ["text", "audio"]
    await show(peer, "a")
    await peer.expect("gate.score")
    fakes.engine.words = "One dog. Two dogs. Three dogs."
    await peer.send("response.create")
    await peer.expect("response.delta", modality="audio")  # the first sentence; the second is being spoken
    fakes.engine.gate = asyncio.Semaphore(0)
    await until(lambda: face.started == ["One dog. ", "Two dogs. "])
    await peer.send("response.cancel")
    await peer.expect("response.cancelled", response_index=1)
    await happens(face.stopped)
    await until(lambda: not fakes.engine.running)
    face.gate = fakes.engine.gate = None
    fakes.engine.words = "Four dogs."
    await peer.send("response.create")
    await peer.expect("response.done", response_index=2)
    assert "".join(text_of_kind(peer, 2, "text")) == "Four dogs."
    assert face.started[2:] == ["Four dogs."]
    assert peer.audio_ms(2) == len("Four dogs.") * MS_PER_CHARACTER
    cut = peer.log.index(peer.of("response.cancelled")[0])
    assert not [m for m in peer.log[cut:] if m.get("response_index") == 1 and m["type"] == "response.delta"]


async def test_a_session_with_a_voice_may_have_text_alone(start_gateway: StartGateway) -> None:
    fakes = Fakes(0.9)
    face = FakeFace()
    gateway = await start_gateway(Spoken(fakes.adapter, SpeechStage(FakeSpeechAdapter(face))))
    peer = await connect(gateway)
    await show(peer, "a")
    await peer.expect("response.done", response_index=1)
    assert {m["modality"] for m in peer.of("response.delta")} == {"text"}
    assert face.started == []


def text_of_kind(peer: Peer, index: int, modality: str) -> list[str]:
    deltas = [m for m in peer.of("response.delta") if m["response_index"] == index]
    return [m["data"] for m in deltas if m["modality"] == modality]
