"""The table of tensors against the authors' classes, and what a folder that does not fit is told."""

from __future__ import annotations

import json
import lzma
from typing import Any

import msgspec
import pytest
from golden_cases import GOLDEN

from duplex.adapters.qwen3_tts.config import CodecConfig, TtsConfig
from duplex.adapters.qwen3_tts.layout import check_layout, codec_layout, model_layout, parameters
from duplex.adapters.qwen3_tts.tiny import tiny_codec_config, tiny_config
from duplex.core.errors import DuplexError, ErrorCode

# of the authors' classes on the meta device: golden/make_layout.py
MODELS: dict[str, dict[str, Any]] = json.loads(lzma.decompress((GOLDEN / "layout.json.xz").read_bytes()))
CODEC = MODELS.pop("codec")


def shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in model["tensors"].items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_a_full_size_model_is_that_of_the_authors_classes(name: str) -> None:
    config = msgspec.convert(MODELS[name]["config"], TtsConfig)
    assert model_layout(config) == shapes(MODELS[name])
    check_layout(config, shapes(MODELS[name]))


def test_the_table_of_the_full_size_codec_is_that_of_the_authors_classes() -> None:
    config = msgspec.convert(CODEC["config"], CodecConfig)
    found = shapes(CODEC)
    held = {name: shape for name, shape in found.items() if not name.endswith(".codebook.initialized")}
    assert codec_layout(config) == held
    assert len(found) - len(held) == 32  # the flag of each of the encoder's codebooks, which is no weight
    check_layout(config, found)


def test_the_codecs_table_has_the_published_values_as_defaults() -> None:
    assert codec_layout(CodecConfig()) == codec_layout(msgspec.convert(CODEC["config"], CodecConfig))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("custom_voice 1.7B", 1916.7),
        ("voice_design 1.7B", 1916.7),
        ("base 1.7B", 1928.7),
        ("custom_voice 0.6B", 905.8),
        ("base 0.6B", 914.6),
    ],
)
def test_full_size_models_have_the_published_number_of_parameters(name: str, millions: float) -> None:
    layout = model_layout(msgspec.convert(MODELS[name]["config"], TtsConfig))
    assert parameters(layout) == MODELS[name]["parameters"]
    assert parameters(layout) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
    ("prefix", "millions"),
    [
        ("talker.model.layers.", 1409.4),
        ("talker.model.text_embedding.", 311.2),
        ("talker.code_predictor.model.layers.", 78.65),
        ("talker.code_predictor.model.codec_embedding.", 62.9),
        ("talker.code_predictor.lm_head.", 31.5),
        ("speaker_encoder.", 12.0),
    ],
)
def test_the_parts_of_the_large_model_have_the_published_number_of_parameters(
    prefix: str, millions: float
) -> None:
    layout = model_layout(msgspec.convert(MODELS["base 1.7B"]["config"], TtsConfig))
    part = {name: shape for name, shape in layout.items() if name.startswith(prefix)}
    assert parameters(part) / 1e6 == pytest.approx(millions, abs=0.05)


def test_the_codecs_halves_have_the_published_number_of_parameters() -> None:
    layout = codec_layout(CodecConfig())
    decoder = {name: shape for name, shape in layout.items() if name.startswith("decoder.")}
    encoder = {
        name: shape for name, shape in layout.items() if name not in decoder and "codebook" not in name
    }
    assert parameters(decoder) / 1e6 == pytest.approx(114.3, abs=0.05)
    assert parameters(encoder) / 1e6 == pytest.approx(39.4, abs=0.05)
    assert parameters(decoder) + parameters(encoder) == CODEC["parameters"]


def refusal(config: TtsConfig | CodecConfig, found: dict[str, tuple[int, ...]]) -> str:
    with pytest.raises(DuplexError) as caught:
        check_layout(config, found)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert caught.value.param == "model"
    return str(caught.value)


def test_a_missing_tensor_is_named() -> None:
    config = tiny_config("custom_voice", "0.6B")
    found = model_layout(config)
    del found["talker.model.layers.1.self_attn.k_norm.weight"]
    told = refusal(config, found)
    assert "1 missing: talker.model.layers.1.self_attn.k_norm.weight" in told
    assert "unexpected" not in told
    assert "shape" not in told


def test_an_unexpected_tensor_is_named() -> None:
    config = tiny_config("custom_voice", "0.6B")
    told = refusal(config, model_layout(config) | {"thinker.lm_head.weight": (4, 4)})
    assert "1 unexpected: thinker.lm_head.weight" in told
    assert "missing" not in told


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    config = tiny_config("custom_voice", "0.6B")
    told = refusal(config, model_layout(config) | {"talker.codec_head.weight": (64, 3072)})
    assert "1 of another shape: talker.codec_head.weight (64×3072, not 3072×64)" in told


def test_of_many_faults_the_first_are_named_and_all_are_counted() -> None:
    config = tiny_config("base", "1.7B")
    found = model_layout(config)
    told = refusal(config, {name: shape for name, shape in found.items() if "lm_head" not in name})
    assert "15 missing: talker.code_predictor.lm_head.0.weight, " in told
    assert told.count("lm_head") == 3
    assert told.endswith(", …")


def test_a_large_models_weights_do_not_pass_for_a_small_one() -> None:
    told = refusal(tiny_config("base", "0.6B"), model_layout(tiny_config("base", "1.7B")))
    assert "2 unexpected: talker.code_predictor.small_to_mtp_projection.weight" in told
    assert "of another shape: talker.model.codec_embedding.weight (3072×128, not 3072×64)" in told


def test_only_base_has_a_speaker_encoder() -> None:
    base, design = tiny_config("base"), tiny_config("voice_design")
    assert "missing: speaker_encoder." in refusal(base, model_layout(design))
    assert "unexpected: speaker_encoder." in refusal(design, model_layout(base))


def test_buffers_that_older_files_hold_are_not_looked_at() -> None:
    config, codec = tiny_config(), tiny_codec_config()
    check_layout(
        config,
        model_layout(config)
        | {
            "talker.model.rotary_emb.inv_freq": (16,),
            "talker.code_predictor.model.rotary_emb.inv_freq": (16,),
            "talker.model.rotary_emb.original_inv_freq": (16,),
        },
    )
    check_layout(
        codec,
        codec_layout(codec)
        | {
            "encoder.encoder.layers.0.stride": (),
            "encoder.encoder.layers.0.kernel_size": (),
            "encoder.encoder.layers.0.padding_total": (),
            "decoder.pre_transformer.rotary_emb.inv_freq": (8,),
            "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.initialized": (1,),
        },
    )


def test_codebooks_that_no_code_is_taken_from_may_be_missing() -> None:
    codec = tiny_codec_config()  # 18 of the encoder's codebooks, 16 of them used
    acoustic = "encoder.quantizer.acoustic_residual_vector_quantizer.layers."

    def without(*layers: int) -> dict[str, tuple[int, ...]]:
        gone = tuple(f"{acoustic}{layer}." for layer in layers)
        return {name: shape for name, shape in codec_layout(codec).items() if not name.startswith(gone)}

    check_layout(codec, without(15, 16))
    told = refusal(codec, without(14, 15, 16))
    assert f"2 missing: {acoustic}14.codebook.cluster_usage" in told
    wrong = codec_layout(codec) | {f"{acoustic}16.codebook.embed_sum": (1, 1)}
    assert "of another shape" in refusal(codec, wrong)


def test_an_encoder_configuration_that_is_none_is_refused() -> None:
    codec = CodecConfig(encoder_config={"num_filters": "many"})
    with pytest.raises(DuplexError, match=r"encoder_config of the speech tokenizer: .*num_filters"):
        codec_layout(codec)
