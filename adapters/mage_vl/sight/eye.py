"""A session's eye: looks at its windows, one after the other."""

from __future__ import annotations

import asyncio
from typing import Protocol

from duplex.adapters.mage_vl.sight.arena import Shape
from duplex.adapters.mage_vl.sight.types import Seen
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode


class Looker(Protocol):
    """What an eye looks through."""

    def submit(self, glimpse: Glimpse, *, gate: bool) -> None: ...

    def withdraw(self, glimpse: Glimpse) -> None: ...

    def forget(self, eye: Eye) -> None: ...


class Glimpse:
    """One window on its way, and whoever waits for what becomes of it: exactly one of `see`, `drop`, `fail`;
    what comes later is void."""

    __slots__ = ("eye", "future", "shape", "window")

    def __init__(self, eye: Eye, window: VisualInput) -> None:
        self.eye = eye
        self.window = window
        self.shape = Shape(len(window.images), *window.grid)
        self.future: asyncio.Future[Seen | None] = asyncio.get_running_loop().create_future()

    @property
    def wanted(self) -> bool:
        """Somebody still waits for it."""
        return not self.future.done()

    def see(self, seen: Seen) -> None:
        if self.wanted:
            self.future.set_result(seen)

    def drop(self) -> None:
        if self.wanted:
            self.future.set_result(None)

    def fail(self, error: DuplexError) -> None:
        if self.wanted:
            self.future.set_exception(error)


class Eye:
    """One session's. All methods are the event loop's, and only `look` waits."""

    def __init__(self, looker: Looker, id: int) -> None:
        self.id = id
        self._looker = looker
        self._glimpses: set[Glimpse] = set()  # one in flight, one that waits
        self._closed = False
        self._judged = False  # the gate has, or had, a state
        self._restarted = False

    async def look(self, window: VisualInput, *, gate: bool = True) -> Seen | None:
        """Look at a window. Windows are seen in the order in which they are given. While one is in flight,
        the newest of those that come waits, and takes the place of the one that waited; if that one asked the
        gate, so does the newer one.

        Cancelling it is `abort` of this window alone. A window that was in flight then has passed the gate.

        Returns:
            None: a newer window took its place, or `abort` or `close` dropped it.

        Raises:
            DuplexError: `MEDIA_TOO_LARGE`: more patches than a batch takes. `ENGINE_DOWN`: no worker is up.
                `ADAPTER_FAILED`: the worker died meanwhile. `SESSION_CLOSING`: the eye is closed.
        """
        if self._closed:
            raise DuplexError(ErrorCode.SESSION_CLOSING, "the session is closed")
        glimpse = Glimpse(self, window)
        self._looker.submit(glimpse, gate=gate)
        self._glimpses.add(glimpse)
        try:
            return await glimpse.future
        finally:
            self._glimpses.discard(glimpse)
            if glimpse.future.cancelled():
                self._looker.withdraw(glimpse)

    def abort(self) -> None:
        """Drop what waits and what is in flight: the looks return None at once."""
        for glimpse in self._glimpses:
            glimpse.drop()
            self._looker.withdraw(glimpse)

    def close(self) -> None:
        """The session is over: `abort`, and the gate forgets it."""
        if not self._closed:
            self._closed = True
            self.abort()
            self._looker.forget(self)

    # --- the looker's side --------------------------------------------------------------------------

    def judged(self, *, asked: bool, fresh: bool) -> None:
        """A window has passed the gate if `asked`; `fresh`: without a state."""
        if asked:
            self._restarted |= fresh and self._judged
            self._judged = True

    def take_restarted(self) -> bool:
        """The gate has begun anew, and nobody was told yet."""
        restarted, self._restarted = self._restarted, False
        return restarted
