"""Checkpoint configurations for the Qwen3-TTS benchmark, as the published `config.json` files have them.

Only the standard library is imported here: processes of other packages read it too.
"""

from __future__ import annotations

from typing import Any

SIZES = ("1.7B", "0.6B", "tiny")
SAMPLE_RATE = 24000
FRAME_MS = 80
FRAME_SAMPLES = 1920
SPEAKER = "vivian"
LANGUAGE = "english"
SENTENCE = "The next train to the airport leaves from platform nine in a quarter of an hour."
"""What all sections say: 16 words, about 18 tokens, some four seconds of speech."""
CODEC_EOS = 2150

_LANGUAGES = {
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
}
_SPEAKERS = {"serena": 3066, "vivian": 3065, "ryan": 3061, "aiden": 2861}


def decoder(size: str) -> dict[str, int]:
    """The talker's dimensions."""
    hidden, inner, layers, heads, kv_heads, head = {
        "1.7B": (2048, 6144, 28, 16, 8, 128),
        "0.6B": (1024, 3072, 28, 16, 8, 128),
        "tiny": (64, 128, 2, 4, 2, 32),
    }[size]
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
    }


def predictor(size: str) -> dict[str, int]:
    """The code predictor's dimensions."""
    hidden, inner, layers = (32, 64, 1) if size == "tiny" else (1024, 3072, 5)
    return decoder(size) | {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}


def config(size: str) -> dict[str, Any]:
    """`config.json` of a CustomVoice checkpoint."""
    talker = decoder(size)
    half = talker["head_dim"] // 2
    part = half * 20 // 64
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tts_model_type": "custom_voice",
        "tts_model_size": "0b6" if size == "0.6B" else "1b7",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "assistant_token_id": 77091,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "speaker_encoder_config": {"enc_dim": talker["hidden_size"], "sample_rate": SAMPLE_RATE},
        "talker_config": talker
        | {
            "vocab_size": 3072,
            "max_position_embeddings": 32768,
            "rope_theta": 1000000,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {
                "interleaved": True,
                "mrope_section": [half - 2 * part, part, part],
                "rope_type": "default",
                "type": "default",
            },
            "num_code_groups": 16,
            "text_hidden_size": 64 if size == "tiny" else 2048,
            "text_vocab_size": 151936,
            "position_id_per_seconds": 13,
            "codec_bos_id": 2149,
            "codec_eos_token_id": CODEC_EOS,
            "codec_pad_id": 2148,
            "codec_think_id": 2154,
            "codec_nothink_id": 2155,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
            "codec_language_id": _LANGUAGES,
            "spk_id": _SPEAKERS,
            "spk_is_dialect": dict.fromkeys(_SPEAKERS, False),
            "code_predictor_config": predictor(size)
            | {
                "vocab_size": 2048,
                "max_position_embeddings": 65536,
                "rope_theta": 1000000,
                "num_code_groups": 16,
            },
        },
    }


def codec_decoder(size: str) -> dict[str, Any]:
    """`decoder_config` of `speech_tokenizer/config.json`."""
    small = size == "tiny"
    return {
        "codebook_size": 2048,
        "codebook_dim": 64 if small else 512,
        "hidden_size": 32 if small else 512,
        "latent_dim": 64 if small else 1024,
        "intermediate_size": 64 if small else 1024,
        "head_dim": 16 if small else 64,
        "num_attention_heads": 2 if small else 16,
        "num_key_value_heads": 2 if small else 16,
        "num_hidden_layers": 2 if small else 8,
        "sliding_window": 72,
        "decoder_dim": 64 if small else 1536,
    }


def codec_encoder(size: str) -> dict[str, Any]:
    """`encoder_config` of `speech_tokenizer/config.json`; transformers' defaults are the published ones."""
    if size != "tiny":
        return {}
    return {
        "hidden_size": 32,
        "num_filters": 4,
        "upsample_groups": 32,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
    }


def codec_config(size: str) -> dict[str, Any]:
    """`speech_tokenizer/config.json`."""
    return {"decoder_config": codec_decoder(size), "encoder_config": codec_encoder(size)}


def frame_bytes(size: str, batch: int, positions: int = 512) -> int:
    """Fewest bytes that one frame of a batch moves, 16-bit weights and caches.

    Talker weights once, the predictor's and its input projection 16 times (two positions, then 14 steps, as
    the naive loop does them), each head once, and the key-value cache of `positions` a row.
    """
    talker, small = decoder(size), predictor(size)

    def weights(part: dict[str, int]) -> int:
        heads, kv, head = part["num_attention_heads"], part["num_key_value_heads"], part["head_dim"]
        hidden = part["hidden_size"]
        attention = (heads + 2 * kv) * head * hidden + hidden * heads * head
        return part["num_hidden_layers"] * (attention + 3 * hidden * part["intermediate_size"])

    cache = positions * 2 * talker["num_key_value_heads"] * talker["head_dim"] * talker["num_hidden_layers"]
    projection = 0
    if small["hidden_size"] != talker["hidden_size"]:
        projection = small["hidden_size"] * talker["hidden_size"]
    numbers = (
        weights(talker)
        + 16 * (weights(small) + projection)
        + 3072 * talker["hidden_size"]
        + 15 * 2048 * small["hidden_size"]
        + batch * cache
    )
    return 2 * numbers
