"""The codec decoder's weights, folded into as few products as the network allows.

Exact in real numbers, worked out in float64 once at load:

- codebook / usage × output projection is one table a code group, so that the quantizer is a sum of 16 rows;
- `pre_conv` and the pre-transformer's `input_proj` have nothing between them, nor have its `output_proj` and
  the
  first transposed convolution: one product each;
- norm weights go into the product after them, layer scales and ConvNeXt's gamma into the one before;
- a transposed convolution of kernel 2·s and stride s is a causal convolution of two taps with s·c outputs a
  position, one of kernel s and stride s a plain product, so that all there is are convolutions of some taps.

A convolution's weight is (outputs, taps · inputs), oldest tap first: one row of a product over the taps laid
side by side, inputs contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from duplex.adapters.qwen3_tts.config import CodecDecoderConfig
from duplex.core.errors import DuplexError, ErrorCode

_SNAKE_FLOOR = 1e-9  # SnakeBeta's guard against division by nought
_USAGE_FLOOR = 1e-5  # EuclideanCodebook's
_DILATIONS = (1, 3, 9)  # of a decoder block's residual units


@dataclass(frozen=True, slots=True)
class Context:
    """What a causal convolution keeps of its input: the last `rows` positions of `channels` numbers, at
    `start` in the slot's row of the state. `rate`: positions a frame."""

    start: int
    rows: int
    channels: int
    rate: int

    @property
    def size(self) -> int:
        """Numbers kept."""
        return self.rows * self.channels


@dataclass(frozen=True, slots=True)
class Snake:
    """x + gain · sin²(alpha · x), a number of each a channel, float32."""

    alpha: Tensor
    gain: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """A causal convolution, or with one tap a linear layer.

    `weight` (outputs, taps · inputs), `bias` (outputs,); `act`: what follows it; `feeds`: the context of the
    layer that takes its (activated) output.
    """

    weight: Tensor
    bias: Tensor | None
    taps: int = 1
    dilation: int = 1
    context: Context | None = None
    act: Snake | None = None
    feeds: Context | None = None

    @property
    def inputs(self) -> int:
        """Channels in."""
        return int(self.weight.shape[1]) // self.taps

    @property
    def outputs(self) -> int:
        """Channels out; of a transposed convolution its stride times as many."""
        return int(self.weight.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One of the pre-transformer's layers. `gate_up`: the gate's outputs, then as many of up."""

    qkv: Conv
    out: Conv
    gate_up: Conv
    down: Conv


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsample:
    """A transposed convolution by `factor` and a ConvNeXt block. `depthwise` (7, channels)."""

    factor: int
    widen: Conv
    depthwise: Tensor
    depthwise_bias: Tensor
    context: Context
    inner: Conv
    outer: Conv


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A residual unit: `wide` has 7 taps, `point` one."""

    wide: Conv
    point: Conv


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A decoder block: a transposed convolution by `factor`, then residual units."""

    factor: int
    widen: Conv
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecWeights:
    """All of the decoder.

    `table` (groups · codebook_size, width) float32; `frequencies` (head_dim / 2,) float32, radians a frame.
    `contexts`: what all of the convolutions keep of a slot, in the order of their places.
    """

    table: Tensor
    embedded: Context
    pre: Conv
    frequencies: Tensor
    layers: tuple[Layer, ...]
    upsamples: tuple[Upsample, ...]
    first: Conv
    blocks: tuple[Block, ...]
    last: Conv
    contexts: tuple[Context, ...]

    @property
    def context(self) -> int:
        """Numbers that the convolutions keep of a slot, all together."""
        return sum(context.size for context in self.contexts)


def fold(
    config: CodecDecoderConfig, weights: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype
) -> CodecWeights:
    """The decoder's weights, by their published names with or without "decoder." in front, on a device.

    Raises:
        DuplexError: `BAD_CONFIG` naming a tensor that is not there.
    """
    return _Folder(config, weights, device, dtype).fold()


class _Folder:
    def __init__(
        self,
        config: CodecDecoderConfig,
        weights: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._weights = weights
        self._prefix = "decoder." if "decoder.pre_conv.conv.weight" in weights else ""
        self._device = device
        self._dtype = dtype
        self._contexts: list[Context] = []

    def fold(self) -> CodecWeights:
        config = self._config
        embedded = self._keep(2, config.codebook_dim, 1)
        upsamples, first_context = self._upsamples()
        acts = [self._snake(f"decoder.{i + 1}.block.0") for i in range(len(config.upsample_rates))]
        last_index = len(config.upsample_rates) + 1
        acts.append(self._snake(f"decoder.{last_index}"))
        widen_contexts, blocks, last_context = self._blocks(acts)
        return CodecWeights(
            table=self._table(),
            embedded=embedded,
            pre=self._pre(embedded),
            frequencies=self._frequencies(),
            layers=tuple(self._layer(i) for i in range(config.num_hidden_layers)),
            upsamples=upsamples,
            first=self._conv("decoder.0.conv", context=first_context, act=acts[0], feeds=widen_contexts),
            blocks=blocks,
            last=self._conv(f"decoder.{last_index + 1}.conv", context=last_context, dtype=torch.float32),
            contexts=tuple(self._contexts),
        )

    # parts

    def _table(self) -> Tensor:
        parts = []
        for group in range(self._config.num_quantizers):
            kind, layer = ("first", 0) if group == 0 else ("rest", group - 1)
            at = f"quantizer.rvq_{kind}"
            book = f"{at}.vq.layers.{layer}._codebook"
            rows = self._get(f"{book}.embedding_sum")
            rows = rows / self._get(f"{book}.cluster_usage").clamp(min=_USAGE_FLOOR)[:, None]
            parts.append((rows @ self._get(f"{at}.output_proj.weight")[:, :, 0].T).float())
        return torch.cat(parts)

    def _pre(self, context: Context) -> Conv:
        project = self._get("pre_transformer.input_proj.weight")
        weight = torch.einsum("hl,lck->hkc", project, self._get("pre_conv.conv.weight"))
        bias = project @ self._get("pre_conv.conv.bias") + self._get("pre_transformer.input_proj.bias")
        return Conv(
            weight=self._cast(weight.flatten(1)), bias=self._cast(bias), taps=weight.shape[1], context=context
        )

    def _frequencies(self) -> Tensor:
        # float32 step by step, as in the reference: at far positions a rounding more is a phase
        config = self._config
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        return (1.0 / (config.rope_theta**exponent)).to(self._device)

    def _layer(self, index: int) -> Layer:
        at = f"pre_transformer.layers.{index}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        before = self._get(f"{at}.input_layernorm.weight")
        after = self._get(f"{at}.post_attention_layernorm.weight")
        scale = self._config.head_dim**-0.5
        queries = self._get(f"{attention}.q_proj.weight") * scale
        keys, values = (self._get(f"{attention}.{name}_proj.weight") for name in "kv")
        out = self._get(f"{attention}.o_proj.weight")
        out = self._get(f"{at}.self_attn_layer_scale.scale")[:, None] * out
        gate, up = (self._get(f"{mlp}.{name}_proj.weight") for name in ("gate", "up"))
        down = self._get(f"{at}.mlp_layer_scale.scale")[:, None] * self._get(f"{mlp}.down_proj.weight")
        return Layer(
            qkv=self._linear(torch.cat((queries, keys, values)) * before),
            out=self._linear(out),
            gate_up=self._linear(torch.cat((gate, up)) * after),
            down=self._linear(down),
        )

    def _upsamples(self) -> tuple[tuple[Upsample, ...], Context]:
        """And the context of the layer after them."""
        config = self._config
        factors = config.upsampling_ratios
        rates = [math.prod(factors[: index + 1]) for index in range(len(factors))]
        contexts = [self._keep(6, config.latent_dim, rate) for rate in rates]
        after = self._keep(6, config.latent_dim, rates[-1])
        made = []
        for index, factor in enumerate(factors):
            at = f"upsample.{index}"
            weight = self._get(f"{at}.0.conv.weight").permute(2, 1, 0)  # (factor, outputs, inputs)
            bias = self._get(f"{at}.0.conv.bias").repeat(factor)
            weight = weight.flatten(0, 1)
            if index == 0:
                bias = bias + weight @ self._get("pre_transformer.output_proj.bias")
                weight = weight @ self._get("pre_transformer.output_proj.weight")
                weight = weight * self._get("pre_transformer.norm.weight")
            block = f"{at}.1"
            inner = self._get(f"{block}.pwconv1.weight")
            inner_bias = self._get(f"{block}.pwconv1.bias") + inner @ self._get(f"{block}.norm.bias")
            gamma = self._get(f"{block}.gamma")
            made.append(
                Upsample(
                    factor=factor,
                    widen=self._linear(weight, bias, feeds=contexts[index]),
                    depthwise=self._get(f"{block}.dwconv.conv.weight")[:, 0].T.float().contiguous(),
                    depthwise_bias=self._get(f"{block}.dwconv.conv.bias").float(),
                    context=contexts[index],
                    inner=self._linear(inner * self._get(f"{block}.norm.weight"), inner_bias),
                    outer=self._linear(
                        gamma[:, None] * self._get(f"{block}.pwconv2.weight"),
                        gamma * self._get(f"{block}.pwconv2.bias"),
                        feeds=after if index == len(factors) - 1 else None,
                    ),
                )
            )
        return tuple(made), after

    def _blocks(self, acts: list[Snake]) -> tuple[Context, tuple[Block, ...], Context]:
        """The first one's context, the blocks, the context of the layer after them."""
        config = self._config
        count = len(config.upsample_rates)
        widths = [config.decoder_dim >> index for index in range(count + 1)]
        base = math.prod(config.upsampling_ratios)
        rates = [base * math.prod(config.upsample_rates[:index]) for index in range(count + 1)]
        widen = [self._keep(1, width, rate) for width, rate in zip(widths[:-1], rates, strict=False)]
        widen.append(self._keep(6, widths[-1], rates[-1]))  # the last convolution's, of seven taps
        blocks = []
        for index, rate in enumerate(config.upsample_rates):
            at = f"decoder.{index + 1}.block"
            units = [f"{at}.{unit + 2}" for unit in range(len(_DILATIONS))]
            contexts = [
                self._keep(6 * dilation, widths[index + 1], rates[index + 1]) for dilation in _DILATIONS
            ]
            befores = [self._snake(f"{unit}.act1") for unit in units]
            nexts = [*zip(befores[1:], contexts[1:], strict=True), (acts[index + 1], widen[index + 1])]
            made = [
                Unit(
                    wide=self._conv(
                        f"{unit}.conv1.conv",
                        dilation=dilation,
                        context=context,
                        act=self._snake(f"{unit}.act2"),
                    ),
                    point=self._conv(f"{unit}.conv2.conv", act=act, feeds=feeds),
                )
                for unit, dilation, context, (act, feeds) in zip(
                    units, _DILATIONS, contexts, nexts, strict=True
                )
            ]
            weight = self._get(f"{at}.1.conv.weight").permute(2, 1, 0)  # (2 · rate, outputs, inputs)
            older, newer = weight[rate:].flatten(0, 1), weight[:rate].flatten(0, 1)
            before = befores[0]
            blocks.append(
                Block(
                    factor=rate,
                    widen=Conv(
                        weight=self._cast(torch.cat((older, newer), dim=1)),
                        bias=self._cast(self._get(f"{at}.1.conv.bias").repeat(rate)),
                        taps=2,
                        context=widen[index],
                        act=Snake(before.alpha.repeat(rate), before.gain.repeat(rate)),
                        feeds=contexts[0],
                    ),
                    units=tuple(made),
                )
            )
        return widen[0], tuple(blocks), widen[-1]

    # pieces

    def _keep(self, rows: int, channels: int, rate: int) -> Context:
        context = Context(sum(other.size for other in self._contexts), rows, channels, rate)
        self._contexts.append(context)
        return context

    def _conv(
        self,
        name: str,
        *,
        dilation: int = 1,
        context: Context | None = None,
        act: Snake | None = None,
        feeds: Context | None = None,
        dtype: torch.dtype | None = None,
    ) -> Conv:
        weight = self._get(f"{name}.weight")
        return Conv(
            weight=self._cast(weight.transpose(1, 2).flatten(1), dtype),
            bias=self._cast(self._get(f"{name}.bias"), dtype),
            taps=int(weight.shape[2]),
            dilation=dilation,
            context=context,
            act=act,
            feeds=feeds,
        )

    def _linear(self, weight: Tensor, bias: Tensor | None = None, feeds: Context | None = None) -> Conv:
        return Conv(weight=self._cast(weight), bias=None if bias is None else self._cast(bias), feeds=feeds)

    def _snake(self, name: str) -> Snake:
        alpha, beta = self._get(f"{name}.alpha").exp(), self._get(f"{name}.beta").exp()
        return Snake(alpha.float().contiguous(), (1.0 / (beta + _SNAKE_FLOOR)).float().contiguous())

    def _cast(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return tensor.to(dtype or self._dtype).contiguous()

    def _get(self, name: str) -> Tensor:
        try:
            tensor = self._weights[self._prefix + name]
        except KeyError:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"the codec decoder's weights have no {name}", param="model"
            ) from None
        return tensor.detach().to(self._device, torch.float64)
