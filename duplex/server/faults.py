"""Faults as HTTP answers, in the shape that OpenAI's clients read. One shape for every route."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from duplex.core.errors import DuplexError, ErrorCode

RETRY_AFTER_S: Final = 1
_DENIAL: Final = "websocket.http.response"
_TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


def error_body(error: DuplexError) -> dict[str, Any]:
    """OpenAI's error object; `code` is the HTTP status, `error_code` ours."""
    return _body(error.code.traits.http_status, error.message, error.param, error.code)


def error_response(error: DuplexError) -> JSONResponse:
    """A named fault as an HTTP answer."""
    status = error.code.traits.http_status
    headers: dict[str, str] = {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse(error_body(error), status_code=status, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the routing itself refuses: no such path, no such method. Our vocabulary has no word for these."""
    assert isinstance(error, HTTPException)
    words = f"{error.detail}: {request.method} {request.url.path[:256]}"
    return JSONResponse(
        _body(error.status_code, words, None, None), status_code=error.status_code, headers=error.headers
    )


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The end of all routes.

    A WebSocket's handshake is answered over HTTP, where the server can: to be closed before it is accepted
    would be 403, which says that another token might help.
    """
    if scope["type"] == "http":
        raise HTTPException(HTTPStatus.NOT_FOUND)
    if _DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1000})
        return
    words = f"Not Found: no WebSocket at {scope['path'][:256]}"
    answer = JSONResponse(_body(HTTPStatus.NOT_FOUND, words, None, None), status_code=HTTPStatus.NOT_FOUND)
    await answer(scope, receive, send)


def _body(status: int, message: str, param: str | None, code: ErrorCode | None) -> dict[str, Any]:
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError"),
            "param": param,
            "code": int(status),
            "error_code": None if code is None else code.value,
        }
    }
