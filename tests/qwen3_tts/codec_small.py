"""The small codecs of `codec_cases.py` as our classes take them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import codec_cases as cases
import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor

from duplex.adapters.qwen3_tts.codec import CodecDecoder
from duplex.adapters.qwen3_tts.config import CodecConfig, CodecDecoderConfig
from duplex.adapters.qwen3_tts.layout import codec_layout


@cache
def golden() -> dict[str, Tensor]:
    """What the authors' package gave, see `golden/make_codec.py`."""
    return load_file(Path(__file__).with_name("golden") / "codec.safetensors")


def config(name: str) -> CodecConfig:
    """The configuration of a case."""
    decoder = msgspec.convert(cases.DECODERS[name], CodecDecoderConfig)
    return CodecConfig(decoder_config=decoder, encoder_config=cases.ENCODER)


@cache
def weights(name: str) -> dict[str, Tensor]:
    """The whole codec's tensors, by their published names."""
    return {key: torch.from_numpy(value) for key, value in cases.weights(codec_layout(config(name))).items()}


def decoder(name: str, **changes: Any) -> CodecDecoder:
    """A decoder of six slots on the CPU."""
    options: dict[str, Any] = {
        "device": "cpu",
        "dtype": torch.float32,
        "slots": 6,
        "frames": (1, 2, 3, 5, 8),
        "max_batch": 6,
    }
    return CodecDecoder(config(name).decoder_config, weights(name), **{**options, **changes})


def codes(seed: int, frames: int) -> Tensor:
    """Random codes (frames, 16)."""
    return torch.from_numpy(cases.codes(seed, frames))


def decode(
    codec: CodecDecoder, slot: int, frames: Tensor, chunks: tuple[int, ...] = (8, 5, 3, 2, 1)
) -> Tensor:
    """All frames of one slot, chunk after chunk: the sizes in turn, the largest that fits."""
    parts, at, turn = [], 0, 0
    while at < len(frames):
        size = next(s for s in (*chunks[turn % len(chunks) :], 1) if s <= len(frames) - at)
        parts.append(codec.decode(torch.tensor([slot]), frames[None, at : at + size])[0])
        at, turn = at + size, turn + 1
    return torch.cat(parts)
