"""Which gateway has a session, for clients that come back through a balancer: kept in Redis.

A key for each session, the digest of its resume token, with the address of its gateway. Keys live for a
minute and are written anew as long as the session does, so a gateway that died is forgotten by itself. When
Redis is away nothing breaks: sessions open and resume on their own gateway, and are not found from others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any, Final

from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.resume")

PREFIX: Final = "duplex:resume:"
LIFE_S: Final = 60
"""Seconds that a key lives."""
REFRESH_S: Final = 20.0
"""Seconds between two writes of all keys."""
TIMEOUT_S: Final = 1.0
"""Seconds that Redis has for an answer."""
BATCH: Final = 512
"""Keys in one round trip."""


class ResumeStore:
    """The sessions of this gateway, told to the others, and theirs.

    Args:
        redis: a client of `redis.asyncio` that decodes answers.
        address: of this gateway, for clients: `ws://host:port`.
    """

    def __init__(self, redis: Any, address: str) -> None:
        self._redis = redis
        self._address = address
        self._own: set[str] = set()
        self._new: set[str] = set()
        self._gone: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._stopping = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="resume store")

    async def stop(self) -> None:
        """Forget this gateway's sessions."""
        task, self._task = self._task, None
        if task is None:
            return
        self._gone |= self._own
        self._own.clear()
        self._new.clear()
        self._stopping = True
        self._wake.set()
        # not broken off: a key that is on its way would outlive its deletion
        _, stuck = await asyncio.wait({task}, timeout=5 * TIMEOUT_S)
        for task in stuck:
            task.cancel()
        await self._redis.aclose()

    def opened(self, resume_token: str) -> None:
        """A session of this gateway can be resumed from now on. Returns at once."""
        key = key_of(resume_token)
        self._own.add(key)
        self._new.add(key)
        self._wake.set()

    def closed(self, resume_token: str) -> None:
        """It is over."""
        key = key_of(resume_token)
        self._own.discard(key)
        self._new.discard(key)
        self._gone.add(key)
        self._wake.set()

    async def owner(self, resume_token: str) -> str | None:
        """Address of the other gateway that has the session; None when none is known to."""
        try:
            address = await self._redis.get(key_of(resume_token))
        except Exception as error:  # of whatever kind: the client is told that there is no session
            self._failed(error)
            return None
        return str(address) if address and address != self._address else None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        refresh_at = loop.time() + REFRESH_S
        while True:
            try:
                async with asyncio.timeout_at(refresh_at):
                    await self._wake.wait()
            except TimeoutError:
                self._new |= self._own
                refresh_at = loop.time() + REFRESH_S
            self._wake.clear()
            new, self._new = sorted(self._new), set()
            await self._write(new)
            if self._stopping and not self._gone:
                return

    async def _write(self, new: list[str]) -> None:
        gone, self._gone = sorted(self._gone), set()
        try:
            for start in range(0, len(new), BATCH):
                pipeline = self._redis.pipeline(transaction=False)
                for key in new[start : start + BATCH]:
                    pipeline.set(key, self._address, ex=LIFE_S)
                await pipeline.execute()
            for start in range(0, len(gone), BATCH):
                await self._redis.delete(*gone[start : start + BATCH])
        except Exception as error:
            # all keys are written again at the next refresh, and old ones end by themselves
            self._failed(error)
        else:
            self._failing = False

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            log.warning("Redis does not answer (%s): sessions are found on their own gateway alone", error)
        self._failing = True


def key_of(resume_token: str) -> str:
    """The token's key. By digest: who reads Redis can take up no session."""
    return PREFIX + hashlib.sha256(resume_token.encode()).hexdigest()


def resume_store(config: ServerConfig) -> ResumeStore | None:
    """The store that the configuration asks for, if it does.

    Raises:
        DuplexError: `BAD_CONFIG`.
    """
    if config.redis_url is None:
        return None
    try:
        from redis.asyncio import Redis
    except ImportError:
        words = 'redis_url needs the redis package: pip install "duplex-gateway[redis]"'
        raise DuplexError(ErrorCode.BAD_CONFIG, words, param="redis_url") from None
    try:
        client = Redis.from_url(
            config.redis_url,
            decode_responses=True,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
    except ValueError as error:
        # its words do not repeat the address, which may hold a password
        raise DuplexError(ErrorCode.BAD_CONFIG, f"redis_url: {error}", param="redis_url") from None
    return ResumeStore(client, str(config.advertised_url))
