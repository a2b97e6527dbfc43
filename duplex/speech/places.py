"""How many speech requests run at a time: the places of a gateway, and who holds one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from duplex.core.errors import DuplexError, ErrorCode


class Places:
    """`most` places; `check` raises while the gateway takes no work. `in_use` counts those that are held."""

    def __init__(self, most: int, check: Callable[[], None]) -> None:
        self.in_use = 0
        self._most = most
        self._check = check
        self._empty = asyncio.Event()
        self._empty.set()

    def take(self) -> Place:
        """Hold a place until it is released.

        Raises:
            DuplexError: `SERVER_FULL` (HTTP 429), or what `check` raises.
        """
        self._check()
        if self.in_use >= self._most:
            raise DuplexError(
                ErrorCode.SERVER_FULL,
                f"{self.in_use} of {self._most} speech places are taken: try again later",
            )
        self.in_use += 1
        self._empty.clear()
        return Place(self)

    def give_back(self) -> None:
        self.in_use -= 1
        if self.in_use == 0:
            self._empty.set()

    async def empty(self) -> None:
        """Wait until none is held."""
        await self._empty.wait()


class Place:
    """One place. Releasing it again does nothing."""

    __slots__ = ("_places",)

    def __init__(self, places: Places) -> None:
        self._places: Places | None = places

    def release(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
