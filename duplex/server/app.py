"""The ASGI application of a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, WebSocketRoute

from duplex.adapters.base import Adapter
from duplex.config import ServerConfig
from duplex.dialects.native import NativeDialect
from duplex.runtime.gateway import Gateway
from duplex.server.endpoint import SessionEndpoint
from duplex.server.faults import not_found, on_http_exception
from duplex.server.http import routes
from duplex.server.realtime import realtime_routes
from duplex.speech.endpoint import speech_routes

log = logging.getLogger("duplex.server")


def create_app(
    config: ServerConfig,
    adapters: Sequence[Adapter] | None = None,
    *,
    extra_routes: Sequence[BaseRoute] = (),
    gateway: Gateway | None = None,
) -> Starlette:
    """The app; its gateway is `app.state.gateway`.

    `adapters` None: those that `config.adapter` names. Models are loaded in the background of the lifespan:
    `/health` answers and `/ready` says "loading" meanwhile. A model that cannot be loaded is logged, and
    `app.state.loading` holds the exception; `duplex.server.run` stops the process then.

    Raises:
        DuplexError: `BAD_CONFIG`.
    """
    if gateway is None:
        if adapters is None:
            from duplex.adapters.registry import load_adapters

            adapters = load_adapters(config)
        gateway = Gateway(config, adapters)
    served = gateway

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.get_running_loop().create_task(served.start(), name="loading the models")
        app.state.loading = loading
        loading.add_done_callback(_loaded)
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.wait({loading}, timeout=config.abort_timeout_s)
            await served.stop()

    app = Starlette(
        routes=[
            WebSocketRoute(
                "/v1/duplex", SessionEndpoint(served, NativeDialect, lambda: served.default_model)
            ),
            WebSocketRoute(
                "/v1/mage-vl/duplex",
                SessionEndpoint(served, NativeDialect, lambda: served.default_video_model),
            ),
            *realtime_routes(served),
            *routes(served),
            *speech_routes(served),
            *extra_routes,
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: on_http_exception},
    )
    app.router.default = not_found
    app.state.gateway = served
    return app


def _loaded(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("cannot load the models: %s", error, exc_info=error)
