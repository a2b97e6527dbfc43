"""The tensors of a published checkpoint: every name and shape, worked out from its configuration.

Confirmed by public sources, which list the published index: 398 tensors of the decoder, 297 of the vision
encoder and `lm_head.weight`, 696 in all, 9,483,587,584 bytes in bfloat16; the 64 names of the gate's file and
its 1,073,494,728 bytes. `tests/mage_vl/test_layout.py` holds these numbers against the layouts here.

The vision encoder's `qkv` is one matrix: all queries, all keys, all values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duplex.adapters.layouts import Named, Shape, compare, linear, qwen3_decoder
from duplex.adapters.mage_vl.config import GateConfig, MageConfig, TextConfig, VisionConfig

VISION: Final = "model.visual."
"""Prefix of the vision encoder's tensors and the merger's."""
DECODER: Final = "model.language_model."
"""Prefix of the decoder's, but for `HEAD`."""
HEAD: Final = "lm_head.weight"
CLASSIFIER: Final = "cls_net.cls_model."
"""Prefix of the gate's Qwen3, in the gate's file."""
MIXER: Final = "mamba_model.ssms.0.mixer."
"""Prefix of the gate's Mamba block."""

_BUFFERS = ("rotary_emb.inv_freq", "inv_freq_t", "inv_freq_h", "inv_freq_w")


def model_layout(config: MageConfig) -> dict[str, Shape]:
    """Names and shapes of the indexed files: vision encoder with merger (330.4 M parameters) and decoder
    (4,411.4 M)."""
    return dict(_vision(config.vision_config)) | dict(_decoder(config.text_config))


def gate_layout(config: GateConfig) -> dict[str, Shape]:
    """Names and shapes of `streammind_gate.safetensors`: 536.7 M parameters."""
    return dict(_gate(config))


def check_model(config: MageConfig, found: Mapping[str, Shape]) -> None:
    """Compare the tensors of the indexed files with those that the configuration asks for. Rotary buffers are
    not looked at, and with tied embeddings the head may be missing.

    Raises:
        DuplexError: `BAD_CONFIG` naming the first tensors that are missing, unexpected or of another shape.
    """
    spare = {HEAD} if config.tie_word_embeddings else ()
    compare(model_layout(config), found, "model", spare=spare, ignored=_BUFFERS)


def check_gate(config: GateConfig, found: Mapping[str, Shape]) -> None:
    """The same of the gate's file."""
    compare(gate_layout(config), found, "gate", ignored=_BUFFERS)


def _vision(config: VisionConfig) -> Named:
    width, patch = config.hidden_size, config.patch_size
    yield f"{VISION}embeddings.patch_embedding.weight", (width, config.num_channels, patch, patch)
    yield from _norm(f"{VISION}layernorm_pre", width)
    for layer in range(config.num_hidden_layers):
        at = f"{VISION}encoder.layers.{layer}"
        yield from _norm(f"{at}.layer_norm1", width)
        yield from linear(f"{at}.self_attn.qkv", width, 3 * width, bias=True)
        yield from linear(f"{at}.self_attn.proj", width, width, bias=True)
        yield from _norm(f"{at}.layer_norm2", width)
        yield from linear(f"{at}.mlp.fc1", width, config.intermediate_size, bias=True)
        yield from linear(f"{at}.mlp.fc2", config.intermediate_size, width, bias=True)
    merged = config.merged * width
    yield from _norm(f"{VISION}merger.ln_q", width)
    yield from linear(f"{VISION}merger.mlp.0", merged, merged, bias=True)
    yield from linear(f"{VISION}merger.mlp.2", merged, config.out_hidden_size, bias=True)


def _decoder(config: TextConfig) -> Named:
    yield f"{DECODER}embed_tokens.weight", (config.vocab_size, config.hidden_size)
    yield from qwen3_decoder(DECODER.removesuffix("."), config)
    yield HEAD, (config.vocab_size, config.hidden_size)


def _gate(config: GateConfig) -> Named:
    width, inner, state = config.hidden_size, config.inner_size, config.state_size
    yield from linear("pre_net.fc3", width, width, bias=True)
    yield from _norm("mamba_model.ssms.0.norm", width)
    yield f"{MIXER}A_log", (inner, state)
    yield f"{MIXER}D", (inner,)
    yield from linear(f"{MIXER}in_proj", width, 2 * inner)
    yield f"{MIXER}conv1d.weight", (inner, 1, config.conv_kernel)
    yield f"{MIXER}conv1d.bias", (inner,)
    yield from linear(f"{MIXER}x_proj", inner, config.dt_rank + 2 * state)
    yield from linear(f"{MIXER}dt_proj", config.dt_rank, inner, bias=True)
    yield from linear(f"{MIXER}out_proj", inner, width)
    yield from _norm("mamba_model.norm_fn", width)
    yield from linear("post_net.fc3", width, width, bias=True)
    yield f"{CLASSIFIER}model.embed_tokens.weight", (2, width)
    yield from qwen3_decoder(f"{CLASSIFIER}model", config)
    yield from linear(f"{CLASSIFIER}lm_head", width, 2)


def _norm(at: str, width: int) -> Named:
    yield f"{at}.weight", (width,)
    yield f"{at}.bias", (width,)
