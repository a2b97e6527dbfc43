"""A Mage-VL checkpoint: found, checked by its files' headers, and loaded part by part onto a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duplex.adapters.checkpoints import (
    bad_checkpoint,
    find_folder,
    load_tensors,
    missing_files,
    read_shapes,
)
from duplex.adapters.layouts import Shape
from duplex.adapters.mage_vl.config import MageConfig, read_config
from duplex.adapters.mage_vl.layout import VISION, check_gate, check_model, gate_layout, model_layout

if TYPE_CHECKING:
    import torch

    from duplex.adapters.mage_vl.gate import Gate
    from duplex.adapters.mage_vl.vision import Vision

GATE_FILE: Final = "streammind_gate.safetensors"
PATTERNS: Final = ("*.json", "*.jinja", "*.safetensors", "*.txt")
"""Files that a download fetches: neither remote code nor the neural codec's."""


def find_checkpoint(
    name: str, *, revision: str | None = None, download: bool = False, gate: bool = True
) -> Path:
    """The folder of a checkpoint, see `checkpoints.find_folder`. It may lack the gate's file where `gate` is
    False: it can answer, but not say when to speak.

    Raises:
        DuplexError: `BAD_CONFIG`: it is not there, or not all of it.
    """
    folder = find_folder(name, revision=revision, download=download, patterns=PATTERNS)
    files = ("config.json", *((GATE_FILE,) if gate else ()))
    if missing := missing_files(folder, files):
        raise bad_checkpoint(f"{folder} is no complete Mage-VL checkpoint: it has no {', '.join(missing)}")
    return folder


def read_checked(folder: Path, *, gate: bool = True) -> MageConfig:
    """A checkpoint's configuration, its tensors' names and shapes checked against it; no weights.

    Raises:
        DuplexError: `BAD_CONFIG`: what is wrong, by file or tensor.
    """
    config = read_config(folder)
    check_model(config, read_shapes(folder))
    if gate:
        check_gate(config.gate_config, read_shapes(folder / GATE_FILE))
    return config


def load_vision(
    folder: Path, config: MageConfig, device: torch.device | str, dtype: torch.dtype | None = None
) -> Vision:
    """The vision encoder and the merger; `dtype` None: the file's. Of a checkpoint that `read_checked` took.

    Raises:
        DuplexError: `BAD_CONFIG`: a file is missing or unreadable.
    """
    from duplex.adapters.mage_vl.vision import Vision

    return Vision(config.vision_config, load_tensors(folder, VISION, device, dtype))


def load_gate(folder: Path, config: MageConfig, device: torch.device | str) -> Gate:
    """The cognition gate, in float32 as it must be: 1.9 GB at the published size. Raises as above."""
    from duplex.adapters.mage_vl.gate import Gate

    return Gate(config.gate_config, load_tensors(folder / GATE_FILE, "", device, None))


def random_weights(
    config: MageConfig,
    seed: int,
    *,
    prefix: str = "",
    scale: float = 0.02,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Random values for the tensors of the indexed files whose names begin with `prefix`, made on `device`:
    full-size models without the weights. `layout.VISION` makes the vision encoder's alone.

    Matrices are normal with standard deviation `scale`, norms one, biases nought. A seed means the same
    values only on one kind of device and with one version of torch. `dtype` None: bfloat16, the checkpoint's.
    """
    layout = {name: shape for name, shape in model_layout(config).items() if name.startswith(prefix)}
    return _random(layout, seed, scale, device, dtype)


def random_gate_weights(
    config: MageConfig,
    seed: int,
    *,
    scale: float = 0.02,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """The same for the gate's file. Mamba's rates are 1 to `state_size`, as a fresh one has."""
    import torch

    weights = _random(gate_layout(config.gate_config), seed, scale, device, dtype)
    for name, tensor in weights.items():
        if name.endswith(".A_log"):
            tensor.copy_(torch.arange(1, tensor.shape[1] + 1, device=device).log().expand_as(tensor))
        elif name.endswith(".D"):
            tensor.fill_(1.0)
    return weights


def _random(
    layout: Mapping[str, Shape],
    seed: int,
    scale: float,
    device: torch.device | str,
    dtype: torch.dtype | None,
) -> dict[str, torch.Tensor]:
    import torch

    dtype = torch.bfloat16 if dtype is None else dtype
    generator = torch.Generator(device=device).manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in layout.items():
        tensor = torch.empty(shape, device=device, dtype=dtype)
        if name.endswith("bias"):
            tensor.zero_()
        elif len(shape) == 1:
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, scale, generator=generator)
        weights[name] = tensor
    return weights
