"""The speaker encoder of Base checkpoints: a recording's voice as one vector, for the talker's prompt.

ECAPA-TDNN (https://arxiv.org/abs/2005.07143) over a log mel spectrogram: time-delay layers, three Res2Net
blocks with squeeze-and-excitation, attentive statistics pooling. About 12 M parameters; runs once a voice,
always in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen3_tts.config import SpeakerEncoderConfig
from duplex.codecs.mel import mel_filters
from duplex.core.errors import DuplexError, ErrorCode

_FFT: Final = 1024  # samples; also the window
_HOP: Final = 256  # samples, 10.7 ms
_PAD: Final = (_FFT - _HOP) // 2
_POWER_FLOOR: Final = 1e-9
_LOG_FLOOR: Final = 1e-5
_VARIANCE_FLOOR: Final = 1e-12
_PREFIX: Final = "speaker_encoder."


class SpeakerEncoder:
    """The encoder on one device.

    Args:
        weights: by their published names, with or without "speaker_encoder." in front, any dtype and device;
            others are ignored.

    Raises:
        DuplexError: `BAD_CONFIG`: a tensor is missing.
    """

    def __init__(
        self,
        config: SpeakerEncoderConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        prefix = _PREFIX if f"{_PREFIX}fc.weight" in weights else ""
        bank = mel_filters(config.sample_rate, _FFT, config.mel_dim)
        self._bank = torch.from_numpy(bank).to(self.device)
        self._window = torch.hann_window(_FFT, device=self.device)
        self._convs = {name: self._conv(weights, prefix + name) for name in self._names()}
        shape = zip(config.enc_kernel_sizes, config.enc_dilations, strict=True)
        frames = max((kernel - 1) * dilation // 2 for kernel, dilation in shape) + 1
        # what the layers' mirrored margins need, and the mirrored margin of the spectrogram
        self.least_samples = max(_PAD + 1, frames * _HOP)
        """Samples that a recording must have at least (53 ms in the published checkpoints)."""

    def embed(self, samples: Tensor | NDArray[np.float32]) -> Tensor:
        """The voice of a mono recording at the config's sample rate (24 kHz), full scale ±1, shape (n,): a
        vector (enc_dim,) float32 on the encoder's device.

        Raises:
            DuplexError: `INVALID_AUDIO`: too short.
        """
        wave = torch.as_tensor(samples, dtype=torch.float32, device=self.device)
        if wave.ndim != 1 or len(wave) < self.least_samples:
            least = 1000 * self.least_samples / self.config.sample_rate
            raise DuplexError(
                ErrorCode.INVALID_AUDIO,
                f"a reference recording has at least {least:.0f} ms",
                param="ref_audio",
            )
        x = self._mel(wave)[None]
        outputs = self._tdnn(x, "blocks.0")
        blocks = []
        for index in range(1, len(self.config.enc_channels) - 1):
            outputs = self._block(outputs, index)
            blocks.append(outputs)
        x = self._tdnn(torch.cat(blocks, dim=1), "mfa", self.config.enc_dilations[-1])
        return self._apply(self._pool(x), "fc")[0, :, 0]

    def _mel(self, wave: Tensor) -> Tensor:
        """Log mel spectrogram (mel_dim, frames)."""
        padded = F.pad(wave[None], (_PAD, _PAD), mode="reflect")[0]
        spectrum = torch.stft(
            padded,
            _FFT,
            hop_length=_HOP,
            window=self._window,
            center=False,
            return_complex=True,
        )
        magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + _POWER_FLOOR)
        return (self._bank @ magnitude).clamp(min=_LOG_FLOOR).log()

    def _block(self, x: Tensor, index: int) -> Tensor:
        """SE-Res2Net: each part of the channels hears the one before it too."""
        at, scale = f"blocks.{index}", self.config.enc_res2net_scale
        parts = list(self._tdnn(x, f"{at}.tdnn1").chunk(scale, dim=1))
        for part in range(1, scale):
            heard = parts[part] if part == 1 else parts[part] + parts[part - 1]
            name = f"{at}.res2net_block.blocks.{part - 1}"
            parts[part] = self._tdnn(heard, name, self.config.enc_dilations[index])
        y = self._tdnn(torch.cat(parts, dim=1), f"{at}.tdnn2")
        gate = self._apply(y.mean(dim=2, keepdim=True), f"{at}.se_block.conv1").relu()
        return x + y * self._apply(gate, f"{at}.se_block.conv2").sigmoid()

    def _pool(self, x: Tensor) -> Tensor:
        """Mean and deviation over time, weighted by attention: (1, 2 · channels, 1)."""
        flat = torch.full_like(x[:, :1], 1 / x.shape[2])
        known = torch.cat((x, *(part.expand_as(x) for part in _statistics(x, flat))), dim=1)
        attention = self._apply(self._tdnn(known, "asp.tdnn").tanh(), "asp.conv").softmax(dim=2)
        return torch.cat(_statistics(x, attention), dim=1)

    def _tdnn(self, x: Tensor, name: str, dilation: int | None = None) -> Tensor:
        if dilation is None:
            dilation = self.config.enc_dilations[0] if name == "blocks.0" else 1
        return self._apply(x, f"{name}.conv", dilation).relu()

    def _apply(self, x: Tensor, name: str, dilation: int = 1) -> Tensor:
        weight, bias = self._convs[name]
        margin = (weight.shape[2] - 1) * dilation
        if margin:
            x = F.pad(x, (margin // 2, margin - margin // 2), mode="reflect")
        return F.conv1d(x, weight, bias, dilation=dilation)

    def _names(self) -> list[str]:
        names = ["blocks.0.conv", "mfa.conv", "asp.tdnn.conv", "asp.conv", "fc"]
        for index in range(1, len(self.config.enc_channels) - 1):
            at = f"blocks.{index}"
            names += [f"{at}.tdnn1.conv", f"{at}.tdnn2.conv", f"{at}.se_block.conv1", f"{at}.se_block.conv2"]
            parts = range(self.config.enc_res2net_scale - 1)
            names += [f"{at}.res2net_block.blocks.{part}.conv" for part in parts]
        return names

    def _conv(self, weights: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
        try:
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        except KeyError as error:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"the speaker encoder's weights have no {error.args[0]}", param="model"
            ) from None
        return weight.detach().to(self.device, torch.float32), bias.detach().to(self.device, torch.float32)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and deviation over time, (1, channels, 1) each."""
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=_VARIANCE_FLOOR).sqrt()
