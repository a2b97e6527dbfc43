"""Each bad input gets its named error, the session lives where it should, its neighbour hears nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from contract_peer import Peer, gateway_with, peer
from video_clips import encode, moving_square

from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.codecs.video import decode_window
from duplex.core.types import AudioDelta, Delta, TextDelta, Turn, VideoWindow
from duplex.server.run import Gateway

TOKEN = "correct horse"


async def checking(session: ScriptedSession, window: Any) -> None:
    """A model that looks at its video before it takes it."""
    if isinstance(window, VideoWindow):
        await asyncio.to_thread(decode_window, window.data, window.kind)


def message(type: str, **fields: Any) -> str:
    return json.dumps({"type": type, **fields})


def append(modality: str, data: Any) -> str:
    return message("input.append", modality=modality, data=data, event_id="bad")


def video(data: bytes) -> str:
    return append("video", {"kind": "video/mp4", "data": {"video_base64": base64.b64encode(data).decode()}})


CLIP = encode(moving_square(10))


def claiming(side: int) -> bytes:
    """The clip, but its header says that it has side × side pixels."""
    at = CLIP.index(b"avc1", CLIP.index(b"stsd")) + 4 + 24  # the file's first box names avc1 too
    return CLIP[:at] + side.to_bytes(2, "big") * 2 + CLIP[at + 4 :]


LIVES = {
    "not json": ("nonsense", "invalid_json", None),
    "array": ('[{"type": "close"}]', "not_an_object", None),
    "no type": ('{"event_id": "bad"}', "missing_type", "bad"),
    "unknown type": (message("input.apend", event_id="bad"), "unknown_type", "bad"),
    "no modality": (message("input.append", data="x", event_id="bad"), "missing_modality", "bad"),
    "wrong modality": (append("smell", "x"), "unknown_modality", "bad"),
    "bad base64": (append("audio", "AA*A"), "invalid_base64", "bad"),
    "base64 without padding": (append("audio", "AAAAA"), "invalid_base64", "bad"),
    "empty text": (append("text", ""), "empty_input", "bad"),
    "empty audio": (append("audio", ""), "empty_input", "bad"),
    "empty image": (append("image", ""), "empty_input", "bad"),
    "no picture": (append("image", "AAAA"), "unsupported_format", "bad"),
    "data of a wrong type": (append("text", 5), "invalid_value", "bad"),
    "audio of 1 Hz": (append("audio", {"audio_base64": "AAAA", "sample_rate": 1}), "invalid_value", "bad"),
    "NaN": ('{"type": "playback.ack", "cursor": NaN}', "invalid_json", None),
    "a number beyond a double": ('{"type": "playback.ack", "cursor": 1e999}', "invalid_json", None),
    "a key twice": ('{"type": "close", "type": "input.commit"}', "invalid_json", None),
    "a lone surrogate": (
        '{"type": "input.append", "modality": "text", "data": "\\ud800"}',
        "invalid_json",
        None,
    ),
    "nesting": ("[" * 100_000, "invalid_json", None),
    "a million empty arrays": ("[" + "[]," * 1_000_000 + "[]]", "input_overflow", None),
    "a cursor before the start": (
        message("playback.ack", cursor=-1, event_id="bad"),
        "invalid_playback_cursor",
        "bad",
    ),
    "an unknown setting": (
        message("session.update", session={"vioce": "x"}, event_id="bad"),
        "unknown_field",
        "bad",
    ),
    "a setting of a wrong type": (
        message("session.update", session={"instructions": {"a": 1}}, event_id="bad"),
        "invalid_value",
        "bad",
    ),
    "nothing to commit": (message("input.commit", event_id="bad"), "commit_empty", "bad"),
    "a response that is none": (
        message("response.cancel", response_index=2**63, event_id="bad"),
        "response_not_found",
        "bad",
    ),
    "truncated mp4": (video(CLIP[: len(CLIP) // 2]), "invalid_media", "bad"),
    "an mp4 that is none": (video(b"\x00" * 64), "invalid_media", "bad"),
    "a video bomb": (video(claiming(60_000)), "media_too_large", "bad"),
    "a binary frame that nobody asked for": (b"\x01\x01" + bytes(30), "invalid_frame", None),
}


class Neighbour:
    """A session that speaks while another one is given bad input."""

    def __init__(self) -> None:
        self.half = asyncio.Event()
        self.go_on = asyncio.Event()

    async def respond(self, session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
        samples = np.arange(24000, dtype=np.int16)
        if session.id == "neighbour":
            yield AudioDelta(samples=samples[:12000], sample_rate=24000)
            self.half.set()
            await self.go_on.wait()
            yield AudioDelta(samples=samples[12000:], sample_rate=24000)
        else:
            yield TextDelta(text="yes")

    async def begin(self, peer: Peer) -> None:
        await peer.send("response.create")
        await self.half.wait()

    async def check(self, peer: Peer) -> None:
        """It hears all of its response, and nothing else."""
        self.go_on.set()
        await peer.expect("response.done")
        assert peer.audio(1) == np.arange(24000, dtype="<i2").tobytes()
        assert {message["type"] for message in peer.log[1:]} == {
            "response.created",
            "response.delta",
            "response.done",
        }


@pytest.mark.parametrize("fault", LIVES)
async def test_a_fault_that_the_session_outlives(fault: str) -> None:
    frame, code, event_id = LIVES[fault]
    speaking = Neighbour()
    adapter = ScriptedAdapter(respond=speaking.respond, on_append=checking)
    async with (
        gateway_with(adapter) as gateway,
        peer(gateway, session_id="neighbour") as neighbour,
        peer(gateway) as client,
    ):
        await speaking.begin(neighbour)
        await client.socket.send(frame)
        error = await client.expect("error")
        assert (error["code"], error["event_id"], error["fatal"]) == (code, event_id, False)
        assert error["message"]
        await client.alive()
        await speaking.check(neighbour)


async def test_an_odd_byte_is_carried_over_and_named_only_when_the_turn_ends_in_it() -> None:
    speaking = Neighbour()
    adapter = ScriptedAdapter(respond=speaking.respond)
    async with gateway_with(adapter) as gateway, peer(gateway, session_id="s") as client:
        for piece in (b"\x01", b"\x02\x03", b"\x04\x05"):
            await client.append("audio", base64.b64encode(piece).decode())
        await client.send("input.commit", event_id="turn")
        error = await client.expect("error")
        assert (error["code"], error["event_id"]) == ("odd_audio_bytes", "turn")
        await client.expect("response.done")
        heard = b"".join(window.pcm for window in adapter.open_sessions["s"].appended)
        assert heard == b"\x01\x02\x03\x04"


ENDS: dict[str, tuple[dict[str, str], tuple[int, str]]] = {
    "wrong token": ({"token": "guess"}, (4401, "unauthorized")),
    "no token": ({"token": ""}, (4401, "unauthorized")),
    "bad id": ({"session_id": "../../etc"}, (4429, "invalid_session_id")),
    "id in use": ({"session_id": "neighbour"}, (4429, "session_id_in_use")),
    "no such model": ({"model": "gpt-17"}, (4404, "model_not_found")),
    "bad option": ({"sample_rate": "23999"}, (4400, "bad_config")),
    "unknown extension": ({"ext": "taste"}, (4400, "bad_config")),
    "wrong resume token": ({"resume": "guess"}, (4410, "resume_rejected")),
}


async def with_neighbour(gateway: Gateway, speaking: Neighbour, fault: Any) -> None:
    async with peer(gateway, session_id="neighbour", token=TOKEN) as neighbour:
        await speaking.begin(neighbour)
        await fault()
        await speaking.check(neighbour)


@pytest.mark.parametrize("fault", ENDS)
async def test_a_client_that_gets_no_session(fault: str) -> None:
    query, close = ENDS[fault]
    speaking = Neighbour()
    async with gateway_with(ScriptedAdapter(respond=speaking.respond), auth_token=TOKEN) as gateway:

        async def knock() -> None:
            async with peer(gateway, greeted=False, **({"token": TOKEN} | query)) as client:
                assert await client.closed() == close
                assert [message["type"] for message in client.log] == ["error"]
                assert (client.log[0]["code"], client.log[0]["fatal"]) == (close[1], True)

        await with_neighbour(gateway, speaking, knock)


async def test_no_slot() -> None:
    speaking = Neighbour()
    adapter = ScriptedAdapter(respond=speaking.respond)
    async with gateway_with(adapter, auth_token=TOKEN, max_sessions=1) as gateway:

        async def knock() -> None:
            async with peer(gateway, greeted=False, token=TOKEN) as client:
                assert await client.closed() == (4429, "server_full")

        await with_neighbour(gateway, speaking, knock)


async def test_nine_mebibytes_end_the_session_by_name() -> None:
    speaking = Neighbour()
    async with gateway_with(ScriptedAdapter(respond=speaking.respond), auth_token=TOKEN) as gateway:

        async def flood() -> None:
            async with peer(gateway, token=TOKEN) as client:
                await client.append("text", "x" * 9 * 1024 * 1024)
                assert (await client.closed())[0] == 1009
                assert client.log[-1]["code"] == "message_too_large"

        await with_neighbour(gateway, speaking, flood)
