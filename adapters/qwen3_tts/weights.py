"""Finding a checkpoint, looking at it without loading it, and loading it straight onto a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from duplex.adapters.checkpoints import bad_checkpoint, find_folder, load_tensors, missing_files, read_shapes
from duplex.adapters.qwen3_tts.config import CodecConfig, TtsConfig, read_codec_config, read_config
from duplex.adapters.qwen3_tts.layout import check_layout, codec_layout, model_layout

if TYPE_CHECKING:
    import torch

__all__ = [
    "CODEC_FOLDER",
    "find_checkpoint",
    "load_weights",
    "random_weights",
    "read_checked",
    "read_shapes",
]

CODEC_FOLDER = "speech_tokenizer"
_FILES = ("config.json", f"{CODEC_FOLDER}/config.json")


def find_checkpoint(name: str, *, revision: str | None = None, download: bool = False) -> Path:
    """The folder of a checkpoint, see `checkpoints.find_folder`.

    Raises:
        DuplexError: `BAD_CONFIG`: it is not there, or not all of it.
    """
    folder = find_folder(name, revision=revision, download=download)
    if missing := missing_files(folder, _FILES, ("", CODEC_FOLDER)):
        raise bad_checkpoint(f"{folder} is no complete Qwen3-TTS checkpoint: it has no {', '.join(missing)}")
    return folder


def read_checked(folder: Path) -> tuple[TtsConfig, CodecConfig]:
    """A checkpoint's two configurations, its tensors' names and shapes checked against them; no weights.

    Raises:
        DuplexError: `BAD_CONFIG`: what is wrong, by file or tensor.
    """
    config, codec = read_config(folder), read_codec_config(folder)
    check_layout(config, read_shapes(folder))
    check_layout(codec, read_shapes(folder / CODEC_FOLDER))
    return config, codec


def load_weights(
    folder: Path, prefix: str, device: torch.device | str, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix`, see `checkpoints.load_tensors`: "talker." and
    "speaker_encoder." in a checkpoint's folder, "decoder." and "encoder." in its `speech_tokenizer/`."""
    return load_tensors(folder, prefix, device, dtype)


def random_weights(
    config: TtsConfig,
    codec_config: CodecConfig | None,
    seed: int,
    scale: float = 0.02,
    *,
    prefix: str = "",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Random values for a checkpoint's tensors, made on `device`: full-size models without the weights.

    Only tensors whose names begin with `prefix` are made.

    Matrices, convolutions and codebooks are normal with standard deviation `scale`; norms are one, biases and
    the logarithmic `alpha` and `beta` of the codec's activations zero, a codebook's `cluster_usage` one,
    layer scales 0.01. A seed means the same values only on one kind of device and with one version of torch.
    `codec_config` None leaves the codec out. `dtype` None: bfloat16, the checkpoints' own.
    """
    import torch

    dtype = torch.bfloat16 if dtype is None else dtype
    generator = torch.Generator(device=device).manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    layout = model_layout(config) | (codec_layout(codec_config) if codec_config is not None else {})
    for name, shape in layout.items():
        if not name.startswith(prefix):
            continue
        tensor = torch.empty(shape, device=device, dtype=dtype)
        if name.endswith(("norm.weight", "cluster_usage")):
            tensor.fill_(1.0)
        elif name.endswith((".bias", ".alpha", ".beta")):
            tensor.zero_()
        elif name.endswith((".scale", ".gamma")):
            tensor.fill_(0.01)
        else:
            tensor.normal_(0.0, scale, generator=generator)
        weights[name] = tensor
    return weights
