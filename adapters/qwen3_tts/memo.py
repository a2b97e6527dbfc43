"""What was computed before, the last used, in a bounded number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Memo(Generic[V]):
    """Values by key. Any thread may ask."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all values together."""
        self._limit = limit
        self._bytes = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What is held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which counts as used now."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keep a value of `size` bytes; those used longest ago make room. One larger than all room is not
        kept."""
        if size > self._limit:
            return
        with self._lock:
            if (old := self._values.pop(key, None)) is not None:
                self._bytes -= old[1]
            self._values[key] = (value, size)
            self._bytes += size
            while self._bytes > self._limit:
                _, (_, freed) = self._values.popitem(last=False)
                self._bytes -= freed
