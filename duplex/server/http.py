"""The HTTP routes: liveness, readiness, models, metrics."""

from __future__ import annotations

import time

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duplex.core.errors import DuplexError
from duplex.runtime.gateway import Gateway, Status
from duplex.server.auth import check_token
from duplex.server.faults import error_response


def routes(gateway: Gateway) -> list[Route]:
    """`/health` and `/ready` are open; `/v1/models` and `/metrics` take the token, if there is one."""
    created = int(time.time())

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        status = gateway.status
        body: dict[str, object] = {"status": status.value, "active_sessions": len(gateway.leases)}
        if status is Status.ENGINE_DOWN:
            body["reason"] = gateway.reason
        return JSONResponse(body, status_code=200 if status is Status.READY else 503)

    async def models(request: Request) -> Response:
        if (refusal := _refusal(gateway, request)) is not None:
            return refusal
        data = [
            {
                "id": adapter.info.id,
                "object": "model",
                "created": created,
                "owned_by": "duplex",
                "capabilities": {
                    "input_modalities": [m.value for m in adapter.info.input_modalities],
                    "output_modalities": [m.value for m in adapter.info.output_modalities],
                    "proactive": adapter.info.proactive,
                },
                "voices": list(adapter.info.voices),
                "description": adapter.info.description,
            }
            for adapter in gateway.adapters.values()
        ]
        return JSONResponse({"object": "list", "data": data})

    async def metrics(request: Request) -> Response:
        if (refusal := _refusal(gateway, request)) is not None:
            return refusal
        return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/v1/models", models),
        Route("/metrics", metrics),
    ]


def _refusal(gateway: Gateway, request: Request) -> Response | None:
    try:
        check_token(gateway.config.auth_token, request.headers, request.query_params)
    except DuplexError as error:
        return error_response(error)
    return None
