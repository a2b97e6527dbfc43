"""Which socket a session has: the first, none for a while, another."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol

from duplex.core.effects import Effect
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.events import SessionResumed
from duplex.core.facts import State
from duplex.core.outbox import error_event
from duplex.core.session import Session
from duplex.dialects.base import Dialect
from duplex.runtime.metrics import Metrics
from duplex.runtime.outbound import OutboundQueue
from duplex.runtime.socket import Socket

P = ParamSpec("P")


class Connection:
    """One socket of a session, with its dialect and what is on its way out."""

    __slots__ = ("dialect", "queue", "socket")

    def __init__(self, socket: Socket, dialect: Dialect, queue: OutboundQueue) -> None:
        self.socket = socket
        self.dialect = dialect
        self.queue = queue


class Owner(Protocol):
    """The session's runner."""

    @property
    def session(self) -> Session: ...

    def now(self) -> float: ...

    def step(self, step: Callable[P, list[Effect]], *args: P.args, **kwargs: P.kwargs) -> None: ...


class Attachment:
    """The connection of a session, if it has one, or the one that waits for its client to come back.

    Args:
        hold_s: how long what is being said waits for a client that counts messages (seconds).
    """

    def __init__(
        self,
        owner: Owner,
        make_queue: Callable[[Socket, Dialect], OutboundQueue],
        metrics: Metrics,
        *,
        resume_token: str | None,
        hold_s: float,
    ) -> None:
        self.connection: Connection | None = None
        self.since: float | None = None
        """When the client vanished; None while one is there."""
        self.received = 0
        """Messages of the client."""
        self._parked: Connection | None = None
        """Without a socket, for a client that can be given what it missed."""
        self._owner = owner
        self._make_queue = make_queue
        self._metrics = metrics
        self._resume_token = resume_token
        self._hold_s = hold_s

    @property
    def queue(self) -> OutboundQueue | None:
        """Where events go: to the client, or to where they wait for it."""
        connection = self.connection or self._parked
        return connection.queue if connection is not None else None

    def open(self, socket: Socket, dialect: Dialect) -> Connection:
        """The first socket. Tells the client that the session is there."""
        connection = self._connect(socket, dialect)
        owner = self._owner
        owner.step(owner.session.opened, owner.now(), resume_token=self._resume_token)
        return connection

    def take_over(self, socket: Socket, dialect: Dialect, last_seq: int | None) -> Connection:
        """Another socket of the same client. One that is still there was half open: it is closed by name.

        A client that counted its messages goes on behind `last_seq`, with the dialect that it had.

        Raises:
            DuplexError: `RESUME_REJECTED`; nothing has changed.
        """
        old = self.connection or self._parked
        if old is not None and old.socket is socket:
            raise DuplexError(ErrorCode.RESUME_REJECTED, "this socket has the session", param="resume_token")
        if last_seq is not None and old is not None and old.queue.journal is not None:
            if not 0 <= last_seq <= old.queue.journal.last:
                words = f"no message with the number {last_seq} was sent"
                raise DuplexError(ErrorCode.RESUME_REJECTED, words, param="last_seq")
            return self._go_on(old, socket, last_seq)
        if self.connection is not None:
            self.detach(self.connection, keep=False)
            assert old is not None
            self._say_farewell(old)
        unsent = []
        if self._parked is not None:
            unsent = self._parked.queue.unwritten()
            self._forget_parked()
        self._metrics.resumed += 1
        self.received = 0
        connection = self._connect(socket, dialect)
        self.since = None
        owner = self._owner
        owner.step(owner.session.attach, owner.now(), resume_token=self._resume_token, unsent=unsent)
        return connection

    def detach(self, connection: Connection, *, keep: bool = True) -> None:
        """This socket is gone. With `keep`, its client may come back for what it missed."""
        if connection is not self.connection:
            if connection is not self._parked:
                connection.queue.detach()
            return
        keep = keep and self._resume_token is not None and connection.queue.journal is not None
        self.connection = None
        if keep:
            connection.queue.park()
            self._parked = connection
        else:
            connection.queue.detach()
        owner = self._owner
        self.since = owner.now()
        owner.step(owner.session.detach, self.since, hold_s=self._hold_s if keep else None)

    def close(self, code: int, reason: str, *, flush: bool) -> None:
        """The session is over."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.queue.close(code, reason, flush=flush)
        self._forget_parked()

    def let_go(self, connection: Connection) -> None:
        """Leave a socket to another session."""
        connection.queue.detach()
        if connection is self.connection:
            self.connection = None

    def _go_on(self, old: Connection, socket: Socket, last_seq: int) -> Connection:
        """What the client missed follows, and what waited for it."""
        owner = self._owner
        session = owner.session
        queue, journal = old.queue, old.queue.journal
        assert journal is not None
        if old is self.connection:
            self.detach(old)
            self._parked = Connection(old.socket, old.dialect, queue)
            self._say_farewell(old)
        now = owner.now()
        missed = journal.missed(last_seq, now)
        if missed.lost or (missed.since is not None and now - missed.since > self._hold_s):
            # sound of long ago is none to go on with, and neither is some with a hole in it
            owner.step(session.let_go, now, unheard_ms=missed.sound_ms)
            journal.void()
            missed = journal.missed(last_seq, now)
        owner.step(session.rejoin, now, unheard_ms=missed.sound_ms)
        if session.state is State.CLOSED:
            raise DuplexError(ErrorCode.RESUME_REJECTED, "the session is over", param="resume")
        connection = self.connection = Connection(socket, old.dialect, queue)
        self._parked = None
        self.since = None
        self._metrics.resumed += 1
        self._metrics.replayed += len(missed.entries)
        self._metrics.lost += missed.lost
        entries = missed.entries
        resumed = SessionResumed(
            session_id=session.id,
            seq=entries[0].seq if entries else journal.last + 1,
            replayed=len(entries),
            lost=missed.lost,
            received=self.received,
        )
        queue.rejoin(socket, resumed, missed)
        return connection

    def _connect(self, socket: Socket, dialect: Dialect) -> Connection:
        self.connection = Connection(socket, dialect, self._make_queue(socket, dialect))
        return self.connection

    def _say_farewell(self, old: Connection) -> None:
        taken = DuplexError(ErrorCode.TAKEN_OVER, "the session goes on over another connection")
        old.queue = self._make_queue(old.socket, old.dialect)  # the one that it had goes on elsewhere
        for frame in old.dialect.encode(error_event(taken)):
            old.socket.write(frame)
        old.socket.close(taken.code.traits.close_code, taken.code.value)
        old.queue.detach()

    def _forget_parked(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.queue.detach()
