"""Makes `codec.safetensors`: what the authors' codec and speaker encoder give for the cases of
`codec_cases.py`.

Run with an environment that has `qwen-tts` 0.1.1 and its transformers 4.57.3 (torchaudio need not be there):

    python make_codec.py

Weights and inputs are not kept: both sides work them out by the same rule.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import codec_cases as cases
import reference  # noqa: F401  (lets the package load)
import torch
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
from qwen_tts.core.models.modeling_qwen3_tts import (
    Qwen3TTSSpeakerEncoder,
    librosa_mel_fn,
    mel_spectrogram,
)
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import (
    Qwen3TTSTokenizerV2Config,
)
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model
from safetensors.torch import save_file
from torch import Tensor, nn


def fill(module: nn.Module, prefix: str = "") -> None:
    """Give every tensor of the module its values."""
    for name, tensor in module.state_dict().items():
        if not name.endswith("codebook.initialized"):
            tensor.copy_(torch.from_numpy(cases.values(prefix + name, tuple(tensor.shape))))


def decoders() -> dict[str, Tensor]:
    """Whole decodes."""
    made = {}
    for name, config in cases.DECODERS.items():
        model = Qwen3TTSTokenizerV2Model(
            Qwen3TTSTokenizerV2Config(encoder_config=cases.ENCODER, decoder_config=config)
        ).eval()
        fill(model)
        codes = torch.from_numpy(cases.codes(0, cases.FRAMES[name]))
        samples = model.decode(codes[None]).audio_values[0]
        share = (samples.abs() >= 1).float().mean()
        print(name, tuple(samples.shape), "deviation", float(samples.std()), "clipped", float(share))
        assert samples.std() > 0.1
        assert share < 0.01
        made[f"decoder.{name}"] = samples.contiguous()
    return made


def speakers() -> dict[str, Tensor]:
    """Speaker embeddings, and the filter bank they start from: every 8th of its 128 bands."""
    encoder = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**cases.SPEAKER)).eval()
    fill(encoder, "speaker_encoder.")
    mel = {"n_fft": 1024, "num_mels": 128, "sampling_rate": 24000, "hop_size": 256, "win_size": 1024}
    bank = librosa_mel_fn(sr=24000, n_fft=1024, n_mels=128, fmin=0, fmax=12000)
    made = {"mel.bank": torch.from_numpy(bank)[::8].contiguous()}
    for index, length in enumerate(cases.SPEAKER_SAMPLES):
        samples = torch.from_numpy(cases.sound(index, length))[None]
        mels = mel_spectrogram(samples, **mel, fmin=0, fmax=12000).transpose(1, 2)
        made[f"speaker.{index}"] = encoder(mels)[0].contiguous()
        print("speaker", length, tuple(mels.shape), float(made[f"speaker.{index}"].std()))
    return made


def encoders() -> dict[str, Tensor]:
    """Codes of recordings."""
    model = Qwen3TTSTokenizerV2Model(
        Qwen3TTSTokenizerV2Config(encoder_config=cases.ENCODER, decoder_config=cases.DECODERS["small"])
    ).eval()
    fill(model)
    made = {}
    for index, length in enumerate(cases.ENCODER_SAMPLES):
        samples = torch.from_numpy(cases.sound(index, length))[None]
        codes = model.encode(samples, torch.ones_like(samples, dtype=torch.long)).audio_codes[0]
        print("encoder", length, tuple(codes.shape), "codes used", len(codes.unique()))
        made[f"encoder.{index}"] = codes.to(torch.int16).contiguous()
    return made


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    path = Path(__file__).with_name("codec.safetensors")
    save_file({**decoders(), **speakers(), **encoders()}, path)
    print(path, path.stat().st_size)
