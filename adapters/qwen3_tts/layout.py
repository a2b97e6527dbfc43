"""The tensors of a published checkpoint: every name and shape, worked out from its configuration.

A checkpoint is checked against its own `config.json` before a byte of weights is read, so that a truncated
download or a folder of another model is told by the names of its tensors, not by a fault deep in a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from duplex.adapters.layouts import Named, Shape, attention, compare, gated_layer, parameters, qwen3_decoder
from duplex.adapters.layouts import linear as _linear
from duplex.adapters.qwen3_tts.config import (
    CodecConfig,
    CodecDecoderConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TtsConfig,
)
from duplex.core.errors import DuplexError, ErrorCode

__all__ = ["MimiConfig", "Shape", "check_layout", "codec_layout", "model_layout", "parameters"]

# Buffers that files of other versions of the classes hold; all are worked out from the configuration.
_BUFFERS = (
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "codebook.initialized",
    ".stride",
    ".kernel_size",
    ".padding_total",
)
_KERNEL = 7  # of the codec decoder's convolutions
_RESIDUALS = 3  # residual units in a block of the codec decoder


class MimiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The codec's encoder: the fields of `encoder_config` that give shapes. Unknown keys are ignored.

    Defaults are transformers' own for Mimi, which the published codec keeps.
    """

    audio_channels: int = 1
    hidden_size: int = 512
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    compress: int = 2
    codebook_size: int = 2048
    codebook_dim: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1
    use_conv_shortcut: bool = False
    vector_quantization_hidden_dimension: int = 256
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int | None = None


def model_layout(config: TtsConfig) -> dict[str, Shape]:
    """Names and shapes of `model.safetensors`: talker, code predictor and, in Base checkpoints, the speaker
    encoder. 1,917 M parameters for CustomVoice 1.7B, 906 M for 0.6B."""
    names = dict(_talker(config.talker_config))
    if config.tts_model_type == "base":
        names.update(_speaker_encoder(config.speaker_encoder_config))
    return names


def codec_layout(config: CodecConfig) -> dict[str, Shape]:
    """Names and shapes of `speech_tokenizer/model.safetensors`: decoder (114 M parameters) and encoder.

    The encoder's codebooks past `encoder_valid_num_quantizers` are here too, though nothing reads them.

    Raises:
        DuplexError: `BAD_CONFIG`: `encoder_config` is no Mimi configuration.
    """
    return dict(_codec_decoder(config.decoder_config)) | dict(_codec_encoder(_mimi(config.encoder_config)))


def check_layout(config: TtsConfig | CodecConfig, found: Mapping[str, Shape]) -> None:
    """Compare the tensors of a file with those that its configuration asks for.

    Not looked at: rotary `inv_freq` and `original_inv_freq`, a codebook's `initialized` flag, and a
    convolution's `stride`, `kernel_size` and `padding_total`, which files of older versions may hold. The
    encoder's codebooks that no code is taken from may be missing.

    Raises:
        DuplexError: `BAD_CONFIG` naming the first tensors that are missing, unexpected or of another shape.
    """
    if isinstance(config, TtsConfig):
        wanted, spare, what = model_layout(config), set[str](), "model"
    else:
        wanted, spare, what = codec_layout(config), _spare_codebooks(config), "speech tokenizer"
    compare(wanted, found, what, spare=spare, ignored=_BUFFERS)


def _mimi(fields: Mapping[str, Any]) -> MimiConfig:
    try:
        return msgspec.convert(fields, MimiConfig)
    except msgspec.ValidationError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"encoder_config of the speech tokenizer: {error}", param="model"
        ) from error


def _talker(config: TalkerConfig) -> Named:
    hidden, text = config.hidden_size, config.text_hidden_size
    yield "talker.model.codec_embedding.weight", (config.vocab_size, hidden)
    yield "talker.model.text_embedding.weight", (config.text_vocab_size, text)
    yield from qwen3_decoder("talker.model", config)
    yield from _linear("talker.text_projection.linear_fc1", text, text, bias=True)
    yield from _linear("talker.text_projection.linear_fc2", text, hidden, bias=True)
    yield from _linear("talker.codec_head", hidden, config.vocab_size)
    predictor, at = config.code_predictor_config, "talker.code_predictor"
    yield from qwen3_decoder(f"{at}.model", predictor)
    for group in range(config.num_code_groups - 1):
        yield f"{at}.model.codec_embedding.{group}.weight", (predictor.vocab_size, hidden)
        yield from _linear(f"{at}.lm_head.{group}", predictor.hidden_size, predictor.vocab_size)
    if predictor.hidden_size != hidden:
        yield from _linear(f"{at}.small_to_mtp_projection", hidden, predictor.hidden_size, bias=True)


def _speaker_encoder(config: SpeakerEncoderConfig) -> Named:
    at, channels, kernels = "speaker_encoder", config.enc_channels, config.enc_kernel_sizes
    yield from _conv(f"{at}.blocks.0.conv", config.mel_dim, channels[0], kernels[0])
    part = config.enc_res2net_scale
    for block in range(1, len(channels) - 1):
        here, out = f"{at}.blocks.{block}", channels[block]
        yield from _conv(f"{here}.tdnn1.conv", channels[block - 1], out, 1)
        for branch in range(part - 1):
            yield from _conv(
                f"{here}.res2net_block.blocks.{branch}.conv", out // part, out // part, kernels[block]
            )
        yield from _conv(f"{here}.tdnn2.conv", out, out, 1)
        yield from _conv(f"{here}.se_block.conv1", out, config.enc_se_channels, 1)
        yield from _conv(f"{here}.se_block.conv2", config.enc_se_channels, out, 1)
    last = channels[-1]
    yield from _conv(f"{at}.mfa.conv", last, last, kernels[-1])
    yield from _conv(f"{at}.asp.tdnn.conv", 3 * last, config.enc_attention_channels, 1)
    yield from _conv(f"{at}.asp.conv", config.enc_attention_channels, last, 1)
    yield from _conv(f"{at}.fc", 2 * last, config.enc_dim, 1)


def _codec_decoder(config: CodecDecoderConfig) -> Named:
    latent, inner = config.latent_dim, config.codebook_dim // 2
    for quantizer, layers in (("rvq_first", 1), ("rvq_rest", config.num_quantizers - 1)):
        at = f"decoder.quantizer.{quantizer}"
        yield f"{at}.input_proj.weight", (inner, config.codebook_dim, 1)
        yield f"{at}.output_proj.weight", (config.codebook_dim, inner, 1)
        for layer in range(layers):
            yield f"{at}.vq.layers.{layer}._codebook.cluster_usage", (config.codebook_size,)
            yield f"{at}.vq.layers.{layer}._codebook.embedding_sum", (config.codebook_size, inner)
    yield from _conv("decoder.pre_conv.conv", config.codebook_dim, latent, 3)
    yield from _pre_transformer("decoder.pre_transformer", config)
    for stage, factor in enumerate(config.upsampling_ratios):
        yield from _transposed(f"decoder.upsample.{stage}.0.conv", latent, latent, factor)
        yield from _convnext(f"decoder.upsample.{stage}.1", latent)
    yield from _conv("decoder.decoder.0.conv", latent, config.decoder_dim, _KERNEL)
    width = config.decoder_dim
    for stage, rate in enumerate(config.upsample_rates, start=1):
        block = f"decoder.decoder.{stage}.block"
        yield from _snake(f"{block}.0", width)
        yield from _transposed(f"{block}.1.conv", width, width // 2, 2 * rate)
        width //= 2
        for unit in range(2, 2 + _RESIDUALS):
            yield from _snake(f"{block}.{unit}.act1", width)
            yield from _conv(f"{block}.{unit}.conv1.conv", width, width, _KERNEL)
            yield from _snake(f"{block}.{unit}.act2", width)
            yield from _conv(f"{block}.{unit}.conv2.conv", width, width, 1)
    last = len(config.upsample_rates) + 1
    yield from _snake(f"decoder.decoder.{last}", width)
    yield from _conv(f"decoder.decoder.{last + 1}.conv", width, 1, _KERNEL)


def _pre_transformer(at: str, config: CodecDecoderConfig) -> Named:
    hidden = config.hidden_size
    yield from _linear(f"{at}.input_proj", config.latent_dim, hidden, bias=True)
    for layer in range(config.num_hidden_layers):
        here = f"{at}.layers.{layer}"
        yield from attention(here, config)
        yield from gated_layer(here, hidden, config.intermediate_size)
        yield f"{here}.self_attn_layer_scale.scale", (hidden,)
        yield f"{here}.mlp_layer_scale.scale", (hidden,)
    yield f"{at}.norm.weight", (hidden,)
    yield from _linear(f"{at}.output_proj", hidden, config.latent_dim, bias=True)


def _convnext(at: str, width: int) -> Named:
    yield f"{at}.gamma", (width,)
    yield f"{at}.dwconv.conv.weight", (width, 1, _KERNEL)
    yield f"{at}.dwconv.conv.bias", (width,)
    yield f"{at}.norm.weight", (width,)
    yield f"{at}.norm.bias", (width,)
    yield from _linear(f"{at}.pwconv1", width, 4 * width, bias=True)
    yield from _linear(f"{at}.pwconv2", 4 * width, width, bias=True)


def _codec_encoder(config: MimiConfig) -> Named:
    at, width, index = "encoder.encoder.layers", config.num_filters, 1
    yield from _conv(f"{at}.0.conv", config.audio_channels, width, config.kernel_size)
    for ratio in reversed(config.upsampling_ratios):
        for _ in range(config.num_residual_layers):
            narrow = width // config.compress
            yield from _conv(f"{at}.{index}.block.1.conv", width, narrow, config.residual_kernel_size)
            yield from _conv(f"{at}.{index}.block.3.conv", narrow, width, 1)
            if config.use_conv_shortcut:
                yield from _conv(f"{at}.{index}.shortcut.conv", width, width, 1)
            index += 1
        yield from _conv(
            f"{at}.{index + 1}.conv", width, 2 * width, 2 * ratio
        )  # an activation stands before it
        width, index = 2 * width, index + 2
    hidden = config.hidden_size
    yield from _conv(f"{at}.{index + 1}.conv", width, hidden, config.last_kernel_size)
    for layer in range(config.num_hidden_layers):
        yield from _mimi_layer(f"encoder.encoder_transformer.layers.{layer}", config)
    yield "encoder.downsample.conv.weight", (hidden, hidden, 4)  # 25 to 12.5 frames a second
    inner, semantic = config.vector_quantization_hidden_dimension, config.num_semantic_quantizers
    for kind, layers in (("semantic", semantic), ("acoustic", config.num_quantizers - semantic)):
        at = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        if inner != hidden:
            yield f"{at}.input_proj.weight", (inner, hidden, 1)
            yield f"{at}.output_proj.weight", (hidden, inner, 1)
        for layer in range(layers):
            yield f"{at}.layers.{layer}.codebook.cluster_usage", (config.codebook_size,)
            yield f"{at}.layers.{layer}.codebook.embed_sum", (config.codebook_size, config.codebook_dim)


def _mimi_layer(at: str, config: MimiConfig) -> Named:
    hidden = config.hidden_size
    head = config.head_dim or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    yield from _linear(f"{at}.self_attn.q_proj", hidden, queries)
    yield from _linear(f"{at}.self_attn.k_proj", hidden, keys)
    yield from _linear(f"{at}.self_attn.v_proj", hidden, keys)
    yield from _linear(f"{at}.self_attn.o_proj", queries, hidden)
    yield from _linear(f"{at}.mlp.fc1", hidden, config.intermediate_size)
    yield from _linear(f"{at}.mlp.fc2", config.intermediate_size, hidden)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{at}.{norm}.weight", (hidden,)
        yield f"{at}.{norm}.bias", (hidden,)
    yield f"{at}.self_attn_layer_scale.scale", (hidden,)
    yield f"{at}.mlp_layer_scale.scale", (hidden,)


def _spare_codebooks(config: CodecConfig) -> set[str]:
    """The encoder's codebooks that no code of a frame is taken from."""
    mimi = _mimi(config.encoder_config)
    used = config.encoder_valid_num_quantizers - mimi.num_semantic_quantizers
    at = "encoder.quantizer.acoustic_residual_vector_quantizer.layers"
    return {
        f"{at}.{layer}.codebook.{tensor}"
        for layer in range(used, mimi.num_quantizers - mimi.num_semantic_quantizers)
        for tensor in ("cluster_usage", "embed_sum")
    }


def _conv(at: str, inputs: int, outputs: int, kernel: int) -> Named:
    yield f"{at}.weight", (outputs, inputs, kernel)
    yield f"{at}.bias", (outputs,)


def _transposed(at: str, inputs: int, outputs: int, kernel: int) -> Named:
    yield f"{at}.weight", (inputs, outputs, kernel)
    yield f"{at}.bias", (outputs,)


def _snake(at: str, width: int) -> Named:
    yield f"{at}.alpha", (width,)
    yield f"{at}.beta", (width,)
