"""A language model that decodes token by token, wherever it runs.

`vllm_engine` runs one on vLLM's engine core beside the gateway, `remote` asks an OpenAI-compatible server.
An adapter takes any `LanguageEngine` and asks its `info` what prompts it may give:

    engine = VllmEngine(VllmSettings(model="/models/mage-vl"))
    await engine.start()
    async with aclosing(engine.generate(prompt, Sampling(max_tokens=128))) as deltas:
        async for delta in deltas:
            yield TextDelta(text=delta.text)

No torch and no vLLM is imported here. See docs/language-engine.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from duplex.adapters.health import Figure
from duplex.core.errors import DuplexError, ErrorCode

Finish: TypeAlias = Literal["stop", "length"]
PromptKind: TypeAlias = Literal["tokens", "embeds", "media", "chat"]


SEEDS: Final = (-(2**63), 2**63 - 1)
"""The least and the greatest seed: signed integers of 64 bits, as servers take them."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens, and when to end.

    `max_tokens` is cut to what the context has room for. `temperature` 0: the likeliest token each time.
    `top_k` 0: no limit. `stop_ids` end the answer beside the model's own end of text; the token itself is
    among the ids of the last delta and not in its text. `ignore_end` goes on after the model's end of text
    (for measurements). `seed` is within `SEEDS`.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False

    def __post_init__(self) -> None:
        def refuse(param: str, words: str) -> DuplexError:
            return DuplexError(ErrorCode.INVALID_VALUE, f"{param} {words}", param=param)

        if self.max_tokens < 1:
            raise refuse("max_tokens", "is 1 or more")
        if not 0 <= self.temperature <= 2:
            raise refuse("temperature", "is from 0 to 2")
        if not 0 < self.top_p <= 1:
            raise refuse("top_p", "is above 0 and at most 1")
        if self.top_k < 0:
            raise refuse("top_k", "is 0 or more")
        if not 0 < self.repetition_penalty <= 2:
            raise refuse("repetition_penalty", "is above 0 and at most 2")
        if self.seed is not None and not SEEDS[0] <= self.seed <= SEEDS[1]:
            raise refuse("seed", "has 64 bits")


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids."""

    ids: tuple[int, ...]


class EmbedsPrompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the decoder's first layer sees: `embeds`, a torch tensor on the CPU, shape (n, hidden size)."""

    embeds: Any


class MediaItem(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One picture (frame, canvas) of a prompt.

    `data` is what the model's processor takes for one item: pixels, or a torch tensor of embeddings, shape
    (tokens, hidden size). `key` names its content, for the caches: two items with one key are the same.
    `tokens` is how many the processor makes of its placeholder.
    """

    key: str
    data: Any
    tokens: int
    modality: str = "image"


class MediaPrompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Token ids with one placeholder for each of `items`, in their order."""

    ids: tuple[int, ...]
    items: tuple[MediaItem, ...]


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the form of OpenAI's chat completions, pictures as data URLs. The template is the
    server's."""

    messages: tuple[Mapping[str, Any], ...]


Prompt: TypeAlias = TokenPrompt | EmbedsPrompt | MediaPrompt | ChatPrompt


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The next of an answer: one token or a few.

    `text` is whole characters: bytes of a character wait until it is complete, so that `ids` may come with
    no text. `ids` is empty where a server does not tell them. `finish` is set on the last. `prompt_tokens` is
    how many the prompt was, 0 where nobody has counted them yet.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    finish: Finish | None = None
    prompt_tokens: int = 0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine runs.

    `context_tokens`: prompt and answer together, None where a server does not tell. `prompts`: the kinds that
    it takes. `sessions`: `session` works. `vocabulary` in tokens, `hidden_size` of the decoder.
    """

    model: str
    prompts: tuple[PromptKind, ...]
    context_tokens: int | None = None
    vocabulary: int | None = None
    hidden_size: int | None = None
    sessions: bool = False


@runtime_checkable
class LanguageSession(Protocol):
    """A prompt that grows, and whose past costs nothing: the engine keeps what it has computed.

    One task at a time. `tokens` are those in it, `room` those that still fit, of prompts and answers.
    """

    @property
    def tokens(self) -> int: ...

    @property
    def room(self) -> int: ...

    async def append(self, ids: Sequence[int]) -> None:
        """More of the prompt; the engine reads it ahead. Does not wait for the engine.

        Raises:
            DuplexError: `INPUT_OVERFLOW`: no room; the session is as it was.
        """
        ...

    def turn(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        """Append `ids` and answer. What was answered stays in the session. Closing it ends the answer within
        one step and keeps what had come.

        Raises:
            DuplexError: as `append` and `LanguageEngine.generate`.
        """
        ...

    async def close(self) -> None:
        """Free its slot and its memory in the engine."""
        ...


@runtime_checkable
class LanguageEngine(Protocol):
    """A model that answers many prompts at a time.

    `healthy` and `fault` as in `duplex.adapters.health`, so that an adapter may hand them on.
    """

    @property
    def info(self) -> EngineInfo:
        """What runs. Raises `DuplexError` (`ENGINE_DOWN`) before the first start is over."""
        ...

    @property
    def healthy(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...

    async def start(self) -> None:
        """Load, or look whether the server is there.

        Raises:
            DuplexError: `BAD_CONFIG` with words that say what to change or to install; `ENGINE_DOWN`.
        """
        ...

    async def stop(self) -> None:
        """End it, and whatever still runs on it."""
        ...

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        """Answer a prompt. Closing it, or cancelling the task that iterates it, aborts within one step.

        Raises:
            DuplexError: `INPUT_OVERFLOW`: the prompt leaves no room for an answer; `UNSUPPORTED_MODALITY`: a
                kind of prompt that it does not take; `INVALID_VALUE`: a prompt that means nothing;
                `ADAPTER_FAILED`: the engine died under it; `ENGINE_DOWN`: it is not up.
        """
        ...

    def session(self) -> LanguageSession:
        """Begin a session. Raises `DuplexError` (`UNSUPPORTED_MODALITY`) where there are none."""
        ...

    def figures(self) -> Iterable[Figure]:
        """What `/metrics` shows of it."""
        ...


def kind_of(prompt: Prompt) -> PromptKind:
    """The name of a prompt's kind."""
    if isinstance(prompt, TokenPrompt):
        return "tokens"
    if isinstance(prompt, EmbedsPrompt):
        return "embeds"
    return "media" if isinstance(prompt, MediaPrompt) else "chat"


def length_of(prompt: Prompt) -> int | None:
    """Tokens of a prompt as the decoder sees it; None: only the server can tell."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.ids)
    if isinstance(prompt, EmbedsPrompt):
        return int(prompt.embeds.shape[0])
    if isinstance(prompt, MediaPrompt):
        return len(prompt.ids) + sum(item.tokens - 1 for item in prompt.items)
    return None


def check(prompt: Prompt, info: EngineInfo) -> int | None:
    """Tokens of a prompt that an engine may be given, as `length_of`.

    Raises:
        DuplexError: `UNSUPPORTED_MODALITY`, `COMMIT_EMPTY`, `INVALID_VALUE` or `INPUT_OVERFLOW`.
    """
    kind = kind_of(prompt)
    if kind not in info.prompts:
        takes = ", ".join(info.prompts)
        raise DuplexError(
            ErrorCode.UNSUPPORTED_MODALITY, f"the engine of {info.model} takes {takes}, not {kind}"
        )
    length = length_of(prompt)
    if length == 0 or (isinstance(prompt, ChatPrompt) and not prompt.messages):
        raise DuplexError(ErrorCode.COMMIT_EMPTY, "an empty prompt has no answer")
    if isinstance(prompt, TokenPrompt | MediaPrompt):
        check_ids(prompt.ids, info)
    if isinstance(prompt, EmbedsPrompt):
        _check_embeddings(prompt.embeds, int(prompt.embeds.shape[0]), info)
    if isinstance(prompt, MediaPrompt):
        for item in prompt.items:
            if getattr(item.data, "ndim", 0) == 2:
                _check_embeddings(item.data, item.tokens, info)
    if length is not None:
        check_room(length, info)
    return length


def check_ids(ids: Sequence[int], info: EngineInfo) -> None:
    """Raise `INVALID_VALUE` where an id is not in the vocabulary."""
    if ids and info.vocabulary is not None and not (min(ids) >= 0 and max(ids) < info.vocabulary):
        raise DuplexError(ErrorCode.INVALID_VALUE, f"token ids are from 0 to {info.vocabulary - 1}")


def check_room(length: int, info: EngineInfo) -> None:
    """Raise `INPUT_OVERFLOW` where a prompt of so many tokens leaves no room for one of an answer."""
    if info.context_tokens is not None and length >= info.context_tokens:
        raise DuplexError(
            ErrorCode.INPUT_OVERFLOW,
            f"a prompt of {length} tokens leaves no room in a context of {info.context_tokens}",
        )


def _check_embeddings(embeds: Any, tokens: int, info: EngineInfo) -> None:
    """A wrong shape would end the engine for everyone."""
    shape = tuple(embeds.shape)
    if info.hidden_size is not None and shape != (tokens, info.hidden_size):
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            f"embeddings have the shape {shape}, the model takes {(tokens, info.hidden_size)}",
        )
