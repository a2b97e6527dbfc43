"""One life of vLLM's engine: from its start to its end, however that comes.

The half of vLLM that is here renders prompts and takes tokens; the model runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from duplex.adapters.engine.language import (
    EngineInfo,
    MediaPrompt,
    Prompt,
    PromptKind,
    Sampling,
    TokenPrompt,
)
from duplex.adapters.engine.language_figures import Totals
from duplex.adapters.engine.vllm_settings import PARKING, VllmSettings, engine_arguments, prepare_environment
from duplex.adapters.engine.vllm_stats import Stats, logger_of
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.engine")

T = TypeVar("T")

_EXIT_S = 2.0  # for a process that is on its way out
_PROBES = 4  # in the time after which silence means that it hangs


class Life:
    """An engine that is up, until `ended` says how it ended."""

    def __init__(self, engine: Any, settings: VllmSettings, stats: Stats) -> None:
        from vllm import exceptions
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        config = engine.vllm_config
        self.engine = engine
        self.info = _info(config)
        self.context: int = config.model_config.max_model_len
        self.slots: int = config.scheduler_config.max_num_seqs
        self.cache_tokens = _cache_tokens(config)
        self.tokenizer = getattr(engine, "tokenizer", None)
        self.stats = stats
        self.processes: list[Any] = _processes(engine)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._dead_error: type[Exception] = EngineDeadError
        self._wrapper: type[Exception] = EngineGenerateError
        client_error = getattr(exceptions, "VLLMClientError", exceptions.VLLMValidationError)
        self._refusals: tuple[type[Exception], ...] = (ValueError, TypeError, client_error)
        self._settings = settings
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, name: str, settings: VllmSettings, totals: Totals) -> Life:
        """Load the model. The loop goes on meanwhile. What it counts is added to `totals`.

        Raises:
            DuplexError: `BAD_CONFIG`: vLLM is missing or takes no such model or option; `ENGINE_DOWN`: it
                could not start.
        """
        start_timeout_s = settings.life.start_timeout_s
        prepare_environment(start_timeout_s)
        stats = Stats(totals)
        loading = in_thread(lambda: _load(settings, stats), name=f"starting {name}")
        try:
            async with asyncio.timeout(start_timeout_s):
                engine = await asyncio.shield(loading)
        except TimeoutError as error:
            loading.add_done_callback(_discard)
            words = f"{name} was not ready after {start_timeout_s:g} s"
            raise DuplexError(ErrorCode.ENGINE_DOWN, words) from error
        except asyncio.CancelledError:
            loading.add_done_callback(_discard)
            raise
        except DuplexError as error:
            raise DuplexError(
                error.code, f"{name} cannot start: {error.message}", param=error.param
            ) from error
        self = cls(engine, settings, stats)
        try:
            engine._run_output_handler()  # it was made outside of the loop, so that nobody listens yet
            await engine.get_supported_tasks()  # asked for once; the engine has answered
        except BaseException:
            await self.close()
            raise
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name=f"watching {name}")
        return self

    # --- work ---------------------------------------------------------------------------------------

    async def render(self, prompt: Prompt) -> Any:
        """What the engine takes for a prompt. Pictures are prepared in vLLM's own thread.

        Raises:
            DuplexError: `INVALID_VALUE`: the model's processor refuses it.
        """
        from vllm.inputs import embeds_input, tokens_input

        if isinstance(prompt, TokenPrompt):
            return tokens_input(list(prompt.ids))
        if not isinstance(prompt, MediaPrompt):
            return embeds_input(prompt.embeds)  # type: ignore[union-attr]
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        data: dict[str, list[Any]] = {}
        keys: dict[str, list[str]] = {}
        for item in prompt.items:
            data.setdefault(item.modality, []).append(item.data)
            keys.setdefault(item.modality, []).append(item.key)
        raw = {"prompt_token_ids": list(prompt.ids), "multi_modal_data": data, "multi_modal_uuids": keys}
        parsed = parse_model_prompt(self.engine.model_config, raw)
        (rendered,) = await self.engine.renderer.render_cmpl_async([parsed])
        return rendered

    def parameters(self, sampling: Sampling, most: int) -> Any:
        """vLLM's form of `sampling`, for at most `most` tokens."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=min(sampling.max_tokens, most),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=sampling.ignore_end,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    @property
    def parks(self) -> bool:
        """Its sessions may be left open between turns."""
        from vllm import __version__

        numbers = [int(part) for part in __version__.split(".")[:2] if part.isdigit()]
        return tuple(numbers) >= PARKING

    async def error_of(self, error: Exception, name: str) -> DuplexError:
        """What an exception of vLLM means for whoever asked."""
        if isinstance(error, DuplexError):
            return error
        if isinstance(error, self._dead_error) or self.ended.done():
            await asyncio.wait({self.ended}, timeout=2 * _EXIT_S)
            how = self.ended.result() if self.ended.done() else "died"
            return DuplexError(ErrorCode.ADAPTER_FAILED, f"{name} {how}")
        cause = error.__cause__ if isinstance(error, self._wrapper) and error.__cause__ else error
        if isinstance(cause, self._refusals):
            return DuplexError(ErrorCode.INVALID_VALUE, f"vLLM refuses the prompt: {cause}")
        return DuplexError(ErrorCode.ADAPTER_FAILED, f"{name} failed: {type(cause).__name__}: {cause}")

    # --- end ----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End it. What runs in it fails."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        self._over("is stopped")
        engine, timeout_s = self.engine, self._settings.life.stop_timeout_s

        def shutdown() -> None:
            engine.shutdown(timeout=timeout_s)
            for process in self.processes:
                process.kill()
                process.join(_EXIT_S)

        await in_thread(shutdown, name="stopping vLLM")
        engine.shutdown = lambda timeout=None: None  # its finalizer calls it once more, when all is torn down

    async def _watch(self) -> None:
        """Until a process of it dies, its own watch finds it dead, or it answers nothing for too long."""
        loop = asyncio.get_running_loop()
        died = asyncio.Event()
        sentinels = [process.sentinel for process in self.processes]
        for sentinel in sentinels:
            loop.add_reader(sentinel, died.set)
        tasks = {
            loop.create_task(died.wait(), name="vLLM's processes"),
            loop.create_task(self._probe(), name="asking vLLM"),
        }
        try:
            await asyncio.wait({*tasks, self.engine.output_handler}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for sentinel in sentinels:
                loop.remove_reader(sentinel)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        hung = any(not task.cancelled() and isinstance(task.exception(), TimeoutError) for task in tasks)
        if hung:
            for process in self.processes:
                process.kill()  # it would not read a word to stop
        self._over(f"answered nothing for {self._settings.life.hang_s:g} s" if hung else await self._how())

    async def _probe(self) -> None:
        """Ask again and again; the engine answers between two steps.

        Raises:
            TimeoutError: it does not.
        """
        hang_s = self._settings.life.hang_s
        while True:
            async with asyncio.timeout(hang_s):
                await self.engine.is_sleeping()
            await asyncio.sleep(hang_s / _PROBES)

    async def _how(self) -> str:
        """How its process ended. vLLM's own watch may be about to ask the same, and only one is told."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _EXIT_S
        while True:
            codes = [process.exitcode for process in self.processes if process.exitcode is not None]
            if codes or not self.processes or loop.time() > until:
                return _words(codes[0]) if codes else "died"
            await asyncio.sleep(_EXIT_S / 100)

    def _over(self, how: str) -> None:
        if self.ended.done():
            return
        self.ended.set_result(how)
        # vLLM tells them too, once it has cleaned up behind its process
        self.engine.output_processor.propagate_error(self._dead_error())


def in_thread(function: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run something that blocks in a thread that no exit waits for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = function()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _load(settings: VllmSettings, stats: Stats) -> Any:
    """In a thread: import vLLM and start its engine."""
    try:
        async_llm = importlib.import_module("vllm.v1.engine.async_llm")
    except ImportError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"vLLM cannot be imported: {error}", param="engine"
        ) from error
    arguments = engine_arguments(settings)
    _ignore_interrupts()
    try:
        config = arguments.create_engine_config()
    except Exception as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"vLLM does not take {settings.model}: {error}", param="engine"
        ) from error
    try:
        return async_llm.AsyncLLM.from_vllm_config(
            config,
            stat_loggers=[logger_of(stats)],
            enable_log_requests=arguments.enable_log_requests,
            disable_log_stats=arguments.disable_log_stats,
        )
    except Exception as error:
        raise DuplexError(ErrorCode.ENGINE_DOWN, f"{type(error).__name__}: {error}") from error


def _ignore_interrupts() -> None:
    """What this thread starts does not see Ctrl-C, which is the gateway's: it lets what runs come to its end.

    A child inherits the thread's signal mask. The resource tracker, which multiprocessing starts before its
    first child, would unblock the signal again: it is started first.
    """
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _discard(loading: asyncio.Future[Any]) -> None:
    """Nobody waits for the engine that was being started."""
    if not loading.cancelled() and loading.exception() is None:
        engine = loading.result()
        in_thread(engine.shutdown, name="stopping vLLM")


def _processes(engine: Any) -> list[Any]:
    """The engine's processes on this host; none where Ray has them."""
    resources = getattr(engine.engine_core, "resources", None)
    return list(getattr(getattr(resources, "engine_manager", None), "processes", ()))


def _words(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def _info(config: Any) -> EngineInfo:
    model = config.model_config
    prompts: list[PromptKind] = ["tokens"]
    if model.enable_prompt_embeds:
        prompts.append("embeds")
    if model.multimodal_config is not None:
        prompts.append("media")
    return EngineInfo(
        model=str(model.served_model_name or model.model),
        prompts=tuple(prompts),
        context_tokens=int(model.max_model_len),
        vocabulary=int(model.get_vocab_size()),
        hidden_size=int(model.get_hidden_size()),
        sessions=True,
    )


def _cache_tokens(config: Any) -> int:
    """Tokens that the engine's cache holds; where nobody tells, one context, which vLLM makes sure of."""
    cache = config.cache_config
    blocks = getattr(cache, "num_gpu_blocks", None)
    return int(blocks * cache.block_size) if blocks else int(config.model_config.max_model_len)
