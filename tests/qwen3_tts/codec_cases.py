"""Small codecs and speaker encoders of the published structure, their weights and inputs, by a rule that the
golden script and the tests share. Needs numpy alone.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COMMON: dict[str, Any] = {
    "codebook_size": 64,
    "codebook_dim": 16,
    "hidden_size": 32,
    "latent_dim": 64,
    "max_position_embeddings": 8000,
    "rope_theta": 10000,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "sliding_window": 8,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 2,
    "num_quantizers": 16,
    "upsample_rates": [5, 4, 3, 2],
    "upsampling_ratios": [2, 2],
    "decoder_dim": 64,
}
DECODERS: dict[str, dict[str, Any]] = {
    "small": _COMMON,
    # the published window, with keys shared by heads as no checkpoint has them yet
    "window": {
        **_COMMON,
        "sliding_window": 72,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "upsample_rates": [3, 2],
        "decoder_dim": 32,
    },
    # widths that the kernels take, and few of them: they are tried in an interpreter
    "kernels": {
        **_COMMON,
        "codebook_dim": 32,
        "latent_dim": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_window": 8,
        "num_hidden_layers": 1,
        "upsample_rates": [3, 2],
    },
}
FRAMES = {"small": 40, "window": 160, "kernels": 20}
"""Frames decoded at once by the reference: several windows each."""

SPEAKER: dict[str, Any] = {
    "mel_dim": 128,
    "enc_dim": 24,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 16,
    "enc_res2net_scale": 8,
    "enc_se_channels": 16,
    "sample_rate": 24000,
}
SPEAKER_SAMPLES = (24000, 5000)
"""Lengths of the recordings that were embedded."""

ENCODER: dict[str, Any] = {
    "codebook_dim": 16,
    "codebook_size": 64,
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_filters": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_quantizers": 20,
    "upsample_groups": 32,
    "vector_quantization_hidden_dimension": 16,
    "sliding_window": 250,
}
ENCODER_SAMPLES = (24000, 1920, 5761, 12 * 24000)
"""Lengths of the recordings that were encoded. The last has more positions than Mimi's window of 250, which
the reference's transformers (4.57) does not apply."""

_GAINS = (
    ("decoder.decoder.6.conv.weight", 0.1),  # keeps "small" from clipping
    ("decoder.decoder.4.conv.weight", 0.1),  # and "window"
    ("conv2.conv.weight", 0.5),
)


def weights(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Values for tensors of these names and shapes."""
    return {name: values(name, tuple(shape), seed) for name, shape in shapes.items()}


def values(name: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    """Uniform values that suit the tensor, from its name and the seed alone. No scale is one and no bias
    nought, so that one left out shows."""
    unit = _unit(f"{seed} {name}", math.prod(shape)).reshape(shape)
    if name.endswith("cluster_usage"):
        return (np.float32(1.0) + np.float32(0.5) * unit).astype(np.float32)
    if name.endswith((".scale", ".gamma")):
        return (np.float32(0.25) + np.float32(0.1) * unit).astype(np.float32)
    if name.endswith("norm.weight"):
        return (np.float32(1.0) + np.float32(0.25) * unit).astype(np.float32)
    if name.endswith((".bias", ".alpha", ".beta")):
        return np.float32(0.2) * unit
    if name.endswith(("embedding_sum", "embed_sum")):
        return unit
    gain = next((gain for end, gain in _GAINS if name.endswith(end)), 1.0)
    return np.float32(gain * math.sqrt(3.0 / math.prod(shape[1:]))) * unit


def codes(seed: int, frames: int, size: int = 64) -> NDArray[np.int64]:
    """Random codes (frames, 16)."""
    unit = _unit(f"codes {seed}", frames * 16)
    return (
        ((unit + np.float32(1.0)) * np.float32(size / 2)).astype(np.int64).clip(0, size - 1).reshape(-1, 16)
    )


def sound(seed: int, samples: int) -> NDArray[np.float32]:
    """A gliding tone with harmonics and noise, float32 mono at 24 kHz, below ±1."""
    time = np.arange(samples) / 24000
    phase = 2 * np.pi * (110 * (seed + 1) * time + 30 * time**2)
    tone = sum(np.sin(k * phase) / k for k in range(1, 6))
    return (0.2 * tone * (1 + 0.5 * np.sin(7 * time)) + 0.02 * _unit(f"noise {seed}", samples)).astype(
        np.float32
    )


def _unit(key: str, count: int) -> NDArray[np.float32]:
    """Uniform in [-1, 1), exact in float32 and the same in every version of numpy."""
    bits = np.random.PCG64(np.random.SeedSequence([zlib.crc32(key.encode())]))
    raw = bits.random_raw(count) >> np.uint64(40)
    return raw.astype(np.float32) / np.float32(2**23) - np.float32(1.0)
