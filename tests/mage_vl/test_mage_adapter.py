"""The adapter from its options: what is refused and how, its parts' lives, and a server as decoder."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mage_fakes import Fakes, opened, until
from video_clips import encode, moving_square, still, texture

from duplex.adapters.base import Adapter, NotConfigured
from duplex.adapters.mage_vl import building
from duplex.adapters.mage_vl.adapter import MageVl, create
from duplex.adapters.mage_vl.chat import ServerWriter
from duplex.adapters.mage_vl.eyes import FrameSight, ModelSight, jpeg
from duplex.adapters.mage_vl.options import MageOptions, read_options
from duplex.adapters.mage_vl.ports import Picture
from duplex.adapters.mage_vl.tiny import write_tiny_checkpoint
from duplex.adapters.mage_vl.weights import GATE_FILE
from duplex.adapters.registry import load_adapters
from duplex.adapters.spoken import Spoken
from duplex.codecs.video import decode_images
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import HistoryItem, ImageWindow, Modality, OpenSession, SessionSettings, VideoWindow

REMOTE = {"url": "http://127.0.0.1:1/v1"}


def refused(options: dict[str, Any]) -> DuplexError:
    with pytest.raises(DuplexError) as fault:
        create(options)
    assert fault.value.code is ErrorCode.BAD_CONFIG
    return fault.value


# --- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_without_a_model_or_a_server_it_is_not_configured(options: dict[str, Any]) -> None:
    with pytest.raises(NotConfigured, match="neither model is set"):
        create(options)


def test_a_gateway_without_options_serves_the_others_alone() -> None:
    served = load_adapters(ServerConfig(adapter=("duplex.adapters.scripted:create",)))
    assert [adapter.info.id for adapter in served] == ["scripted"]
    with pytest.raises(NotConfigured):
        load_adapters(ServerConfig(adapter=("duplex.adapters.mage_vl.adapter:create",)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modle": "x"}, "unknown field `modle`"),
        ({"model": 3}, "Expected `str | null`, got `int` - at `$.model`"),
        ({"model": "x", "backend": "magic"}, "Invalid enum value 'magic' - at `$.backend`"),
        ({"model": "x", "input": {"frames": 3}}, "input: Object contains unknown field `frames`"),
        ({"model": "x", "input": {"backend": "codec"}}, "backend is an option of its own"),
        ({"model": "x", "input": {"num_frames": 0}}, "input: Expected `int` >= 1"),
        ({"model": "x", "windows": 0}, "windows is from 1 to 64, not 0"),
        ({"model": "x", "question_windows": 65}, "question_windows is from 1 to 64, not 65"),
        ({"model": "x", "max_new_tokens": 0}, "max_new_tokens is 1 or more, not 0"),
        ({"model": "x", "temperature": 3.0}, "temperature is from 0 to 2, not 3.0"),
        ({"model": "x", "seed": 2**63}, "seed has 64 bits, not 9223372036854775808"),
        ({"model": "x", "prompt": " "}, "prompt has words"),
        ({"model": "x", "remote": {"host": "x"}}, "unknown field `host` - at `$.remote`"),
        ({"remote": {**REMOTE, "context_tokens": 1}}, "remote.context_tokens is 64 or more, not 1"),
        ({"remote": {**REMOTE, "silent_s": float("nan")}}, "remote.silent_s is 1 or more, not nan"),
        ({"remote": {**REMOTE, "stalled_s": 0.5}}, "remote.stalled_s is 1 or more, not 0.5"),
        ({"remote": REMOTE, "engine": {"seed": 1}}, "with remote the server has its own"),
        ({"remote": REMOTE, "backend": "codec"}, "a server is shown frames"),
        ({"remote": REMOTE, "gate": True}, "the gate runs here and needs model"),
        ({"model": "x", "speech": {"voice": "x"}}, "missing required field `adapter` - at `$.speech`"),
    ],
)
def test_what_it_cannot_be_told_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    assert words in refused(options).message


def test_the_defaults_are_the_published_ones() -> None:
    read = read_options({"model": "x"})
    assert read.prompt == "Please describe the video content in detail based on the provided information."
    assert (read.max_new_tokens, read.windows, read.window_options.backend) == (80, 4, "codec")
    assert (read.looks, read.gated) == (True, True)
    assert read_options({"remote": REMOTE}).window_options.backend == "frames"
    assert read_options({"remote": REMOTE}).looks is False
    assert read_options({"remote": REMOTE, "model": "x"}).gated is True
    assert read_options({"remote": REMOTE, "model": "x", "gate": False}).looks is False


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    absent = {"vllm"}
    monkeypatch.setattr(
        building.importlib.util, "find_spec", lambda name: None if name in absent else found(name)
    )
    if found("torch") is None or found("transformers") is None:
        absent |= {"torch"}
    fault = refused({"model": "/none"})
    assert "mage-vl needs " in fault.message
    assert "pip install 'duplex-gateway[vllm]'" in fault.message
    assert isinstance(fault.__cause__, ImportError)  # merely installed, it is left out with a warning
    absent.add("httpx")
    assert "pip install 'duplex-gateway[remote]'" in refused({"remote": REMOTE}).message


def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny one, on a machine that has all packages, as far as options are concerned."""
    pytest.importorskip("tokenizers", reason="needs tokenizers: the extra vllm or cpu-engine")
    monkeypatch.setattr(building, "require", lambda options: None)
    return write_tiny_checkpoint(tmp_path / "tiny")


def test_a_checkpoint_is_checked_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path, monkeypatch)
    assert "there is no folder" in refused({"model": "/none"}).message
    (folder / "streammind_gate.safetensors").unlink()
    assert "streammind_gate.safetensors" in refused({"model": str(folder), "gate": True}).message
    adapter = create({"model": str(folder)})
    assert not adapter.info.proactive  # it answers, and says nothing unasked
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002" in refused({"model": str(folder)}).message


def test_what_it_is_comes_from_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path, monkeypatch)
    info = create({"model": str(folder)}).info
    assert (info.id, info.proactive, info.output_modalities) == ("mage-vl", True, (Modality.TEXT,))
    assert Modality.CODEC_WINDOW in info.input_modalities
    assert not create({"model": str(folder), "gate": False}).info.proactive
    frames = create({"model": str(folder), "backend": "frames", "id": "eyes"}).info
    assert frames.id == "eyes"
    assert Modality.CODEC_WINDOW not in frames.input_modalities


def test_an_eye_without_a_gate_does_not_run_for_a_server_that_looks_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the eye needs torch")
    pytest.importorskip("httpx", reason="needs httpx: the extra remote")
    folder = write_tiny_checkpoint(tmp_path / "tiny")
    gated = create({"model": str(folder), "remote": REMOTE})
    assert isinstance(gated, MageVl)
    assert isinstance(gated.sight, ModelSight)
    (folder / GATE_FILE).unlink()
    blind = create({"model": str(folder), "remote": REMOTE})
    assert isinstance(blind, MageVl)
    assert isinstance(blind.sight, FrameSight)
    assert not blind.info.proactive


def test_a_voice_adds_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path, monkeypatch)
    for speech in ("fake_speech:create", {"adapter": "fake_speech:create", "voice": "tone"}):
        adapter = create({"model": str(folder), "speech": speech})
        assert isinstance(adapter, Spoken)
        assert adapter.info.output_modalities == (Modality.TEXT, Modality.AUDIO)
        assert adapter.info.default_output_modalities == (Modality.TEXT,)
    assert "no adapter 'nobody'" in refused({"model": str(folder), "speech": "nobody"}).message


# --- its life -----------------------------------------------------------------------------------------


async def test_a_part_that_cannot_start_leaves_none_running() -> None:
    fakes = Fakes()

    async def fails() -> None:
        raise DuplexError(ErrorCode.BAD_CONFIG, "no memory left")

    fakes.engine.start = fails  # type: ignore[method-assign]
    with pytest.raises(DuplexError, match="no memory left"):
        await fakes.adapter.start()
    assert (fakes.sight.started, fakes.sight.stopped, fakes.engine.stopped) == (1, 1, 1)
    assert not fakes.adapter.healthy
    with pytest.raises(DuplexError) as fault:
        await fakes.open()
    assert fault.value.code is ErrorCode.ENGINE_DOWN


async def test_it_is_healthy_while_both_parts_are_and_says_what_is_wrong() -> None:
    fakes = Fakes()
    assert not fakes.adapter.healthy
    async with opened(fakes):
        assert fakes.adapter.healthy
        assert fakes.adapter.fault is None
        fakes.engine.healthy, fakes.engine.fault = False, "the decoder died"
        fakes.sight.healthy, fakes.sight.fault = False, "the eye died"
        assert (fakes.adapter.healthy, fakes.adapter.fault) == (False, "the decoder died; the eye died")
        names = {figure.name for figure in fakes.adapter.figures()}
        assert names == {"language_running", "sight_eyes", "windows_prepared", "windows_coalesced"}
    assert not fakes.adapter.healthy
    assert (fakes.engine.stopped, fakes.sight.stopped) == (1, 1)


# --- a server that decodes ----------------------------------------------------------------------------


def test_jpeg_keeps_the_picture() -> None:
    image = texture(64, 96)
    image = np.repeat(np.repeat(image[::8, ::8], 8, 0), 8, 1)  # coarse: JPEG keeps no fine grain
    (back,) = decode_images([jpeg(image)]).frames
    assert back.shape == image.shape
    assert np.abs(back.astype(int) - image).mean() < 8


def test_a_server_is_asked_in_chat_messages() -> None:
    pictures = [
        Picture(key="a", time_s=1.25, tokens=6, data=b"jpeg", size=4),
        Picture(key="b", time_s=None, tokens=6, data=b"still", size=5),
    ]
    said = [HistoryItem(role="user", text="hello"), HistoryItem(role="assistant", text="hi")]
    draft = ServerWriter().draft(pictures, "What?", instructions="Be brief.", said=said)
    messages = draft.prompt.messages  # type: ignore[union-attr]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    url = "data:image/jpeg;base64,"
    assert messages[-1]["content"] == [
        {"type": "text", "text": "<1.2 seconds>"},
        {"type": "image_url", "image_url": {"url": url + base64.b64encode(b"jpeg").decode()}},
        {"type": "image_url", "image_url": {"url": url + base64.b64encode(b"still").decode()}},
        {"type": "text", "text": "What?"},
    ]
    assert ServerWriter(1000).draft(pictures, "What?").tokens > 2000 > draft.tokens > 12
    bare = ServerWriter().draft([], "What?")
    assert bare.prompt.messages == ({"role": "user", "content": "What?"},)  # type: ignore[union-attr]


@pytest.fixture
async def server() -> AsyncIterator[Any]:
    pytest.importorskip("httpx", reason="needs httpx: the extra remote")
    from fake_server import FakeServer, served

    fake = FakeServer()
    fake.models = {"data": [{"id": "big", "max_model_len": 2000}]}
    async with served(fake) as serving:
        yield serving


async def open_remote(server: Any, **options: Any) -> tuple[Adapter, Any]:
    adapter = create({"remote": {"url": server.url}, "threads": 1, "max_new_tokens": 16, **options})
    await adapter.start()
    session = await adapter.open(OpenSession(session_id="s", settings=SessionSettings()))
    return adapter, session


async def test_a_gateway_without_a_model_shows_a_server_what_it_sees(server: Any) -> None:
    adapter, session = await open_remote(server)
    assert isinstance(adapter, MageVl)
    assert not adapter.info.proactive
    clip = encode(moving_square(30, 64, 96), fps=5)
    await session.append(VideoWindow(kind="video/mp4", data=clip, pts_ms=0.0, duration_ms=6000.0))
    await session.append(ImageWindow(data=still(texture(64, 64), "mjpeg")))
    watched = _watched(session)
    assert await watched.said(question="What?") == "Hello, world."
    ((path, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["stream"]) == ("big", 16, True)
    parts = body["messages"][-1]["content"]
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len(images) == 9  # 8 frames of the window, and the still
    for image in images:
        assert base64.b64decode(image.partition(",")[2])[:2] == b"\xff\xd8"
    assert parts[0]["text"] == "<0.0 seconds>"
    assert parts[-2]["type"] == "image_url"
    assert parts[-3]["type"] == "image_url"  # no time before the still
    await session.close()
    await adapter.stop()


async def test_the_context_that_a_server_tells_is_kept_to(server: Any) -> None:
    server.models = {"data": [{"id": "small", "max_model_len": 200}]}
    adapter, session = await open_remote(server)
    for number in range(6):
        await session.append(
            VideoWindow(kind="", frames=tuple(still(texture(64, 64, n), "mjpeg") for n in range(4)))
        )
        await session._watching.settled(number + 1)
    watched = _watched(session)
    await watched.said(question="What?")
    parts = server.asked[0][1]["messages"][-1]["content"]
    assert 4 <= sum(part["type"] == "image_url" for part in parts) < 24
    with pytest.raises(DuplexError) as fault:
        await watched.answer(question="word " * 400)
    assert fault.value.code is ErrorCode.INPUT_OVERFLOW
    assert len(server.asked) == 1
    await session.close()
    await adapter.stop()


async def test_a_cancel_closes_the_connection_to_the_server(server: Any) -> None:
    server.hold = True
    adapter, session = await open_remote(server)
    watched = _watched(session)
    deltas = session.respond(watched.turn(question="What?"))
    assert (await anext(deltas)).text == "Hello"
    await deltas.aclose()
    await until(server.gone.is_set)
    await session.close()
    await adapter.stop()


async def test_a_server_s_words_are_spoken(server: Any) -> None:
    adapter, session = await open_remote(server, speech="fake_speech:create")
    watched = _watched(session.session)
    turn = watched.turn(question="What?", modalities=(Modality.TEXT, Modality.AUDIO))
    deltas = [delta async for delta in session.respond(turn)]
    kinds = {type(delta).__name__ for delta in deltas}
    assert kinds == {"TextDelta", "AudioDelta"}
    assert "".join(d.text for d in deltas if type(d).__name__ == "AudioDelta") == "Hello, world."
    await session.close()
    await adapter.stop()


def _watched(session: Any) -> Any:
    from mage_fakes import Watched

    return Watched(session)


def test_options_have_words_for_each_field() -> None:
    words = MageOptions.__doc__ or ""
    for field in MageOptions.__struct_fields__:
        assert f"{field}:" in words or f"{field}," in words or f", {field}" in words, field
