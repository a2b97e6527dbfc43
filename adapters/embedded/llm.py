"""Replies from any OpenAI-compatible chat endpoint, streamed as they are written.

Closing the iterator closes the stream, at which servers stop writing. Every way to fail has words of its own;
all are `ADAPTER_FAILED`, which ends the response and not the session.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from duplex.adapters.embedded.replies import DEFAULT_INSTRUCTIONS, SILENCE, ReplyPart, ReplyRequest
from duplex.adapters.engine.server_events import DONE, Events, TooLong
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.text import WholeCharacters
from duplex.core.types import LengthReached, ToolCallDelta, ToolSpec

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
"""Longest silence of the endpoint, before the first word too."""
MAX_REPLY: Final = 16_000
"""Characters. A reply that runs on is cut here: it is 15 minutes of speech."""
_MAX_HISTORY = 40  # items


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Content(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Content | None = None
    message: _Content | None = None
    finish_reason: str | None = None


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

    async def reply(self, request: ReplyRequest) -> AsyncGenerator[ReplyPart, None]:
        """The answer in pieces of whole characters, and calls of the request's tools; `LengthReached` last
        when the endpoint says that its tokens were spent.

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
            "max_tokens": min(self._max_tokens, request.max_output_tokens or self._max_tokens),
        }
        if request.tools:
            body["tools"] = [_function(tool) for tool in request.tools]
            body["tool_choice"] = _choice(request.tool_choice)
        characters = WholeCharacters()
        calls = ToolCalls()
        length = 0
        spent = False
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    raise await self._refusal(response)
                async with aclosing(self._pieces(response)) as pieces:
                    async for part, reason in pieces:
                        spent = spent or reason == "length"
                        for call in calls.read(part.tool_calls):
                            yield call
                        piece = characters.push(part.content or "")[: MAX_REPLY - length]
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
        if spent:
            yield LengthReached()
        elif not length and not calls.made:
            raise self._failed("wrote an empty reply")

    async def _pieces(self, response: httpx.Response) -> AsyncGenerator[tuple[_Content, str | None], None]:
        """What is in each server-sent event, or in the one JSON body of a server that cannot stream, and why
        the reply ends with it."""
        if "text/event-stream" not in response.headers.get("content-type", "text/event-stream"):
            body = await response.aread()
            yield self._content(body.decode("utf-8", "replace"))
            return
        events = Events()
        try:
            async for part in response.aiter_bytes():
                for data in events.feed(part):
                    if data == DONE:
                        return
                    yield self._content(data.decode("utf-8", "replace"))
        except TooLong:
            raise self._failed("sent a line of more than 1 MiB") from None
        for data in events.end():
            if data != DONE:
                yield self._content(data.decode("utf-8", "replace"))

    def _content(self, data: str) -> tuple[_Content, str | None]:
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
            return _Content(), None
        choice = chunk.choices[0]
        return choice.delta or choice.message or _Content(), choice.finish_reason

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


class ToolCalls:
    """Puts the calls of a chat stream together: their ids and names come once, their arguments in pieces."""

    def __init__(self) -> None:
        self.made = 0
        self._known: dict[int, tuple[str, str]] = {}

    def read(self, parts: list[_Call] | None) -> list[ToolCallDelta]:
        deltas = []
        for part in parts or ():
            function = part.function or _Function()
            if part.index not in self._known:
                self.made += 1
                call_id = part.id or f"call_{secrets.token_hex(8)}"
                self._known[part.index] = call_id, function.name or ""
            call_id, name = self._known[part.index]
            deltas.append(ToolCallDelta(call_id=call_id, name=name, arguments=function.arguments or ""))
        return deltas


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters or {"type": "object", "properties": {}},
        },
    }


def _choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def messages(request: ReplyRequest) -> list[dict[str, Any]]:
    """The conversation as chat messages; of the assistant only what was heard. Calls without a result, and
    results without a call, are left out: endpoints refuse them."""
    wanted: list[dict[str, Any]] = [
        {"role": "system", "content": request.instructions or DEFAULT_INSTRUCTIONS}
    ]
    history = request.history[-_MAX_HISTORY:]
    results = {item.call_id for item in history if item.role == "tool"}
    answered = {item.call_id for item in history if item.call_id in results and item.role == "assistant"}
    for item in history:
        last = wanted[-1]
        if item.call_id and item.call_id not in answered:
            continue
        if item.role == "tool":
            wanted.append({"role": "tool", "tool_call_id": item.call_id, "content": item.text})
        elif item.call_id:
            function = {"name": item.name, "arguments": item.text}
            call = {"id": item.call_id, "type": "function", "function": function}
            if "tool_calls" in last:
                last["tool_calls"].append(call)
            else:
                wanted.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif last["role"] == item.role and "tool_calls" not in last:
            last["content"] += f"\n{item.text}"  # many chat templates want turns to alternate
        else:
            wanted.append({"role": item.role, "content": item.text})
    if request.silent:
        wanted[0]["content"] += f"\n{SILENCE}"
    if wanted[-1]["role"] not in ("user", "tool"):
        wanted.append({"role": "user", "content": "Hello." if len(wanted) == 1 else "Go on."})
    return wanted


def _words(error: Any) -> str:
    """An endpoint's own words about an error, shortened."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        message = inner.get("message") if isinstance(inner, dict) else inner
        return str(message)[:200] if message else ""
    return str(error)[:200]
