"""One tiny checkpoint, and one engine on it, for all tests of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duplex.adapters.engine.vllm_engine import VllmEngine
    from duplex.adapters.mage_vl.config import MageConfig
    from duplex.adapters.mage_vl.prompt import ChatWriter

CONTEXT = 2048


@pytest.fixture(scope="session")
def mage_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from duplex.adapters.mage_vl.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("mage") / "tiny")


@pytest.fixture(scope="session")
def config(mage_folder: Path) -> MageConfig:
    from duplex.adapters.mage_vl.config import read_config

    return read_config(mage_folder)


@pytest.fixture(scope="session")
def writer(mage_folder: Path, config: MageConfig) -> ChatWriter:
    from duplex.adapters.mage_vl.prompt import ChatWriter

    return ChatWriter.load(mage_folder, config)


@pytest.fixture(scope="session")
async def mage_engine(mage_folder: Path, anyio_backend: str) -> AsyncIterator[VllmEngine]:
    """On vLLM's CPU engine core; pictures are pixels or embeddings."""
    pytest.importorskip("vllm", reason="the engine core is in the extra `cpu-engine`")
    import vllm_tiny

    from duplex.adapters.mage_vl.vllm_plugin import engine_arguments

    options = {
        **engine_arguments(mage_folder, pixels=True),
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": 1024,
    }
    async with vllm_tiny.running(vllm_tiny.settings(mage_folder, **options)) as engine:
        yield engine
