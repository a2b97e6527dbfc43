"""A WebSocket route: handshake, session, reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from duplex.core.commands import ResumeSession
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.outbox import error_event
from duplex.dialects.base import Dialect, Frame, OpenRequest
from duplex.runtime.attachment import Connection
from duplex.runtime.gateway import Gateway
from duplex.runtime.runner import SessionRunner
from duplex.server.auth import check_token
from duplex.server.websocket import EXTENSION, TOO_LARGE, GatewayWebSocket

log = logging.getLogger("duplex.server")

EARLY_MESSAGES = 64
"""Messages that are read while a session is being opened; more wait in the kernel."""


class SessionEndpoint:
    """An ASGI app for one path. `dialect` makes the translator of each connection; `default_model` says which
    model serves a client that names none.

    A client that gets no session is accepted, told why by an `error` of its dialect, and closed with the
    fault's code: 4401 for a wrong token, 4429 for a full server. A handshake that is refused before it is
    accepted ends as HTTP 403 whatever the code was, and a browser then sees neither code nor reason.
    """

    def __init__(
        self,
        gateway: Gateway,
        dialect: Callable[[], Dialect],
        default_model: Callable[[], str | None],
        while_active: Literal["supersede", "refuse"] = "supersede",
    ) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._default_model = default_model
        self._while_active = while_active

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = socket_of(scope)
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        headers = headers_of(scope)
        query = query_of(scope)
        await send({"type": "websocket.accept", "subprotocol": self.subprotocol(scope)})
        dialect = self._dialect()
        try:
            dialect = self.admit(headers, query)
            request = dialect.open(query, headers)
        except DuplexError as error:
            self._refuse(socket, dialect, error)
        else:
            await self._serve(socket, dialect, request, receive)

    def subprotocol(self, scope: Scope) -> str | None:
        """The one that is spoken, out of those that the client offers."""
        return None

    def admit(self, headers: Mapping[str, str], query: Mapping[str, str]) -> Dialect:
        """The translator of a client that may come in. Raises `DuplexError(UNAUTHORIZED)`."""
        check_token(self._gateway.config.auth_token, headers, query)
        return self._dialect()

    async def _serve(
        self, socket: GatewayWebSocket, dialect: Dialect, request: OpenRequest, receive: Receive
    ) -> None:
        opened = await self._open(socket, dialect, request, receive)
        if opened is None:
            return
        runner, connection, early = opened
        try:
            waiting = iter(early)
            while (message := next(waiting, None) or await receive())["type"] != "websocket.disconnect":
                wish = _hand_over(message, runner, connection)
                if wish is not None:
                    runner, connection = await self._move(wish, runner, connection)
            if socket.left:
                runner.leave(connection)
        finally:
            runner.detach(connection)

    async def _open(
        self, socket: GatewayWebSocket, dialect: Dialect, request: OpenRequest, receive: Receive
    ) -> tuple[SessionRunner, Connection, list[Message]] | None:
        """Open the session, and meanwhile see the client go. None: there is none, and the client knows."""
        loop = asyncio.get_running_loop()
        opening = loop.create_task(
            self._gateway.join(
                socket,
                dialect,
                request,
                default_model=self._default_model(),
                while_active=self._while_active,
            )
        )
        early: list[Message] = []
        reading: asyncio.Task[Message] | None = loop.create_task(_next(receive))
        try:
            while not opening.done():
                waiting: set[asyncio.Task[Any]] = {opening} | ({reading} if reading else set())
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if reading is None or not reading.done():
                    continue
                message = reading.result()
                if message["type"] == "websocket.disconnect":
                    reading = None
                    await _cancel(opening)
                    return None
                early.append(message)
                reading = loop.create_task(_next(receive)) if len(early) < EARLY_MESSAGES else None
            runner, connection = opening.result()
        except DuplexError as error:
            self._refuse(socket, dialect, error)
            return None
        except asyncio.CancelledError:
            await _cancel(opening)
            raise
        except Exception:
            log.exception("cannot open a session")
            fault = DuplexError(ErrorCode.INTERNAL_ERROR, "a fault of the gateway")
            self._refuse(socket, dialect, fault)
            return None
        finally:
            if reading is not None and (last := await _stop_reading(reading)) is not None:
                early.append(last)
        return runner, connection, early

    async def _move(
        self, wish: ResumeSession, runner: SessionRunner, connection: Connection
    ) -> tuple[SessionRunner, Connection]:
        """Take up another session on this socket, if it is there; the one that the socket had ends."""
        request = OpenRequest(
            resume_token=wish.resume_token, session_id=wish.session_id, last_seq=wish.last_seq
        )
        try:
            resumed = await self._gateway.join(connection.socket, connection.dialect, request)
        except DuplexError as error:
            error.event_id = wish.event_id
            runner.refuse(error)
            return runner, connection
        if resumed[0] is not runner:
            runner.forsake(connection)
        return resumed

    def _refuse(self, socket: GatewayWebSocket, dialect: Dialect, error: DuplexError) -> None:
        """Say why, in the dialect's words, and close with the code of the fault."""
        self._gateway.metrics.errors[error.code] += 1
        event = error_event(error, fatal=True)
        for frame in dialect.encode(event):
            socket.write(frame)
        socket.close(error.code.traits.close_code, error.code.value)


def socket_of(scope: Scope) -> GatewayWebSocket:
    """The connection itself, beneath ASGI."""
    socket = scope["extensions"].get(EXTENSION)
    if not isinstance(socket, GatewayWebSocket):
        raise RuntimeError(
            "sessions need the server's own WebSocket protocol: run the app with duplex.server.run, or "
            "with uvicorn's ws='duplex.server.websocket:GatewayWebSocket'"
        )
    return socket


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The handshake's headers, by lower-case name."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def query_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The query's parameters; of one that is there twice, the last."""
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))


def _hand_over(message: Message, runner: SessionRunner, connection: Connection) -> ResumeSession | None:
    if message["type"] == TOO_LARGE:
        runner.too_large(connection)
    elif message["type"] == "websocket.receive":
        frame: Frame | None = message.get("text")
        return runner.received(connection, frame if frame is not None else message["bytes"])
    return None


async def _next(receive: Receive) -> Message:
    return await receive()


async def _stop_reading(task: asyncio.Task[Message]) -> Message | None:
    """Stop a pending read without losing the message that it may have got already."""
    if not task.done():
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if task.cancelled() or task.exception() is not None:
        return
    # it had just succeeded: the session is there, and its socket is not
    runner, connection = task.result()
    runner.detach(connection)
