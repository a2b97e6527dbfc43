"""The checkpoint's decoder weights in the order the arithmetic reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from duplex.adapters.qwen3_tts.config import DecoderConfig, TtsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. Hidden size h, heads n, key-value heads m, head size d, intermediate size f.

    `qkv` ((n + 2m)d, h), `o` (h, nd), `gate_up` (2f, h) with gate and up rows taking turns (gate 0, up 0,
    gate 1, …), `down` (h, f); the norms' weights are float32.
    """

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A decoder without embeddings and heads; `norm` is the last norm's weight, float32."""

    config: DecoderConfig
    layers: tuple[Layer, ...]
    norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerWeights:
    """All that the frame loop reads. Vocabulary v, groups g, talker hidden size h, predictor hidden size p.

    `heads[i]` (codes, p) draws code group i + 1. `embeddings[0]` (v, h) is code 0's embedding,
    `embeddings[i]` (codes, h) that of group i. `predictor_rows[i]`, like it in shape but p wide, is the same
    embedding after the predictor's input projection: a table costs less to read than a matrix to multiply.
    """

    talker: Stack
    codec_head: Tensor
    predictor: Stack
    heads: tuple[Tensor, ...]
    embeddings: tuple[Tensor, ...]
    predictor_rows: tuple[Tensor, ...]
    predictor_input: tuple[Tensor, Tensor] | None
    text_embedding: Tensor
    text_projection: tuple[Tensor, Tensor, Tensor, Tensor]


def pack(
    config: TtsConfig, weights: Mapping[str, Tensor], *, device: torch.device, dtype: torch.dtype
) -> TalkerWeights:
    """Weights by their published names, any device and dtype, as the frame loop wants them.

    The text embedding stays in its own dtype: it is only looked up.
    """

    def get(name: str, to: torch.dtype = dtype) -> Tensor:
        return weights[name].to(device=device, dtype=to).contiguous()

    talker = config.talker_config
    predictor = talker.code_predictor_config
    name = "talker.code_predictor"
    groups = talker.num_code_groups
    projection = None
    if f"{name}.small_to_mtp_projection.weight" in weights:
        projection = (
            get(f"{name}.small_to_mtp_projection.weight"),
            get(f"{name}.small_to_mtp_projection.bias", torch.float32),
        )
    embeddings = (
        get("talker.model.codec_embedding.weight"),
        *(get(f"{name}.model.codec_embedding.{i}.weight") for i in range(groups - 1)),
    )
    # the last group's code is never the predictor's input
    rows = tuple(_projected(table, projection, dtype) for table in embeddings[: groups - 1])
    text = weights["talker.model.text_embedding.weight"]
    return TalkerWeights(
        talker=_stack(talker, get, "talker.model"),
        codec_head=get("talker.codec_head.weight"),
        predictor=_stack(predictor, get, f"{name}.model"),
        heads=tuple(get(f"{name}.lm_head.{i}.weight") for i in range(groups - 1)),
        embeddings=embeddings,
        predictor_rows=rows,
        predictor_input=projection,
        text_embedding=text.to(device),
        text_projection=(
            get("talker.text_projection.linear_fc1.weight"),
            get("talker.text_projection.linear_fc1.bias"),
            get("talker.text_projection.linear_fc2.weight"),
            get("talker.text_projection.linear_fc2.bias"),
        ),
    )


def _projected(table: Tensor, projection: tuple[Tensor, Tensor] | None, dtype: torch.dtype) -> Tensor:
    if projection is None:
        return table
    weight, bias = projection
    return torch.addmm(bias, table.float(), weight.float().T).to(dtype)


def _stack(config: DecoderConfig, get: Callable[..., Tensor], name: str) -> Stack:
    layers = []
    for i in range(config.num_hidden_layers):
        layer = f"{name}.layers.{i}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        gate, up = get(f"{mlp}.gate_proj.weight"), get(f"{mlp}.up_proj.weight")
        layers.append(
            Layer(
                input_norm=get(f"{layer}.input_layernorm.weight", torch.float32),
                qkv=torch.cat([get(f"{attention}.{part}_proj.weight") for part in "qkv"]),
                q_norm=get(f"{attention}.q_norm.weight", torch.float32),
                k_norm=get(f"{attention}.k_norm.weight", torch.float32),
                o=get(f"{attention}.o_proj.weight"),
                post_norm=get(f"{layer}.post_attention_layernorm.weight", torch.float32),
                gate_up=torch.stack([gate, up], dim=1).flatten(0, 1).contiguous(),
                down=get(f"{mlp}.down_proj.weight"),
            )
        )
    return Stack(config=config, layers=tuple(layers), norm=get(f"{name}.norm.weight", torch.float32))
