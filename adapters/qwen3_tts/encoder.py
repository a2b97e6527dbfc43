"""A recording of a voice as the codec's codes, for in-context cloning.

The encoder is Mimi's: strided causal convolutions to 25 positions a second, a causal transformer, a
convolution by two more, residual vector quantization. 39 M parameters, 5.3 GFLOP a second of sound; runs once
a voice, always in float32.

It is written out here, for what a checkpoint means must not depend on a library's version: transformers 4.57,
which the authors' package pins, lets the transformer see the whole recording, while later releases apply the
configuration's window of 250 positions (10 s). This follows the authors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen3_tts.config import CodecConfig
from duplex.adapters.qwen3_tts.layout import codec_layout
from duplex.core.errors import DuplexError, ErrorCode

_PREFIX: Final = "encoder."
_USAGE_FLOOR: Final = 1e-5


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `encoder_config` that are needed; defaults are Mimi's, which the published codec
    keeps."""

    num_residual_layers: int = 1
    dilation_growth_rate: int = 2
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    use_conv_shortcut: bool = False
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    hidden_size: int = 512
    head_dim: int | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    num_semantic_quantizers: int = 1
    vector_quantization_hidden_dimension: int = 256
    use_causal_conv: bool = True
    pad_mode: str = "constant"
    hidden_act: str = "gelu"


class ReferenceEncoder:
    """The encoder on one device.

    Args:
        weights: by their published names, with or without "encoder." in front, any dtype and device; others
        are
            ignored.

    Raises:
        DuplexError: `BAD_CONFIG`: a tensor is missing, or `encoder_config` is of a kind not served.
    """

    def __init__(
        self, config: CodecConfig, weights: Mapping[str, Tensor], *, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self._shape = _shape(config)
        prefix = "" if f"{_PREFIX}downsample.conv.weight" in weights else _PREFIX
        wanted = [
            name for name in codec_layout(config) if name.startswith(_PREFIX) and "codebook" not in name
        ]
        self._weights = {
            name.removeprefix(_PREFIX): self._get(weights, name.removeprefix(prefix)) for name in wanted
        }
        self._codebooks = self._read_codebooks(weights, _PREFIX.removeprefix(prefix))

    def encode(self, samples: Tensor | NDArray[np.float32]) -> Tensor:
        """The codes of a mono recording at 24 kHz, full scale ±1, shape (n,): (frames, 16) int64 on the
        encoder's device. A frame is begun for every 1,920 samples begun.

        Raises:
            DuplexError: `EMPTY_INPUT`: no samples.
        """
        wave = torch.as_tensor(samples, dtype=torch.float32, device=self.device)
        if wave.ndim != 1 or not len(wave):
            raise DuplexError(ErrorCode.EMPTY_INPUT, "the reference recording is empty", param="ref_audio")
        x = self._convolve(wave[None, None])
        x = self._transform(x.transpose(1, 2)).transpose(1, 2)
        down = self._weights["downsample.conv.weight"]
        x = _causal(x, down, None, stride=down.shape[2] // 2, mode="replicate")
        frames = -(-len(wave) // self.config.encode_downsample_rate)
        return self._quantize(x[0].T)[:frames]

    # the convolutions

    def _convolve(self, x: Tensor) -> Tensor:
        """(1, 1, samples) to (1, hidden, positions)."""
        shape = self._shape
        at = "encoder.layers"
        x = self._conv(x, f"{at}.0")
        index = 1
        for ratio in reversed(shape.upsampling_ratios):
            for layer in range(shape.num_residual_layers):
                dilation = shape.dilation_growth_rate**layer
                inner = self._conv(F.elu(x), f"{at}.{index}.block.1", dilation=dilation)
                inner = self._conv(F.elu(inner), f"{at}.{index}.block.3")
                if shape.use_conv_shortcut:
                    x = self._conv(x, f"{at}.{index}.shortcut")
                x = x + inner
                index += 1
            x = self._conv(F.elu(x), f"{at}.{index + 1}", stride=ratio)  # the activation has an index too
            index += 2
        return self._conv(F.elu(x), f"{at}.{index + 1}")

    def _conv(self, x: Tensor, name: str, *, stride: int = 1, dilation: int = 1) -> Tensor:
        weight, bias = self._weights[f"{name}.conv.weight"], self._weights[f"{name}.conv.bias"]
        return _causal(x, weight, bias, stride=stride, dilation=dilation)

    # the transformer

    def _transform(self, x: Tensor) -> Tensor:
        """(1, positions, hidden)."""
        shape = self._shape
        size = shape.head_dim or shape.hidden_size // shape.num_attention_heads
        exponent = torch.arange(0, size, 2, dtype=torch.int64).float() / size
        frequencies = (1.0 / (shape.rope_theta**exponent)).to(self.device)
        angles = torch.arange(x.shape[1], device=self.device).float()[:, None] * frequencies
        turn = angles.cos(), angles.sin()
        for index in range(shape.num_hidden_layers):
            at = f"encoder_transformer.layers.{index}"
            mixed = self._attend(self._norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", size, turn)
            x = x + self._weights[f"{at}.self_attn_layer_scale.scale"] * mixed
            inner = self._linear(self._norm(x, f"{at}.post_attention_layernorm"), f"{at}.mlp.fc1")
            inner = self._linear(F.gelu(inner), f"{at}.mlp.fc2")
            x = x + self._weights[f"{at}.mlp_layer_scale.scale"] * inner
        return x

    def _attend(self, x: Tensor, at: str, size: int, turn: tuple[Tensor, Tensor]) -> Tensor:
        shape = self._shape
        queries, keys, values = (
            self._linear(x, f"{at}.{name}_proj").view(1, x.shape[1], -1, size).transpose(1, 2)
            for name in "qkv"
        )
        queries, keys = _rotate(queries, turn), _rotate(keys, turn)
        shared = shape.num_attention_heads // shape.num_key_value_heads
        if shared > 1:
            keys, values = (x.repeat_interleave(shared, dim=1) for x in (keys, values))
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self._linear(mixed.transpose(1, 2).flatten(2), f"{at}.o_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self._shape.norm_eps)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"])

    # the quantizer

    def _quantize(self, x: Tensor) -> Tensor:
        """(frames, hidden) to codes (frames, quantizers): each book's nearest entry to what the ones before
        it of its kind left over."""
        codes = []
        for kind, books in self._codebooks.items():
            rest = x
            if self._shape.vector_quantization_hidden_dimension != self._shape.hidden_size:
                rest = x @ self._weights[f"quantizer.{kind}.input_proj.weight"][:, :, 0].T
            for book in books:
                code = torch.cdist(rest[None], book[None])[0].argmin(dim=1)
                rest = rest - book[code]
                codes.append(code)
        return torch.stack(codes, dim=1)

    def _read_codebooks(self, weights: Mapping[str, Tensor], prefix: str) -> dict[str, list[Tensor]]:
        used = self.config.encoder_valid_num_quantizers
        semantic = min(self._shape.num_semantic_quantizers, used)
        books: dict[str, list[Tensor]] = {}
        for kind, count in (("semantic", semantic), ("acoustic", used - semantic)):
            name = f"{kind}_residual_vector_quantizer"
            places = [f"{prefix}quantizer.{name}.layers.{index}.codebook" for index in range(count)]
            books[name] = [
                self._get(weights, f"{at}.embed_sum")
                / self._get(weights, f"{at}.cluster_usage").clamp(min=_USAGE_FLOOR)[:, None]
                for at in places
            ]
        return books

    def _get(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        if name not in weights:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"the codec encoder's weights have no {name}", param="model"
            )
        return weights[name].detach().to(self.device, torch.float32)


def _shape(config: CodecConfig) -> _Shape:
    try:
        shape = msgspec.convert(config.encoder_config, _Shape)
    except msgspec.ValidationError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"encoder_config of the speech tokenizer: {error}", param="model"
        ) from error
    if not shape.use_causal_conv or shape.pad_mode != "constant" or shape.hidden_act != "gelu":
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            "only a causal Mimi encoder padded with zeros and activated by gelu is served",
            param="model",
        )
    return shape


def _causal(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int = 1,
    dilation: int = 1,
    mode: str = "constant",
) -> Tensor:
    """A causal convolution, padded on the right so that every position begun gives one out."""
    left = (weight.shape[2] - 1) * dilation + 1 - stride
    outputs = math.ceil(x.shape[2] / stride)
    x = F.pad(x, (left, outputs * stride - x.shape[2]), mode=mode)
    return F.conv1d(x, weight, bias, stride=stride, dilation=dilation)


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = turn
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
