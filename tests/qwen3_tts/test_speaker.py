"""The speaker encoder: the authors' embeddings."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the speaker encoder needs torch")

import codec_cases as cases  # noqa: E402
import msgspec  # noqa: E402
import numpy as np  # noqa: E402
from codec_small import golden  # noqa: E402

from duplex.adapters.qwen3_tts.config import SpeakerEncoderConfig, TtsConfig  # noqa: E402
from duplex.adapters.qwen3_tts.layout import model_layout  # noqa: E402
from duplex.adapters.qwen3_tts.speaker import SpeakerEncoder, mel_filters  # noqa: E402
from duplex.adapters.qwen3_tts.tiny import tiny_config  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

CONFIG = msgspec.convert(cases.SPEAKER, SpeakerEncoderConfig)


def tensors() -> dict[str, torch.Tensor]:
    base: TtsConfig = msgspec.structs.replace(tiny_config("base"), speaker_encoder_config=CONFIG)
    shapes = {
        name: shape for name, shape in model_layout(base).items() if name.startswith("speaker_encoder.")
    }
    return {name: torch.from_numpy(value) for name, value in cases.weights(shapes).items()}


@pytest.mark.parametrize("index", range(len(cases.SPEAKER_SAMPLES)))
def test_embeddings_are_the_authors(index: int) -> None:
    encoder = SpeakerEncoder(CONFIG, tensors())
    vector = encoder.embed(cases.sound(index, cases.SPEAKER_SAMPLES[index]))
    assert vector.shape == (CONFIG.enc_dim,)
    assert vector.dtype == torch.float32
    assert float((vector - golden()[f"speaker.{index}"]).abs().max()) < 1e-5


def test_the_filter_bank_is_librosas() -> None:
    bank = mel_filters(24000, 1024, 128)
    assert bank.shape == (128, 513)
    assert np.abs(bank[::8] - golden()["mel.bank"].numpy()).max() < 1e-8


@pytest.mark.parametrize(("rate", "bands"), [(24000, 128), (16000, 80), (22050, 40)])
def test_any_filter_bank_is_librosas(rate: int, bands: int) -> None:
    librosa = pytest.importorskip("librosa", reason="compares with librosa where it is installed")
    assert (
        np.abs(mel_filters(rate, 1024, bands) - librosa.filters.mel(sr=rate, n_fft=1024, n_mels=bands)).max()
        < 1e-8
    )


def test_weights_of_a_checkpoint_or_bare_ones() -> None:
    bare = {name.removeprefix("speaker_encoder."): tensor.double() for name, tensor in tensors().items()}
    sound = cases.sound(0, 9000)
    named = SpeakerEncoder(CONFIG, tensors() | {"talker.codec_head.weight": torch.zeros(1)})
    assert torch.equal(named.embed(sound), SpeakerEncoder(CONFIG, bare).embed(torch.from_numpy(sound)))


def test_another_voice_is_another_vector() -> None:
    encoder = SpeakerEncoder(CONFIG, tensors())
    first, second = encoder.embed(cases.sound(0, 24000)), encoder.embed(cases.sound(4, 24000))
    assert float((first - second).abs().max()) > 0.01


def test_the_shortest_recording() -> None:
    encoder = SpeakerEncoder(CONFIG, tensors())
    assert encoder.least_samples == 1280  # 53 ms
    assert bool(encoder.embed(cases.sound(0, 1280)).isfinite().all())
    with pytest.raises(DuplexError, match="at least 53 ms") as caught:
        encoder.embed(cases.sound(0, 1279))
    assert caught.value.code is ErrorCode.INVALID_AUDIO


def test_silence_has_a_finite_vector() -> None:
    assert bool(SpeakerEncoder(CONFIG, tensors()).embed(np.zeros(24000, np.float32)).isfinite().all())


def test_a_missing_tensor_is_named() -> None:
    lacking = tensors()
    del lacking["speaker_encoder.blocks.2.se_block.conv1.bias"]
    with pytest.raises(DuplexError, match=r"blocks\.2\.se_block\.conv1\.bias") as caught:
        SpeakerEncoder(CONFIG, lacking)
    assert caught.value.code is ErrorCode.BAD_CONFIG
