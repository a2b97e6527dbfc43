"""The adapter contract: what a model has to offer to be served.

One `Adapter` a model, loaded once; one `AdapterSession` a client session, which holds all state of that
session. There are no shared dictionaries keyed by session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Delta, Modality, OpenSession, SessionSettings, Signal, Turn, Window


class NotConfigured(DuplexError):
    """An adapter that cannot be had without an option that nobody gave, such as where its model is.

    It is left out where all installed ones are served, and an error where it was asked for by name.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(ErrorCode.BAD_CONFIG, message, param=param)


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is. Rates in Hz; `input_sample_rate` is what it hears best, any rate is accepted.

    `default_output_modalities`: what a client gets that names none, None for all. `voices` are names for
    `SessionSettings.voice`. `max_sessions` None: no limit of its own.
    """

    id: str
    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]
    default_output_modalities: tuple[Modality, ...] | None = None
    proactive: bool = False
    input_sample_rate: int = 16000
    output_sample_rate: int = 24000
    voices: tuple[str, ...] = ()
    max_sessions: int | None = None
    description: str = ""


@runtime_checkable
class AdapterSession(Protocol):
    """One client's session with a model.

    Calls come from one task at a time, except that `append`, `commit`, `update` and `signals` go on
    while `respond` runs. Any method may raise `DuplexError`: a named fault of that session alone. Any
    other exception is reported as `adapter_failed`.

    A session that keeps audio of its own until a turn is over also has `async def clear_input(self) -> None`:
    forget the audio that is in no turn yet.
    """

    async def append(self, window: Window) -> None:
        """Take one window. Must not wait for the model: queue it and return."""
        ...

    async def commit(self) -> bool:
        """The user's turn is over. True: there is something to respond to."""
        ...

    async def update(self, settings: SessionSettings) -> None:
        """Settings changed. Raise `DuplexError` to refuse them: the old ones stay."""
        ...

    async def finish(self) -> None:
        """No more input comes. Return when pending decisions have been signalled."""
        ...

    def respond(self, turn: Turn) -> AsyncIterator[Delta]:
        """Answer a turn. Cancelled by cancelling its task: the engine's work must stop within one step
        and leave the session usable."""
        ...

    def signals(self) -> AsyncIterator[Signal]:
        """What the model notices by itself: speech, transcripts, wishes to speak. Runs as long as the
        session; one that has nothing to say may end at once."""
        ...

    async def close(self) -> None:
        """Free everything. Called once, also after a failure or a cancelled `open`."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """One model."""

    info: AdapterInfo

    async def start(self) -> None:
        """Load. Raise with words that say what to install when a piece is missing."""
        ...

    async def open(self, request: OpenSession) -> AdapterSession:
        """Begin a session. Raise `DuplexError` to refuse it by name."""
        ...

    async def stop(self) -> None:
        """Unload."""
        ...


class AdapterFactory(Protocol):
    """What an entry point of group `duplex.adapters`, or `--adapter module:factory`, names.

    `options` come from the configuration's `[adapters.NAME]` table and from flags; an unknown key is
    refused by name with `DuplexError(BAD_CONFIG)`. An adapter that needs options raises `NotConfigured` when
    it has none.
    """

    def __call__(self, options: Mapping[str, Any]) -> Adapter: ...


class BaseSession:
    """Defaults for adapter sessions: no signals, every commit is answered, any settings are fine."""

    async def append(self, window: Window) -> None:
        return None

    async def commit(self) -> bool:
        return True

    async def update(self, settings: SessionSettings) -> None:
        return None

    async def clear_input(self) -> None:
        return None

    async def finish(self) -> None:
        return None

    async def signals(self) -> AsyncIterator[Signal]:
        return
        yield  # makes this an async generator that ends at once

    async def close(self) -> None:
        return None
