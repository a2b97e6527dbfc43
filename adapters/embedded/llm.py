"""Replies from any OpenAI-compatible chat endpoint, streamed as they are written.

Closing the iterator closes the stream, at which servers stop writing. Every way to fail has words of its own;
all are `ADAPTER_FAILED`, which ends the response and not the session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from duplex.adapters.embedded.replies import DEFAULT_INSTRUCTIONS, ReplyRequest
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.text import WholeCharacters

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
"""Longest silence of the endpoint, before the first word too."""
MAX_REPLY: Final = 16_000
"""Characters. A reply that runs on is cut here: it is 15 minutes of speech."""
_MAX_LINE = 1024 * 1024
_MAX_HISTORY = 40  # items


class _Content(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Content | None = None
    message: _Content | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChatReplies:
    """One endpoint, shared by all sessions.

    Args:
        url: base address, such as `http://127.0.0.1:8000/v1`; `/chat/completions` is added if it is missing.
        model: name that the endpoint knows it by.
        api_key: sent as a bearer token, and in no message or log.
        transport: for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "default",
        api_key: str | None = None,
        max_tokens: int = 400,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, "llm_url must be an http or https address", param="llm_url"
            )
        base = url.rstrip("/")
        self._url = base if base.endswith("/chat/completions") else f"{base}/chat/completions"
        self._where = parts.hostname + (f":{parts.port}" if parts.port else "")
        self._model = model
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._max_tokens = max_tokens
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Open the connection pool. The endpoint need not be there yet."""
        self._client = httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            transport=self._transport,
        )

    async def stop(self) -> None:
        """Close it."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def reply(self, request: ReplyRequest) -> AsyncGenerator[str, None]:
        """The answer in pieces of whole characters.

        Raises:
            DuplexError: `ADAPTER_FAILED` when the endpoint cannot be reached, refuses, stalls or sends
                what is no chat stream.
        """
        if self._client is None:
            raise RuntimeError("not started")
        body = {
            "model": self._model,
            "messages": messages(request),
            "stream": True,
            "max_tokens": self._max_tokens,
        }
        characters = WholeCharacters()
        length = 0
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    raise await self._refusal(response)
                async with aclosing(self._pieces(response)) as pieces:
                    async for piece in pieces:
                        piece = characters.push(piece)[: MAX_REPLY - length]
                        length += len(piece)
                        if piece:
                            yield piece
                        if length >= MAX_REPLY:
                            return
        except httpx.TimeoutException as error:
            raise self._failed("did not answer in time") from error
        except httpx.HTTPError as error:
            raise self._failed(f"cannot be reached: {type(error).__name__}") from error
        if rest := characters.end():
            yield rest
        if not length:
            raise self._failed("wrote an empty reply")

    async def _pieces(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        """The `content` of each server-sent event, or of the one JSON body of a server that cannot stream."""
        if "text/event-stream" not in response.headers.get("content-type", "text/event-stream"):
            body = await response.aread()
            yield self._content(body.decode("utf-8", "replace"))
            return
        async with aclosing(_lines(response)) as lines:
            async for line in lines:
                if line is None:
                    raise self._failed("sent a line of more than 1 MiB")
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                if content := self._content(data):
                    yield content

    def _content(self, data: str) -> str:
        try:
            try:
                chunk = _decode_chunk(data)
            except msgspec.DecodeError:
                # some servers write half of a surrogate pair, which only the standard library's reader takes
                chunk = msgspec.convert(json.loads(data), _Chunk)
        except (ValueError, RecursionError) as error:
            raise self._failed("sent what is no chat completion") from error
        if chunk.error:
            raise self._failed(f"reported an error: {_words(chunk.error)}")
        if not chunk.choices:
            return ""
        part = chunk.choices[0].delta or chunk.choices[0].message
        return (part.content or "") if part is not None else ""

    async def _refusal(self, response: httpx.Response) -> DuplexError:
        status = response.status_code
        if status in (401, 403):
            return self._failed(f"refused the key ({status})")
        if status == 404:
            return self._failed(f"does not know the path or the model {self._model!r} (404)")
        if status == 429:
            return self._failed("is busy (429)")
        body = b""
        async for part in response.aiter_bytes():
            body += part
            if len(body) > 4096:
                break
        try:
            words = _words(msgspec.json.decode(body))
        except msgspec.DecodeError:
            words = ""
        return self._failed(f"refused the request ({status})" + (f": {words}" if words else ""))

    def _failed(self, what: str) -> DuplexError:
        return DuplexError(ErrorCode.ADAPTER_FAILED, f"the language model at {self._where} {what}")


def messages(request: ReplyRequest) -> list[dict[str, str]]:
    """The conversation as chat messages; of the assistant only what was heard."""
    wanted = [{"role": "system", "content": request.instructions or DEFAULT_INSTRUCTIONS}]
    for item in request.history[-_MAX_HISTORY:]:
        if wanted[-1]["role"] == item.role:  # many chat templates want turns to alternate
            wanted[-1]["content"] += f"\n{item.text}"
        else:
            wanted.append({"role": item.role, "content": item.text})
    if wanted[-1]["role"] != "user":
        wanted.append({"role": "user", "content": "Hello." if len(wanted) == 1 else "Go on."})
    return wanted


async def _lines(response: httpx.Response) -> AsyncGenerator[str | None, None]:
    """Lines of the body; None for one that is too long."""
    waiting = b""
    async for part in response.aiter_bytes():
        *whole, waiting = (waiting + part).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if len(waiting) > _MAX_LINE:
            yield None
    if waiting:
        yield waiting.decode("utf-8", "replace")


def _words(error: Any) -> str:
    """An endpoint's own words about an error, shortened."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        message = inner.get("message") if isinstance(inner, dict) else inner
        return str(message)[:200] if message else ""
    return str(error)[:200]
