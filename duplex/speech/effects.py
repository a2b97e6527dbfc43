"""What the speech socket's state machine wants done."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from duplex.speech.fields import SocketConfig


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that its model has accepted. `sample_rate` is that of the audio to come, Hz; `job` is
    whatever the runtime speaks with."""

    config: SocketConfig
    sample_rate: int
    job: Any = None


class _Effect(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Tell(_Effect, frozen=True, kw_only=True):
    """Send this JSON object."""

    message: dict[str, Any]


class Audio(_Effect, frozen=True, kw_only=True):
    """Send the unit's audio: as a binary frame, or in JSON with its word times."""

    unit: int
    payload: bytes
    json: dict[str, Any] | None = None


class StartUnit(_Effect, frozen=True, kw_only=True):
    """Synthesise. `text` is complete unless `open`: then more comes by `FeedUnit` and ends by `EndUnit`."""

    unit: int
    text: str
    terms: Accepted
    open: bool = False


class FeedUnit(_Effect, frozen=True, kw_only=True):
    unit: int
    text: str


class EndUnit(_Effect, frozen=True, kw_only=True):
    unit: int


class AbortUnit(_Effect, frozen=True, kw_only=True):
    """Stop the work and drop what is queued of it."""

    unit: int


class CheckConfig(_Effect, frozen=True, kw_only=True):
    """Ask the model whether it can serve this; answer with `config_accepted` or `config_refused`."""

    config: SocketConfig
    context: str | None


class SetTimer(_Effect, frozen=True, kw_only=True):
    """Call `timer(now)` at `at`, seconds; replaces the one before."""

    at: float


class Close(_Effect, frozen=True, kw_only=True):
    code: int
    reason: str


Effect: TypeAlias = Tell | Audio | StartUnit | FeedUnit | EndUnit | AbortUnit | CheckConfig | SetTimer | Close
