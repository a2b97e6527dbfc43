"""The codec's encoder: the authors' codes of a recording."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the codec needs torch")

import codec_cases as cases  # noqa: E402
import msgspec  # noqa: E402
import numpy as np  # noqa: E402
from codec_small import config, golden, weights  # noqa: E402

from duplex.adapters.qwen3_tts.config import CodecConfig  # noqa: E402
from duplex.adapters.qwen3_tts.encoder import ReferenceEncoder  # noqa: E402
from duplex.adapters.qwen3_tts.layout import codec_layout  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

UNUSED = 16 - 1  # the first acoustic codebook that no code comes from


def encoder() -> ReferenceEncoder:
    return ReferenceEncoder(config("small"), weights("small"))


@pytest.mark.parametrize("index", range(len(cases.ENCODER_SAMPLES)))
def test_codes_are_the_authors(index: int) -> None:
    codes = encoder().encode(cases.sound(index, cases.ENCODER_SAMPLES[index]))
    assert codes.dtype == torch.int64
    assert torch.equal(codes, golden()[f"encoder.{index}"].long())


@pytest.mark.parametrize(("samples", "frames"), [(1, 1), (1919, 1), (1920, 1), (1921, 2), (4800, 3)])
def test_a_frame_for_every_1920_samples_begun(samples: int, frames: int) -> None:
    assert encoder().encode(cases.sound(0, samples)).shape == (frames, 16)


def test_codes_of_the_past_do_not_change() -> None:
    """The encoder is causal, but for the samples that a frame has not heard yet."""
    sound = cases.sound(2, 24000)
    whole, part = encoder().encode(sound), encoder().encode(sound[: 6 * 1920])
    assert torch.equal(part, whole[:6])


def test_weights_may_come_without_their_prefix_and_without_unused_codebooks() -> None:
    bare = {
        name.removeprefix("encoder."): tensor
        for name, tensor in weights("small").items()
        if name.startswith("encoder.") and f"acoustic_residual_vector_quantizer.layers.{UNUSED}." not in name
    }
    assert len(bare) < sum(name.startswith("encoder.") for name in weights("small"))
    codes = ReferenceEncoder(config("small"), bare).encode(cases.sound(0, 24000))
    assert torch.equal(codes, golden()["encoder.0"].long())


@pytest.mark.parametrize(
    "name",
    ["encoder.encoder.layers.0.conv.bias", "encoder.quantizer.semantic_residual_vector_quantizer.layers.0"],
)
def test_a_missing_tensor_is_named(name: str) -> None:
    lacking = {key: value for key, value in weights("small").items() if not key.startswith(name)}
    with pytest.raises(DuplexError, match=name) as caught:
        ReferenceEncoder(config("small"), lacking)
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_an_empty_recording_is_refused() -> None:
    with pytest.raises(DuplexError) as caught:
        encoder().encode(np.zeros(0, np.float32))
    assert caught.value.code is ErrorCode.EMPTY_INPUT


@pytest.mark.parametrize(
    "change", [{"use_causal_conv": False}, {"pad_mode": "reflect"}, {"hidden_act": "relu"}]
)
def test_another_kind_of_encoder_is_refused(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(config("small"), encoder_config=cases.ENCODER | change)
    with pytest.raises(DuplexError, match="causal Mimi encoder") as caught:
        ReferenceEncoder(other, weights("small"))
    assert caught.value.code is ErrorCode.BAD_CONFIG


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"use_conv_shortcut": True, "num_residual_layers": 2},
        {"num_key_value_heads": 2},
        {"vector_quantization_hidden_dimension": 32, "codebook_dim": 32},
        {"upsampling_ratios": [4, 6, 5, 8]},
    ],
)
def test_codes_are_those_of_transformers(change: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers' Mimi")
    fields = cases.ENCODER | change
    ours = msgspec.structs.replace(config("small"), encoder_config=fields)
    assert isinstance(ours, CodecConfig)
    tensors = {
        name: torch.from_numpy(value)
        for name, value in cases.weights(
            {name: shape for name, shape in codec_layout(ours).items() if name.startswith("encoder.")}
        ).items()
    }
    # releases differ in whether they apply the window: a window that everything fits in is none
    mimi = transformers.MimiModel(transformers.MimiConfig(**fields | {"sliding_window": 10**6})).eval()
    held = mimi.state_dict()
    for name, tensor in tensors.items():
        place = name.removeprefix("encoder.")
        if place not in held:  # since 5.2x
            place = place.replace("encoder.layers", "encoder.encoder_seanet.layers")
            place = place.replace("encoder_transformer", "encoder.encoder_transformer")
            place = place.replace("downsample", "encoder.downsample")
        held[place].copy_(tensor)
    sound = torch.from_numpy(cases.sound(1, 30001))
    with torch.no_grad():
        theirs = mimi.encode(sound[None, None], num_quantizers=16).audio_codes[0].T
    assert torch.equal(ReferenceEncoder(ours, tensors).encode(sound), theirs)
