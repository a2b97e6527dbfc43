"""The remote engine against vLLM's own HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: the extra vllm or cpu-engine")
pytest.importorskip("model_hosting_container_standards", reason="vLLM's HTTP server is not installed whole")

import httpx
from fake_server import free_port
from vllm_tiny import CONTEXT, ENGINE, answer, ids_of, sampling, text_of, tokens

from duplex.adapters.engine.language import ChatPrompt
from duplex.adapters.engine.remote import RemoteEngine, RemoteSettings
from duplex.adapters.engine.vllm_settings import prepare_environment
from duplex.core.errors import DuplexError, ErrorCode

pytestmark = pytest.mark.timeout(300)

KEY = "sk-secret"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
async def address(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Of vLLM's server with the tiny model."""
    prepare_environment()
    port = free_port()
    options = {**ENGINE, "chat_template": TEMPLATE, "served_model_name": "tiny", "api_key": KEY}
    options = {name: value for name, value in options.items() if value is not True}
    written = tmp_path_factory.mktemp("server") / "log"
    with written.open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(tiny_model), "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"),
            *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(200):
            while True:
                assert server.returncode is None, written.read_text()[-4000:]
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{url}/health")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        await server.wait()


@pytest.fixture
async def engine(address: str) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(
        RemoteSettings(url=f"{address}/v1", api_key=KEY, extra={"return_token_ids": True}), name="vLLM"
    )
    await engine.start()
    yield engine
    await engine.stop()


async def test_the_server_tells_its_model_and_context(engine: RemoteEngine) -> None:
    assert (engine.info.model, engine.info.context_tokens) == ("tiny", CONTEXT)


async def test_tokens_and_chats_are_answered_alike(engine: RemoteEngine, tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    words = "the quick brown fox"
    ids = AutoTokenizer.from_pretrained(tiny_model).encode(words)
    chat = await answer(engine, ChatPrompt(messages=({"role": "user", "content": words},)), sampling(200))
    completed = await answer(engine, tokens(*ids), sampling(200))
    assert len(ids_of(chat)) == 200
    assert (ids_of(chat), text_of(chat)) == (ids_of(completed), text_of(completed))
    assert chat[-1].finish == completed[-1].finish == "length"
    assert chat[-1].prompt_tokens == len(ids)
    assert len(chat) > 2, "not in one lump"


async def test_an_answer_that_nobody_wants_ends_in_the_server(engine: RemoteEngine, address: str) -> None:
    deltas = engine.generate(tokens(5), sampling(CONTEXT))
    await anext(deltas)
    await deltas.aclose()

    async def running() -> list[float]:
        async with httpx.AsyncClient() as client:
            lines = (await client.get(f"{address}/metrics")).text.splitlines()
        wanted = (
            "vllm:num_requests_running{",
            'vllm:request_success_total{engine="0",finished_reason="length"',
        )
        return [float(line.split()[-1]) for line in lines if line.startswith(wanted)]

    before = await running()
    async with asyncio.timeout(60):
        while (await running())[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (await running())[1] == before[1], "it did not come to its end"


async def test_what_the_server_refuses_has_a_name(engine: RemoteEngine) -> None:
    with pytest.raises(DuplexError) as refused:
        await answer(
            engine, ChatPrompt(messages=({"role": "user", "content": "fox " * CONTEXT},)), sampling(4)
        )
    assert refused.value.code is ErrorCode.INPUT_OVERFLOW
    with pytest.raises(DuplexError) as unknown:
        await answer(engine, tokens(5, 9999), sampling(4))
    assert unknown.value.code in (ErrorCode.ADAPTER_FAILED, ErrorCode.INVALID_VALUE)
    assert "out of vocabulary" in unknown.value.message


async def test_a_wrong_key_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(DuplexError, match="refused the key") as refused:
        await RemoteEngine(RemoteSettings(url=f"{address}/v1", api_key="another")).start()
    assert refused.value.code is ErrorCode.BAD_CONFIG
