"""A language model on vLLM's engine core, kept alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import msgspec

from duplex.adapters.engine.characters import Characters
from duplex.adapters.engine.language import EngineInfo, Prompt, Sampling, TokenDelta, check
from duplex.adapters.engine.language_figures import Totals, figures
from duplex.adapters.engine.vllm_life import Life
from duplex.adapters.engine.vllm_outputs import abort, delta_of, finish_of
from duplex.adapters.engine.vllm_parking import Parking
from duplex.adapters.engine.vllm_session import VllmSession
from duplex.adapters.engine.vllm_settings import VllmSettings
from duplex.adapters.engine.vllm_stats import Stats
from duplex.adapters.health import Figure
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.engine")


class VllmEngine:
    """A `LanguageEngine`.

    An engine that dies, or answers nothing for `life.hang_s`, fails what runs on it with `ADAPTER_FAILED`
    and is started again, after a pause that doubles from death to death. Until it is up, prompts fail at once
    with `ENGINE_DOWN`.
    """

    def __init__(self, settings: VllmSettings, *, name: str = "vLLM") -> None:
        self.name = name
        self._why: str | None = "is not started"
        self.parking = Parking(settings.parked)
        self._settings = settings
        self._info: EngineInfo | None = None
        self._life: Life | None = None
        self._living: asyncio.Task[None] | None = None
        self._ids = count(1)
        self.totals = Totals()
        self.active = 0

    # --- life ---------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What runs. Raises `DuplexError` (`ENGINE_DOWN`) before the first start is over."""
        if self._info is None:
            raise self._down()
        return self._info

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self.totals.restarts

    @property
    def healthy(self) -> bool:
        """It is up."""
        return self._life is not None

    @property
    def fault(self) -> str | None:
        """Why it is not up, None where it is."""
        return self._why and f"{self.name} {self._why}"

    async def start(self) -> None:
        """Load the model.

        Raises:
            DuplexError: it cannot be started, and is not tried again.
        """
        self._why = "is being started"
        try:
            life = await self._begin()
        except DuplexError:
            self._why = "could not be started"
            raise
        self._living = asyncio.get_running_loop().create_task(self._live(life), name=f"keeping {self.name}")

    async def stop(self) -> None:
        """End it, and whatever still runs on it."""
        living, self._living = self._living, None
        if living is not None:
            living.cancel()
            await asyncio.wait({living})
        life, self._life = self._life, None
        self._why = "is stopped"
        if life is not None:
            await life.close()

    async def _begin(self) -> Life:
        life = await Life.begin(self.name, self._settings, self.totals)
        self._life, self._info, self._why = life, life.info, None
        self.parking.opened(slots=life.slots if life.parks else 0, tokens=life.cache_tokens)
        return life

    async def _live(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings.life
        pause_s = settings.backoff_s
        while True:
            began = loop.time()
            how = await asyncio.shield(life.ended)
            self._life = None
            if loop.time() - began >= settings.stable_s:
                pause_s = settings.backoff_s
            closing = loop.create_task(_close(life), name=f"clearing up {self.name}")
            while True:
                self._why = f"{how}; it is started again"
                log.error("%s %s; it is started again in %g s", self.name, how, pause_s)
                await asyncio.sleep(pause_s)
                await asyncio.shield(closing)
                pause_s = min(pause_s * 2, settings.backoff_most_s)
                self.totals.restarts += 1
                try:
                    life = await self._begin()
                    break
                except DuplexError as error:
                    log.error("%s", error)  # what it says is for the log, not for clients
                    how = "could not be started again"

    def up(self) -> Life:
        """The life that takes prompts now. Raises `ENGINE_DOWN` where there is none."""
        if self._life is None or self._life.ended.done():
            raise self._down()
        return self._life

    def _down(self) -> DuplexError:
        return DuplexError(ErrorCode.ENGINE_DOWN, self.fault or f"{self.name} died")

    # --- work ---------------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        """Answer a prompt: see `LanguageEngine.generate`."""
        life = self.up()
        length = check(prompt, life.info)
        assert length is not None  # None is a chat's, which is refused
        parameters = life.parameters(sampling, life.context - length)
        characters = Characters(life.tokenizer)
        id = self.new_id()
        outputs: AsyncGenerator[Any, None] | None = None
        over = failed = False
        self.active += 1
        try:
            outputs = life.engine.generate(await life.render(prompt), parameters, id)
            async for output in outputs:
                finish = finish_of(output, self.name)
                over = finish is not None
                delta = delta_of(output, characters, length, finish)
                self.totals.output_tokens += len(delta.ids)
                yield delta
        except Exception as error:
            failed = True
            raise await life.error_of(error, self.name) from error
        finally:
            self.active -= 1
            self.totals.ended(prompt_tokens=length, failed=failed, aborted=not (over or failed))
            if not over:
                await abort(life, outputs, id)

    def session(self) -> VllmSession:
        """Begin a session: see `LanguageEngine.session`."""
        return VllmSession(self)

    def new_id(self) -> str:
        """A request's name in vLLM."""
        return f"duplex-{next(self._ids)}"

    def figures(self) -> list[Figure]:
        """What `/metrics` shows: see docs/language-engine.md."""
        stats = self._life.stats if self._life is not None else Stats(Totals())
        return figures(
            {
                "up": self.healthy,
                "active": self.active,
                "running": stats.running,
                "waiting": stats.waiting,
                "cache_usage_ratio": stats.cache_usage,
                "parked_sessions": len(self.parking),
            },
            msgspec.structs.asdict(self.totals),
        )


async def _close(life: Life) -> None:
    try:
        await life.close()
    except Exception:
        log.exception("what is left of an engine that died")
