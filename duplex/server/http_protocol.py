"""The HTTP protocol of the server: uvicorn's, a way to drop a connection whose peer does not read, and an end
to one whose peer does not say what it wants."""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ABORT: Final = "duplex.abort"
"""Key in the ASGI scope's extensions of a function that drops the connection at once. A transport that is only
closed waits for its peer to read what is left, for as long as the peer likes."""


HEADERS_S = 20.0
"""Seconds that a new connection has for its first request's headers."""


class GatewayHttp(HttpToolsProtocol):
    """One connection."""

    _deadline: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(Any, transport))
        self._deadline = self.loop.call_later(HEADERS_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._in_time()  # also of a WebSocket's handshake, which then has its own protocol
        super().on_headers_complete()

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)["extensions"] = {ABORT: self.transport.abort}
