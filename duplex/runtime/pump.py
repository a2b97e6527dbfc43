"""The response pump: from an adapter's `respond` to the session core, one task a response."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Protocol

from duplex.adapters.base import AdapterSession
from duplex.core.errors import DuplexError
from duplex.core.types import AudioDelta, Delivery, LengthReached, Modality, TextDelta, ToolCallDelta, Turn
from duplex.runtime.encoding import EncoderPool, ResponseEncoder, pieces
from duplex.runtime.faults import being_cancelled, named

log = logging.getLogger("duplex.adapter")

BREATH_S = 0.01
"""Pieces that follow one another faster than this (seconds) give the loop a turn between them: an adapter
that yields without ever waiting must not keep the others waiting, one that keeps time gives turns enough."""


class Listener(Protocol):
    """The session that the response belongs to."""

    def deliver(self, epoch: int, delta: Delivery) -> None: ...

    def is_active(self, turn: Turn) -> bool:
        """False once the response has its terminal event."""
        ...

    @property
    def crowded(self) -> bool:
        """The outbound queue is full."""
        ...

    async def room(self) -> None:
        """Wait while it is."""
        ...

    async def all_written(self) -> None:
        """Wait until the queue holds no audio."""
        ...

    def finished(self, turn: Turn) -> None: ...

    def failed(self, turn: Turn, error: DuplexError) -> None: ...

    def stopping(self) -> None:
        """The adapter has to stop now: from here on its time is bounded."""
        ...


class ResponsePump:
    """Runs one response. Cancel its task to stop the adapter; the task ends when the adapter has stopped."""

    def __init__(
        self, turn: Turn, adapter: AdapterSession, encoders: EncoderPool, listener: Listener
    ) -> None:
        self.turn = turn
        self.ended = False
        """The core has been told how it ended."""
        self._adapter = adapter
        self._encoder = ResponseEncoder(turn.settings.output_format, encoders)
        self._listener = listener
        self._audible = Modality.AUDIO in turn.modalities
        self._delivered_at = 0.0

    async def run(self) -> None:
        turn = self.turn
        listener = self._listener
        encoder = self._encoder
        deltas = None
        try:
            deltas = self._adapter.respond(turn)
            async for delta in deltas:
                if isinstance(delta, AudioDelta):
                    if self._audible:
                        for piece in pieces(delta):
                            encoded = encoder.encode_inline(piece)
                            await self._deliver(encoded or await encoder.encode(piece))
                elif isinstance(delta, TextDelta | ToolCallDelta | LengthReached):
                    await self._deliver(delta)
                else:
                    raise TypeError(f"respond() yielded {type(delta).__name__}, which is no delta")
                if not listener.is_active(turn):
                    return
            tail = await encoder.flush()
            if tail is not None:
                listener.deliver(turn.epoch, tail)
            await listener.all_written()
            self.ended = True
            listener.finished(turn)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            self._fail(error)
        except Exception as error:
            self._fail(error)
        finally:
            await self._close(deltas)

    async def _deliver(self, delta: Delivery) -> None:
        self._listener.deliver(self.turn.epoch, delta)
        before, self._delivered_at = self._delivered_at, monotonic()
        if self._delivered_at - before < BREATH_S:
            await asyncio.sleep(0)
        if self._listener.crowded:
            await self._listener.room()

    def _fail(self, error: BaseException) -> None:
        self.ended = True
        self._listener.failed(self.turn, named(error, "responding"))

    async def _close(self, deltas: object) -> None:
        """Let a generator that was left in the middle run its clean-up."""
        close = getattr(deltas, "aclose", None)
        if close is None:
            return
        self._listener.stopping()
        try:
            await close()
        except Exception:
            log.exception("the adapter failed while it stopped a response")
