"""What the HTTP speech endpoints share: bounded bodies, clients that hang up, and responses that stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.strict_json import parse_object
from duplex.server.faults import error_response
from duplex.server.http_protocol import ABORT
from duplex.speech.places import Place

log = logging.getLogger("duplex.speech")

_HUNG_UP: Final = 499

T = TypeVar("T")
Guard: TypeAlias = Callable[[Request], None]
Count: TypeAlias = Callable[[ErrorCode], None]
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def guarded(handler: Handler, guard: Guard, count: Count) -> Handler:
    """The handler, behind the guard, which raises `DuplexError(UNAUTHORIZED)`; all its faults as JSON."""

    async def handle(request: Request) -> Response:
        try:
            guard(request)
            return await handler(request)
        except DuplexError as error:
            count(error.code)
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=_HUNG_UP)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            count(ErrorCode.INTERNAL_ERROR)
            return error_response(DuplexError(ErrorCode.INTERNAL_ERROR, "a fault of the gateway"))

    return handle


async def json_body(request: Request, most: int) -> dict[str, Any]:
    """The JSON object of at most `most` bytes that the request carries.

    Raises:
        DuplexError: `MESSAGE_TOO_LARGE`, `INVALID_JSON`, `NOT_AN_OBJECT`.
    """
    check_length(request, most)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise too_large(most)
    return parse_object(bytes(data))


def check_length(request: Request, most: int) -> None:
    """Refuse a body that says itself that it is too large."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > most):
        raise too_large(most)


def too_large(most: int) -> DuplexError:
    return DuplexError(ErrorCode.MESSAGE_TOO_LARGE, f"the body has over {most} bytes")


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up.

    Raises:
        ClientDisconnect: it did, and the work has stopped.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        for other in (task, gone):
            other.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Stream(Response):
    """A body that is sent as it is made. Whatever happens, the chunks' iterator is closed and the place is
    given back, before the body's end is sent.

    A client that takes nothing for `slow_reader_timeout_s` is cut off. What fails in the middle has no other
    way to say so than a body that does not end.
    """

    def __init__(
        self,
        first: bytes,
        chunks: AsyncGenerator[bytes, None],
        place: Place,
        *,
        media_type: str,
        headers: Mapping[str, str],
        slow_reader_timeout_s: float,
        count: Count,
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._first = first
        self._chunks = chunks
        self._place = place
        self._slow_s = slow_reader_timeout_s
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientDisconnect:
            pass
        except TimeoutError:
            self._count(ErrorCode.SLOW_READER)
            log.info("a client did not read for %g s: its response is cut off", self._slow_s)
            _abort(scope)
        except DuplexError as error:
            self._count(error.code)
            log.warning("a streamed response breaks off: %s", error.message)
        finally:
            await self._chunks.aclose()
            self._place.release()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        chunk: bytes | None = self._first
        while chunk is not None:
            async with asyncio.timeout(self._slow_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await anext(self._chunks, None)
        self._place.release()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _abort(scope: Scope) -> None:
    """Drop the connection without what is still to be written."""
    abort = scope.get("extensions", {}).get(ABORT)
    if abort is not None:
        abort()
