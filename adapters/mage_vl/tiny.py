"""Tiny random checkpoints in the published layout: folders that load like the real ones, in a blink.

For tests, for a dry run of a benchmark, and for trying the adapter without the weights: it babbles. Widths,
numbers of layers and the vocabulary of text are small; everything else (files, tensor names, patches,
windows, merger, special tokens by name) is as published. Ids of special tokens are those of the small
tokenizer; as in every checkpoint, `config.json` says them.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.layouts import Shape
from duplex.adapters.mage_vl.config import (
    GateConfig,
    ImageConfig,
    MageConfig,
    TextConfig,
    VisionConfig,
    published,
)
from duplex.adapters.mage_vl.layout import DECODER, HEAD, gate_layout, model_layout
from duplex.adapters.tiny_files import TinyTokenizer, uniform, write_json

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen's special tokens in the order of their published ids, from 151643 on."""

_ROWS = 64  # the text vocabulary is a multiple of it: some rows have no token, as published
_PARTS = 2
# ChatML as the published template writes it, for messages of text, image and video parts.
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> TinyTokenizer:
    """The text tokenizer that `write_tiny_checkpoint` writes."""
    return TinyTokenizer(SPECIAL)


def tiny_config() -> MageConfig:
    """As the files of a tiny checkpoint say it. Images of 32x32 pixels are one token of 64 numbers; the
    context has 32,768 tokens."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer.special_ids
    return MageConfig(
        vision_config=VisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            out_hidden_size=64,
        ),
        text_config=TextConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,  # the smallest that vLLM's attention takes on a CPU
            vocab_size=(tokenizer.size // _ROWS + 1) * _ROWS,
            max_position_embeddings=32768,
        ),
        gate_config=GateConfig(
            hidden_size=64,
            dt_rank=4,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        ),
        image_config=ImageConfig(min_pixels=32 * 32, max_pixels=512 * 512),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        eos_token_ids=(ids["<|im_end|>"], ids["<|endoftext|>"]),
    )


def tiny_weights(
    config: MageConfig, seed: int = 0, *, end_gain: float = 0.0
) -> dict[str, NDArray[np.float32]]:
    """The tensors of the indexed files.

    Special tokens and rows without a token have the logit nought, so that greedy decoding never picks them.
    `end_gain` scales the logit of the token that ends an answer: with 0 none ever ends before its limit, with
    3 most do, soon.
    """
    weights = {name: _values(name, shape, seed) for name, shape in model_layout(config).items()}
    words = min(tiny_tokenizer().special_ids.values())
    end = weights[HEAD][config.eos_token_ids[0]] * np.float32(end_gain)
    weights[HEAD][words:] = 0
    weights[HEAD][config.eos_token_ids[0]] = end
    return weights


def tiny_gate_weights(config: MageConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """The tensors of `streammind_gate.safetensors`. Probabilities differ from frame to frame, and on either
    side of 0.5."""
    return {name: _values(name, shape, seed) for name, shape in gate_layout(config.gate_config).items()}


def write_tiny_checkpoint(folder: Path, seed: int = 0, *, end_gain: float = 0.0) -> Path:
    """Write a whole checkpoint (float32, 2 MB) into `folder`, which is made if need be, and return it."""
    from safetensors.numpy import save_file

    config = tiny_config()
    _write_settings(folder, config, "float32")
    _write_parts(folder, tiny_weights(config, seed, end_gain=end_gain))
    save_file(tiny_gate_weights(config, seed), folder / "streammind_gate.safetensors", {"format": "pt"})
    return folder


def write_bare_checkpoint(folder: Path) -> Path:
    """Write a folder of the published size without weights, for engines that make random ones (vLLM:
    `load_format="dummy"`), and return it. Special tokens have the ids of the tiny tokenizer."""
    full, tiny = MageConfig(), tiny_config()
    config = msgspec.structs.replace(
        full,
        image_token_id=tiny.image_token_id,
        video_token_id=tiny.video_token_id,
        vision_start_token_id=tiny.vision_start_token_id,
        vision_end_token_id=tiny.vision_end_token_id,
        eos_token_ids=tiny.eos_token_ids,
    )
    _write_settings(folder, config, "bfloat16")
    return folder


def _write_settings(folder: Path, config: MageConfig, dtype: str) -> None:
    """Everything but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", published(config) | {"dtype": dtype})
    write_json(
        folder / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": list(config.eos_token_ids),
            "pad_token_id": config.eos_token_ids[-1],
        },
    )
    write_json(folder / "preprocessor_config.json", _preprocessor(config.image_config))
    tiny_tokenizer().write(folder, whole=True, chat_template=_TEMPLATE)


def _write_parts(folder: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    from safetensors.numpy import save_file

    names = list(weights)
    each = -(-len(names) // _PARTS)
    places: dict[str, str] = {}
    for part in range(_PARTS):
        file = f"model-{part + 1:05}-of-{_PARTS:05}.safetensors"
        held = {name: weights[name] for name in names[part * each : (part + 1) * each]}
        save_file(held, folder / file, {"format": "pt"})
        places |= dict.fromkeys(held, file)
    total = sum(tensor.nbytes for tensor in weights.values())
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": places},
    )


def _preprocessor(config: ImageConfig) -> dict[str, object]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "resample": 3,  # bicubic
        "size": {"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels},
        **msgspec.to_builtins(config),
    }


def _values(name: str, shape: Shape, seed: int) -> NDArray[np.float32]:
    mean, width = _spread(name, shape)
    return uniform(name, shape, seed, mean, width, heavy_rows=name == HEAD)


def _spread(name: str, shape: Shape) -> tuple[float, float]:
    """Mean and half width of a tensor's values. No scale is one and no bias nought, so that leaving one out
    shows."""
    if name.endswith("A_log"):
        return 1.3, 1.3  # rates of 1 to 13, as a fresh Mamba has
    if name.endswith("mixer.D"):
        return 1.0, 0.25
    if name.endswith("dt_proj.bias"):
        return -2.5, 1.5  # steps of 0.02 to 0.3: it remembers some frames
    if name.endswith("cls_model.lm_head.weight"):
        return 0.0, 12 / math.sqrt(shape[1])  # probabilities away from 0.5
    if name.endswith((".bias", "bias")):
        return 0.0, 0.2
    if len(shape) == 1:  # norms
        return 1.0, 0.25
    if name == f"{DECODER}embed_tokens.weight":
        return 0.0, 1.0
    return 0.0, math.sqrt(3.0 / math.prod(shape[1:]))  # keeps a unit variance
