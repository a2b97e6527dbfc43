"""A language model on vLLM's engine core: made once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duplex.adapters.engine.vllm_engine import VllmEngine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vllm_tiny import write_model

    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
async def tiny_engine(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    from vllm_tiny import running, settings

    async with running(settings(tiny_model)) as engine:
        yield engine
