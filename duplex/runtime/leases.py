"""Admission: who has a slot, under which id, and who may come back to it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Iterator
from typing import Protocol

from duplex.core.errors import DuplexError, ErrorCode

_ID = re.compile(r"[A-Za-z0-9\-_.]{1,128}")


class Holder(Protocol):
    """The session that a lease belongs to."""

    @property
    def detached_since(self) -> float | None:
        """When its client vanished; None while one is attached."""
        ...

    def evict(self) -> None:
        """End the session: its slot is wanted. It releases its lease when it has."""
        ...


class Lease:
    """One slot. Held from admission until `release`, which may be called again without harm."""

    def __init__(self, registry: LeaseRegistry, session_id: str, model: str) -> None:
        self.session_id = session_id
        self.model = model
        self.resume_token = secrets.token_urlsafe(32)
        self.holder: Holder | None = None
        self.leaving = False
        """It was evicted: its slot already counts as the newcomer's."""
        self.freed = asyncio.Event()
        self._registry = registry

    def release(self) -> None:
        """Give the slot and the id back."""
        self._registry._release(self)


class LeaseRegistry:
    """All slots of a gateway. `draining` refuses every newcomer."""

    def __init__(self, max_sessions: int) -> None:
        self.max_sessions = max_sessions
        self.draining = False
        self.opened_total = 0
        self._leases: dict[str, Lease] = {}
        self._by_token: dict[bytes, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    @property
    def detached(self) -> int:
        """Sessions that wait for their client to come back."""
        return sum(1 for lease in self._leases.values() if _detached_since(lease) is not None)

    async def acquire(self, session_id: str | None, model: str, model_limit: int | None = None) -> Lease:
        """A slot under that id, or under a new one. A full registry ends its longest-detached session first.

        Raises:
            DuplexError: `DRAINING`, `INVALID_SESSION_ID`, `SESSION_ID_IN_USE` or `SERVER_FULL`.
        """
        self._check_open()
        if session_id is None:
            session_id = f"sess_{secrets.token_hex(8)}"
        elif not _ID.fullmatch(session_id):
            raise DuplexError(
                ErrorCode.INVALID_SESSION_ID,
                "session_id must be 1 to 128 letters, digits, '-', '_' or '.'",
                param="session_id",
            )
        if session_id in self._leases:
            raise DuplexError(
                ErrorCode.SESSION_ID_IN_USE, "a session with this id is open", param="session_id"
            )
        victim = self._victim(model, model_limit)
        lease = Lease(self, session_id, model)
        self._leases[session_id] = lease
        self._by_token[_digest(lease.resume_token)] = lease
        if victim is not None and victim.holder is not None:
            victim.leaving = True
            victim.holder.evict()
            try:
                await victim.freed.wait()
            except BaseException:
                lease.release()
                raise
        self.opened_total += 1
        return lease

    def resume(self, resume_token: str, session_id: str | None) -> Lease:
        """The lease that the token belongs to, attached or not.

        Raises:
            DuplexError: `DRAINING` or `RESUME_REJECTED`, which does not say whether the session exists.
        """
        self._check_open()
        # by digest: how far a wrong token agrees with a right one cannot be measured
        lease = self._by_token.get(_digest(resume_token))
        if (
            lease is None
            or lease.leaving
            or lease.holder is None
            or session_id not in (None, lease.session_id)
            or not secrets.compare_digest(resume_token.encode(), lease.resume_token.encode())
        ):
            raise DuplexError(
                ErrorCode.RESUME_REJECTED, "no session to resume with this token", param="resume"
            )
        return lease

    def _check_open(self) -> None:
        if self.draining:
            raise DuplexError(ErrorCode.DRAINING, "the server is draining: try another one")

    def _victim(self, model: str, model_limit: int | None) -> Lease | None:
        """The detached session whose slot has to be taken, None when there is room."""
        staying = [lease for lease in self._leases.values() if not lease.leaving]
        same_model = [lease for lease in staying if lease.model == model]
        if model_limit is not None and len(same_model) >= model_limit:
            candidates, most = same_model, model_limit
        elif len(staying) >= self.max_sessions:
            candidates, most = staying, self.max_sessions
        else:
            return None
        waiting = [(since, lease) for lease in candidates if (since := _detached_since(lease)) is not None]
        if not waiting:
            raise DuplexError(ErrorCode.SERVER_FULL, f"all {most} sessions are taken: try again later")
        return min(waiting, key=lambda entry: entry[0])[1]

    def _release(self, lease: Lease) -> None:
        if self._leases.get(lease.session_id) is lease:
            del self._leases[lease.session_id]
            del self._by_token[_digest(lease.resume_token)]
        lease.freed.set()


def _detached_since(lease: Lease) -> float | None:
    return lease.holder.detached_since if lease.holder is not None and not lease.leaving else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
