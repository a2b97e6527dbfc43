"""Admission without a network; tests/server/test_resume.py and test_handshake.py have the rest."""

from __future__ import annotations

import asyncio

import pytest

from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime.leases import Lease, LeaseRegistry


class Holder:
    def __init__(self, lease: Lease, detached_since: float | None) -> None:
        self.lease = lease
        self.detached_since = detached_since
        self.evicted = asyncio.Event()
        lease.holder = self

    def evict(self) -> None:
        self.evicted.set()


async def code_of(registry: LeaseRegistry, *arguments: str | int | None) -> ErrorCode:
    with pytest.raises(DuplexError) as caught:
        await registry.acquire(*arguments)  # type: ignore[arg-type]
    return caught.value.code


async def test_ids_are_made_and_tokens_are_long_and_differ() -> None:
    registry = LeaseRegistry(100)
    leases = [await registry.acquire(None, "m") for _ in range(100)]
    assert len({lease.session_id for lease in leases}) == 100
    assert len({lease.resume_token for lease in leases}) == 100
    assert all(len(lease.resume_token) >= 43 for lease in leases)  # 256 bits


async def test_release_twice_does_no_harm() -> None:
    registry = LeaseRegistry(1)
    first = await registry.acquire("a", "m")
    first.release()
    second = await registry.acquire("a", "m")
    first.release()
    assert len(registry) == 1
    assert registry.resume(second.resume_token, None) if second.holder else True
    assert await code_of(registry, "a", "m") is ErrorCode.SESSION_ID_IN_USE


async def test_a_session_that_is_still_opening_cannot_be_resumed_or_evicted() -> None:
    registry = LeaseRegistry(1)
    lease = await registry.acquire("a", "m")
    with pytest.raises(DuplexError) as caught:
        registry.resume(lease.resume_token, "a")
    assert caught.value.code is ErrorCode.RESUME_REJECTED
    assert await code_of(registry, "b", "m") is ErrorCode.SERVER_FULL


async def test_the_longest_detached_goes_first() -> None:
    registry = LeaseRegistry(3)
    holders = [
        Holder(await registry.acquire(name, "m"), since)
        for name, since in (("attached", None), ("older", 10.0), ("newer", 20.0))
    ]
    newcomer = asyncio.ensure_future(registry.acquire("new", "m"))
    await holders[1].evicted.wait()
    assert not newcomer.done(), "the slot is not there yet"
    with pytest.raises(DuplexError):
        registry.resume(holders[1].lease.resume_token, None)
    holders[1].lease.release()
    assert (await newcomer).session_id == "new"
    assert not holders[2].evicted.is_set()
    assert len(registry) == 3


async def test_newcomer_that_gives_up_gives_its_slot_back() -> None:
    registry = LeaseRegistry(1)
    old = Holder(await registry.acquire("old", "m"), 1.0)
    newcomer = asyncio.ensure_future(registry.acquire("new", "m"))
    await old.evicted.wait()
    newcomer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await newcomer
    old.lease.release()
    assert len(registry) == 0
    await registry.acquire("new", "m")


async def test_a_models_limit_evicts_only_that_models_sessions() -> None:
    registry = LeaseRegistry(10)
    other = Holder(await registry.acquire("other", "b"), 1.0)
    same = Holder(await registry.acquire("same", "a"), 2.0)
    newcomer = asyncio.ensure_future(registry.acquire("new", "a", 1))
    await same.evicted.wait()
    assert not other.evicted.is_set()
    same.lease.release()
    await newcomer
    assert await code_of(registry, "more", "a", 1) is ErrorCode.SERVER_FULL


async def test_draining_refuses_all() -> None:
    registry = LeaseRegistry(1)
    registry.draining = True
    assert await code_of(registry, None, "m") is ErrorCode.DRAINING
    with pytest.raises(DuplexError) as caught:
        registry.resume("x", None)
    assert caught.value.code is ErrorCode.DRAINING
