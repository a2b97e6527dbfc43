"""The page on the Python client: its examples run, its table of exceptions is complete."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_peer import gateway_with

from duplex import clients
from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.core.types import AudioDelta, Delta, TextDelta, Turn

PAGE = (Path(__file__).parents[2] / "docs" / "python-client.md").read_text()


def examples() -> dict[str, Any]:
    """All names that the page's code defines."""
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "python-client.md", "exec"), names)
    return names


async def answer(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    yield TextDelta(text=turn.speak_text or f"You asked: {turn.question}")
    for _ in range(100):
        yield AudioDelta(samples=np.full(480, 1000, np.int16), sample_rate=24000)


async def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names = examples()
    async with gateway_with(ScriptedAdapter(respond=answer)) as gateway:
        url = f"{gateway.ws_url}/v1/duplex"
        await names["talk"](url)
        assert "the worst of times" in capsys.readouterr().out
        assert await asyncio.to_thread(names["ask"], url, "why?") == "You asked: why?"
        realtime = f"{gateway.ws_url}/v1/realtime"
        assert await names["ask_realtime"](realtime, "why?") == "completed"
        response, block = await names["play"](url, "hello")
        assert response.text == "hello"
        assert block.any()


def test_every_exception_is_in_the_table() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.split("## Faults")[1].split("`code` is")[0]))
    exceptions = {
        name
        for name in clients.__all__
        if isinstance(kind := getattr(clients, name), type) and issubclass(kind, clients.ClientError)
    }
    assert named == exceptions - {"ClientError"}
