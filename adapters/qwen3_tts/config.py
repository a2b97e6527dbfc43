"""The checkpoints' `config.json`, as far as inference needs it.

A published folder has `config.json` (talker, code predictor, speaker encoder), `generation_config.json`,
`model.safetensors` (or an index of parts), the text tokenizer's files, and `speech_tokenizer/` with the
codec's own `config.json` and weights. Defaults below are the published checkpoints', not the reference
classes' (which describe no checkpoint).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.core.errors import DuplexError, ErrorCode

_T = TypeVar("_T")


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """Unknown keys are ignored: checkpoints carry training settings too."""


class DecoderConfig(_Config, frozen=True, kw_only=True):
    """A Qwen3 decoder's dimensions: the talker's or the code predictor's."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    vocab_size: int = 2048
    max_position_embeddings: int = 32768


class TalkerConfig(DecoderConfig, frozen=True, kw_only=True):
    """The talker. Its M-RoPE has equal positions in all three sections, so it is plain RoPE."""

    vocab_size: int = 3072
    text_hidden_size: int = 2048
    text_vocab_size: int = 151936
    num_code_groups: int = 16
    codec_bos_id: int = 2149
    codec_eos_token_id: int = 2150
    codec_pad_id: int = 2148
    codec_think_id: int = 2154
    codec_nothink_id: int = 2155
    codec_think_bos_id: int = 2156
    codec_think_eos_id: int = 2157
    codec_language_id: dict[str, int] = {}
    spk_id: dict[str, int] = {}
    spk_is_dialect: dict[str, str | bool] = {}
    code_predictor_config: DecoderConfig


class SpeakerEncoderConfig(_Config, frozen=True, kw_only=True):
    """The ECAPA-TDNN of Base checkpoints."""

    mel_dim: int = 128
    enc_dim: int = 1024
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = 24000


class TtsConfig(_Config, frozen=True, kw_only=True):
    """`config.json`."""

    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig = SpeakerEncoderConfig()
    tts_model_type: TtsModelType
    tts_model_size: str = "1b7"
    tokenizer_type: str = "qwen3_tts_tokenizer_12hz"
    im_start_token_id: int = 151644
    im_end_token_id: int = 151645
    assistant_token_id: int = 77091
    tts_pad_token_id: int = 151671
    tts_bos_token_id: int = 151672
    tts_eos_token_id: int = 151673


class CodecDecoderConfig(_Config, frozen=True, kw_only=True):
    """`decoder_config` of `speech_tokenizer/config.json`."""

    codebook_size: int = 2048
    codebook_dim: int = 512
    hidden_size: int = 512
    latent_dim: int = 1024
    max_position_embeddings: int = 8000
    rope_theta: float = 10000.0
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 64
    sliding_window: int = 72
    intermediate_size: int = 1024
    rms_norm_eps: float = 1e-5
    num_hidden_layers: int = 8
    num_quantizers: int = 16
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    upsampling_ratios: tuple[int, ...] = (2, 2)
    decoder_dim: int = 1536


class CodecConfig(_Config, frozen=True, kw_only=True):
    """`speech_tokenizer/config.json`. `encoder_config` is a Mimi configuration, as transformers takes it."""

    decoder_config: CodecDecoderConfig = CodecDecoderConfig()
    encoder_config: dict[str, Any] = {}
    encoder_valid_num_quantizers: int = 16
    input_sample_rate: int = 24000
    output_sample_rate: int = 24000
    decode_upsample_rate: int = 1920
    encode_downsample_rate: int = 1920


def read_config(folder: Path) -> TtsConfig:
    """`config.json` of a checkpoint's folder. A null says what a missing key does: the default.

    Raises:
        DuplexError: `BAD_CONFIG`: not there, or not a Qwen3-TTS 12 Hz checkpoint.
    """
    config = _read(folder / "config.json", TtsConfig, _without_nulls)
    if config.tokenizer_type != "qwen3_tts_tokenizer_12hz":
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"{folder}: tokenizer_type {config.tokenizer_type!r} is not served, only the 12 Hz one",
            param="model",
        )
    return config


def read_codec_config(folder: Path) -> CodecConfig:
    """`speech_tokenizer/config.json` of a checkpoint's folder. Raises as `read_config` does."""
    return _read(folder / "speech_tokenizer" / "config.json", CodecConfig)


def _read(path: Path, kind: type[_T], change: Callable[[Any], Any] = lambda found: found) -> _T:
    try:
        return msgspec.convert(change(msgspec.json.decode(path.read_bytes())), kind)
    except FileNotFoundError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"there is no {path}", param="model") from error
    except msgspec.DecodeError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"{path} does not describe a Qwen3-TTS checkpoint: {error}", param="model"
        ) from error


def _without_nulls(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {name: _without_nulls(value) for name, value in found.items() if value is not None}
