"""Write `layout.json.xz`: configurations, tensor names and shapes of the full-size models, from the authors'
own classes on the meta device, without weights. Runs in the environment of `qwen-tts` 0.1.1:

    python make_layout.py
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import reference  # noqa: F401  (before the package)
import torch
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

# The published values; the classes' own defaults describe no checkpoint.
WIDTHS = {"0.6B": (1024, 3072), "1.7B": (2048, 6144)}
PUBLISHED = (
    ("0.6B", "custom_voice"),
    ("1.7B", "custom_voice"),
    ("1.7B", "voice_design"),
    ("0.6B", "base"),
    ("1.7B", "base"),
)
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1000000}
CODEC_DECODER = {
    "codebook_size": 2048,
    "codebook_dim": 512,
    "hidden_size": 512,
    "latent_dim": 1024,
    "max_position_embeddings": 8000,
    "rope_theta": 10000,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "sliding_window": 72,
    "intermediate_size": 1024,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 8,
    "num_quantizers": 16,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "decoder_dim": 1536,
}


def talker_config(size: str) -> dict[str, Any]:
    hidden, inner = WIDTHS[size]
    return {
        **HEADS,
        "vocab_size": 3072,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 28,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "num_code_groups": 16,
        "text_hidden_size": 2048,
        "text_vocab_size": 151936,
        "codec_language_id": {},
        "spk_id": {},
        "spk_is_dialect": {},
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_pad_id": 2148,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "code_predictor_config": {
            **HEADS,
            "vocab_size": 2048,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 5,
            "max_position_embeddings": 65536,
            "num_code_groups": 16,
        },
    }


def described(model: torch.nn.Module) -> dict[str, Any]:
    """Its configuration and state, and how many parameters it has, without buffers."""
    return {
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "tensors": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def main() -> None:
    models = {}
    with torch.device("meta"):
        for size, model_type in PUBLISHED:
            config = Qwen3TTSConfig(
                tts_model_type=model_type,
                tts_model_size="0b6" if size == "0.6B" else "1b7",
                tokenizer_type="qwen3_tts_tokenizer_12hz",
                speaker_encoder_config={"enc_dim": WIDTHS[size][0], "sample_rate": 24000},
                talker_config=talker_config(size),
            )
            models[f"{model_type} {size}"] = described(Qwen3TTSForConditionalGeneration(config))
        codec = Qwen3TTSTokenizerV2Config(encoder_config={}, decoder_config=CODEC_DECODER)
        models["codec"] = described(Qwen3TTSTokenizerV2Model(codec))
    out = Path(__file__).with_name("layout.json.xz")
    out.write_bytes(lzma.compress(json.dumps(models).encode(), preset=9))
    for name, model in models.items():
        print(f"{name}: {len(model['tensors'])} tensors, {model['parameters'] / 1e6:.1f} M parameters")
    print(f"{out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
