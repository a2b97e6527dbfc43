"""What a worker says to its gateway: sent in order, from any thread, by whoever has something to say.

The caller writes to the socket itself as long as it takes what it is given, so that a message costs no thread
switch. When the gateway reads too slowly the rest waits in a queue that a thread of its own empties; only
audio waits for that queue, so that the step thread never does.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from duplex.adapters.engine.messages import Audio, Ended, Failed
from duplex.adapters.engine.wire import Message, pack

MOST_QUEUED: Final = 4 * 1024 * 1024
"""Bytes in the queue that hold audio back: 44 s of audio at 24 kHz."""
_BYTES_AT_ONCE: Final = 1024 * 1024
_PARTS_AT_ONCE: Final = 256


class Outlet:
    """The sending half of a worker's socket, and which requests may still be spoken of.

    Args:
        lost: called once, from some thread, when the gateway's end is gone.
    """

    def __init__(self, sock: socket.socket, lost: Callable[[], None], *, most: int = MOST_QUEUED) -> None:
        self._socket = sock
        self._lost = lost
        self._most = most
        self._open: set[int] = set()
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._gone = False
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write, name="engine writer", daemon=True)
        self._writer.start()

    def open(self, id: int) -> None:
        """A request has come: it may be spoken of."""
        with self._changed:
            self._open.add(id)

    def say(self, message: Message) -> None:
        """Send anything but audio. Never waits."""
        with self._changed:
            self._send([pack(message)])

    def end(self, message: Ended | Failed) -> None:
        """Send the last word of a request, if it has not been sent; nothing follows it. Never waits."""
        with self._changed:
            if message.id in self._open:
                self._open.remove(message.id)
                self._send([pack(message)])

    def audio(self, messages: Iterable[Audio]) -> None:
        """Send audio of those requests that are open. Waits while the gateway does not read."""
        packed = [(message, pack(message)) for message in messages]
        with self._changed:
            self._changed.wait_for(lambda: self._queued < self._most or self._gone)
            parts = []
            for message, data in packed:
                if message.id in self._open:
                    parts.append(data)
                    if message.finish is not None:
                        self._open.remove(message.id)
            if parts:
                self._send(parts)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._gone, timeout_s)

    def _send(self, parts: list[bytes]) -> None:
        if self._gone:
            return
        sent = 0
        if not self._queue:
            try:
                sent = self._socket.sendmsg(parts[:_PARTS_AT_ONCE], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError:
                self._hang_up()
                return
        for part in parts:
            rest = memoryview(part)[sent:]
            sent = max(0, sent - len(part))
            if rest:
                self._queue.append(rest)
                self._queued += len(rest)
        if self._queue:
            self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._gone)
                if self._gone:
                    return
                part = self._queue[0][:_BYTES_AT_ONCE]
            try:
                sent = self._socket.send(part)
            except OSError:
                with self._changed:
                    self._hang_up()
                return
            with self._changed:
                rest = self._queue[0][sent:]
                if rest:
                    self._queue[0] = rest
                else:
                    self._queue.popleft()
                self._queued -= sent
                self._changed.notify_all()

    def _hang_up(self) -> None:
        if not self._gone:
            self._gone = True
            self._queue.clear()
            self._changed.notify_all()
            self._lost()
