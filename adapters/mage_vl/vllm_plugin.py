"""Mage-VL for vLLM: what its plugin loader calls, and what its engine must be told.

The entry point of group `vllm.general_plugins` names `register`, which every process of vLLM calls.
Checkpoint folders then load as they are published, also in `vllm serve`, and without their remote code.

Nothing of vLLM is imported until `register` is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

ARCHITECTURE: Final = "MageVLForConditionalGeneration"
"""What the published `config.json` names."""

_MODEL: Final = "duplex.adapters.mage_vl.vllm_model:MageVLForConditionalGeneration"


def register() -> None:
    """Make the model known to vLLM, and its configuration to transformers. May be called again."""
    import torch
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from duplex.adapters.mage_vl.vllm_config import MageVLConfig

    if getattr(torch.cpu, "_is_amx_tile_supported", bool)():
        torch.cpu._init_amx()  # the kernel grants its tiles on request; without them bfloat16 dies on a CPU
    AutoConfig.register(MageVLConfig.model_type, MageVLConfig, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, _MODEL)


def engine_arguments(folder: Path, *, pixels: bool = False) -> dict[str, Any]:
    """Fields of vLLM's `AsyncEngineArgs` for a checkpoint's folder; what an operator sets comes on top.

    Args:
        folder: The checkpoint.
        pixels: Load the vision encoder too, for prompts with `Pixels`. Without it, pictures are embeddings.
    """
    arguments: dict[str, Any] = {
        "model": str(folder),
        "trust_remote_code": False,
        "enable_mm_embeds": True,
        "enable_prefix_caching": True,
        # vLLM's cache of processed inputs saves sending a picture twice, but gateway and core must keep its
        # two halves in step: a prompt given up between them would fail the next one with the same picture.
        "mm_processor_cache_gb": 0,
    }
    if not pixels:
        # pictures that are embeddings are not counted, and with a limit of 0 the encoder is not loaded
        arguments["limit_mm_per_prompt"] = {"image": 0, "video": 0}
    return arguments
