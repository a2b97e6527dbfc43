"""Tiny random checkpoints in the published layout: folders that load like the real ones, in a blink.

For tests, for a dry run of a benchmark, and for trying the adapter without the weights: the voices babble.
Widths and numbers of layers are small; everything else (files, tensor names, code groups, vocabularies of
codes, special codes, voices, languages, upsampling rates) is as published. Values and text tokenizer are
those of `tiny_files`; `config.json` says the special tokens' ids, as in every checkpoint.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.qwen3_tts.config import (
    CodecConfig,
    CodecDecoderConfig,
    DecoderConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TtsConfig,
)
from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.adapters.qwen3_tts.layout import codec_layout, model_layout
from duplex.adapters.qwen3_tts.tiny_text import special_ids, token_id, vocabulary_size, write_tokenizer
from duplex.adapters.qwen3_tts.weights import CODEC_FOLDER
from duplex.adapters.tiny_files import uniform, write_json

Size: TypeAlias = Literal["0.6B", "1.7B"]

LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
_DIALECTS: dict[str, str | bool] = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
_SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_ENCODER = {
    "model_type": "mimi",
    "audio_channels": 1,
    "codebook_dim": 16,
    "codebook_size": 2048,
    "compress": 2,
    "dilation_growth_rate": 2,
    "head_dim": 16,
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "max_position_embeddings": 8000,
    "norm_eps": 1e-5,
    "num_attention_heads": 2,
    "num_filters": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_quantizers": 18,  # two more than are used, as the published 32 are
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": 3,
    "rope_theta": 10000.0,
    "sampling_rate": 24000,
    "sliding_window": 250,
    "upsample_groups": 32,
    "upsampling_ratios": [8, 6, 5, 4],
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "vector_quantization_hidden_dimension": 16,
}


def tiny_config(model_type: TtsModelType = "custom_voice", size: Size = "1.7B") -> TtsConfig:
    """As `config.json` of a tiny checkpoint. "1.7B" has a talker wider than its predictor, and so the
    projection between them; "0.6B" has none."""
    hidden = 128 if size == "1.7B" else 64
    voices = SPEAKERS if model_type == "custom_voice" else {}
    special = special_ids()
    return TtsConfig(
        talker_config=TalkerConfig(
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            text_hidden_size=128,
            text_vocab_size=vocabulary_size(),
            codec_language_id=LANGUAGES,
            spk_id=voices,
            spk_is_dialect={name: _DIALECTS.get(name, False) for name in voices},
            code_predictor_config=DecoderConfig(hidden_size=64, intermediate_size=128, **_SHAPE),
            **_SHAPE,
        ),
        speaker_encoder_config=SpeakerEncoderConfig(
            enc_dim=hidden,
            enc_channels=(32, 32, 32, 32, 96),
            enc_attention_channels=16,
            enc_se_channels=16,
        ),
        tts_model_type=model_type,
        tts_model_size="1b7" if size == "1.7B" else "0b6",
        im_start_token_id=special["<|im_start|>"],
        im_end_token_id=special["<|im_end|>"],
        assistant_token_id=token_id("assistant"),
        tts_pad_token_id=special["<tts_pad>"],
        tts_bos_token_id=special["<tts_text_bos>"],
        tts_eos_token_id=special["<tts_text_eod>"],
    )


def tiny_codec_config() -> CodecConfig:
    """As `speech_tokenizer/config.json` of a tiny checkpoint."""
    return CodecConfig(
        decoder_config=CodecDecoderConfig(
            codebook_dim=32,
            hidden_size=64,
            latent_dim=64,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=16,
            intermediate_size=128,
            num_hidden_layers=2,
            decoder_dim=64,
        ),
        encoder_config=_ENCODER,
    )


def tiny_weights(
    config: TtsConfig | CodecConfig, seed: int = 0, *, end_gain: float = 0.0
) -> dict[str, NDArray[np.float32]]:
    """The tensors of `model.safetensors`, or of the codec's. `end_gain` scales the logit of the talker's end
    code: with 0 it is nought, and no greedy or top-k draw ever ends; with 2 and above one may."""
    layout = model_layout(config) if isinstance(config, TtsConfig) else codec_layout(config)
    weights = {name: _values(name, shape, seed) for name, shape in layout.items()}
    if isinstance(config, TtsConfig):
        weights["talker.codec_head.weight"][config.talker_config.codec_eos_token_id] *= end_gain
    return weights


def write_tiny_checkpoint(
    folder: Path,
    model_type: TtsModelType = "custom_voice",
    size: Size = "1.7B",
    seed: int = 0,
    *,
    end_gain: float = 0.0,
) -> Path:
    """Write a whole checkpoint (float32, 35 MB) into `folder`, which is made if need be, and return it."""
    from safetensors.numpy import save_file

    config, codec = tiny_config(model_type, size), tiny_codec_config()
    codec_folder = folder / CODEC_FOLDER
    codec_folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", _published(config))
    write_json(folder / "generation_config.json", _GENERATION)
    write_json(codec_folder / "config.json", _published_codec(codec))
    write_json(codec_folder / "preprocessor_config.json", _PREPROCESSOR)
    save_file(tiny_weights(config, seed, end_gain=end_gain), folder / "model.safetensors", {"format": "pt"})
    held = tiny_weights(codec, seed)
    # the published file holds this flag of the encoder's codebooks too
    held |= {
        name.replace("cluster_usage", "initialized"): np.ones(1, np.float32)
        for name in held
        if name.endswith(".codebook.cluster_usage")
    }
    save_file(held, codec_folder / "model.safetensors", {"format": "pt"})
    write_tokenizer(folder)
    return folder


_GENERATION = {
    "do_sample": True,
    "max_new_tokens": 8192,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
}
_PREPROCESSOR = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}


def _published(config: TtsConfig) -> dict[str, Any]:
    """With what other readers of `config.json` want besides."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    talker = tree["talker_config"]
    half = talker["head_dim"] // 2
    side = half * 20 // 64
    talker["rope_scaling"] = {
        "interleaved": True,
        "mrope_section": [half - 2 * side, side, side],
        "rope_type": "default",
        "type": "default",
    }
    talker["position_id_per_seconds"] = 13
    talker["code_predictor_config"]["num_code_groups"] = talker["num_code_groups"]
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        **tree,
    }


def _published_codec(config: CodecConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        **msgspec.to_builtins(config),
    }


def _values(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    mean, width = _spread(name, shape)
    return uniform(name, shape, seed, mean, width, heavy_rows="codec_head" in name or "lm_head" in name)


def _spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and half width of a tensor's values. No scale is one and no bias nought, so that leaving one out
    shows."""
    if name.endswith("norm.weight"):
        return 1.0, 0.25
    if name.endswith("cluster_usage"):
        return 1.0, 0.5
    if name.endswith((".scale", ".gamma")):
        return 0.25, 0.1
    if name.endswith((".bias", ".alpha", ".beta")):
        return 0.0, 0.2
    if name.endswith(("embedding.weight", "embedding_sum", "embed_sum")) or "codec_embedding" in name:
        return 0.0, 1.0
    gain = 0.01 if shape[0] == 1 else 1.0  # the codec's last convolution, which makes samples within ±1
    return 0.0, gain * math.sqrt(3.0 / math.prod(shape[1:]))  # keeps a unit variance
