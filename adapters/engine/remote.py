"""A language model behind an OpenAI-compatible server: vLLM, SGLang, vllm-omni or any other.

A gateway without a GPU so fronts a cluster. Closing an answer closes its connection, at which these servers
stop within one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from duplex.adapters.engine.language import (
    ChatPrompt,
    EngineInfo,
    Finish,
    LanguageSession,
    Prompt,
    Sampling,
    TokenDelta,
    TokenPrompt,
    check,
)
from duplex.adapters.engine.language_figures import Totals, figures
from duplex.adapters.engine.remote_bounds import (
    MOST_WHOLE,
    Length,
    Patience,
    Stalled,
    TooMuch,
    error_body,
    whole_body,
)
from duplex.adapters.engine.remote_wire import (
    Chunk,
    Models,
    body_of,
    chunk_of,
    finish_of,
    models_of,
    most_asked,
    refusal_of,
    words_in,
)
from duplex.adapters.engine.server_events import DONE, Events, TooLong
from duplex.adapters.health import Figure
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.text import WholeCharacters

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("duplex.engine")

_IDLE_CONNECTIONS: Final = 64
_IDLE_S: Final = 2.0
"""Servers close idle connections after 5 s (uvicorn's default), and what is sent just then is lost."""


class RemoteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server and how to ask it; seconds.

    `url`: its address up to `/v1`. `model`: a name of its list; None: the first. `api_key`: sent as a bearer
    token, and in no message or log. `context_tokens`: prompt and answer together; None: what it tells.
    `required`: without the server the gateway does not start; else it starts, and is ready once the server
    is. `connect_s`: until a connection is open. `silent_s`: the longest silence, before the first word too.
    `stalled_s`: the longest time without a word, in which the server may say that it is there (comments,
    empty deltas), as one does that queues requests. `probe_s`: how often it is looked whether the server is
    there. `extra`: more fields of each request.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    context_tokens: int | None = None
    required: bool = True
    connect_s: float = 5.0
    silent_s: float = 60.0
    stalled_s: float = 120.0
    probe_s: float = 5.0
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # half of an IPv6 address, a port above 65535
            good = False
        if not good:
            raise DuplexError(ErrorCode.BAD_CONFIG, "url must be an http or https address", param="url")
        if not all("!" <= character <= "~" for character in self.api_key or ""):
            words = "api_key has a character that no key has: a space, a line's end or one that is not ASCII"
            raise DuplexError(ErrorCode.BAD_CONFIG, words, param="api_key")

    def __repr__(self) -> str:
        return f"RemoteSettings(url={self.url!r}, model={self.model!r})"


class RemoteEngine:
    """A `LanguageEngine`."""

    def __init__(self, settings: RemoteSettings, *, name: str = "the language model") -> None:
        parts = urlsplit(settings.url)
        port = f":{parts.port}" if parts.port else ""
        self.fault: str | None = f"{name} is not started"
        self.totals = Totals()
        self._where = f"{name} at {parts.hostname}{port}"
        self._base = settings.url.rstrip("/")
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._info: EngineInfo | None = None
        self._active = 0
        self._probing: asyncio.Task[None] | None = None
        self._look = asyncio.Event()

    # --- life ---------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What runs. Raises `DuplexError` (`ENGINE_DOWN`) before the server was seen."""
        if self._info is None:
            raise DuplexError(ErrorCode.ENGINE_DOWN, self.fault or f"{self._where} was not seen yet")
        return self._info

    @property
    def healthy(self) -> bool:
        """The server answered when it was last asked."""
        return self.fault is None

    async def start(self) -> None:
        """Open the connections and look whether the server is there.

        Raises:
            DuplexError: `BAD_CONFIG`: it refuses the key or has no such model, or httpx is missing;
                `ENGINE_DOWN`: it is not there, and is `required`.
        """
        try:
            import httpx
        except ImportError as error:
            raise DuplexError(
                ErrorCode.BAD_CONFIG,
                "httpx is not installed: pip install 'duplex-gateway[remote]'",
                param="url",
            ) from error
        settings = self._settings
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {},
            timeout=httpx.Timeout(settings.silent_s, connect=settings.connect_s),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=_IDLE_CONNECTIONS,
                keepalive_expiry=_IDLE_S,
            ),
        )
        try:
            await self._probe()
        except DuplexError as error:
            self.fault = error.message
            if settings.required or error.code is ErrorCode.BAD_CONFIG:
                await self.stop()
                raise
        self._probing = asyncio.get_running_loop().create_task(self._keep_looking(), name=self._where)

    async def stop(self) -> None:
        """Close all connections; what runs over them fails."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            await asyncio.wait({probing})
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        self.fault = self.fault or f"{self._where} is not asked any more"

    async def _keep_looking(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.probe_s):
                    await self._look.wait()
            try:
                await self._probe()
            except DuplexError as error:
                if self.fault is None:
                    log.error("%s", error)
                self.fault = error.message
                self._look.clear()

    async def _probe(self) -> None:
        """Ask for the list of models, which all such servers have."""
        import httpx

        assert self._client is not None
        self._look.clear()
        try:
            # httpx counts each piece of an answer anew
            async with asyncio.timeout(2 * self._settings.connect_s):
                response = await self._client.get(f"{self._base}/models", timeout=self._settings.connect_s)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise DuplexError(
                ErrorCode.ENGINE_DOWN, f"{self._where} cannot be reached: {type(error).__name__}"
            ) from error
        if response.status_code in (401, 403):
            raise DuplexError(
                ErrorCode.BAD_CONFIG,
                f"{self._where} refused the key ({response.status_code})",
                param="api_key",
            )
        if response.status_code >= 500:
            raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self._where} is not ready ({response.status_code})")
        try:
            models = models_of(response.content) if response.status_code == 200 else Models()
        except msgspec.DecodeError:
            models = Models()
        self._info = self._info_of(models, response.status_code)
        if self.fault is not None:
            log.info("%s is there", self._where)
        self.fault = None

    def _info_of(self, models: Models, status: int) -> EngineInfo:
        settings = self._settings
        known = {model.id: model for model in models.data}
        name = settings.model or next(iter(known), None)
        if name is None and status == 429:
            raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self._where} is busy (429)")
        if name is None:
            words = f"{self._where} tells no models ({status}): name one"
            raise DuplexError(ErrorCode.BAD_CONFIG, words, param="model")
        if known and name not in known:
            has = ", ".join(sorted(known)[:8])
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"{self._where} has no model {name!r}; it has {has}", param="model"
            )
        told = known[name].max_model_len if known else None
        return EngineInfo(
            model=name, prompts=("chat", "tokens"), context_tokens=settings.context_tokens or told
        )

    # --- work ---------------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        """Answer a prompt: see `LanguageEngine.generate`."""
        info = self.info
        size = check(prompt, info)
        assert isinstance(prompt, (ChatPrompt, TokenPrompt))
        most = sampling.max_tokens
        if info.context_tokens is not None and size is not None:
            most = min(most, info.context_tokens - size)
        path, body = body_of(prompt, sampling, model=info.model, most=most, extra=self._settings.extra)
        over = failed = False
        counted = size or 0
        self._active += 1
        try:
            length = Length(most_asked(most, self._settings.extra))
            async with contextlib.aclosing(self._answer(path, body, counted, length)) as deltas:
                async for delta in deltas:
                    over = delta.finish is not None
                    counted = delta.prompt_tokens
                    yield delta
        except DuplexError:
            failed = True
            raise
        finally:
            self._active -= 1
            self.totals.ended(prompt_tokens=counted, failed=failed, aborted=not (over or failed))

    def session(self) -> LanguageSession:
        """There are none over HTTP: a server's prefix cache is what spares a past that is sent again."""
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, f"{self._where} has no sessions")

    async def _answer(
        self, path: str, body: bytes, counted: int, length: Length
    ) -> AsyncGenerator[TokenDelta, None]:
        characters, patience = WholeCharacters(), Patience(self._settings.stalled_s)
        finish: Finish | None = None
        tokens = told = 0
        async with contextlib.aclosing(self._chunks(path, body, patience)) as chunks:
            async for chunk in chunks:
                if chunk.error:
                    raise self._failed(f"reported an error: {words_in(chunk.error)}")
                patience.hear(chunk)
                if chunk.usage is not None:
                    counted = chunk.usage.prompt_tokens or counted
                    told = chunk.usage.completion_tokens
                if not chunk.choices:
                    continue
                choice = chunk.choices[0]
                if choice.finish_reason is not None:
                    finish = finish_of(choice.finish_reason)
                said = characters.push(choice.said)
                ids, text, over = length.take(tuple(choice.token_ids or ()), said, choice.thought)
                tokens += len(ids) or bool(text)
                if ids or text:
                    yield TokenDelta(ids=ids, text=text, prompt_tokens=counted)
                if over:
                    log.warning("%s was stopped: it wrote far more than max_tokens", self._where)
                    finish = "length"
                    break
        if finish is None:
            raise self._failed("ended the answer early")
        self.totals.output_tokens += told or tokens
        # the count of the prompt comes behind the last token
        yield TokenDelta(text=characters.end(), finish=finish, prompt_tokens=counted)

    async def _chunks(self, path: str, body: bytes, patience: Patience) -> AsyncGenerator[Chunk, None]:
        """What the server writes, to its end.

        Raises:
            DuplexError: any way to fail, by name.
        """
        import httpx

        if self._client is None:
            raise DuplexError(ErrorCode.ENGINE_DOWN, self.fault or f"{self._where} is not asked any more")
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        try:
            request = self._client.build_request("POST", self._base + path, content=body, headers=headers)
            response = await patience.send(self._client, request)
            async with contextlib.AsyncExitStack() as closing:
                closing.push_async_callback(response.aclose)
                if response.status_code != 200:
                    told = await error_body(response, self._settings.silent_s)
                    raise refusal_of(response.status_code, told, where=self._where, model=self.info.model)
                parts = await closing.enter_async_context(contextlib.aclosing(patience.parts(response)))
                if "text/event-stream" not in response.headers.get("content-type", "text/event-stream"):
                    yield self._chunk(await whole_body(parts))  # a server that does not stream
                    return
                events = Events()
                async for part in parts:
                    for data in events.feed(part):
                        if data == DONE:
                            return
                        yield self._chunk(data)
                for data in events.end():
                    if data != DONE:
                        yield self._chunk(data)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self.fault = f"{self._where} cannot be reached: {type(error).__name__}"
            self._look.set()
            raise DuplexError(ErrorCode.ENGINE_DOWN, self.fault) from error
        except httpx.TimeoutException as error:
            raise self._failed(f"said nothing for {self._settings.silent_s:g} s") from error
        except Stalled as error:
            raise self._failed(f"told nothing for {self._settings.stalled_s:g} s") from error
        except TooMuch as error:
            raise self._failed(f"sent more than {MOST_WHOLE >> 20} MiB") from error
        except TooLong as error:
            raise self._failed("sent a line of more than 1 MiB") from error
        except httpx.HTTPError as error:
            raise self._failed(f"broke the connection: {type(error).__name__}") from error

    def _chunk(self, data: bytes) -> Chunk:
        try:
            return chunk_of(data)
        except ValueError as error:
            raise self._failed("sent what is no completion") from error

    def _failed(self, what: str) -> DuplexError:
        return DuplexError(ErrorCode.ADAPTER_FAILED, f"{self._where} {what}")

    def figures(self) -> list[Figure]:
        """What `/metrics` shows: see docs/language-engine.md."""
        return figures({"up": self.healthy, "active": self._active}, msgspec.structs.asdict(self.totals))
