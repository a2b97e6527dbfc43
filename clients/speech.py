"""Clients of the speech endpoints: `AsyncSpeechClient`, and `SpeechClient`, which blocks.

They need httpx, which comes with the extras `speech` and `embedded`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import msgspec
import pybase64

from duplex.adapters.speech import SpeechVoice
from duplex.clients.address import http_url
from duplex.clients.errors import ClientError, ConnectionLost, RequestRefused, error_code
from duplex.clients.loop_thread import LoopThread
from duplex.clients.speech_events import (
    SpeechAudio,
    SpeechCancelled,
    SpeechDone,
    SpeechDraining,
    SpeechEvent,
    SpeechFault,
    SpeechUnitDone,
    SpeechUnitStarted,
)
from duplex.clients.speech_stream import SpeechStream, stream_url
from duplex.speech.voices import VoiceRecord

if TYPE_CHECKING:
    import httpx

__all__ = [
    "AsyncSpeechClient",
    "BlockingSpeechStream",
    "SpeechAudio",
    "SpeechCancelled",
    "SpeechClient",
    "SpeechDone",
    "SpeechDraining",
    "SpeechEvent",
    "SpeechFault",
    "SpeechRefused",
    "SpeechStream",
    "SpeechUnitDone",
    "SpeechUnitStarted",
    "SpokenItem",
    "VoiceList",
]

T = TypeVar("T")


class SpeechRefused(RequestRefused):
    """The server refused a request. `status` is HTTP's; `retry_after_s` is set when trying later may help."""

    def __init__(
        self, message: str, *, status: int, retry_after_s: float | None = None, **names: Any
    ) -> None:
        super().__init__(message, **names)
        self.status = status
        self.retry_after_s = retry_after_s


class VoiceList(msgspec.Struct, frozen=True, kw_only=True):
    """`voices`: every name that `voice` may have, but for uploads; `details`: the model's own."""

    voices: tuple[str, ...]
    uploaded_voices: tuple[VoiceRecord, ...]
    details: tuple[SpeechVoice, ...] = ()


class SpokenItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a batch: its audio, or why it failed."""

    index: int
    audio: bytes = b""
    media_type: str = ""
    error: str | None = None
    error_code: str | None = None
    param: str | None = None


class AsyncSpeechClient:
    """Spoken text from a gateway.

    ::

        async with AsyncSpeechClient("http://127.0.0.1:8600") as client:
            wave = await client.speak("Hello there.")

    Keyword options of the methods are the fields of the endpoint (`voice`, `response_format`, `speed`, …);
    those given here are defaults for all. Requests raise `SpeechRefused` for what the server says, and
    `ConnectionLost` when there is none.

    Args:
        url: `http://host:port`, or `https`; `ws` and `wss` are taken for these.
        token: the server's bearer token.
        timeout_s: without a byte, a request is given up after it.

    Raises:
        BadConfig: the address is none.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8600",
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        self._url = http_url(url)
        self._token = token
        self._timeout_s = timeout_s
        self._options = options
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close the connections of requests. Streams are closed by themselves."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # --- speech -------------------------------------------------------------------------------------

    async def speak(self, text: str, **options: Any) -> bytes:
        """The text as one file of `response_format` (default WAV)."""
        response = await self._request("POST", "/v1/audio/speech", json=self._body(text, options))
        return response.content

    async def pieces(self, text: str, **options: Any) -> AsyncGenerator[bytes, None]:
        """The same file, piece by piece as it is made. Leave the iteration to stop the model."""
        body = self._body(text, {**options, "stream_format": "audio"})
        with _connection_faults(self._url):
            async with self._http.stream("POST", "/v1/audio/speech", json=body) as response:
                if response.is_error:
                    await response.aread()
                    raise _refusal(response)
                async for piece in response.aiter_raw():
                    yield piece

    async def batch(self, items: Iterable[str | Mapping[str, Any]], **options: Any) -> list[SpokenItem]:
        """Up to 32 texts in order; an item that is an object may have options of its own. One that fails
        does not fail the others."""
        wanted = [{"input": item} if isinstance(item, str) else dict(item) for item in items]
        body = {**self._options, **options, "items": wanted}
        response = await self._request("POST", "/v1/audio/speech/batch", json=body)
        return [_item(result) for result in response.json()["results"]]

    def stream(self, **options: Any) -> SpeechStream:
        """A connection that speaks while text is written: `async with client.stream(…) as stream`."""
        return SpeechStream(
            stream_url(self._url),
            {**self._options, **options},
            token=self._token,
            timeout_s=self._timeout_s,
        )

    # --- voices -------------------------------------------------------------------------------------

    async def voices(self, model: str | None = None) -> VoiceList:
        """What voices there are."""
        params = {} if model is None else {"model": model}
        response = await self._request("GET", "/v1/audio/voices", params=params)
        return msgspec.json.decode(response.content, type=VoiceList)

    async def add_voice(
        self,
        name: str,
        audio: bytes,
        *,
        consent: str,
        mime_type: str = "audio/wav",
        ref_text: str | None = None,
        speaker_description: str | None = None,
    ) -> VoiceRecord:
        """Upload a recording (at most 10 MiB). The very same upload again changes nothing."""
        data = {"name": name, "consent": consent}
        if ref_text is not None:
            data["ref_text"] = ref_text
        if speaker_description is not None:
            data["speaker_description"] = speaker_description
        files = {"audio_sample": ("sample", audio, mime_type)}
        response = await self._request("POST", "/v1/audio/voices", data=data, files=files)
        return msgspec.convert(response.json()["voice"], VoiceRecord)

    async def remove_voice(self, name: str) -> None:
        """Delete an upload."""
        await self._request("DELETE", f"/v1/audio/voices/{quote(name, safe='')}")

    # --- inside -------------------------------------------------------------------------------------

    def _body(self, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._options, **options, "input": text}

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            try:
                import httpx
            except ImportError:
                words = "the speech client needs httpx: pip install 'duplex-gateway[speech]'"
                raise ClientError(words) from None
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            self._client = httpx.AsyncClient(
                base_url=self._url, headers=headers, timeout=self._timeout_s, trust_env=False
            )
        return self._client

    async def _request(self, method: str, path: str, **content: Any) -> httpx.Response:
        http = self._http
        with _connection_faults(self._url):
            response = await http.request(method, path, **content)
        if response.is_error:
            raise _refusal(response)
        return response


@contextmanager
def _connection_faults(url: str) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.TransportError as error:
        raise ConnectionLost(f"{url}: {error or type(error).__name__}") from None


def _refusal(response: httpx.Response) -> SpeechRefused:
    """The exception of an error answer, in our own shape or anybody's."""
    names: dict[str, Any] = {}
    message = f"HTTP {response.status_code}"
    try:
        told = response.json()["error"]
        message = str(told["message"])
        names = {"code": error_code(str(told.get("error_code"))), "param": told.get("param")}
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    after = response.headers.get("retry-after", "")
    retry_after_s = float(after) if after.isdecimal() else None
    return SpeechRefused(message, status=response.status_code, retry_after_s=retry_after_s, **names)


def _item(result: Mapping[str, Any]) -> SpokenItem:
    return SpokenItem(
        index=result["index"],
        audio=pybase64.b64decode(result.get("audio_data", "")),
        media_type=result.get("media_type", ""),
        error=result.get("error"),
        error_code=result.get("error_code"),
        param=result.get("param"),
    )


class SpeechClient:
    """`AsyncSpeechClient` for code without an event loop: the same methods, blocking. Takes what it takes,
    and the same errors are raised."""

    def __init__(self, url: str = "http://127.0.0.1:8600", **options: Any) -> None:
        self._loop = LoopThread("duplex speech client")
        self._client = AsyncSpeechClient(url, **options)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self._loop.running:
            try:
                self._loop.run(self._client.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def speak(self, text: str, **options: Any) -> bytes:
        return self._loop.run(self._client.speak(text, **options))

    def pieces(self, text: str, **options: Any) -> Iterator[bytes]:
        """The same file, piece by piece as it is made. Close the iterator to stop the model."""
        pieces = self._client.pieces(text, **options)
        try:
            while (piece := self._loop.run(_next(pieces))) is not None:
                yield piece
        finally:
            self._loop.run(pieces.aclose())

    def batch(self, items: Iterable[str | Mapping[str, Any]], **options: Any) -> list[SpokenItem]:
        return self._loop.run(self._client.batch(items, **options))

    def stream(self, **options: Any) -> BlockingSpeechStream:
        """A connection that speaks while text is written: `with client.stream(…) as stream`."""
        return BlockingSpeechStream(self._client.stream(**options), self._loop)

    def voices(self, model: str | None = None) -> VoiceList:
        return self._loop.run(self._client.voices(model))

    def add_voice(self, name: str, audio: bytes, *, consent: str, **words: Any) -> VoiceRecord:
        return self._loop.run(self._client.add_voice(name, audio, consent=consent, **words))

    def remove_voice(self, name: str) -> None:
        self._loop.run(self._client.remove_voice(name))


class BlockingSpeechStream:
    """`SpeechStream`, blocking. Requests may come from any thread; events are for one thread to iterate."""

    def __init__(self, stream: SpeechStream, loop: LoopThread) -> None:
        self._stream = stream
        self._loop = loop

    def __enter__(self) -> Self:
        self._loop.run(self._stream.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._stream.close() if kind is None else self._stream.abort())

    def configure(self, *, context_id: str | None = None, **options: Any) -> None:
        self._loop.run(self._stream.configure(context_id=context_id, **options))

    def say(self, text: str, *, context_id: str | None = None) -> None:
        self._loop.run(self._stream.say(text, context_id=context_id))

    def flush(self, *, context_id: str | None = None) -> None:
        self._loop.run(self._stream.flush(context_id=context_id))

    def cancel(self, *, context_id: str | None = None) -> None:
        self._loop.run(self._stream.cancel(context_id=context_id))

    def __iter__(self) -> Iterator[SpeechEvent]:
        return self

    def __next__(self) -> SpeechEvent:
        event = self._loop.run(_next(self._stream))
        if event is None:
            raise StopIteration
        return event


async def _next(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
