"""Parts of a Mage-VL adapter that do what a test tells them, and a session of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from duplex.adapters.engine.language import ChatPrompt, EngineInfo, Prompt, Sampling, TokenDelta
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.adapter import MageVl
from duplex.adapters.mage_vl.options import MageOptions
from duplex.adapters.mage_vl.ports import Draft, Glance, Picture, Visible
from duplex.adapters.mage_vl.session import MageSession
from duplex.adapters.mage_vl.windows.preparing import Threads
from duplex.adapters.mage_vl.windows.source import Place
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    CodecWindow,
    Delta,
    HistoryItem,
    ImageWindow,
    Modality,
    OpenSession,
    SessionSettings,
    Signal,
    TextDelta,
    Trigger,
    Turn,
    VideoWindow,
)

PATIENCE_S = 20


def visual(segment_id: str = "", pts_ms: float = 0.0, images: int = 2, size: int = 32) -> VisualInput:
    """`images` grey images of `size` pixels, a second apart."""
    times = pts_ms / 1000 + np.arange(images, dtype=np.float64)
    return VisualInput(
        images=np.full((images, size, size, 3), 128, np.uint8),
        positions=np.zeros((images, size // 16, size // 16, 3), np.int32),
        times_s=times,
        segment_id=segment_id,
        pts_ms=pts_ms,
        duration_ms=images * 1000.0,
    )


def picture(key: str = "k", tokens: int = 1, time_s: float = 0.0, size: int = 10) -> Picture:
    return Picture(key=key, time_s=time_s, tokens=tokens, data=None, size=size)


def glance(
    name: str = "", *, pts_ms: float = 0.0, images: int = 1, tokens: int = 1, score: float | None = None
) -> Glance:
    return Glance(
        pictures=tuple(picture(f"{name}-{n}", tokens) for n in range(images)),
        score=score,
        segment_id=name,
        pts_ms=pts_ms,
        duration_ms=1000.0,
    )


def clip(name: str = "", pts_ms: float | None = None, data: bytes = b"picture") -> VideoWindow:
    """A window that `FakeBackend` prepares."""
    return VideoWindow(kind="", frames=(data,), segment_id=name, pts_ms=pts_ms)


class FakeBackend:
    """A window is a segment of two images. Windows with a frame `bad` cannot be used; with `held` they wait
    for the end of the input. `gate`: when given, a thread waits for it before each window."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.closed = 0
        self.resets = 0
        self.finished = 0
        self.gate: Any = None

        self._threads = Threads(lambda: FakeStream(self), ThreadPoolExecutor(2))
        self.start, self.stop, self.open = self._threads.start, self._threads.stop, self._threads.open

    healthy = True
    fault = None
    takes_codec = False

    def pairing(self) -> None:
        return None

    def figures(self) -> Iterable[Figure]:
        yield Figure(name="windows_prepared", kind="counter", words="W.", value=float(len(self.prepared)))


class FakeStream:
    place = Place()

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self._held: VisualInput | None = None

    def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        if isinstance(window, ImageWindow):
            return visual(pts_ms=window.pts_ms or 0.0, images=1)
        if self._backend.gate is not None:
            assert self._backend.gate.wait(PATIENCE_S)
        self._backend.prepared.append(window.segment_id)
        if b"bad" in window.frames or window.data.endswith(b"no key frame"):
            raise DuplexError(ErrorCode.INVALID_MEDIA, "not a picture")
        if b"broken" in window.frames:
            raise RuntimeError("a fault")
        seen = visual(window.segment_id, window.pts_ms or 0.0)
        if b"held" in window.frames or window.data.endswith(b"held"):
            self._held = seen
            return None
        return seen

    def finish(self) -> VisualInput | None:
        self._backend.finished += 1
        held, self._held = self._held, None
        return held

    def reset(self) -> None:
        self._backend.resets += 1

    def close(self) -> None:
        self._backend.closed += 1


class FakeSight:
    """`scores` of segments by their name, else `score`. While `slow` is set to an event, looks wait for it.
    `fault_of` names segments that are lost. `eyes` are those that are open."""

    def __init__(self, score: float | None = 0.0, **scores: float) -> None:
        self.gate = score is not None
        self.score = score
        self.scores = scores
        self.slow: asyncio.Event | None = None
        self.fault_of: set[str] = set()
        self.healthy = True
        self.fault: str | None = None
        self.looked: list[str] = []
        self.looking = asyncio.Event()
        """A look has begun."""
        self.blocked = 0
        """Looks that wait for `slow` now."""
        self.eyes = 0
        self.started = self.stopped = 0

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1

    def open(self) -> FakeEye:
        self.eyes += 1
        return FakeEye(self)

    def figures(self) -> Iterable[Figure]:
        yield Figure(name="sight_eyes", kind="gauge", words="Eyes.", value=float(self.eyes))


class FakeEye:
    def __init__(self, sight: FakeSight) -> None:
        self._sight = sight

    async def look(self, seen: VisualInput) -> Glance | None:
        sight = self._sight
        sight.looked.append(seen.segment_id)
        sight.looking.set()
        if sight.slow is not None:
            sight.blocked += 1
            try:
                await sight.slow.wait()
            finally:
                sight.blocked -= 1
        if seen.segment_id in sight.fault_of:
            raise DuplexError(ErrorCode.ADAPTER_FAILED, "the worker died")
        pictures = tuple(picture(f"{seen.segment_id}-{n}", time_s=t) for n, t in enumerate(seen.times_s))
        return Glance(
            pictures=pictures,
            score=sight.scores.get(seen.segment_id, sight.score),
            segment_id=seen.segment_id,
            pts_ms=seen.pts_ms,
            duration_ms=seen.duration_ms,
        )

    def close(self) -> None:
        self._sight.eyes -= 1


class FakeWriter:
    """A prompt of one token a word, and the pictures' own."""

    def draft(
        self,
        pictures: Sequence[Picture],
        question: str,
        *,
        instructions: str = "",
        said: Sequence[HistoryItem] = (),
    ) -> Draft:
        words = " ".join([instructions, *(item.text for item in said), question]).split()
        message = {
            "pictures": [p.key for p in pictures],
            "question": question,
            "instructions": instructions,
            "said": [item.text for item in said],
        }
        tokens = len(words) + sum(p.tokens for p in pictures)
        return Draft(prompt=ChatPrompt(messages=(message,)), tokens=tokens)


class FakeEngine:
    """Answers each prompt with `words`, a token a word. While `gate` is set to a semaphore, each token waits
    for one release of it. `dies_after`: tokens after which the engine is dead."""

    def __init__(self, words: str = "a dog runs", *, context_tokens: int | None = 1000) -> None:
        self.words = words
        self.gate: asyncio.Semaphore | None = None
        self.dies_after: int | None = None
        self.info = EngineInfo(model="fake", prompts=("chat",), context_tokens=context_tokens)
        self.healthy = True
        self.fault: str | None = None
        self.prompts: list[dict[str, Any]] = []
        self.samplings: list[Sampling] = []
        self.running = 0
        self.aborted = 0
        self.asked = asyncio.Event()
        self.started = self.stopped = 0

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        assert isinstance(prompt, ChatPrompt)
        if not self.healthy:
            raise DuplexError(ErrorCode.ENGINE_DOWN, "the engine is down")
        self.prompts.append(dict(prompt.messages[0]))
        self.samplings.append(sampling)
        self.running += 1
        self.asked.set()
        whole = False
        try:
            words = self.words.split()
            cut = len(words) > sampling.max_tokens
            words = words[: sampling.max_tokens]
            for number, word in enumerate(words):
                if self.dies_after == number:
                    raise DuplexError(ErrorCode.ADAPTER_FAILED, "the engine died")
                if self.gate is not None:
                    await self.gate.acquire()
                else:
                    await asyncio.sleep(0)
                last = number == len(words) - 1
                finish = ("length" if cut else "stop") if last else None
                yield TokenDelta(ids=(number,), text=word if last else f"{word} ", finish=finish)
            whole = True
        finally:
            self.running -= 1
            self.aborted += not whole

    def session(self) -> Any:
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, "no sessions")

    def figures(self) -> Iterable[Figure]:
        yield Figure(name="language_running", kind="gauge", words="Running.", value=float(self.running))


class Fakes:
    """A whole adapter of fakes."""

    def __init__(self, score: float | None = 0.0, **options: Any) -> None:
        self.engine = FakeEngine()
        self.sight = FakeSight(score)
        self.backend = FakeBackend()
        self.adapter = MageVl(
            MageOptions(model="none", threads=2, **options),
            engine=self.engine,
            sight=self.sight,
            backend=self.backend,
            writer=FakeWriter(),
        )

    async def open(self, **settings: Any) -> MageSession:
        request = OpenSession(session_id="s", settings=SessionSettings(**settings))
        return await self.adapter.open(request)


@asynccontextmanager
async def opened(fakes: Fakes, **settings: Any) -> AsyncIterator[Watched]:
    """A started adapter and one session of it, whose signals are heard."""
    await fakes.adapter.start()
    session = await fakes.open(**settings)
    watched = Watched(session)
    try:
        yield watched
    finally:
        await watched.close()
        await fakes.adapter.stop()


class Watched:
    """A session, and what it signalled."""

    def __init__(self, session: MageSession) -> None:
        self.session = session
        self.signals: list[Signal] = []
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._listen())
        self._turns = 0

    async def _listen(self) -> None:
        async for signal in self.session.signals():
            self.signals.append(signal)
            self._changed.set()

    def all(self, kind: type[Signal]) -> list[Any]:
        return [signal for signal in self.signals if isinstance(signal, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        """Looked at after each signal."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def turn(self, trigger: Trigger = Trigger.CREATE, **fields: Any) -> Turn:
        self._turns += 1
        return Turn(
            **{
                "response_id": f"r{self._turns}",
                "index": self._turns,
                "epoch": self._turns,
                "trigger": trigger,
                "settings": SessionSettings(),
                "modalities": (Modality.TEXT,),
                **fields,
            }
        )

    async def answer(self, trigger: Trigger = Trigger.CREATE, **fields: Any) -> list[Delta]:
        async with asyncio.timeout(PATIENCE_S):
            return [delta async for delta in self.session.respond(self.turn(trigger, **fields))]

    async def said(self, trigger: Trigger = Trigger.CREATE, **fields: Any) -> str:
        deltas = await self.answer(trigger, **fields)
        return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))

    async def close(self) -> None:
        await self.session.close()
        await self._task


async def happens(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def until(holds: Callable[[], object]) -> None:
    """For states that have no event: looked at on each turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
