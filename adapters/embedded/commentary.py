"""`embedded-commentary`: video in, timed comments out, in text and speech, on one CPU core.

It says what its detectors give, each event once: shot cuts, camera and object motion (from the codec's own
vectors where it exports them), objects, picture tags, words on the screen. It answers questions about what it
has seen, and says so when it cannot tell.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from duplex.adapters.base import AdapterInfo
from duplex.adapters.embedded.answers import answer, describe
from duplex.adapters.embedded.commentary_analysis import Analysis, Models, Notice
from duplex.adapters.embedded.events import Event
from duplex.adapters.embedded.objects import ObjectDetector
from duplex.adapters.embedded.onscreen_text import TextReader
from duplex.adapters.embedded.tags import Tagger
from duplex.adapters.embedded.words import sentence
from duplex.adapters.first_sight import check_window
from duplex.codecs.video import VideoLimits
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    CodecWindow,
    Delta,
    ImageWindow,
    Modality,
    OpenSession,
    SessionSettings,
    Signal,
    TextDelta,
    TextWindow,
    Trigger,
    Turn,
    VideoWindow,
    WantsToSpeak,
    Window,
)

if TYPE_CHECKING:
    from duplex.adapters.embedded.speech import Speech

ID: Final = "embedded-commentary"

ANSWER_WAIT_S: Final = 2.0
"""How long an answer waits for the analysis of the windows before the question."""

_MOST_UNSAID: Final = 16
_STALE_MS: Final = 10_000.0  # an event that could not be said for this long is news no more
_MOST_SIGNALS: Final = 256

Part = TypeVar("Part")


class CommentaryOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the adapter. `objects`, `tags`, `text`: None uses the detector when it is installed, True
    requires it, False leaves it out. `threads` 0: one for each core, at most four."""

    objects: bool | None = None
    tags: bool | None = None
    text: bool | None = None
    speech: bool | None = None
    voice: str = "heart"
    threads: int = 0


class Commentary:
    """The adapter: loads the detectors and the voice once, for all sessions."""

    def __init__(self, options: CommentaryOptions) -> None:
        self.options = options
        self.models = Models()
        self.synthesiser: Speech | None = None
        self.workers: ThreadPoolExecutor | None = None
        self.readers: ThreadPoolExecutor | None = None
        speaks = options.speech is not False and _speech_installed()
        self.info = AdapterInfo(
            id=ID,
            input_modalities=(Modality.TEXT, Modality.IMAGE, Modality.VIDEO, Modality.CODEC_WINDOW),
            output_modalities=(Modality.TEXT, Modality.AUDIO) if speaks else (Modality.TEXT,),
            default_output_modalities=(Modality.TEXT,),
            proactive=True,
            voices=_voices() if speaks else (),
            description="Comments on video as it happens: cuts, motion, objects, tags, words on the screen.",
        )

    async def start(self) -> None:
        """Load (about 1 s; 2 s at first use, when the tagger is converted into the cache)."""
        threads = self.options.threads or min(4, os.cpu_count() or 1)
        self.workers = ThreadPoolExecutor(threads, "commentary")
        self.readers = ThreadPoolExecutor(1, "commentary-text")
        await asyncio.get_running_loop().run_in_executor(self.workers, self._load)

    def _load(self) -> None:
        options = self.options
        self.models = Models(
            detector=_part(options.objects, ObjectDetector, "objects"),
            tagger=_part(options.tags, Tagger, "tags"),
            reader=_part(options.text, TextReader, "text"),
        )
        if Modality.AUDIO in self.info.output_modalities:
            from duplex.adapters.embedded.speech import Speech

            self.synthesiser = Speech(options.voice)
            self.synthesiser.start()
        elif options.speech:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, "speech needs the package hibari-tts (extra `embedded`)", param="speech"
            )

    async def open(self, request: OpenSession) -> CommentarySession:
        session = CommentarySession(self)
        await session.update(request.settings)
        return session

    async def stop(self) -> None:
        for pool in (self.workers, self.readers):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self.workers = self.readers = None
        self.models = Models()
        if self.synthesiser is not None:
            self.synthesiser.stop()
            self.synthesiser = None


class CommentarySession:
    """One session. All of its state is touched by the event loop alone; the analysis has its own."""

    def __init__(self, adapter: Commentary, limits: VideoLimits | None = None) -> None:
        if adapter.workers is None or adapter.readers is None:
            raise DuplexError(ErrorCode.ENGINE_DOWN, "the commentary model is not loaded")
        self._adapter = adapter
        self._settings = SessionSettings()
        self._loop = asyncio.get_running_loop()
        self._limits = limits or VideoLimits()
        self._analysis = Analysis(
            adapter.models, adapter.workers, adapter.readers, self._from_worker, limits=self._limits
        )
        self._unsaid: deque[Event] = deque(maxlen=_MOST_UNSAID)
        self._signals: deque[Signal] = deque(maxlen=_MOST_SIGNALS)
        self._news = asyncio.Event()
        self._settled: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False

    # --- input --------------------------------------------------------------------------------------

    async def append(self, window: Window) -> None:
        """Queue a window. What is wrong at first sight is refused here, the rest by an `InputRejected`."""
        if isinstance(window, TextWindow):
            return  # it comes back as the turn's question
        if isinstance(window, VideoWindow | ImageWindow):
            check_window(window, self._limits.max_bytes)
        elif not isinstance(window, CodecWindow):
            raise DuplexError(
                ErrorCode.UNSUPPORTED_MODALITY, f"unsupported input modality: {window.modality}"
            )
        self._analysis.submit(window)

    async def commit(self) -> bool:
        """There is something to say as soon as something was sent to look at."""
        return self._analysis.submitted > 0

    async def update(self, settings: SessionSettings) -> None:
        """Take new settings."""
        if settings.options:
            name = next(iter(settings.options))
            raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown option {name!r}", param=f"options.{name}")
        if settings.voice is not None:
            if self._adapter.synthesiser is None:
                raise DuplexError(ErrorCode.INVALID_VALUE, "this model has no voice here", param="voice")
            self._adapter.synthesiser.check(voice=settings.voice)
        self._settings = settings

    async def finish(self) -> None:
        """The input ends: give out the last frames, and return when they are analysed."""
        await self._wait_for(self._analysis.submit(None))

    async def close(self) -> None:
        self._closed = True
        self._analysis.close()
        self._news.set()
        for _, future in self._settled:
            future.cancel()
        self._settled.clear()

    # --- what the analysis notices ------------------------------------------------------------------

    def _from_worker(self, notices: list[Notice]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._noticed, notices)

    def _noticed(self, notices: list[Notice]) -> None:
        if self._closed:
            return
        for notice in notices:
            if not isinstance(notice, Event):
                self._signals.append(notice)
            elif notice.salience >= self._settings.gate_threshold:
                self._unsaid.append(notice)
                self._signals.append(WantsToSpeak(event_id=notice.id, score=notice.salience))
        self._news.set()
        done = self._analysis.done
        for serial, future in self._settled:
            if serial <= done and not future.done():
                future.set_result(None)
        self._settled = [(s, f) for s, f in self._settled if not f.done()]

    async def signals(self) -> AsyncIterator[Signal]:
        """Gate scores, lag, refused windows, and wishes to speak about events that are still unsaid."""
        while not self._closed:
            while self._signals:
                signal = self._signals.popleft()
                if isinstance(signal, WantsToSpeak) and not self._is_unsaid(signal.event_id):
                    continue
                yield signal
            self._news.clear()
            if not self._signals and not self._closed:
                await self._news.wait()

    def _is_unsaid(self, event_id: str) -> bool:
        return any(event.id == event_id for event in self._unsaid)

    async def _wait_for(self, serial: int) -> None:
        """Until that window is finished with."""
        if self._closed or self._analysis.done >= serial:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._settled.append((serial, future))
        try:
            await future
        finally:
            self._settled = [(s, f) for s, f in self._settled if f is not future]

    # --- responses ----------------------------------------------------------------------------------

    async def respond(self, turn: Turn) -> AsyncIterator[Delta]:
        """Comment, answer, or speak a given text, sentence by sentence."""
        first = True
        for text in await self._sentences(turn):
            said = text if first else f" {text}"
            first = False
            yield TextDelta(text=said)
            if Modality.AUDIO in turn.modalities:
                async for delta in self._speak(said, turn.settings.voice):
                    yield delta

    async def _sentences(self, turn: Turn) -> list[str]:
        if turn.speak_text is not None:
            return [turn.speak_text] if turn.speak_text else []
        if turn.trigger is Trigger.PROACTIVE:
            return [sentence(event) for event in self._take(turn.event_id)]
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WAIT_S):
                await self._wait_for(self._analysis.submitted)
        if turn.question:
            return [answer(turn.question, self._analysis.view)]
        return [*(sentence(event) for event in self._take(None)), describe(self._analysis.view)]

    def _take(self, event_id: str | None) -> list[Event]:
        """Events that are to be said now, up to the named one: each is given once. Old ones are dropped."""
        taken = []
        known = event_id is None or self._is_unsaid(event_id)
        while known and self._unsaid:
            event = self._unsaid.popleft()
            taken.append(event)
            if event.id == event_id:
                break
        now = self._analysis.view.pts_ms
        return [e for e in taken if now is None or now - e.at_ms <= _STALE_MS]

    async def _speak(self, text: str, voice: str | None) -> AsyncIterator[AudioDelta]:
        speech, workers = self._adapter.synthesiser, self._adapter.workers
        if speech is None or workers is None:
            return
        pieces = speech.speak(text, voice=voice)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            if len(piece.samples):
                from duplex.adapters.embedded.speech import SAMPLE_RATE

                yield AudioDelta(samples=piece.samples, sample_rate=SAMPLE_RATE, text=piece.text)


def _part(wanted: bool | None, make: Callable[[], Part], name: str) -> Part | None:
    """A detector, or None where it is not wanted or, unless it is required, not installed."""
    if wanted is False:
        return None
    try:
        return make()
    except ImportError as error:
        if wanted is None:
            return None
        extra = "ocr" if name == "text" else "embedded"
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"{name}: {error}; install the extra `{extra}`", param=name
        ) from error


def _speech_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("hibari") is not None


def _voices() -> tuple[str, ...]:
    from duplex.adapters.embedded.speech import Speech

    return Speech.installed_voices()


def create(options: Mapping[str, Any]) -> Commentary:
    """The factory that the entry point `embedded-commentary` names.

    Raises:
        DuplexError: `bad_config` for an unknown option or a wrong type.
    """
    try:
        return Commentary(msgspec.convert(dict(options), CommentaryOptions))
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{ID}: {error}") from error
