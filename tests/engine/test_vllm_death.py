"""What becomes of an engine that dies, hangs, cannot start or is stopped, and of what runs on it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: the extra vllm or cpu-engine")

import httpx
import psutil
from engine_bench import until
from vllm_tiny import CONTEXT, answer, ids_of, running, sampling, settings, tokens

from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.engine.vllm_engine import VllmEngine
from duplex.adapters.scripted import ScriptedAdapter, ScriptedOptions
from duplex.core.errors import DuplexError, ErrorCode

pytestmark = pytest.mark.timeout(300)

LIFE = EngineSettings(hang_s=15, backoff_s=0.05, backoff_most_s=0.2, stop_timeout_s=5)


@pytest.fixture(scope="module")
async def engine(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    async with running(settings(tiny_model, life=LIFE)) as engine:
        yield engine


class OnEngine(ScriptedAdapter):
    """An adapter that tells of its engine what the gateway asks for."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        super().__init__(ScriptedOptions(id="words"))

    @property
    def healthy(self) -> bool:
        return self._engine.healthy

    @healthy.setter
    def healthy(self, value: bool) -> None: ...

    @property
    def fault(self) -> str | None:
        return self._engine.fault

    def figures(self) -> Any:
        return self._engine.figures()


def pid_of(engine: VllmEngine) -> int:
    (process,) = engine.up().processes
    pid = process.pid
    assert isinstance(pid, int)
    return pid


async def begun(engine: VllmEngine, number: int) -> list[asyncio.Task[DuplexError]]:
    """Long answers that have begun; each task gives the error that ended it."""
    first = [asyncio.Event() for _ in range(number)]

    async def listen(n: int) -> DuplexError:
        try:
            async for _ in engine.generate(tokens(5, n), sampling(CONTEXT)):
                first[n].set()
        except DuplexError as error:
            return error
        raise AssertionError("it came to its end")

    tasks = [asyncio.create_task(listen(n)) for n in range(number)]
    await asyncio.gather(*[event.wait() for event in first])
    return tasks


async def get(gateway: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(gateway.url + path)


async def test_a_killed_engine_fails_what_runs_by_name_and_comes_back(
    engine: VllmEngine, start_gateway: Any
) -> None:
    gateway = await start_gateway(OnEngine(engine))
    assert (await get(gateway, "/ready")).status_code == 200
    before = ids_of(await answer(engine, tokens(9, 8, 7), sampling(12)))
    session = engine.session()
    heard = ids_of([delta async for delta in session.turn((21, 22, 23), sampling(6))])
    old = pid_of(engine)
    tasks = await begun(engine, 6)
    seen: list[tuple[int, str, str]] = []

    async def look() -> None:
        await until(lambda: not engine.healthy)
        ready = await get(gateway, "/ready")
        seen.append((ready.status_code, ready.json()["status"], ready.json()["reason"]))

    looking = asyncio.create_task(look())
    os.kill(old, signal.SIGKILL)
    errors = await asyncio.gather(*tasks)
    assert {error.code for error in errors} == {ErrorCode.ADAPTER_FAILED}
    assert {str(error) for error in errors} == {"tiny was killed by SIGKILL"}
    assert not any(error.fatal for error in errors), "the sessions live on"
    await until(lambda: not engine.healthy)
    with pytest.raises(DuplexError) as refused:
        await answer(engine, tokens(5), sampling(4))
    assert refused.value.code is ErrorCode.ENGINE_DOWN
    await looking
    assert seen == [(503, "engine_down", "words: tiny was killed by SIGKILL; it is started again")]

    await until(lambda: engine.healthy, timeout_s=120)
    assert engine.restarts == 1
    assert pid_of(engine) != old
    assert not psutil.pid_exists(old)
    assert (await get(gateway, "/ready")).status_code == 200
    assert "duplex_language_restarts_total" in (await get(gateway, "/metrics")).text
    assert ids_of(await answer(engine, tokens(9, 8, 7), sampling(12))) == before
    again = ids_of([delta async for delta in session.turn((24,), sampling(6))])
    whole = tokens(21, 22, 23, *heard, 24)
    assert again == ids_of(await answer(engine, whole, sampling(6))), "a session has lost nothing"
    await session.close()


async def test_the_gateways_interrupt_is_not_the_engines(engine: VllmEngine) -> None:
    pid = pid_of(engine)
    os.kill(pid, signal.SIGINT)
    assert len(ids_of(await answer(engine, tokens(5), sampling(50)))) == 50
    assert pid_of(engine) == pid


async def test_an_engine_that_answers_nothing_is_ended_and_started_again(engine: VllmEngine) -> None:
    restarts, old = engine.restarts, pid_of(engine)
    tasks = await begun(engine, 2)
    os.kill(old, signal.SIGSTOP)
    errors = await asyncio.gather(*tasks)
    assert {str(error) for error in errors} == {"tiny answered nothing for 15 s"}
    await until(lambda: engine.restarts == restarts + 1 and engine.healthy, timeout_s=120)
    assert not psutil.pid_exists(old)
    assert len(ids_of(await answer(engine, tokens(5), sampling(4)))) == 4


async def test_a_model_that_is_not_there_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    engine = VllmEngine(settings(tmp_path / "none"), name="tiny")
    with pytest.raises(DuplexError) as refused:
        await engine.start()
    assert refused.value.code is ErrorCode.BAD_CONFIG
    assert not engine.healthy
    with pytest.raises(DuplexError) as down:
        await answer(engine, tokens(5), sampling(4))
    assert down.value.code is ErrorCode.ENGINE_DOWN
    await engine.stop()


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"tensor_paralel_size": 2}, "engine.tensor_paralel_size", "'tensor_parallel_size'"),
        ({"model": "another"}, "engine.model", "named twice"),
        ({"dtype": "float99"}, "engine", "float99"),
    ],
)
async def test_engine_options_that_vllm_does_not_have_are_refused_by_name(
    tiny_model: Path, options: dict[str, Any], param: str, words: str
) -> None:
    engine = VllmEngine(settings(tiny_model, **options), name="tiny")
    with pytest.raises(DuplexError, match=words) as refused:
        await engine.start()
    assert (refused.value.code, refused.value.param) == (ErrorCode.BAD_CONFIG, param)


async def test_an_engine_that_cannot_start_leaves_no_process(tiny_model: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    # the cache has to hold one context at the least
    engine = VllmEngine(settings(tiny_model, kv_cache_memory_bytes=4096), name="tiny")
    with pytest.raises(DuplexError) as refused:
        await engine.start()
    assert refused.value.code is ErrorCode.ENGINE_DOWN
    assert refused.value.message.startswith("tiny cannot start: ")
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [
        process for process in left if process.is_running() and "Engine" in " ".join(process.cmdline())
    ]


async def test_stopping_ends_what_runs_by_name_and_leaves_no_process(engine: VllmEngine) -> None:
    pid = pid_of(engine)
    tasks = await begun(engine, 2)
    await engine.stop()
    errors = await asyncio.gather(*tasks)
    assert {(error.code, str(error)) for error in errors} == {(ErrorCode.ADAPTER_FAILED, "tiny is stopped")}
    assert not psutil.pid_exists(pid)
    with pytest.raises(DuplexError, match="is stopped"):
        await answer(engine, tokens(5), sampling(4))
