"""Side information as bytes, from a client over a real socket to the segment that the eye sees."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from gateway_peer import Peer
from mage_fakes import FakeEngine, FakeEye, FakeSight, FakeWriter
from video_clips import encode, texture

from duplex.adapters.mage_vl.adapter import MageVl
from duplex.adapters.mage_vl.building import Windows
from duplex.adapters.mage_vl.options import MageOptions
from duplex.adapters.mage_vl.ports import Glance
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.adapters.waiting import window_size
from duplex.clients import AsyncDuplexClient
from duplex.codecs.number_arrays import pack_numbers
from duplex.core.types import CodecWindow
from duplex.dialects.native_frames import FrameKind, pack
from duplex.server.run import Gateway

StartGateway = Callable[..., Awaitable[Gateway]]

FRAMES, ROWS, COLUMNS = 25, 34, 60
PLACE = (3, 1)
"""One of the 4 × 6 blocks of the clip."""
CLIP = encode([texture(128, 192, seed=i) for i in range(FRAMES)], options={"preset": "veryfast"})


def vectors(place: tuple[int, int] = PLACE) -> np.ndarray:
    """Everything that moves is in one block."""
    moving = np.zeros((FRAMES, ROWS, COLUMNS, 2), np.float32)
    row, column = place
    moving[
        :, -(-row * ROWS // 4) : (row + 1) * ROWS // 4, column * COLUMNS // 6 : (column + 1) * COLUMNS // 6
    ] = 30
    return moving


class _Eye(FakeEye):
    async def look(self, seen: VisualInput) -> Glance | None:
        self._sight.segments[seen.segment_id] = seen  # type: ignore[attr-defined]
        return await super().look(seen)


class SeeingSight(FakeSight):
    """Remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.segments: dict[str, VisualInput] = {}

    def open(self) -> FakeEye:
        self.eyes += 1
        return _Eye(self)

    def frames_with(self, name: str, place: tuple[int, int]) -> int:
        """In how many frames of a segment a block is shown, besides the anchor."""
        rows = self.segments[name].positions[1:].reshape(-1, 3).tolist()
        return len({time for time, row, column in rows if (row // 2, column // 2) == place})


@dataclass(kw_only=True)
class Shown:
    gateway: Gateway
    sight: SeeingSight
    peer: Peer

    async def say(self, name: str, codec: dict[str, Any], *, json: bool = False) -> None:
        window = {"kind": "h264", "segment_id": name, "codec": codec}
        if json:
            await self.peer.send("input.append", modality="codec_window", data=window)
        else:
            await self.peer.ws.send(pack(FrameKind.CODEC_WINDOW, msgspec.msgpack.encode(window)))

    async def show(self, name: str) -> None:
        data = {"segment_id": name, "data": {"video_base64": base64.b64encode(CLIP).decode()}}
        await self.peer.send("input.append", modality="video", data=data)


@asynccontextmanager
async def shown(start_gateway: StartGateway, preparers: int = 0) -> AsyncIterator[Shown]:
    options = MageOptions(
        model="none", backend="codec", threads=1, preparers=preparers, input={"codec_max_pixels": 150_000}
    )
    sight = SeeingSight()
    adapter = MageVl(
        options,
        engine=FakeEngine(),
        sight=sight,
        backend=Windows(options, ThreadPoolExecutor(1)),
        writer=FakeWriter(),
    )
    gateway = await start_gateway(adapter)
    peer = await Peer.connect(gateway, "/v1/mage-vl/duplex", ext="signals", frames="binary")
    yield Shown(gateway=gateway, sight=sight, peer=peer)


@pytest.mark.parametrize("preparers", [0, 1])
async def test_fault_dense_side_information_could_not_be_sent_in_any_form(
    start_gateway: StartGateway, preparers: int
) -> None:
    async with shown(start_gateway, preparers) as session:
        peer, sight = session.peer, session.sight
        await session.say("lists", {"motion_vectors": vectors().tolist()}, json=True)
        error = await peer.expect("error")
        assert error["code"] == "input_overflow"
        assert "{dtype, shape, data}" in error["message"]  # and that is true:
        await session.say("lists", {"motion_vectors": vectors().tolist()})
        error = await peer.expect("error")
        assert error["code"] == "media_too_large"
        assert "{dtype, shape, data: bin}" in error["message"]

        await session.say("bin", {"motion_vectors": pack_numbers(vectors())})
        await session.show("bin")
        await peer.expect("gate.score", segment_id="bin")
        array = pack_numbers(vectors().astype(np.int8))
        await session.say(
            "text", {"motion_vectors": {**array, "data": base64.b64encode(array["data"]).decode()}}, json=True
        )
        await session.show("text")
        await peer.expect("gate.score", segment_id="text")
        await session.say("elsewhere", {"motion_vectors": pack_numbers(vectors((0, 5)))})
        await session.show("elsewhere")
        await peer.expect("gate.score", segment_id="elsewhere")
        assert len(peer.of("error")) == 2
        assert sight.frames_with("bin", PLACE) >= FRAMES - 4
        assert sight.frames_with("elsewhere", PLACE) < FRAMES - 4 <= sight.frames_with("elsewhere", (0, 5))
        np.testing.assert_array_equal(sight.segments["bin"].positions, sight.segments["text"].positions)


@pytest.mark.parametrize("preparers", [0, 1])
async def test_bytes_that_are_wrong_are_an_error_that_names_them_and_the_session_lives(
    start_gateway: StartGateway, preparers: int
) -> None:
    good = pack_numbers(vectors())
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("invalid_value", good | {"dtype": "f8"}),
        ("invalid_value", good | {"shape": [FRAMES, ROWS, COLUMNS, 3]}),
        ("invalid_value", good | {"shape": [FRAMES, ROWS, COLUMNS * 2]}),
        ("invalid_value", good | {"shape": [-FRAMES, ROWS, COLUMNS, -2]}),
        ("invalid_value", pack_numbers(np.full((FRAMES, 2, 2, 2), np.nan, np.float16))),
        ("invalid_base64", good | {"data": "A"}),
        ("media_too_large", good | {"shape": [FRAMES, 1000, 1000, 2]}),
        ("media_too_large", pack_numbers(np.zeros((5000, 1, 1, 2), np.int8))),
    ]
    async with shown(start_gateway, preparers) as session:
        for number, (code, array) in enumerate(wrong):
            await session.say(str(number), {"motion_vectors": array})
            await session.show(str(number))
            error = await session.peer.expect("error")
            assert (error["code"], error["param"]) == (code, "data.codec.motion_vectors")
            assert error["message"].startswith("codec.motion_vectors: ")
        await session.say("good", {"motion_vectors": good})
        await session.show("good")
        await session.peer.expect("gate.score", segment_id="good")
        assert session.sight.frames_with("good", PLACE) >= FRAMES - 4


@pytest.mark.parametrize("frames", ["binary", "json"])
async def test_the_client_sends_arrays_as_they_are(start_gateway: StartGateway, frames: Any) -> None:
    async with shown(start_gateway) as session:
        url = f"{session.gateway.ws_url}/v1/mage-vl/duplex"
        async with AsyncDuplexClient(url, frames=frames) as client:
            await client.append_codec_window("h264", {"motion_vectors": vectors()}, segment_id="a", pts_ms=0)
            await client.append_video(CLIP, segment_id="a", pts_ms=0)
            await client.append_text("What is it?")
            await client.commit()
            assert (await client.response()).status == "done"
        assert session.sight.frames_with("a", PLACE) >= FRAMES - 4


def test_bytes_that_wait_are_counted() -> None:
    array = pack_numbers(vectors())
    size = vectors().nbytes
    assert size < window_size(CodecWindow(kind="h264", codec={"motion_vectors": array})) < size + 1000
    array["data"] = base64.b64encode(array["data"]).decode()
    assert (
        size * 4 // 3
        < window_size(CodecWindow(kind="h264", codec={"motion_vectors": array}))
        < size * 4 // 3 + 1000
    )
