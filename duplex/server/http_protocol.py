"""The HTTP protocol of the server: uvicorn's, with

* a way to drop a connection whose peer does not read;
* an end to a request that is not finished: uvicorn would wait for the rest of it as long as the peer likes;
* a bound for a request's head, which uvicorn keeps whole whatever its size.
"""

from __future__ import annotations

import json
import logging
from asyncio import BaseTransport, TimerHandle
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from duplex.core.errors import DuplexError, ErrorCode
from duplex.server.faults import error_body

log = logging.getLogger("duplex.server")

ABORT: Final = "duplex.abort"
"""Key in the ASGI scope's extensions of a function that drops the connection at once. A transport that is
only closed waits for its peer to read what is left, for as long as the peer likes."""

HEADERS_S = 20.0
"""Seconds that a request has for its headers, from the connection or from its first byte."""
BODY_SILENCE_S = 20.0
"""Seconds without a byte of a body that has not ended."""
BODY_S = 300.0
"""Seconds that a whole body may take: 32 MiB at 110 KB/s."""
MAX_HEAD_BYTES = 128 * 1024
"""Of a request's line and headers that are not complete yet. One read of the socket may go beyond it."""
LINGER_S = 2.0
"""Seconds that a peer has to read why its connection ends."""


class GatewayHttp(HttpToolsProtocol):
    """One connection."""

    _deadline: TimerHandle | None = None
    _in_head = False
    _in_body = False
    _head_bytes = 0
    _heard = 0.0
    _body_since = 0.0

    # --- the transport's side -----------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(Any, transport))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        of_body = self._in_body
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # refused, or a WebSocket by now, which has its own protocol
        if of_body or self._in_body or not (self._in_head or self._idle):
            return  # what ended a body may hold the next head's beginning: one read of it does not count
        if self._deadline is None:
            self._await_head()  # what came was not even a request's first byte
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("431 Request Header Fields Too Large", "the request's head is too large")

    # --- the parser's side --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)["extensions"] = {ABORT: self.transport.abort}
        self._in_head = True
        if self._deadline is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._in_time()
        super().on_headers_complete()
        self._in_body = True
        self._heard = self._body_since = self.loop.time()
        self._deadline = self.loop.call_later(BODY_SILENCE_S, self._look_at_body)

    def on_message_complete(self) -> None:
        self._in_time()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._in_time()
        super().handle_websocket_upgrade()

    @property
    def _idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    # --- time ---------------------------------------------------------------------------------------

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEADERS_S, self._head_is_late)

    def _head_is_late(self) -> None:
        self._deadline = None
        if self._idle:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(HEADERS_S, self._head_is_late)  # an answer is under way

    def _look_at_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:
            self._heard = now  # it is we who do not listen
            self._body_since = max(self._body_since, now - BODY_S + BODY_SILENCE_S)
        left_s = min(self._heard + BODY_SILENCE_S, self._body_since + BODY_S) - now
        if left_s > 0:
            self._deadline = self.loop.call_later(left_s, self._look_at_body)
            return
        self._deadline = None
        error = DuplexError(ErrorCode.IDLE_TIMEOUT, "the rest of the request's body did not come in time")
        self._refuse("408 Request Timeout", error.message, json.dumps(error_body(error)))

    def _in_time(self) -> None:
        self._in_head = self._in_body = False
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: str, why: str, body: str = "") -> None:
        """Answer a request that will not be complete, unless an answer has begun, and close."""
        log.info("a request is refused with %s: %s", status, why)
        cycle = self.cycle if self._in_body else None
        if cycle is not None:
            unanswered = not (self.pipeline or cycle.response_started)
            cycle.disconnected = True  # the application's answer comes too late
        else:
            unanswered = self._idle
        if unanswered:
            head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self._in_time()
        self.transport.close()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.abort)
