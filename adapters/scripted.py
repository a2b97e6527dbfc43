"""A model that does what it is told: for tests, benchmarks and trying the gateway without a model.

Installed as `--adapter duplex.adapters.scripted:create`. In code, each of its steps can be replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import monotonic, monotonic_ns
from typing import Any, TypeAlias

import msgspec
import numpy as np

from duplex.adapters.base import AdapterInfo
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    Delta,
    Modality,
    OpenSession,
    SessionSettings,
    Signal,
    TextDelta,
    ToolCallDelta,
    Turn,
    Window,
)

STAMP_SAMPLES = 4
"""Samples at the head of a stamped chunk that hold `time.monotonic_ns()`, little-endian, when it was due."""


class ScriptedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the built-in answer is: `text` first, then `audio_ms` of a tone in chunks of `chunk_ms`, each when
    it is due (`paced`) or all at once. `stamped` chunks carry their time, see `STAMP_SAMPLES`. With
    `call_tools`, a turn that has tools is answered by a call of the chosen one, else the first, with `text`
    as its only argument; and what the call gave is what is said then."""

    id: str = "scripted"
    text: str = "one two three"
    audio_ms: int = 2000
    chunk_ms: int = 20
    sample_rate: int = 24000
    paced: bool = True
    stamped: bool = False
    proactive: bool = False
    call_tools: bool = False
    max_sessions: int | None = None


Respond: TypeAlias = Callable[["ScriptedSession", Turn], AsyncIterator[Delta]]
Hook: TypeAlias = Callable[..., Awaitable[Any]]


class ScriptedAdapter:
    """The model. `respond` and the hooks `on_open`, `on_append`, `on_commit`, `on_update`, `on_finish`,
    `on_close`, `on_start` are async functions that take the session (`on_start` nothing, `on_open` the
    request) and the call's argument, and stand in for what would be done; they may raise, hang or be slow."""

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        *,
        respond: Respond | None = None,
        info: AdapterInfo | None = None,
        **hooks: Hook,
    ) -> None:
        self.options = options or ScriptedOptions()
        self.info = info or AdapterInfo(
            id=self.options.id,
            input_modalities=tuple(Modality),
            output_modalities=(Modality.TEXT, Modality.AUDIO),
            proactive=self.options.proactive,
            output_sample_rate=self.options.sample_rate,
            max_sessions=self.options.max_sessions,
            description="Answers by a script.",
        )
        unknown = set(hooks) - {f"on_{name}" for name in _HOOKS}
        if unknown:
            raise TypeError(f"no such hooks: {', '.join(sorted(unknown))}")
        self.respond = respond or built_in_answer
        self.hooks = hooks
        self.healthy = True
        self.open_sessions: dict[str, ScriptedSession] = {}
        """Sessions that were opened and not closed."""
        self.opened = 0
        self.closed = 0
        chunk = self.options.sample_rate * self.options.chunk_ms // 1000
        wave = np.sin(np.arange(chunk) * (2 * np.pi * 440 / self.options.sample_rate))
        self.chunk = (wave * 8000).astype(np.int16)

    async def start(self) -> None:
        if "on_start" in self.hooks:
            await self.hooks["on_start"]()

    async def open(self, request: OpenSession) -> ScriptedSession:
        if "on_open" in self.hooks:
            await self.hooks["on_open"](request)
        session = ScriptedSession(self, request)
        self.open_sessions[request.session_id] = session
        self.opened += 1
        return session

    async def stop(self) -> None:
        return None


_HOOKS = ("start", "open", "append", "commit", "update", "finish", "close")


class ScriptedSession:
    """One session. It records what it was given: `appended`, `settings`, `turns`, `finished`."""

    def __init__(self, adapter: ScriptedAdapter, request: OpenSession) -> None:
        self.adapter = adapter
        self.id = request.session_id
        self.settings = request.settings
        self.appended: list[Window] = []
        self.turns: list[Turn] = []
        self.finished = False
        self._signals: asyncio.Queue[Signal] = asyncio.Queue()

    def emit(self, signal: Signal) -> None:
        """Let the model notice something."""
        self._signals.put_nowait(signal)

    async def append(self, window: Window) -> None:
        await self._hook("append", window)
        self.appended.append(window)
        del self.appended[:-256]

    async def commit(self) -> bool:
        answer = await self._hook("commit")
        return True if answer is None else bool(answer)

    async def update(self, settings: SessionSettings) -> None:
        await self._hook("update", settings)
        self.settings = settings

    async def finish(self) -> None:
        await self._hook("finish")
        self.finished = True

    def respond(self, turn: Turn) -> AsyncIterator[Delta]:
        self.turns.append(turn)
        del self.turns[:-64]
        return self.adapter.respond(self, turn)

    async def signals(self) -> AsyncIterator[Signal]:
        while True:
            yield await self._signals.get()

    async def close(self) -> None:
        try:
            await self._hook("close")
        finally:
            self.adapter.open_sessions.pop(self.id, None)
            self.adapter.closed += 1

    async def _hook(self, name: str, *arguments: object) -> Any:
        hook = self.adapter.hooks.get(f"on_{name}")
        return await hook(self, *arguments) if hook is not None else None


async def built_in_answer(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    """What `ScriptedOptions` describes."""
    options = session.adapter.options
    text = turn.speak_text if turn.speak_text is not None else options.text
    result = turn.history[-1] if turn.history and turn.history[-1].role == "tool" else None
    settings = turn.settings
    if options.call_tools and result is not None:
        text = result.text
    elif options.call_tools and settings.tools and settings.tool_choice != "none":
        names = [tool.name for tool in settings.tools]
        name = settings.tool_choice if settings.tool_choice in names else names[0]
        call_id = f"call_{turn.index}"
        arguments = msgspec.json.encode({"text": text}).decode()
        middle = len(arguments) // 2
        for piece in (arguments[:middle], arguments[middle:]):
            yield ToolCallDelta(call_id=call_id, name=name, arguments=piece)
        return
    if text:
        yield TextDelta(text=text)
    chunk = session.adapter.chunk
    rest = chunk[STAMP_SAMPLES:].tobytes()
    began = monotonic()
    for number in range(options.audio_ms // options.chunk_ms):
        if options.paced:
            ahead = began + number * options.chunk_ms / 1000 - monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
        yield AudioDelta(
            samples=_stamped(rest) if options.stamped else chunk,
            sample_rate=options.sample_rate,
            text=text if number == 0 else "",
        )


def _stamped(rest: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    """A chunk that begins with the time and goes on with `rest`."""
    return np.frombuffer(monotonic_ns().to_bytes(8, "little") + rest, np.int16)


def create(options: Mapping[str, Any]) -> ScriptedAdapter:
    """The factory for `--adapter`."""
    try:
        return ScriptedAdapter(msgspec.convert(dict(options), ScriptedOptions))
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"scripted: {error}") from None
