"""A server as decoder, with the eye and its gate here: a real worker on a tiny checkpoint, and a server that
does what the test tells it."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the eye needs torch")
pytest.importorskip("httpx", reason="needs httpx: the extra remote")

from fake_server import FakeServer, served
from gateway_peer import Peer
from mage_rig import Rig, until
from video_clips import still, texture

from duplex.adapters.mage_vl.adapter import MageVl, create
from duplex.config import ServerConfig
from duplex.server.run import running_gateway

PICTURES = [base64.b64encode(still(texture(32, 64, seed), "mjpeg")).decode() for seed in range(8)]
SPEAK, SILENT = {"gate_threshold": "0.0"}, {"gate_threshold": "1.0"}


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    fake.models = {"data": [{"id": "big", "max_model_len": 8192}]}
    async with served(fake) as serving:
        yield serving


@pytest.fixture
async def rig(server: FakeServer, mage_folder: Path) -> AsyncIterator[Rig]:
    adapter = create(
        {
            "model": str(mage_folder),
            "device": "cpu",
            "eye_threads": 1,
            "threads": 1,
            "preparers": 1,
            "remote": {"url": server.url},
        }
    )
    assert isinstance(adapter, MageVl)
    async with running_gateway(ServerConfig(port=0, drain_grace_s=0.0), [adapter]) as gateway:
        yield Rig(gateway, adapter)


async def show(peer: Peer, name: str, pts_ms: float = 0.0) -> None:
    window = {"segment_id": name, "pts_ms": pts_ms, "duration_ms": 8000.0, "frames": PICTURES}
    await peer.send("input.append", modality="video", data=window)


def images_of(body: dict[str, Any]) -> list[bytes]:
    """The pictures that the server was shown."""
    urls = [part["image_url"]["url"] for part in body["messages"][-1]["content"] if "image_url" in part]
    return [base64.b64decode(url.removeprefix("data:image/jpeg;base64,")) for url in urls]


async def test_the_gate_here_has_the_server_speak_of_each_window_once(rig: Rig, server: FakeServer) -> None:
    peer = await rig.connect(**SPEAK)
    assert peer.created["capabilities"]["proactive"]
    await show(peer, "a")
    score = await peer.expect("gate.score", segment_id="a")
    assert 0 < score["score"] < 1
    await peer.expect("response.done", response_index=1)
    assert "".join(m["data"] for m in peer.of("response.delta")) == "Hello, world."
    await show(peer, "a")  # sent twice, scored again, and not spoken of again
    await peer.expect("gate.score", segment_id="a")
    await show(peer, "b", 8000)
    await peer.expect("response.done", response_index=2)
    shown = [images_of(body) for _, body in server.asked]
    assert [len(images) for images in shown] == [8, 24]
    assert all(image.startswith(b"\xff\xd8") for images in shown for image in images)
    assert (await peer.close())[0] == 1000


async def test_a_question_passes_a_silent_gate(rig: Rig, server: FakeServer) -> None:
    peer = await rig.connect(**SILENT)
    await show(peer, "a")
    await peer.expect("gate.score")
    assert not server.asked
    await peer.say("What is it?")
    await show(peer, "b", 8000)
    await peer.expect("response.done", response_index=1)
    ((_, body),) = server.asked
    assert len(images_of(body)) == 16  # the window behind the question, too
    assert body["messages"][-1]["content"][-1]["text"] == "What is it?"


async def test_a_cancel_of_a_comment_closes_its_connection_and_the_gate_goes_on(
    rig: Rig, server: FakeServer
) -> None:
    server.hold = True
    peer = await rig.connect(**SPEAK)
    await show(peer, "a")
    await peer.expect("response.delta", response_index=1)
    await peer.send("response.cancel")
    await peer.expect("response.cancelled", response_index=1)
    await until(server.gone.is_set)
    server.hold = False
    await show(peer, "b", 8000)
    await peer.expect("gate.score", segment_id="b")
    await peer.expect("response.done", response_index=2)


async def test_a_session_that_vanishes_in_a_comment_leaves_nothing_open(rig: Rig, server: FakeServer) -> None:
    server.hold = True
    peer = await rig.connect(**SPEAK)
    await show(peer, "a")
    await peer.expect("response.delta", response_index=1)
    await show(peer, "b", 8000)
    await rig.leave()
    await until(server.gone.is_set)
    await until(lambda: rig.figure("language_active") == 0)


async def test_a_server_that_fails_costs_comments_by_name_and_not_the_gate(
    rig: Rig, server: FakeServer
) -> None:
    server.status = 500
    peer = await rig.connect(**SPEAK)
    await show(peer, "a")
    assert (await peer.expect("error"))["code"] == "adapter_failed"
    await peer.expect("response.cancelled", response_index=1)
    server.status = 200
    await show(peer, "b", 8000)
    await peer.expect("gate.score", segment_id="b")
    await peer.expect("response.done", response_index=2)


async def test_an_eye_that_is_killed_is_named_and_the_server_answers_on(rig: Rig, server: FakeServer) -> None:
    peer = await rig.connect(**SPEAK)
    await show(peer, "a")
    await peer.expect("response.done", response_index=1)
    os.kill(rig.eye_pid, signal.SIGKILL)
    await rig.says(503)
    assert "eye" in (await rig.get("/ready")).text
    await peer.say("What was there?")
    await peer.send("response.create")
    await peer.expect("response.done", response_index=2)
    assert len(images_of(server.asked[-1][1])) == 8
    await rig.says(200)
    await show(peer, "b", 8000)
    await peer.expect("gate.score", segment_id="b")
    await peer.expect("response.done", response_index=3)


async def test_sessions_see_only_their_own(rig: Rig, server: FakeServer) -> None:
    peers = await asyncio.gather(*(rig.connect(**SPEAK) for _ in range(4)))
    for number, peer in enumerate(peers):
        window = {"segment_id": "w", "pts_ms": 0, "frames": [PICTURES[number]]}
        await peer.send("input.append", modality="video", data=window)
    for peer in peers:
        await peer.expect("response.done", response_index=1)
    shown = [images_of(body) for _, body in server.asked]
    assert [len(images) for images in shown] == [1, 1, 1, 1]
    assert len({images[0] for images in shown}) == 4
