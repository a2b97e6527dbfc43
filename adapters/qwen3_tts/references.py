"""Voices to clone, as a worker takes them. A recording is encoded once, for all who speak with it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
import numpy as np

from duplex.adapters.qwen3_tts.job import EncodeReference, Reference
from duplex.adapters.speech import ReferenceAudio, SpeechRequest

KEPT: Final = 512
"""Encoded recordings that are remembered, those used last: 8 KiB each, and with codes 400 bytes more for each
second of speech."""

Call: TypeAlias = Callable[[str, bytes], Awaitable[bytes]]
_Key: TypeAlias = tuple[bytes, int, bool]


class References:
    """Of one adapter. `call` is the engine's."""

    def __init__(self, call: Call, *, kept: int = KEPT) -> None:
        self._call = call
        self._kept = kept
        self._known: OrderedDict[_Key, Reference] = OrderedDict()
        self._running: dict[_Key, asyncio.Task[Reference]] = {}

    async def of(self, request: SpeechRequest) -> Reference | None:
        """The voice of a checked request, None when it clones none.

        Raises:
            DuplexError: what the engine says.
        """
        stored = request.stored_voice
        recording = request.reference or (stored.reference if stored is not None else None)
        text = request.reference_text or ""
        alone = request.x_vector_only_mode
        if recording is not None:
            encoded = await self.encode(recording, codes=not alone)
            if alone:
                return Reference(embedding=encoded.embedding)
            return msgspec.structs.replace(encoded, text=text)
        embedding = request.speaker_embedding or (stored.embedding if stored is not None else None)
        if embedding is None:
            return None
        packed = np.asarray(embedding, "<f4").tobytes()
        if alone or stored is None or stored.codes is None:
            return Reference(embedding=packed)
        return Reference(embedding=packed, codes=np.asarray(stored.codes, "<i2").tobytes(), text=text)

    async def encode(self, recording: ReferenceAudio, *, codes: bool) -> Reference:
        """A recording's embedding, and with `codes` its codes. Requests for the same one share the work, and
        one that is cancelled leaves it to the others."""
        samples, digest = await asyncio.to_thread(_packed, recording)
        for with_codes in (codes, True):  # an encoding with codes has all that one without has
            key = (digest, recording.sample_rate, with_codes)
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            if (running := self._running.get(key)) is not None:
                return await asyncio.shield(running)
        key = (digest, recording.sample_rate, codes)
        task = asyncio.get_running_loop().create_task(self._encode(key, samples), name="encoding a voice")
        self._running[key] = task
        task.add_done_callback(lambda task: self._done(key, task))
        return await asyncio.shield(task)

    async def _encode(self, key: _Key, samples: bytes) -> Reference:
        _, sample_rate, codes = key
        payload = EncodeReference(samples=samples, sample_rate=sample_rate, codes=codes)
        answer = await self._call("encode_reference", msgspec.msgpack.encode(payload))
        return msgspec.msgpack.decode(answer, type=Reference)

    def _done(self, key: _Key, task: asyncio.Task[Reference]) -> None:
        del self._running[key]
        if task.cancelled() or task.exception() is not None:
            return  # whoever waits for it is told; the next one tries again
        self._known[key] = task.result()
        while len(self._known) > self._kept:
            self._known.popitem(last=False)

    async def close(self) -> None:
        """Stop what runs."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _packed(recording: ReferenceAudio) -> tuple[bytes, bytes]:
    """The samples as float32 little endian, full scale ±1, and their SHA-256."""
    wave = recording.samples.astype("<f4")
    if recording.samples.dtype == np.int16:
        wave /= 32768
    samples = wave.tobytes()
    return samples, hashlib.sha256(samples).digest()
