"""What can go wrong for a client, each fault a class of its own."""

from __future__ import annotations

import json
from typing import Any, Final

from duplex.core.errors import ErrorCode


class ClientError(Exception):
    """Base of all. `code` is the server's name of the fault, None where the client found it itself."""

    def __init__(self, message: str, *, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RequestRefused(ClientError):
    """The server answered a request with an error; the session lives. `event_id` names the request."""

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        event_id: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.event_id = event_id
        self.param = param


class ReconnectBufferFull(ClientError):
    """The connection is down and being resumed, and what is kept for it has reached its bound: this input
    was not taken."""


class SessionOver(ClientError):
    """The session has ended, or did not begin. `close_code` is the WebSocket's, None without one.

    `unsent` counts the messages that were kept for a reconnection which did not come: the server never
    saw them.
    """

    def __init__(
        self, message: str, *, code: ErrorCode | None = None, close_code: int | None = None, unsent: int = 0
    ) -> None:
        super().__init__(message, code=code)
        self.close_code = close_code
        self.unsent = unsent


class SessionClosed(SessionOver):
    """It was closed as asked, by either side (1000)."""


class ConnectionLost(SessionOver):
    """The connection broke, or could not be made, and no server gave a reason."""


class Unauthorized(SessionOver):
    """The token is wrong or missing."""


class ServerFull(SessionOver):
    """No free slot. Try again later, or elsewhere."""


class InvalidSessionId(SessionOver):
    """A session id is 1 to 128 letters, digits or `-_.`."""


class SessionIdInUse(SessionOver):
    """Another client holds a session of this id."""


class Draining(SessionOver):
    """The server is going away. Another one will do."""


class EngineDown(SessionOver):
    """The server is up but its model is not."""


class ModelNotFound(SessionOver):
    """No such model is served there."""


class BadConfig(SessionOver):
    """The address, a setting, or another option of the handshake is wrong."""


class ResumeRejected(SessionOver):
    """The session to resume is gone, or the token is not its own."""


class ResumeElsewhere(SessionOver):
    """Another gateway has the session to resume: `owner` is its address, empty when it was not told."""

    owner = ""


class TimedOut(SessionOver):
    """Nothing was sent for the server's idle time."""


class SlowReader(SessionOver):
    """This client did not read fast enough."""


class TakenOver(SessionOver):
    """Another connection resumed this session."""


class MessageTooLarge(SessionOver):
    """A message was over the server's `max_message_bytes`."""


class TooManyErrors(SessionOver):
    """Too many bad messages in a row."""


class ServerFault(SessionOver):
    """The model or the gateway failed."""


_CLASSES: Final[dict[ErrorCode, type[SessionOver]]] = {
    ErrorCode.UNAUTHORIZED: Unauthorized,
    ErrorCode.SERVER_FULL: ServerFull,
    ErrorCode.INVALID_SESSION_ID: InvalidSessionId,
    ErrorCode.SESSION_ID_IN_USE: SessionIdInUse,
    ErrorCode.DRAINING: Draining,
    ErrorCode.ENGINE_DOWN: EngineDown,
    ErrorCode.MODEL_NOT_FOUND: ModelNotFound,
    ErrorCode.BAD_CONFIG: BadConfig,
    ErrorCode.RESUME_REJECTED: ResumeRejected,
    ErrorCode.RESUME_ELSEWHERE: ResumeElsewhere,
    ErrorCode.IDLE_TIMEOUT: TimedOut,
    ErrorCode.CONFIG_TIMEOUT: TimedOut,
    ErrorCode.SLOW_READER: SlowReader,
    ErrorCode.TAKEN_OVER: TakenOver,
    ErrorCode.MESSAGE_TOO_LARGE: MessageTooLarge,
    ErrorCode.TOO_MANY_ERRORS: TooManyErrors,
    ErrorCode.ADAPTER_FAILED: ServerFault,
    ErrorCode.ADAPTER_STUCK: ServerFault,
    ErrorCode.INTERNAL_ERROR: ServerFault,
}

# a close without a name in its reason, or a refused HTTP handshake: the likeliest fault of that number
_BY_CLOSE_CODE: Final[dict[int, ErrorCode]] = {
    1009: ErrorCode.MESSAGE_TOO_LARGE,
    1011: ErrorCode.INTERNAL_ERROR,
    1012: ErrorCode.DRAINING,
    1013: ErrorCode.ENGINE_DOWN,
    4400: ErrorCode.BAD_CONFIG,
    4401: ErrorCode.UNAUTHORIZED,
    4404: ErrorCode.MODEL_NOT_FOUND,
    4408: ErrorCode.IDLE_TIMEOUT,
    4409: ErrorCode.TAKEN_OVER,
    4410: ErrorCode.RESUME_REJECTED,
    4421: ErrorCode.RESUME_ELSEWHERE,
    4429: ErrorCode.SERVER_FULL,
}
_BY_STATUS: Final[dict[int, ErrorCode]] = {
    400: ErrorCode.BAD_CONFIG,
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.UNAUTHORIZED,
    404: ErrorCode.BAD_CONFIG,  # no WebSocket at that path: a model that is missing is told by its code
    409: ErrorCode.SESSION_ID_IN_USE,
    429: ErrorCode.SERVER_FULL,
    503: ErrorCode.ENGINE_DOWN,
}


def error_code(name: str) -> ErrorCode | None:
    """The code of that name; None for one that this client does not know."""
    try:
        return ErrorCode(name)
    except ValueError:
        return None


def session_over(
    close_code: int | None,
    reason: str,
    *,
    fault: ErrorCode | None = None,
    words: str = "",
    owner: str = "",
) -> SessionOver:
    """The exception of a closed connection.

    `fault`, `words` and `owner` are those of a fatal error message that came before it, if one did.
    """
    code = fault or error_code(reason) or _BY_CLOSE_CODE.get(close_code or 0)
    message = words or reason or f"the connection was closed with {close_code}"
    if code is not None:
        over = _CLASSES.get(code, SessionOver)(message, code=code, close_code=close_code)
        if isinstance(over, ResumeElsewhere):
            over.owner = owner
        return over
    if close_code == 1000:
        return SessionClosed(reason or "the session was closed", close_code=close_code)
    if close_code in (None, 1001, 1006):
        return ConnectionLost(reason or "the connection was lost", close_code=close_code)
    return SessionOver(message, close_code=close_code)


def settings_refused(name: str, words: str) -> SessionOver:
    """The exception of settings that a new session was to have and the server refused, by its code."""
    code = error_code(name)
    return _CLASSES.get(code, BadConfig)(words, code=code) if code else BadConfig(words)


def handshake_refused(status: int, body: bytes) -> SessionOver:
    """The exception of an HTTP answer to the handshake: by the code in its JSON body, else by its status."""
    code: ErrorCode | None = None
    words = ""
    try:
        answer: Any = json.loads(body)
        answer = answer.get("error", answer)
        code = error_code(str(answer.get("error_code"))) or error_code(str(answer.get("code")))
        words = str(answer.get("message", ""))
    except (ValueError, AttributeError):
        pass
    code = code or _BY_STATUS.get(status)
    message = words or f"the server refused the connection with HTTP {status}"
    if code is None:
        return ConnectionLost(message)
    return _CLASSES.get(code, SessionOver)(message, code=code)
