"""The microphone and the loudspeaker, with a sound card that is not there."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from talking_models import lines_of, listener, loud, silence

from duplex.cli import main, microphone
from duplex.cli.conversation import conversation
from duplex.cli.errors import CommandError
from duplex.cli.speaker import SAMPLE_RATE, Speaker
from duplex.cli.timeline import Timeline
from duplex.server.run import Gateway


class PortAudioError(Exception):
    pass


class _Stream:
    """A stream of a sound card: a thread of its own that calls back for each block, faster than life."""

    def __init__(
        self, *, samplerate: int, blocksize: int, channels: int, callback: Any, **other: Any
    ) -> None:
        assert (channels, other["dtype"]) == (1, "int16")
        self.rate, self.block, self.callback = samplerate, blocksize, callback
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *exception: object) -> None:
        self.stopping.set()
        self.thread.join()

    def work(self) -> None:
        raise NotImplementedError


def sound_card(spoken: np.ndarray, heard: list[np.ndarray]) -> types.ModuleType:
    """A module like sounddevice, whose microphone hears `spoken` once and then silence."""

    class InputStream(_Stream):
        def work(self) -> None:
            at = 0
            while not self.stopping.wait(0.002):
                block = spoken[at : at + self.block]
                at += self.block
                data = np.zeros((self.block, 1), np.int16)
                data[: len(block), 0] = block
                self.callback(data, self.block, None, None)

    class OutputStream(_Stream):
        def work(self) -> None:
            while not self.stopping.wait(0.002):
                data = np.zeros((self.block, 1), np.int16)
                self.callback(data, self.block, None, None)
                heard.append(data[:, 0].copy())

    module = types.ModuleType("sounddevice")
    vars(module).update(
        InputStream=InputStream,
        OutputStream=OutputStream,
        PortAudioError=PortAudioError,
        query_devices=lambda kind: {"name": kind},
    )
    return module


async def test_what_the_microphone_hears_is_answered_through_the_loudspeaker(
    start_gateway: Callable[..., Awaitable[Gateway]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[np.ndarray] = []
    spoken = np.concatenate([loud(300), silence(400)])
    monkeypatch.setitem(sys.modules, "sounddevice", sound_card(spoken, heard))
    gateway = await start_gateway(listener(["hello"], answer_ms=500))
    timeline = Timeline()
    speaker = Speaker(timeline)
    microphone.check()
    async with (
        conversation(
            f"{gateway.ws_url}/v1/duplex",
            timeline=timeline,
            speaker=speaker,
            playing=microphone.loudspeaker(speaker),
        ) as talk,
        microphone.listening(talk),
    ):
        await talk.until(
            lambda: talk.current is not None and talk.current.status == "done" and talk.quiet, "no answer", 20
        )
        assert [text for _, text in talk.transcripts] == ["hello"]
    sounding = np.flatnonzero(np.abs(np.concatenate(heard)) > 500)
    assert (sounding[-1] - sounding[0]) / SAMPLE_RATE == pytest.approx(0.5, abs=0.05)
    assert threading.active_count() < 20
    assert not [
        task for task in asyncio.all_tasks() if task.get_name() in ("microphone", "events", "speaker")
    ]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_computer_without_a_device_is_told(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    card = sound_card(silence(0), [])

    def query(kind: str, missing: str = kind) -> None:
        if kind == missing:
            raise PortAudioError("Error querying device -1")

    monkeypatch.setattr(card, "query_devices", query)
    monkeypatch.setitem(sys.modules, "sounddevice", card)
    name = {"input": "microphone", "output": "loudspeaker"}[kind]
    with pytest.raises(CommandError, match=f"there is no {name} here; `duplex talk --wav FILE`"):
        microphone.check()


def test_a_missing_package_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert main(["talk"]) == 1
    out, err = lines_of(capsys)
    assert out == []
    assert len(err) == 1
    assert 'pip install "duplex-gateway[mic]"' in err[0]


async def test_a_device_that_cannot_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    card = sound_card(silence(0), [])

    def busy(**settings: Any) -> None:
        raise PortAudioError("Device unavailable")

    monkeypatch.setattr(card, "OutputStream", busy)
    monkeypatch.setitem(sys.modules, "sounddevice", card)
    with pytest.raises(CommandError, match="the sound card cannot be opened: Device unavailable"):
        async with microphone.loudspeaker(Speaker(Timeline())):
            raise AssertionError("it opened")
