"""The WebSocket protocol of the server: uvicorn's, with the calls that a realtime session needs.

uvicorn has three implementations. Measured on one core with 64 sockets that each send 50 frames of 1.4 KB a
second, per frame: `websockets-sansio` 33 µs to send and 36 µs to receive, `wsproto` 34 and 46,
`websockets` 45 and 53. So it is the first that is built on here.

What is added:

* `write` hands a frame to the transport at once, without a task and a chain of ASGI calls;
* a low high-water mark, and on Linux a low bound for unsent bytes in the kernel, so that little is beyond
  recall when a response is cancelled and a slow reader is seen early;
* a peer that neither reads nor closes is cut off: a transport with bytes left to write never closes by
  itself, and would keep its socket and its session for as long as the peer likes;
* a loop that was held up does not take its own deafness for the silence of its peers;
* a handshake that cannot be read is answered, where uvicorn lets it wait;
* a close between the fragments of a message is a close like any other, where the parser calls it a fault;
* a message that is too large to be taken in is refused by the application, in its own words, instead of with
  a bare 1009.
"""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
import struct
from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable, Generator
from typing import Any, Final, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import SecurityError
from websockets.frames import CloseCode, Opcode
from websockets.frames import Frame as WireFrame
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from duplex.dialects.base import Frame

log = logging.getLogger("duplex.server")

EXTENSION = "duplex.socket"
"""Key of the protocol object in the ASGI scope's extensions."""
HIGH_WATER = 16 * 1024
"""Bytes in the transport above which nothing more is written to it: 0.25 s of 24 kHz PCM in base64."""
UNSENT_LOW_WATER = 16 * 1024
"""Bytes that the kernel takes ahead of what it has sent (Linux, TCP_NOTSENT_LOWAT)."""
LINGER_S = 2.0
"""Seconds that a peer has to answer a close frame."""
MAX_LATE_S = 0.25
"""A loop that is this late for a ping's time-out has not heard its peers (seconds)."""
TOO_LARGE = "duplex.too_large"
"""Type of the ASGI message that says that a message over `ws_max_size` has begun to come."""

BAD_REQUEST: Final = "400 Bad Request"
URI_TOO_LONG: Final = "414 URI Too Long"
HEADERS_TOO_LARGE: Final = "431 Request Header Fields Too Large"

_TEXT = 0x81
_BINARY = 0x82
_header_7 = struct.Struct("!BB").pack
_header_16 = struct.Struct("!BBH").pack
_header_64 = struct.Struct("!BBQ").pack


def _nothing() -> None: ...


class Parser(ServerProtocol):
    """websockets' sans-I/O protocol, which answers a close in the middle of a fragmented message with 1002.

    RFC 6455 lets control frames come between fragments (5.4), and a close is one (5.5.1): a client that gives
    a message up in order to leave has left cleanly.
    """

    _first_line = False
    """What could not be read was the request's first line."""

    def discard(self) -> Generator[None]:
        self._first_line = self.reader.buffer.startswith(b"GET ")
        return super().discard()

    def refusal(self) -> bytes:
        """The answer to a handshake that cannot be read. Before websockets 17 the parser has none."""
        if answer := b"".join(self.data_to_send()):
            return answer
        fault, status = self.handshake_exc, BAD_REQUEST
        # which of the two it is depends on the version
        if fault is not None and any(isinstance(e, SecurityError) for e in (fault, fault.__cause__)):
            status = URI_TOO_LONG if self._first_line else HEADERS_TOO_LARGE
        return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()

    def recv_frame(self, frame: WireFrame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
            self.cur_size = None  # its name before websockets 16
        super().recv_frame(frame)


class GatewayWebSocket(WebSocketsSansIOProtocol):
    """One connection. To the runtime it is a `duplex.runtime.socket.Socket`."""

    _on_blocked: Callable[[], None] = staticmethod(_nothing)
    _on_writable: Callable[[], None] = staticmethod(_nothing)
    _cut_off: TimerHandle | None = None
    _flowing = True
    _refused = False
    _second_chance = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = Parser(max_size=self.config.ws_max_size, logger=self.logger)

    # --- the runtime's side -------------------------------------------------------------------------

    @property
    def can_write(self) -> bool:
        return self._flowing and not self.close_sent

    @property
    def left(self) -> bool:
        """The client closed its socket, with 1000 or without a code: it is done. 1001 is a page that is
        loaded anew or a program that ends, and may come back; without a close frame the connection broke."""
        frame = self.conn.close_rcvd
        return frame is not None and frame.code in (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)

    def watch(self, on_blocked: Callable[[], None], on_writable: Callable[[], None]) -> None:
        self._on_blocked = on_blocked
        self._on_writable = on_writable

    def write(self, frame: Frame) -> None:
        """A whole message in one frame. No extension is ever negotiated, and a server does not mask."""
        if self.close_sent or self.disconnected:
            return
        if isinstance(frame, str):
            opcode, payload = _TEXT, frame.encode()
        else:
            opcode, payload = _BINARY, frame
        size = len(payload)
        if size < 126:
            header = _header_7(opcode, size)
        elif size < 65536:
            header = _header_16(opcode, 126, size)
        else:
            header = _header_64(opcode, 127, size)
        self.transport.write(header + payload)

    def close(self, code: int, reason: str) -> None:
        if self.close_sent or self.disconnected:
            return
        if self.conn.state is OPEN:
            self.conn.send_close(code, reason.encode()[:123].decode(errors="ignore"))
        # else the parser has failed and its own close frame waits to be sent
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    # --- the transport's side -----------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER, low=HIGH_WATER // 4)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (sockets.AF_INET, sockets.AF_INET6):
            raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            if hasattr(sockets, "TCP_NOTSENT_LOWAT"):
                raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NOTSENT_LOWAT, UNSENT_LOW_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._on_blocked = self._on_writable = _nothing
        self._flowing = False
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._flowing = False
        self._on_blocked()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._flowing = True
        self._on_writable()

    # --- the protocol's side ------------------------------------------------------------------------

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:  # else it has been refused: there is no scope
            cast(dict[str, Any], self.scope["extensions"])[EXTENSION] = self

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake(self.conn.handshake_exc)

    def _refuse_handshake(self, fault: Exception) -> None:
        """The request is none, or has a line over the parser's bound: 8 KiB, or what the environment's
        `WEBSOCKETS_MAX_LINE_LENGTH` says."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        log.info("a WebSocket handshake is refused: %s", fault)
        self.transport.write(cast(Parser, self.conn).refusal())
        self.transport.close()
        self._abort_soon()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # answered over HTTP, which is an end as good as another

    def handle_close(self, event: Any) -> None:
        super().handle_close(event)
        self._abort_soon()

    def keepalive_timeout(self) -> None:
        timeout_s = self.ping_timeout or 0.0
        late_s = self.loop.time() - self.ping_sent_at - timeout_s
        if late_s > MAX_LATE_S and not self._second_chance:
            # it was we who did not look: the answer may lie in the kernel, and timers come before sockets
            self._second_chance = True
            self.pong_timer = self.loop.call_later(timeout_s, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._abort_soon()

    def send_keepalive_ping(self) -> None:
        self._second_chance = False
        super().send_keepalive_ping()

    def handle_parser_exception(self) -> None:
        """What came is no WebSocket message, or one that is too large."""
        if self._refused:
            return  # called again for every further piece of it
        self._refused = True
        assert self.conn.close_sent is not None
        if self.conn.close_sent.code == CloseCode.MESSAGE_TOO_BIG and not self.close_sent:
            # the parser reads on and throws away; the application tells why, and closes
            cast(asyncio.Queue[Any], self.queue).put_nowait({"type": TOO_LARGE})
        else:
            super().handle_parser_exception()
            self._abort_soon()

    def _abort_soon(self) -> None:
        """The transport was told to close; do not wait for a peer that does not read."""
        if self._cut_off is None and not self.disconnected:
            self._cut_off = self.loop.call_later(LINGER_S, self.transport.abort)
