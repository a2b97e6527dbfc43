"""A connection to the speech WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConcurrencyError,
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
)

from duplex.clients.errors import (
    ClientError,
    ConnectionLost,
    SessionClosed,
    SessionOver,
    error_code,
    handshake_refused,
    session_over,
)
from duplex.clients.speech_events import SpeechEvent, SpeechEvents, SpeechFault

CLOSE_TIMEOUT_S: Final = 15.0
"""For what was flushed to be spoken after `close`."""


class SpeechStream:
    """Text in as it is written, speech out as it is made. Made by `AsyncSpeechClient.stream`.

    ::

        async with client.stream(voice="heart", response_format="pcm") as stream:
            await stream.say("Hello there.")
            await stream.flush()
            async for event in stream:
                ...

    Several contexts may speak at a time: give each a `context_id`. Iteration reads the socket, one reader at
    a time; while nobody iterates the server is held up, and gives up after its `slow_reader_timeout_s`. It
    ends when the connection was closed as asked, and raises the `SessionOver` that says why when it ended any
    other way.
    """

    def __init__(self, url: str, options: Mapping[str, Any], *, token: str | None, timeout_s: float) -> None:
        self._url = url
        self._options = {"stream_audio": True, **options}
        self._token = token
        self._timeout_s = timeout_s
        self._socket: ClientConnection | None = None
        self._events = SpeechEvents()
        self._rest: deque[SpeechEvent] = deque()
        self._fault: SpeechFault | None = None

    async def open(self) -> None:
        """Connect and configure.

        Raises:
            SessionOver: of the class that says why there is no connection. What the server refuses later,
                a configuration too, is a `SpeechFault` event, or ends the iteration.
        """
        if self._socket is not None:
            raise ClientError("a stream is opened once")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else None
        try:
            self._socket = await connect(
                self._url,
                additional_headers=headers,
                compression=None,
                max_size=None,
                open_timeout=self._timeout_s,
                close_timeout=1.0,
            )
        except InvalidStatus as error:
            raise handshake_refused(error.response.status_code, bytes(error.response.body or b"")) from None
        except (OSError, TimeoutError, InvalidHandshake, InvalidMessage) as error:
            words = f"no connection to {self._url}: {error or type(error).__name__}"
            raise ConnectionLost(words) from None
        await self._send("session.config", **self._options)

    async def close(self) -> None:
        """Let what was flushed be spoken, unheard by this client, and close. Idempotent."""
        socket = self._socket
        if socket is None:
            return
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            await socket.send(_message("session.close"))
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                async for _ in socket:
                    pass
        await socket.close()

    async def abort(self) -> None:
        """Close at once: the server stops speaking."""
        if self._socket is not None:
            await self._socket.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await (self.close() if exception[0] is None else self.abort())

    # --- requests: they raise `SessionOver` once the connection is over ------------------------------

    async def configure(self, *, context_id: str | None = None, **options: Any) -> None:
        """Change options, between utterances: for all contexts, or for one."""
        await self._send("session.config", context_id, **options)

    async def say(self, text: str, *, context_id: str | None = None) -> None:
        """More text of the context's utterance, in pieces of any size."""
        await self._send("input.text", context_id, text=text)

    async def flush(self, *, context_id: str | None = None) -> None:
        """The utterance is complete; the next text begins another one."""
        await self._send("input.done", context_id)

    async def cancel(self, *, context_id: str | None = None) -> None:
        """Stop the context. From this call on no audio of what it was to say is seen."""
        self._events.cancelled(context_id)
        await self._send("input.cancel", context_id)

    async def _send(self, type: str, context_id: str | None = None, **fields: Any) -> None:
        if context_id is not None:
            fields["context_id"] = context_id
        try:
            await self._opened.send(_message(type, **fields))
        except ConnectionClosed:
            await self._read_rest()  # the reason is among what came before the close
            raise self._why_over() from None

    # --- events -------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        return self

    async def __anext__(self) -> SpeechEvent:
        if self._rest:
            return self._rest.popleft()
        try:
            while (event := self._receive(await self._opened.recv())) is None:
                pass
        except ConnectionClosed:
            over = self._why_over()
            if isinstance(over, SessionClosed):
                raise StopAsyncIteration from None
            raise over from None
        return event

    async def _read_rest(self) -> None:
        """What came before the connection ended, for whoever still iterates."""
        try:
            while True:
                event = self._receive(await self._opened.recv())
                if event is not None:
                    self._rest.append(event)
        except (ConnectionClosed, ConcurrencyError):  # an iteration is under way: it reads the rest
            pass

    def _receive(self, frame: str | bytes) -> SpeechEvent | None:
        event = self._events.receive(frame)
        if isinstance(event, SpeechFault):
            self._fault = event
        return event

    @property
    def _opened(self) -> ClientConnection:
        if self._socket is None:
            raise ClientError("the stream is not open")
        return self._socket

    def _why_over(self) -> SessionOver:
        socket = self._opened
        code, reason = socket.close_code, socket.close_reason or ""
        fault = error_code(self._fault.code) if self._fault is not None else None
        if fault is None or self._fault is None or not _ends_with(fault, reason):
            return session_over(code, reason)
        return session_over(code, reason, fault=fault, words=self._fault.message)


def _ends_with(fault: object, reason: str) -> bool:
    """A fault that ends the connection is named in the close's reason."""
    return str(fault) == reason


def stream_url(url: str) -> str:
    """The stream's address on the server at `url` (`http://host:port`)."""
    scheme, _, rest = url.rstrip("/").partition("://")
    return f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{rest}/v1/audio/speech/stream"


def _message(type: str, **fields: Any) -> str:
    return msgspec.json.encode({"type": type, **fields}).decode()
