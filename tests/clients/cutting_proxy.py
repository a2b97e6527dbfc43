"""A network that breaks: a TCP proxy that cuts its connections after so many bytes, or when it is told to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CuttingProxy:
    """`target` is the port behind it, of new connections.

    Args:
        budget: gives the bytes, of both directions together, after which a connection is cut; None never.
    """

    def __init__(self, target: int, budget: random.Random | None = None, *, up_to: int = 0) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.cuts = 0
        self.calm = False
        """No more cuts."""
        self._budget = budget
        self._up_to = up_to
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def url(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def cut(self) -> None:
        """Break all connections, with what is on its way."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def stop(self) -> None:
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, OSError):
                return
            raise
        both = {writer, far_writer}
        self._open |= both
        left = [self._budget.randrange(self._up_to) if self._budget is not None else None]

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1024):
                if left[0] is not None and not self.calm:
                    sink.write(data[: left[0]])  # in the middle of a frame as well
                    left[0] -= len(data)
                    if left[0] <= 0:
                        self.cuts += 1
                        return
                else:
                    sink.write(data)
                await sink.drain()
            if sink.can_write_eof():
                sink.write_eof()
            await asyncio.Event().wait()  # the other direction ends it

        pumps = [
            asyncio.ensure_future(pump(reader, far_writer)),
            asyncio.ensure_future(pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in both:
                end.transport.abort()
            self._open -= both


@asynccontextmanager
async def cutting_proxy(
    target: int, budget: random.Random | None = None, *, up_to: int = 0
) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(target, budget, up_to=up_to)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
