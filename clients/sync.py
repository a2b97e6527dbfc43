"""The blocking client: `AsyncDuplexClient` on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from duplex.clients.client import AsyncDuplexClient
from duplex.clients.errors import ClientError, SessionClosed
from duplex.clients.events import ClientEvent, SessionCreated
from duplex.clients.protocol import Audio
from duplex.clients.response import Response

T = TypeVar("T")


class DuplexClient:
    """`AsyncDuplexClient` for code without an event loop: the same methods, blocking.

    ::

        with DuplexClient("ws://127.0.0.1:8600/v1/duplex") as client:
            client.speak("Hello there.")
            print(client.response().text)

    Requests may come from any thread; events are for one thread to iterate. Takes what
    `AsyncDuplexClient` takes, and the same errors are raised.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: AsyncDuplexClient | None = None

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """A client that is open."""
        client = cls(url, **options)
        client.open()
        return client

    # --- life ---------------------------------------------------------------------------------------

    def open(self) -> SessionCreated:
        """Connect and begin the session."""
        if self._thread is not None:
            raise ClientError("a client is opened once")
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="duplex client", daemon=True)
        self._thread.start()
        try:
            return self._wait(self._open())
        except BaseException:
            self._stop()
            raise

    async def _open(self) -> SessionCreated:
        self._client = AsyncDuplexClient(self._url, **self._options)
        return await self._client.open()

    def close(self) -> None:
        """End gracefully: the running response finishes first. Idempotent."""
        if self._loop is not None:
            try:
                self._wait(self._opened.close())
            finally:
                self._stop()

    def abort(self) -> None:
        """End at once."""
        if self._loop is not None:
            try:
                self._wait(self._opened.abort())
            finally:
                self._stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.close()
        else:
            self.abort()

    @property
    def session(self) -> SessionCreated:
        """What the server said when the session began, or was resumed."""
        return self._opened.session

    @property
    def connected(self) -> bool:
        """False while the connection is down."""
        return self._client is not None and self._client.connected

    # --- requests -----------------------------------------------------------------------------------

    def append_text(self, text: str, *, event_id: str | None = None) -> None:
        self._wait(self._opened.append_text(text, event_id=event_id))

    def append_audio(self, audio: Audio, sample_rate: int = 16000, *, event_id: str | None = None) -> None:
        self._wait(self._opened.append_audio(audio, sample_rate, event_id=event_id))

    def append_image(self, image: bytes, *, pts_ms: float | None = None, event_id: str | None = None) -> None:
        self._wait(self._opened.append_image(image, pts_ms=pts_ms, event_id=event_id))

    def append_video(self, data: bytes = b"", **place: Any) -> None:
        self._wait(self._opened.append_video(data, **place))

    def append_codec_window(self, kind: str, codec: Mapping[str, Any], **place: Any) -> None:
        self._wait(self._opened.append_codec_window(kind, codec, **place))

    def commit(self) -> str:
        return self._wait(self._opened.commit())

    def respond(self, *, modalities: Iterable[str] | None = None) -> str:
        return self._wait(self._opened.respond(modalities=modalities))

    def speak(self, text: str, *, modalities: Iterable[str] | None = None) -> str:
        return self._wait(self._opened.speak(text, modalities=modalities))

    def cancel(self, response_index: int | None = None) -> str:
        return self._wait(self._opened.cancel(response_index))

    def ack(self, cursor_ms: float, response_index: int | None = None) -> None:
        self._wait(self._opened.ack(cursor_ms, response_index))

    def update(
        self, changes: Mapping[str, Any] | None = None, *, extensions: Iterable[str] | None = None
    ) -> str:
        return self._wait(self._opened.update(changes, extensions=extensions))

    # --- events -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ClientEvent]:
        return self

    def __next__(self) -> ClientEvent:
        event = self._wait(self._next())
        if event is None:
            raise StopIteration
        return event

    async def _next(self) -> ClientEvent | None:
        try:
            return await self._opened.__anext__()
        except StopAsyncIteration:
            return None

    def response(self, timeout_s: float | None = None) -> Response:
        """Take events until the next response has ended, and gather it.

        Raises:
            TimeoutError: it did not end in time; the events that came are lost.
        """
        return self._wait(asyncio.wait_for(self._opened.response(), timeout_s))

    # --- the thread ---------------------------------------------------------------------------------

    @property
    def _opened(self) -> AsyncDuplexClient:
        if self._client is None:
            raise ClientError("the client is not open")
        return self._client

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise (
                SessionClosed("the client was closed")
                if self._thread
                else ClientError("open the client first")
            )
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except CancelledError:
            raise SessionClosed("the client was closed") from None
        except BaseException:
            future.cancel()  # the waiting was interrupted: stop what was waited for
            raise

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _cancel_all() -> None:
    """Let nothing run on when the loop stops."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
