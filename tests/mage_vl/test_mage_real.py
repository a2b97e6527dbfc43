"""Mage-VL whole: a tiny checkpoint, the sight worker, vLLM's engine core and real sockets, on the CPU."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: the extra vllm or cpu-engine")
pytest.importorskip("vllm", reason="needs vLLM: the extra vllm or cpu-engine")

from gateway_peer import Peer
from mage_rig import CONTEXT, FRAMES, Rig, resident_bytes, rigged, until
from video_clips import encode, moving_square

from duplex.adapters.mage_vl.tiny import write_tiny_checkpoint
from duplex.cli import main

pytestmark = pytest.mark.timeout(600)

PICTURES = [base64.b64encode(frame).decode() for frame in FRAMES]


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("mage"))
    async with rigged(folder) as rig:
        yield rig


@pytest.fixture
async def rig(running: Rig) -> AsyncIterator[Rig]:
    yield running
    await running.leave()


async def show(peer: Peer, name: str, pts_ms: float = 0.0, length_ms: float = 8000.0) -> None:
    """A window of 8 frames, an even time apart."""
    window = {"segment_id": name, "pts_ms": pts_ms, "duration_ms": length_ms, "frames": PICTURES}
    await peer.send("input.append", modality="video", data=window)


async def text_of(peer: Peer, index: int) -> str:
    """The whole answer; what came of it before is forgotten."""
    await peer.expect("response.done", response_index=index)
    parts = [m["data"] for m in peer.of("response.delta") if m["response_index"] == index]
    peer.log.clear()
    return "".join(parts)


async def test_the_gate_scores_and_the_decoder_comments_token_by_token(rig: Rig) -> None:
    peer = await rig.connect(gate_threshold="0.0")
    await show(peer, "a")
    score = await peer.expect("gate.score", segment_id="a")
    assert 0 < score["score"] < 1
    await peer.expect("response.done", response_index=1)
    deltas = [m["data"] for m in peer.of("response.delta")]
    assert len(deltas) > 3
    assert all(deltas)
    assert peer.of("input.lag")[0]["lag_ms"] > 0
    assert (await peer.close())[0] == 1000


async def test_the_same_windows_get_the_same_words_alone_and_among_others(rig: Rig) -> None:
    async def said(number: int) -> str:
        peer = await rig.connect(gate_threshold="1.0")
        await show(peer, "first", 0)
        await peer.expect("gate.score")
        await peer.say("What?")
        await show(peer, "second", 8000)
        return await text_of(peer, 1)

    alone = await said(0)
    assert alone
    assert set(await asyncio.gather(*map(said, range(4)))) == {alone}


async def test_pictures_and_clips_are_answered(rig: Rig) -> None:
    peer = await rig.connect(gate_threshold="1.0")
    await peer.send("input.append", modality="image", data=PICTURES[0])
    await peer.say("What is it?")
    await peer.send("input.commit")
    still_text = await text_of(peer, 1)
    clip = encode(moving_square(16, 64, 96), container="mp4")
    window = {"kind": "video/mp4", "data": {"video_base64": base64.b64encode(clip).decode()}}
    await peer.send("input.append", modality="video", data=window)
    await peer.expect("gate.score")
    await peer.send("response.create")
    assert still_text
    assert await text_of(peer, 2)


async def test_duplex_watch_shows_a_picture_a_whole_clip_and_a_stream(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, clip = tmp_path / "picture.jpg", tmp_path / "clip.mp4"
    picture.write_bytes(FRAMES[0])
    clip.write_bytes(encode(moving_square(30), fps=15))

    async def lines(*words: str) -> list[str]:
        """Of the command, which has an event loop of its own."""
        command = ["watch", *words, "--url", rig.gateway.ws_url, "--model", "mage-vl"]
        assert await asyncio.to_thread(main, command) == 0
        return capsys.readouterr().out.splitlines()

    assert any(await lines(str(picture)))
    question, *answer = await lines(str(clip), "--whole", "--ask", "What?")
    assert question == "> What?"
    assert any(answer)
    stream = await lines(str(clip), "--ask", "What?", "--speed", "max")
    assert "  answer: " in stream[-1]


async def test_a_cancel_stops_the_engine_s_work(rig: Rig) -> None:
    peer = await rig.connect(gate_threshold="1.0")
    await show(peer, "a")
    await peer.expect("gate.score")
    await peer.send("session.update", session={"options": {"max_new_tokens": 300}})
    await peer.send("response.create")
    await peer.expect("response.delta")
    await peer.send("response.cancel")
    await peer.expect("response.cancelled", response_index=1)
    await until(lambda: rig.figure("language_active") == 0)


async def test_32_sessions_share_the_engine(rig: Rig) -> None:
    peers = [await rig.connect(gate_threshold="1.0") for _ in range(32)]
    for number, peer in enumerate(peers):
        await peer.say(f"What is number {number}?")
        await show(peer, f"w{number}")
    assert all(await asyncio.gather(*(text_of(peer, 1) for peer in peers)))


async def test_a_stream_of_40_minutes_slides_its_window_and_goes_on_with_flat_memory(rig: Rig) -> None:
    peer = await rig.connect(gate_threshold="0.0")
    (runner,) = rig.gateway.runtime.runners
    session: Any = runner._adapter
    engine: Any = rig.adapter.engine
    longest = 0
    generate = engine.generate

    def counted(prompt: Any, sampling: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(prompt.ids) + sum(item.tokens - 1 for item in prompt.items))
        return generate(prompt, sampling)

    engine.generate = counted
    pids = {"gateway": os.getpid(), "eye": rig.eye_pid, "decoder": rig.decoder_pid}
    sizes: list[dict[str, int]] = []
    try:
        for number in range(300):  # windows of 8 s
            await show(peer, f"w{number}", number * 8000.0)
            await peer.expect("gate.score", segment_id=f"w{number}")
            await peer.expect("response.done", response_index=number + 1)
            peer.log.clear()
            if number % 50 == 49:
                gc.collect()
                sizes.append({name: resident_bytes(pid) for name, pid in pids.items()})
    finally:
        engine.generate = generate
    assert len(session.history) <= 8
    # it was up against the end of its context, and never over it
    assert CONTEXT - 24 - 100 < longest <= CONTEXT - 24
    assert {name: pid for name, pid in pids.items() if name != "gateway"} == {
        "eye": rig.eye_pid,
        "decoder": rig.decoder_pid,
    }
    for name in pids:
        grown = [size[name] - sizes[1][name] for size in sizes[2:]]
        assert max(grown) < 8 << 20, (name, grown)


async def test_a_decoder_that_is_killed_under_load_costs_its_responses_and_nothing_else(rig: Rig) -> None:
    peers = [await rig.connect(gate_threshold="1.0") for _ in range(4)]
    for peer in peers:
        await show(peer, "a")
        await peer.expect("gate.score")
        await peer.send("session.update", session={"options": {"max_new_tokens": 300}})
        await peer.send("response.create")
        await peer.expect("response.delta")
    old = rig.decoder_pid
    os.kill(old, signal.SIGKILL)
    for peer in peers:
        error = await peer.expect("error")
        assert error["code"] == "adapter_failed"
        assert "decoder" in error["message"]
        await peer.expect("response.cancelled", response_index=1)
    answer = await rig.get("/ready")
    assert answer.status_code == 503
    assert "mage-vl decoder" in json.dumps(answer.json())
    newcomer = await Peer.connect(rig.gateway, "/v1/mage-vl/duplex", opened=False)
    assert (await newcomer.expect("error"))["code"] == "engine_down"
    # the eye was not touched: it goes on looking
    await show(peers[0], "b", 8000)
    await peers[0].expect("gate.score", segment_id="b")
    await rig.says(200)
    assert rig.decoder_pid != old
    fresh = await rig.connect(gate_threshold="1.0")
    for peer, index in ((fresh, 1), *((peer, 2) for peer in peers)):
        await peer.send("session.update", session={"options": {"max_new_tokens": 8}})
        await peer.say("What?")
        await show(peer, "c", 16000)
        assert await text_of(peer, index)


async def test_an_eye_that_is_killed_costs_the_window_it_looked_at_and_nothing_else(rig: Rig) -> None:
    peer = await rig.connect(gate_threshold="1.0")
    await show(peer, "a")
    await peer.expect("gate.score", segment_id="a")
    old, decoder = rig.eye_pid, rig.decoder_pid
    os.kill(old, signal.SIGKILL)
    await rig.says(503)
    assert "mage-vl eye was killed by SIGKILL" in json.dumps((await rig.get("/ready")).json())
    await show(peer, "lost", 8000)
    error = await peer.expect("error")
    assert error["code"] in ("engine_down", "adapter_failed")
    assert "a window was lost: mage-vl eye" in error["message"]
    # what it saw before is still there to be asked about
    await peer.say("What?")
    await peer.send("input.commit")
    assert await text_of(peer, 1)
    await rig.says(200)
    await show(peer, "b", 16000)
    await peer.expect("gate.score", segment_id="b")
    assert rig.decoder_pid == decoder
