"""The model of the Mage-VL benchmark: random weights of the published size, or the tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from duplex.adapters.mage_vl import weights
from duplex.adapters.mage_vl.config import MageConfig, read_config
from duplex.adapters.mage_vl.gate import Gate
from duplex.adapters.mage_vl.layout import VISION
from duplex.adapters.mage_vl.tiny import write_bare_checkpoint, write_tiny_checkpoint
from duplex.adapters.mage_vl.vision import Vision


def folder_of(orders: dict[str, Any], into: Path) -> Path:
    """A checkpoint's folder; of the published size without weights."""
    make = write_tiny_checkpoint if orders["size"] == "tiny" else write_bare_checkpoint
    return make(into / "model")


def eye_of(folder: Path, device: str) -> tuple[Vision, Gate, MageConfig]:
    """Encoder (bfloat16 on CUDA) and gate (float32) with random weights, on the device."""
    config = read_config(folder)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    vision = weights.random_weights(config, 0, prefix=VISION, device=device, dtype=dtype)
    gate = weights.random_gate_weights(config, 0, device=device)
    return Vision(config.vision_config, vision), Gate(config.gate_config, gate), config
