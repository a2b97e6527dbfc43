"""Running a gateway: as the process's main job, or inside another program."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import FrameType

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from duplex.adapters.base import Adapter
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime import gateway as runtime
from duplex.server.app import create_app
from duplex.server.http_protocol import GatewayHttp
from duplex.server.websocket import GatewayWebSocket

log = logging.getLogger("duplex.server")

CLOSING_S = 5.0
"""Seconds that requests and closing handshakes may take after the drain."""
BACKLOG = 2048
MESSAGE_SLACK = 64 * 1024


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that answers. `url` is `http://host:port`, `ws_url` the same for WebSockets."""

    url: str
    ws_url: str
    runtime: runtime.Gateway


class Server(uvicorn.Server):
    """uvicorn's server, but: it waits for events where uvicorn looks ten times a second, it drains before it
    shuts down, and it returns after a signal, where uvicorn ends the process by the same signal again."""

    def __init__(self, config: uvicorn.Config, gateway: runtime.Gateway, *, take_signals: bool) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._gateway = gateway
        self._take_signals = take_signals and threading.current_thread() is threading.main_thread()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Drain and shut down; called a second time, shut down at once."""
        if self.should_exit:
            self.force_exit = True
            self._hurry.set()
        self.should_exit = True
        self._stop.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        await self._stop.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if not self._take_signals:
            yield
            return
        loop = asyncio.get_running_loop()

        def on_signal(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.stop)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # the listener is still open: probes see that we are draining, newcomers are refused by name
        await self._unless_hurried(self._gateway.drain())
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            _, late = await asyncio.wait(set(self.server_state.tasks), timeout=CLOSING_S)
            for task in late:
                task.cancel()
        await self._unless_hurried(self.lifespan.shutdown())
        log.info("stopped")

    async def _unless_hurried(self, work: object) -> None:
        working = asyncio.ensure_future(work)  # type: ignore[call-overload]
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({working, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, hurry):
            task.cancel()


SWITCH_INTERVAL_S = 0.0005
"""How long a worker's Python code may keep the loop waiting (seconds). With Python's own 5 ms, an
interruption that is decided on a worker takes longer to reach the model (benchmarks/turns.py)."""


def serve(
    config: ServerConfig,
    adapters: Sequence[Adapter] | None = None,
    *,
    extra_routes: Sequence[BaseRoute] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, drain and return. A second signal cuts the drain short.

    Raises:
        DuplexError: `BAD_CONFIG`, also when the address cannot be had.
        Exception: what a model failed to load with.
    """
    logging.getLogger("duplex").setLevel(config.log_level.upper())
    app = create_app(config, adapters, extra_routes=extra_routes)
    settings = _uvicorn_config(app, config)
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def main() -> None:
        async with _serving(app, config, settings, take_signals=True) as (_, serving, address):
            # what is loaded stays: the collector need not look through it while sessions run
            gc.collect()
            gc.freeze()
            if not serving.done():
                log.info("serving %s on http://%s:%d", ", ".join(app.state.gateway.adapters), *address)
            await serving

    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(main())


@contextlib.asynccontextmanager
async def running_gateway(
    config: ServerConfig | None = None,
    adapters: Sequence[Adapter] | None = None,
    *,
    extra_routes: Sequence[BaseRoute] = (),
) -> AsyncIterator[Gateway]:
    """A gateway on this loop, for tests, demos and programs that embed one. On leaving it drains and stops.

    Port 0, the default here, takes a free one. Signals are left alone. Raises as `serve` does.
    """
    config = config or ServerConfig(port=0)
    app = create_app(config, adapters, extra_routes=extra_routes)
    settings = _uvicorn_config(app, config)
    async with _serving(app, config, settings, take_signals=False) as (_, _, (host, port)):
        name = f"[{host}]" if ":" in host else host
        yield Gateway(url=f"http://{name}:{port}", ws_url=f"ws://{name}:{port}", runtime=app.state.gateway)


@contextlib.asynccontextmanager
async def _serving(
    app: Starlette, config: ServerConfig, settings: uvicorn.Config, *, take_signals: bool
) -> AsyncIterator[tuple[Server, asyncio.Task[None], tuple[str, int]]]:
    """A server with its models loaded; on leaving it has shut down."""
    listeners = _listen(config.host, config.port)
    host, port = listeners[0].getsockname()[:2]
    server = Server(settings, app.state.gateway, take_signals=take_signals)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=listeners), name="server")
    up = asyncio.get_running_loop().create_task(server.up.wait())
    try:
        await asyncio.wait({serving, up}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            loading: asyncio.Task[None] = app.state.loading
            await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and not loading.cancelled() and (error := loading.exception()) is not None:
                raise error
        yield server, serving, (host, port)
    finally:
        up.cancel()
        server.stop()
        await asyncio.wait({serving})
        for listener in listeners:
            listener.close()
    await serving  # raises what it failed with


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of the host; on the first one only, when any port will do.

    Raises:
        DuplexError: `BAD_CONFIG`.
    """
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found if port else found[:1]):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        for listener in listeners:
            listener.close()
        words = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise DuplexError(ErrorCode.BAD_CONFIG, words, param="port") from None
    return listeners


def _uvicorn_config(app: Starlette, config: ServerConfig) -> uvicorn.Config:
    """uvicorn's settings. Its own lines are left out below warnings: they hold the query, and so tokens."""
    settings = uvicorn.Config(
        app,
        http=GatewayHttp,
        ws=GatewayWebSocket,
        # what is over the limit but not absurd is read whole, so that the close handshake stays in step
        ws_max_size=2 * config.max_message_bytes + MESSAGE_SLACK,
        ws_ping_interval=config.ping_interval_s,
        ws_ping_timeout=config.ping_timeout_s,
        ws_per_message_deflate=False,
        lifespan="on",
        access_log=False,
        log_config=None,
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=int(CLOSING_S),
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings.load()
    return settings
