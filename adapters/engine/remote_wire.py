"""What is said to OpenAI-compatible servers, and what they say. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from duplex.adapters.engine.language import ChatPrompt, Finish, Sampling, TokenPrompt
from duplex.core.errors import DuplexError, ErrorCode

_TOO_LONG: Final = (
    "context_length",
    "context length",
    "maximum model length",
    "max_model_len",
    "context window",
)
_MOST_WORDS: Final = 300


class Content(msgspec.Struct):
    """A message, or a piece of one. The others: what servers call the thoughts before it."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class Choice(msgspec.Struct):
    """An answer, or a piece of one: `text` of completions, `delta` of chats, `message` of whole chats.
    `token_ids` only from servers that were asked for them and know how."""

    text: str | None = None
    delta: Content | None = None
    message: Content | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def said(self) -> str:
        """Its text."""
        content = self.delta or self.message
        return self.text or (content.content if content is not None else None) or ""

    @property
    def thought(self) -> str:
        """Thoughts, which are not part of the answer."""
        content = self.delta or self.message
        told = (content.reasoning_content or content.reasoning) if content is not None else None
        return told if isinstance(told, str) else ""


class Usage(msgspec.Struct):
    """Tokens that were counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a stream, or a whole answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Model(msgspec.Struct):
    """An entry of the list of models. `max_model_len`: vLLM's and SGLang's word for the context, tokens."""

    id: str
    max_model_len: int | None = None


class Models(msgspec.Struct):
    """What `GET /models` answers."""

    data: list[Model] = []


_chunk_of = msgspec.json.Decoder(Chunk).decode
models_of = msgspec.json.Decoder(Models).decode


def body_of(
    prompt: ChatPrompt | TokenPrompt, sampling: Sampling, *, model: str, most: int, extra: Mapping[str, Any]
) -> tuple[str, bytes]:
    """The path and the body that ask for an answer of at most `most` tokens.

    What OpenAI's own interface does not have is only sent where it is not the default.
    """
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": most,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.repetition_penalty != 1.0:
        body["repetition_penalty"] = sampling.repetition_penalty
    if sampling.stop_ids:
        body["stop_token_ids"] = sampling.stop_ids
    if sampling.ignore_end:
        body["ignore_eos"] = True
    if isinstance(prompt, ChatPrompt):
        path, body["messages"] = "/chat/completions", prompt.messages
    else:
        path, body["prompt"] = "/completions", prompt.ids
    return path, msgspec.json.encode({**body, **extra})


def most_asked(most: int, extra: Mapping[str, Any]) -> int:
    """Tokens that a request with these `extra` fields asks for at most."""
    others = (extra.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return max([most, *(other for other in others if isinstance(other, int))])


def chunk_of(data: bytes) -> Chunk:
    """One event.

    Raises:
        ValueError: it is none.
    """
    try:
        return _chunk_of(data)
    except msgspec.DecodeError:
        # some servers write half of a surrogate pair, which only the standard library's reader takes
        try:
            return msgspec.convert(json.loads(data), Chunk)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def finish_of(reason: str) -> Finish:
    """Why an answer ended: all that is not its length is its end."""
    return "length" if reason == "length" else "stop"


def words_of(body: bytes) -> str:
    """A server's own words about an error, shortened; "" where it has none."""
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return words_in(told)


def words_in(told: Any) -> str:
    """As `words_of`, of what was decoded."""
    if isinstance(told, dict):
        inner = told.get("error", told)
        told = inner.get("message") if isinstance(inner, dict) else inner
    return str(told)[:_MOST_WORDS] if told else ""


def refusal_of(status: int, body: bytes, *, where: str, model: str) -> DuplexError:
    """What an HTTP status other than 200 means. The key is in no message, nor what a server says of it."""
    failed = ErrorCode.ADAPTER_FAILED
    if status in (401, 403):
        return DuplexError(failed, f"{where} refused the key ({status})")
    words = words_of(body)
    said = f": {words}" if words else ""
    if status == 404:
        return DuplexError(failed, f"{where} does not know the path or the model {model!r} (404)")
    if status == 429:
        return DuplexError(failed, f"{where} is busy (429)")
    if status >= 500:
        return DuplexError(failed, f"{where} failed ({status}){said}")
    if status in (400, 413, 422):
        too_long = status == 413 or any(word in words.lower() for word in _TOO_LONG)
        code = ErrorCode.INPUT_OVERFLOW if too_long else ErrorCode.INVALID_VALUE
        return DuplexError(code, f"{where} refused the prompt ({status}){said}")
    return DuplexError(failed, f"{where} refused the request ({status}){said}")
