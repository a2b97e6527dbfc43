"""What an engine of Mage-VL is told, which needs no vLLM to be read."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from duplex.adapters.mage_vl.vllm_plugin import engine_arguments


def test_pictures_are_embeddings_unless_pixels_are_asked_for(tmp_path: Path) -> None:
    arguments = engine_arguments(tmp_path)
    assert arguments["model"] == str(tmp_path)
    assert arguments["enable_mm_embeds"] is True
    assert arguments["limit_mm_per_prompt"] == {"image": 0, "video": 0}
    assert arguments["trust_remote_code"] is False
    assert "limit_mm_per_prompt" not in engine_arguments(tmp_path, pixels=True)


def test_the_gateway_imports_nothing_heavy_for_a_prompt() -> None:
    """Neither torch nor vLLM nor transformers: they would take seconds of the gateway's start."""
    code = (
        "import sys; import duplex.adapters.mage_vl.prompt, duplex.adapters.mage_vl.vllm_plugin;"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_vllm_finds_it() -> None:
    found = metadata.entry_points(group="vllm.general_plugins")
    assert "duplex.adapters.mage_vl.vllm_plugin:register" in {point.value for point in found}
