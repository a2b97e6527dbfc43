"""A speech stage behind any model that writes: its text, sentence by sentence, in a speech adapter's voice.

    adapter = Spoken(writer, SpeechStage(load_speech("embedded-voice", {})))

The first sentence sounds while the next is still being written. Text is never held back for audio, and a
cancel stops the writing and the speaking at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec
import numpy as np

from duplex.adapters.base import Adapter, AdapterInfo, AdapterSession
from duplex.adapters.health import Figure
from duplex.adapters.registry import load_adapter
from duplex.adapters.speech import SpeechAdapter, SpeechRequest
from duplex.adapters.text import Granularity, Splitter, has_words
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    Delta,
    LengthReached,
    Modality,
    OpenSession,
    SessionSettings,
    TextDelta,
    Turn,
)

AHEAD: Final = 8
"""Deltas of text, and of audio, that may wait to be taken: whoever takes them sets the pace."""
MOST_UNSPOKEN: Final = 64
"""Sentences that may wait to be spoken; with more, the writer waits."""
HUSH_S: Final = 0.01
"""Length of the silence that stands for text without sound at the end."""


def load_speech(name: str, options: Mapping[str, Any]) -> SpeechAdapter:
    """An installed adapter that speaks exact text, by its name or `module:factory`.

    Raises:
        DuplexError: `BAD_CONFIG`: there is none, a package is missing, or it has no speech face.
    """
    adapter = load_adapter(name, options)
    if not isinstance(adapter, SpeechAdapter):
        words = f"adapter {name!r} cannot be a voice: it does not speak exact text"
        raise DuplexError(ErrorCode.BAD_CONFIG, words, param="speech")
    return adapter


class SpeechStage:
    """A speech adapter as the voice of another model.

    `request` is what each utterance asks of it (language, instructions …); a session's own voice goes over
    its voice.
    """

    def __init__(
        self,
        adapter: SpeechAdapter,
        request: SpeechRequest | None = None,
        *,
        granularity: Granularity = "sentence",
    ) -> None:
        self.adapter = adapter
        self.granularity: Granularity = granularity
        self._request = request or SpeechRequest()

    def request(self, voice: str | None) -> SpeechRequest:
        """The request for an utterance. Raises `DuplexError` for a voice that the model does not have."""
        asked = self._request
        if voice is not None:
            asked = msgspec.structs.replace(asked, voice=voice)
        return self.adapter.speech.validate(asked)

    async def speak(self, deltas: AsyncIterator[Delta], voice: str | None) -> AsyncGenerator[Delta, None]:
        """`deltas` with their speech, see `speak`."""
        request = self.request(voice)
        async with aclosing(speak(deltas, self.adapter, request, self.granularity)) as spoken:
            async for delta in spoken:
                yield delta


async def speak(
    deltas: AsyncIterator[Delta],
    adapter: SpeechAdapter,
    request: SpeechRequest,
    granularity: Granularity = "sentence",
) -> AsyncGenerator[Delta, None]:
    """Deltas as they come, and audio deltas that speak their text, each with the text that it speaks.

    Text goes before audio where both wait. `LengthReached` comes last, behind the audio. Closing the iterator
    closes `deltas` and ends the speaking, within one step of each.

    Raises:
        DuplexError: what `deltas` raised, or the voice; a fault of the voice is never fatal to the session.
    """
    work = _Speaking(adapter, request, granularity)
    tasks = [asyncio.ensure_future(work.write(deltas)), asyncio.ensure_future(work.speak())]
    for task in tasks:
        task.add_done_callback(lambda _: work.changed.set())
    try:
        while True:
            if (delta := work.take()) is not None:
                yield delta
                continue
            for task in tasks:
                if task.done():
                    task.result()
            if all(task.done() for task in tasks):
                break
            work.changed.clear()
            await work.changed.wait()
        if work.length is not None:
            yield work.length
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Speaking:
    """The two halves of one response, and what they have made."""

    def __init__(self, adapter: SpeechAdapter, request: SpeechRequest, granularity: Granularity) -> None:
        self.changed = asyncio.Event()
        self.length: LengthReached | None = None
        self._adapter = adapter
        self._request = request
        self._splitter = Splitter(granularity)
        self._written: asyncio.Queue[Delta] = asyncio.Queue(AHEAD)
        self._sounded: asyncio.Queue[AudioDelta] = asyncio.Queue(AHEAD)
        self._units: asyncio.Queue[str | None] = asyncio.Queue(MOST_UNSPOKEN)

    def take(self) -> Delta | None:
        """What is next, if there is anything."""
        for queue in (self._written, self._sounded):
            if not queue.empty():
                return queue.get_nowait()
        return None

    async def write(self, deltas: AsyncIterator[Delta]) -> None:
        try:
            async for delta in deltas:
                if isinstance(delta, LengthReached):
                    self.length = delta
                    continue
                await self._written.put(delta)
                self.changed.set()
                if isinstance(delta, TextDelta):
                    self._splitter.put(delta.text)
                    await self._cut(final=False)
        finally:
            close = getattr(deltas, "aclose", None)
            if close is not None:
                await close()
        await self._cut(final=True)
        await self._units.put(None)

    async def _cut(self, *, final: bool) -> None:
        while (unit := self._splitter.take(final=final)) is not None:
            await self._units.put(unit)

    async def speak(self) -> None:
        silent = ""  # text without sound goes with the sound after it
        rate = 0
        while (unit := await self._units.get()) is not None:
            if not has_words(unit):
                silent += unit
                continue
            begun = False
            async with aclosing(_utterance(self._adapter, self._request, unit)) as sound:
                async for delta in sound:
                    text = delta.text
                    if not begun:  # a voice that cannot tell what its audio says speaks the whole unit
                        text = silent + (text or unit)
                    silent, begun, rate = "", True, delta.sample_rate
                    await self._sounded.put(msgspec.structs.replace(delta, text=text))
                    self.changed.set()
            if not begun:
                silent += unit
        if silent and rate:
            hush = np.zeros(round(rate * HUSH_S), np.float32)
            await self._sounded.put(AudioDelta(samples=hush, sample_rate=rate, text=silent))
            self.changed.set()


async def _utterance(
    adapter: SpeechAdapter, request: SpeechRequest, text: str
) -> AsyncGenerator[AudioDelta, None]:
    """One unit's audio. Faults of the voice are named as such, and end no session."""
    try:
        async with aclosing(_closable(adapter.speech.synthesise(request, _once(text)))) as chunks:
            async for chunk in chunks:
                if len(chunk.samples):
                    yield AudioDelta(samples=chunk.samples, sample_rate=chunk.sample_rate, text=chunk.text)
    except DuplexError as error:
        code = ErrorCode.ADAPTER_FAILED if error.fatal else error.code
        words = f"the voice {adapter.info.id} failed: {error.message}"
        raise DuplexError(code, words, param=error.param) from error


async def _once(text: str) -> AsyncIterator[str]:
    yield text


async def _closable(items: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    """`items`, closed with this where they can be closed."""
    try:
        async for item in items:
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


class SpokenSession:
    """A session of a model that writes, with a voice. Text alone where no audio is asked for."""

    def __init__(self, session: AdapterSession, stage: SpeechStage) -> None:
        self.session = session
        self._stage = stage
        self.append = session.append
        self.commit = session.commit
        self.finish = session.finish
        self.signals = session.signals
        self.close = session.close

    async def update(self, settings: SessionSettings) -> None:
        """The voice is checked here; the writer knows none."""
        if settings.voice is not None:
            self._stage.request(settings.voice)
        await self.session.update(_voiceless(settings))

    async def clear_input(self) -> None:
        clear = getattr(self.session, "clear_input", None)
        if clear is not None:
            await clear()

    async def respond(self, turn: Turn) -> AsyncGenerator[Delta, None]:
        """The writer's answer, spoken where the turn is to be heard."""
        voice = turn.settings.voice
        turn = msgspec.structs.replace(turn, settings=_voiceless(turn.settings))
        deltas = self.session.respond(turn)
        if Modality.AUDIO in turn.modalities:
            deltas = self._stage.speak(deltas, voice)
        async with aclosing(_closable(deltas)) as said:
            async for delta in said:
                yield delta


class Spoken:
    """An adapter that speaks what another writes. The voice is loaded with it, for it alone."""

    def __init__(self, adapter: Adapter, stage: SpeechStage) -> None:
        self.adapter = adapter
        self.stage = stage
        self.info = spoken_info(adapter.info, stage.adapter)

    @property
    def healthy(self) -> bool:
        """Both are."""
        return all(bool(getattr(part, "healthy", True)) for part in self._parts)

    @property
    def fault(self) -> str | None:
        faults = [getattr(part, "fault", None) for part in self._parts]
        return "; ".join(fault for fault in faults if fault) or None

    def figures(self) -> Iterable[Figure]:
        """Those of both."""
        for part in self._parts:
            yield from getattr(part, "figures", tuple)()

    async def start(self) -> None:
        """Load the voice, then the writer: what takes its share of the memory that is left goes last. When
        one fails, neither stays."""
        try:
            await self.stage.adapter.start()
            await self.adapter.start()
        except BaseException:
            await self.stop()
            raise

    async def open(self, request: OpenSession) -> SpokenSession:
        settings = request.settings
        if settings.voice is not None:
            self.stage.request(settings.voice)
        inner = msgspec.structs.replace(request, settings=_voiceless(settings))
        return SpokenSession(await self.adapter.open(inner), self.stage)

    async def stop(self) -> None:
        await asyncio.gather(*(part.stop() for part in self._parts))

    @property
    def _parts(self) -> tuple[Adapter, Adapter]:
        return (self.adapter, self.stage.adapter)


def spoken_info(info: AdapterInfo, voice: SpeechAdapter) -> AdapterInfo:
    """What a writer is with a voice. Clients get text alone unless they ask for audio too."""
    return msgspec.structs.replace(
        info,
        output_modalities=tuple(dict.fromkeys((*info.output_modalities, Modality.AUDIO))),
        default_output_modalities=info.default_output_modalities or info.output_modalities,
        output_sample_rate=voice.speech.sample_rate,
        voices=voice.info.voices,
    )


def _voiceless(settings: SessionSettings) -> SessionSettings:
    return msgspec.structs.replace(settings, voice=None)
