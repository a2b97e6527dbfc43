"""The computer's own microphone and loudspeaker, by the optional package sounddevice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from duplex.cli.conversation import CHUNK_MS, MICROPHONE_RATE, Conversation
from duplex.cli.errors import CommandError
from duplex.cli.speaker import SAMPLE_RATE, STEP_MS, Speaker

MOST_WAITING = 250
"""Chunks that may wait to be sent, 5 s; older ones are dropped."""


def check() -> None:
    """Look for the devices.

    Raises:
        CommandError: in words, what is missing.
    """
    sounddevice = _sounddevice()
    for kind, name in (("input", "microphone"), ("output", "loudspeaker")):
        try:
            sounddevice.query_devices(kind=kind)
        except (sounddevice.PortAudioError, ValueError) as error:
            raise CommandError(
                f"there is no {name} here; `duplex talk --wav FILE` talks with recordings"
            ) from error


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as error:
        raise CommandError(
            'the microphone needs the extra `mic`: pip install "duplex-gateway[mic]";'
            " `duplex talk --wav FILE` talks with recordings"
        ) from error
    except OSError as error:  # the package is there, the library that it wraps is not
        raise CommandError(
            "the microphone needs the PortAudio library (Debian: apt install libportaudio2);"
            " `duplex talk --wav FILE` talks with recordings"
        ) from error
    return sounddevice


@contextlib.asynccontextmanager
async def loudspeaker(speaker: Speaker) -> AsyncIterator[None]:
    """Let the sound card pull from the speaker, on its own thread."""
    sounddevice = _sounddevice()
    loop = asyncio.get_running_loop()
    played = speaker.on_played

    def tell() -> None:
        loop.call_soon_threadsafe(played)

    speaker.on_played = tell

    def pull(out: Any, frames: int, time: object, status: object) -> None:
        out[:, 0] = speaker.pull(frames)

    step = SAMPLE_RATE * STEP_MS // 1000
    with _opened(sounddevice.OutputStream, pull, SAMPLE_RATE, step):
        yield


@contextlib.asynccontextmanager
async def listening(talk: Conversation) -> AsyncIterator[None]:
    """Send what the microphone hears, until the context is left."""
    sounddevice = _sounddevice()
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Any] = asyncio.Queue()

    def heard(data: Any, frames: int, time: object, status: object) -> None:
        loop.call_soon_threadsafe(chunks.put_nowait, np.array(data[:, 0]))

    async def send() -> None:
        while True:
            chunk = await chunks.get()
            if chunks.qsize() <= MOST_WAITING:
                await talk.hear(chunk)

    step = MICROPHONE_RATE * CHUNK_MS // 1000
    with _opened(sounddevice.InputStream, heard, MICROPHONE_RATE, step):
        sending = asyncio.create_task(send(), name="microphone")
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def _opened(stream: Any, callback: Any, sample_rate: int, step: int) -> Any:
    try:
        return stream(
            samplerate=sample_rate,
            blocksize=step,
            channels=1,
            dtype="int16",
            callback=callback,
            latency="low",
        )
    except Exception as error:  # PortAudioError: the device is busy, or has no such rate
        raise CommandError(f"the sound card cannot be opened: {error}") from error
