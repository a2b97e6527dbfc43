"""Whose window is looked at next. Sans-I/O: no clock, no asyncio, no lock.

A session has at most one window in flight and at most one that waits. A window that comes while another one
waits takes its place in line: newest wins, so the wait is bounded however fast windows come. Sessions are
served in the order in which their places were taken; whatever waits goes into one batch, up to a bound of
patches and of sessions. A place that does not fit any more ends the batch, and is the first of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[T]):
    """A window that waits or is in flight.

    Attributes:
        session: Whose it is.
        window: What was submitted, as it was.
        patches: Its size.
        gate: The gate is wanted: for this window, or for one whose place it took.
        arrived: When it was submitted, ms.
        since: When the oldest window was submitted whose place it took, ms; its own time if it took none.
        merged: Windows whose place it took.
    """

    session: int
    window: T
    patches: int
    gate: bool
    arrived: float
    since: float
    merged: int


class LookQueue(Generic[T]):
    """The line of windows, and what is in flight.

    Args:
        most_patches: patches of one batch; no window may have more.
        most_sessions: sessions in one batch.
    """

    def __init__(self, *, most_patches: int, most_sessions: int) -> None:
        if most_patches < 1 or most_sessions < 1:
            raise ValueError("a batch has room for something")
        self.most_patches = most_patches
        self.most_sessions = most_sessions
        self.merged = 0
        """Windows whose place was taken, since the beginning."""
        self._line: dict[int, Work[T]] = {}  # by session, in the order of the places
        self._flying: dict[int, Work[T]] = {}

    def __len__(self) -> int:
        """Windows that wait."""
        return len(self._line)

    @property
    def flying(self) -> int:
        """Windows in flight."""
        return len(self._flying)

    def since(self) -> float | None:
        """Since when the longest wait lasts, ms; None: nobody waits. Places are in order of their age."""
        return next((work.since for work in self._line.values()), None)

    def waiting(self, session: int) -> Work[T] | None:
        """A session's window in the line."""
        return self._line.get(session)

    def is_flying(self, session: int) -> bool:
        """A window of it is in flight."""
        return session in self._flying

    def submit(self, session: int, window: T, *, patches: int, gate: bool, now: float) -> Work[T] | None:
        """Take a window.

        Returns:
            The one whose place it took, which is not looked at any more.

        Raises:
            ValueError: it has more patches than a batch.
        """
        if not 0 < patches <= self.most_patches:
            raise ValueError(f"a window of {patches} patches, {self.most_patches} are possible")
        old = self._line.get(session)
        self._line[session] = Work(
            session=session,
            window=window,
            patches=patches,
            gate=gate or (old is not None and old.gate),
            arrived=now,
            since=now if old is None else old.since,
            merged=0 if old is None else old.merged + 1,
        )
        self.merged += old is not None
        return old

    def take(self) -> tuple[Work[T], ...]:
        """The next batch, in flight from now on; empty: nothing can go. Each must be given to `done`."""
        batch: list[Work[T]] = []
        room = self.most_patches
        for session, work in self._line.items():
            if session in self._flying:
                continue  # its gate needs the state that the window in flight leaves
            if work.patches > room or len(batch) == self.most_sessions:
                break
            batch.append(work)
            room -= work.patches
        for work in batch:
            self._flying[work.session] = self._line.pop(work.session)
        return tuple(batch)

    def done(self, session: int) -> None:
        """The session's window in flight has landed, wanted or not."""
        self._flying.pop(session, None)

    def drop(self, session: int) -> Work[T] | None:
        """Take a session's window out of the line. What is in flight stays so until it is `done`."""
        return self._line.pop(session, None)

    def clear(self) -> list[Work[T]]:
        """Forget everything: those in flight will not land.

        Returns:
            All windows that waited or were in flight.
        """
        works = [*self._flying.values(), *self._line.values()]
        self._line.clear()
        self._flying.clear()
        return works
