"""`/v1/realtime`: the WebSocket route, and short-lived client secrets for browsers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Scope

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.settings import apply_changes
from duplex.core.types import Modality, SessionSettings
from duplex.dialects.base import Dialect
from duplex.dialects.fields import Fields
from duplex.dialects.realtime import RealtimeDialect
from duplex.dialects.realtime_beta import from_beta
from duplex.dialects.realtime_session import Voices, changes_of, merged, new_session
from duplex.dialects.strict_json import parse_object
from duplex.runtime.gateway import Gateway
from duplex.server.auth import check_token
from duplex.server.endpoint import SessionEndpoint
from duplex.server.faults import error_response

PATH: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""Browsers cannot set headers: the key comes as a subprotocol of this prefix."""
SECRET_PREFIX: Final = "ek_"
LIFETIME_S: Final = 60
MIN_LIFETIME_S: Final = 10
MAX_LIFETIME_S: Final = 7200
MAX_SECRETS: Final = 4096
"""Secrets that live at the same time; the oldest go first."""
MAX_BODY: Final = 256 * 1024


class ClientSecrets:
    """Tokens that stand for the gateway's own for a while, and the session that each was made for."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    def mint(self, session: dict[str, Any], lifetime_s: float, now: float) -> str:
        """A new token. `now` and its end are Unix seconds."""
        self._known = {key: kept for key, kept in self._known.items() if kept[0] > now}
        while len(self._known) >= MAX_SECRETS:
            del self._known[next(iter(self._known))]
        secret = SECRET_PREFIX + secrets.token_urlsafe(32)
        self._known[secret] = (now + lifetime_s, session)
        return secret

    def session(self, secret: str, now: float) -> dict[str, Any] | None:
        """What the token was made for; None when it is unknown or over. It opens any number of sessions
        while it lives."""
        ends_at, session = self._known.get(secret, (0.0, {}))
        return session if ends_at > now else None


class RealtimeEndpoint(SessionEndpoint):
    """The route. A client's key is in the Authorization header, a subprotocol or `?token=`."""

    def __init__(self, gateway: Gateway, client_secrets: ClientSecrets) -> None:
        super().__init__(gateway, self._new, lambda: gateway.default_model, while_active="refuse")
        self._secrets = client_secrets

    def _new(self, session: dict[str, Any] | None = None) -> RealtimeDialect:
        return RealtimeDialect(frozenset(self._gateway.adapters), session)

    def subprotocol(self, scope: Scope) -> str | None:
        return SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None

    def admit(self, headers: Mapping[str, str], query: Mapping[str, str]) -> Dialect:
        key = _key_of(headers)
        if key.startswith(SECRET_PREFIX):
            session = self._secrets.session(key, time.time())
            if session is not None:
                return self._new(session)
            raise DuplexError(ErrorCode.UNAUTHORIZED, "the client secret is unknown or has expired")
        if key:
            headers = {**headers, "authorization": f"Bearer {key}"}
        check_token(self._gateway.config.auth_token, headers, query)
        return self._new()


def realtime_routes(gateway: Gateway) -> list[BaseRoute]:
    """The WebSocket route, and `POST /v1/realtime/client_secrets`."""
    client_secrets = ClientSecrets()

    async def mint(request: Request) -> Response:
        try:
            check_token(gateway.config.auth_token, request.headers, request.query_params)
            body = await _body(request)
            asked, lifetime_s = _asked(Fields(body))
            session = _session(gateway, asked)
        except DuplexError as error:
            return error_response(error)
        now = time.time()
        value = client_secrets.mint(asked, lifetime_s, now)
        return JSONResponse({"value": value, "expires_at": int(now + lifetime_s), "session": session})

    return [
        WebSocketRoute(PATH, RealtimeEndpoint(gateway, client_secrets)),
        Route(f"{PATH}/client_secrets", mint, methods=["POST"]),
    ]


def _key_of(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(KEY_PROTOCOL):
            return protocol.strip().removeprefix(KEY_PROTOCOL)
    return ""


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise DuplexError(ErrorCode.MESSAGE_TOO_LARGE, f"the body may have at most {MAX_BODY} bytes")
    return parse_object(body) if body else {}


def _asked(fields: Fields) -> tuple[dict[str, Any], float]:
    fields.only("session", "expires_after")
    lifetime_s = float(LIFETIME_S)
    if "expires_after" in fields:
        after = fields.fields("expires_after")
        after.only("anchor", "seconds")
        if "seconds" in after:
            lifetime_s = after.number("seconds")
            if not MIN_LIFETIME_S <= lifetime_s <= MAX_LIFETIME_S:
                raise after.refuse("seconds", f"from {MIN_LIFETIME_S} to {MAX_LIFETIME_S}")
    return from_beta(fields.optional_object("session")), lifetime_s


def _session(gateway: Gateway, asked: dict[str, Any]) -> dict[str, Any]:
    """The object of the session as it will be. Raises `DuplexError` for what cannot be asked for."""
    apply_changes(SessionSettings(), changes_of(asked, Voices()))
    model = asked.get("model")
    if model not in gateway.adapters:
        model = gateway.default_model
    info = gateway.adapters[model].info if model is not None else None
    outputs = (info.default_output_modalities or info.output_modalities) if info else (Modality.AUDIO,)
    session = new_session(session_id="", model=model or "", outputs=outputs, expires_at=None)
    session["audio"]["output"]["voice"] = next(iter(info.voices), "default") if info else "default"
    return merged(session, asked)
