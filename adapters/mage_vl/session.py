"""A session: windows in at any time, comments when the gate asks for them, answers when the user does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from duplex.adapters.base import BaseSession
from duplex.adapters.engine.language import SEEDS, LanguageEngine, Sampling
from duplex.adapters.first_sight import check_window
from duplex.adapters.mage_vl.decisions import Decisions
from duplex.adapters.mage_vl.history import History, Slide, fit
from duplex.adapters.mage_vl.options import Limits
from duplex.adapters.mage_vl.ports import Backend, Draft, Glance, Picture, Sight, Writer
from duplex.adapters.mage_vl.watching import MOST_WAITING_BYTES, Watching
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    CodecWindow,
    Delta,
    HistoryItem,
    ImageWindow,
    InputLag,
    LengthReached,
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

MOST_SIGNALS: Final = 256
"""Signals that may wait to be heard; more push out the oldest."""
REST_S: Final = 0.3
"""Silence of an input of which nothing could be seen, after which what is held back is given out."""


@dataclass(slots=True)
class Tally:
    """Counts of all sessions. `coalesced`: windows that were given up for newer ones."""

    coalesced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What all sessions share."""

    engine: LanguageEngine
    sight: Sight
    backend: Backend
    writer: Writer
    writing: Executor
    limits: Limits
    tally: Tally = field(default_factory=Tally)


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`SessionSettings.options` of this model. None: the adapter's own. `prompt` is what a comment is asked
    with."""

    prompt: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


def session_options(settings: SessionSettings) -> SessionOptions:
    """The settings' options. Raises `DuplexError(INVALID_VALUE or UNKNOWN_FIELD)`."""
    try:
        options = msgspec.convert(settings.options, SessionOptions)
    except msgspec.ValidationError as error:
        code = ErrorCode.UNKNOWN_FIELD if "unknown field" in str(error) else ErrorCode.INVALID_VALUE
        raise DuplexError(code, f"options: {error}", param="options") from None
    if options.max_new_tokens is not None and options.max_new_tokens < 1:
        words = "options.max_new_tokens is 1 or more"
        raise DuplexError(ErrorCode.INVALID_VALUE, words, param="options.max_new_tokens")
    if options.temperature is not None and not 0 <= options.temperature <= 2:
        words = "options.temperature is from 0 to 2"
        raise DuplexError(ErrorCode.INVALID_VALUE, words, param="options.temperature")
    if options.seed is not None and not SEEDS[0] <= options.seed <= SEEDS[1]:
        raise DuplexError(ErrorCode.INVALID_VALUE, "options.seed has 64 bits", param="options.seed")
    if settings.voice is not None:
        raise DuplexError(ErrorCode.INVALID_VALUE, "this model has no voice here", param="voice")
    return options


class MageSession(BaseSession):
    """One client. All of its state is the loop's own, and nobody else's."""

    def __init__(self, parts: Parts, settings: SessionSettings) -> None:
        self._parts = parts
        self._settings = settings
        session_options(settings)  # refused now, not at the first answer
        limits = parts.limits
        self.history = History(limits.kept_windows, limits.history_bytes)
        self._shown = Slide(self.history, limits.windows)
        self._decisions = Decisions()
        self._signals: deque[Signal] = deque(maxlen=MOST_SIGNALS)
        self._news = asyncio.Event()
        self._closed = False
        eye = parts.sight.open()  # first: it may be refused
        self._watching = Watching(
            parts.backend.open(),
            parts.backend.pairing(),
            eye,
            seen=self._seen,
            tell=self._tell,
        )

    # --- input --------------------------------------------------------------------------------------

    async def append(self, window: Window) -> None:
        """Queue a window. What is wrong at first sight is refused here, the rest by an `InputRejected`."""
        if isinstance(window, TextWindow):
            return  # it comes back as the turn's question
        if isinstance(window, VideoWindow | ImageWindow):
            check_window(window, MOST_WAITING_BYTES)
        elif not isinstance(window, CodecWindow) or not self._parts.backend.takes_codec:
            words = f"unsupported input modality: {window.modality}"
            raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, words)
        self._watching.submit(window)

    async def commit(self) -> bool:
        """There is something to say as soon as something was sent to look at."""
        return self._watching.submitted > 0

    async def update(self, settings: SessionSettings) -> None:
        session_options(settings)
        self._settings = settings

    async def finish(self) -> None:
        """The input ends: what was held back is looked at, and the gate has decided on all of it."""
        await self._watching.settled(self._watching.submit(None))

    async def close(self) -> None:
        """Free the eye's state at once, then the rest."""
        self._closed = True
        self._news.set()
        await self._watching.close()
        self.history.clear()
        self._signals.clear()

    # --- what is noticed ----------------------------------------------------------------------------

    def _seen(self, glance: Glance) -> None:
        self.history.add(glance)
        for signal in self._decisions.decide(glance, self._settings.gate_threshold):
            self._tell(signal)

    def _tell(self, signal: Signal) -> None:
        if self._closed:
            return
        if isinstance(signal, InputLag):
            self._parts.tally.coalesced += signal.coalesced
        if isinstance(signal, WantsToSpeak):  # only the newest wish counts, and it must not be pushed out
            for old in [s for s in self._signals if isinstance(s, WantsToSpeak)]:
                self._signals.remove(old)
        self._signals.append(signal)
        self._news.set()

    async def signals(self) -> AsyncIterator[Signal]:
        """Gate scores, wishes to speak, lag, refused windows."""
        while not self._closed:
            while self._signals:
                yield self._signals.popleft()
            self._news.clear()
            if not self._signals and not self._closed:
                await self._news.wait()

    # --- responses ----------------------------------------------------------------------------------

    async def respond(self, turn: Turn) -> AsyncGenerator[Delta, None]:
        """Comment or answer, token by token. Closing it aborts the engine's request.

        Raises:
            DuplexError: `NOTHING_TO_RESPOND_TO`, `INPUT_OVERFLOW`: the question is too long; or what the
                engine failed with.
        """
        if turn.speak_text is not None:
            if turn.speak_text:
                yield TextDelta(text=turn.speak_text)
            return
        if turn.trigger is not Trigger.PROACTIVE:
            await self._caught_up()
        options = session_options(turn.settings)
        sampling = self._sampling(turn, options)
        try:
            draft = await self._draft(turn, options.prompt, sampling.max_tokens)
            finish = None
            async with aclosing(self._parts.engine.generate(draft.prompt, sampling)) as deltas:
                async for delta in deltas:
                    if delta.text:
                        yield TextDelta(text=delta.text)
                    finish = delta.finish or finish
        except DuplexError as error:
            if not error.fatal:
                raise
            # an engine that is being started again costs a response, not the session
            raise DuplexError(ErrorCode.ADAPTER_FAILED, error.message) from error
        if finish == "length":
            yield LengthReached()

    async def _caught_up(self) -> None:
        """Until all windows before the question were looked at; an eye that is far behind is not waited for
        as long as there is something that it has seen. Where a decoder holds back all that was shown (a clip
        of a frame or two) and no more comes, the video ends here: else the answer would have seen nothing."""
        watching = self._watching
        wait_s = self._parts.limits.answer_wait_s
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await watching.settled(watching.submitted)
                while watching.held and not len(self.history):
                    if await watching.rests(REST_S):
                        watching.submit(None, may_go_on=True)
                    await watching.settled(watching.submitted)
                return
        if not len(self.history):
            words = f"nothing was looked at within {wait_s:g} s: the eye is behind"
            raise DuplexError(ErrorCode.ADAPTER_FAILED, words)

    def _sampling(self, turn: Turn, options: SessionOptions) -> Sampling:
        limits = self._parts.limits
        most = options.max_new_tokens or limits.max_new_tokens
        if turn.settings.max_output_tokens is not None:
            most = min(most, turn.settings.max_output_tokens)
        return Sampling(
            max_tokens=max(1, most),
            temperature=limits.temperature if options.temperature is None else options.temperature,
            seed=options.seed if options.seed is not None else limits.seed,
        )

    async def _draft(self, turn: Turn, request: str | None, answer_tokens: int) -> Draft:
        """The prompt for the turn's question, or for a comment as `request` has it, with as much of the past
        as there is room for. A long one takes milliseconds to write and is written in a thread."""
        parts, limits = self._parts, self._parts.limits
        question = turn.question or request or limits.prompt
        # a question begins with the conversation, which is never the same: there is nothing to read again
        glances = self.history.last(limits.question_windows) if turn.question else self._shown.windows()
        if not glances and not turn.question:
            raise DuplexError(ErrorCode.NOTHING_TO_RESPOND_TO, "nothing was shown and nothing was asked")
        # a comment is asked for as the model learnt it: the pictures and the request, nothing else
        said = _conversation(turn, question, limits.history_items) if turn.question else ()

        def draft(pictures: Sequence[Picture], words: Sequence[HistoryItem]) -> Draft:
            return parts.writer.draft(pictures, question, instructions=turn.settings.instructions, said=words)

        context = parts.engine.info.context_tokens
        # an answer that may be longer than the context is cut by it
        room = None if context is None else max(1, context - min(answer_tokens, context // 2))
        loop = asyncio.get_running_loop()
        fitted = await loop.run_in_executor(parts.writing, fit, draft, glances, said, room)
        if not turn.question:
            self._shown.leave(fitted.left_out)
        return fitted.draft


def _conversation(turn: Turn, question: str, most: int) -> tuple[HistoryItem, ...]:
    """The last items before the question, in words."""
    items = [item for item in turn.history if item.role in ("user", "assistant") and not item.call_id]
    if items and items[-1].role == "user" and items[-1].text == question:
        items.pop()
    return tuple(items[-most:]) if most > 0 else ()
