"""Loads a Qwen3-TTS checkpoint for a worker: `load` is the factory that its `--factory` names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from duplex.adapters.engine.model import ModelInfo
from duplex.adapters.qwen3_tts.codec import CodecDecoder
from duplex.adapters.qwen3_tts.config import CodecConfig, TtsConfig, read_codec_config, read_config
from duplex.adapters.qwen3_tts.core import Core
from duplex.adapters.qwen3_tts.device import find_device, on_device
from duplex.adapters.qwen3_tts.encoder import ReferenceEncoder
from duplex.adapters.qwen3_tts.frame_model import QwenFrameModel
from duplex.adapters.qwen3_tts.layout import codec_layout, model_layout, parameters
from duplex.adapters.qwen3_tts.memo import Memo
from duplex.adapters.qwen3_tts.options import ModelOptions, read_options
from duplex.adapters.qwen3_tts.prompt import ChatIds
from duplex.adapters.qwen3_tts.recordings import Recordings
from duplex.adapters.qwen3_tts.sampling import MIN_FRAMES
from duplex.adapters.qwen3_tts.sound import Sound
from duplex.adapters.qwen3_tts.speaker import SpeakerEncoder
from duplex.adapters.qwen3_tts.text import TextTokenizer, load_tokenizer
from duplex.adapters.qwen3_tts.tiny_text import write_tokenizer
from duplex.adapters.qwen3_tts.weights import (
    CODEC_FOLDER,
    find_checkpoint,
    load_weights,
    random_weights,
    read_checked,
)
from duplex.core.errors import DuplexError, ErrorCode

MIB: Final = 2**20
_PUBLISHED_CHAT: Final = ChatIds(user=872, newline=198)


def load(options: Mapping[str, Any]) -> QwenFrameModel:
    """Load a model by the options of `ModelOptions`. It still has to be warmed up.

    Raises:
        DuplexError: `BAD_CONFIG`: an unknown option, a device or a checkpoint that is not there.
    """
    asked = read_options(options)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    device = find_device(asked.device)
    codec_device = device if asked.codec_device is None else find_device(asked.codec_device, "codec_device")
    dtype: torch.dtype = getattr(torch, asked.dtype or ("float32" if device.type == "cpu" else "bfloat16"))
    checkpoint = _Checkpoint(asked, device, codec_device, dtype)
    most = min(checkpoint.codec.decoder_config.sliding_window, Core.frames_kept)
    if asked.decode_frames[-1] > most:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"options of the Qwen3-TTS worker: decode_frames are at most {most}",
            param="decode_frames",
        )
    slots, batch = asked.slots, min(asked.max_batch or asked.slots, asked.slots)
    with on_device(device):
        core = Core(
            checkpoint.config,
            checkpoint.talker(),
            device=device,
            dtype=dtype,
            slots=slots,
            positions=asked.positions,
            max_batch=batch,
            prefill_rows=asked.prefill_rows,
            plain=not asked.graphs,
        )
    with on_device(codec_device):
        codec = CodecDecoder(
            checkpoint.codec.decoder_config,
            checkpoint.codec_part("decoder."),
            device=codec_device,
            dtype=dtype,
            slots=slots,
            frames=asked.decode_frames,
            max_batch=batch,
            plain=None if asked.graphs else True,
        )
    memo: Memo[Any] = Memo(asked.prefix_cache_mb * MIB)
    sound = Sound(codec, core.codes, memo)
    tokenizer, chat = checkpoint.tokenizer()
    info = ModelInfo(
        name=checkpoint.folder.resolve().name,
        sample_rate=checkpoint.codec.output_sample_rate,
        frame_samples=codec.frame_samples,
        slots=slots,
        max_batch=batch,
        prefill_rows=asked.prefill_rows,
        decode_frames=codec.frames,
        frames_kept=core.frames_kept,
        first_audible=MIN_FRAMES >= 1,
        detail=checkpoint.detail(core),
    )
    return QwenFrameModel(
        info,
        checkpoint.config,
        core=core,
        sound=sound,
        tokenizer=tokenizer,
        chat=chat,
        memo=memo,
        recordings=checkpoint.recordings(sound),
    )


class _Checkpoint:
    """Where the weights come from: a folder, or chance."""

    def __init__(
        self, options: ModelOptions, device: torch.device, codec_device: torch.device, dtype: torch.dtype
    ) -> None:
        self._device = device
        self._codec_device = codec_device
        self._dtype = dtype
        self._random = options.random_weights
        self.config: TtsConfig
        self.codec: CodecConfig
        if self._random:
            self.folder = Path(options.model).expanduser()
            self.config, self.codec = read_config(self.folder), read_codec_config(self.folder)
        else:
            self.folder = find_checkpoint(options.model, revision=options.revision, download=options.download)
            self.config, self.codec = read_checked(self.folder)

    def talker(self) -> Mapping[str, Tensor]:
        if self._random:
            return random_weights(
                self.config, None, 0, prefix="talker.", device=self._device, dtype=self._dtype
            )
        return load_weights(self.folder, "talker.", self._device, self._dtype)

    def codec_part(self, part: str) -> Mapping[str, Tensor]:
        """ "decoder." or "encoder."."""
        if self._random:
            return random_weights(
                self.config, self.codec, 0, prefix=part, device=self._codec_device, dtype=self._dtype
            )
        return load_weights(self.folder / CODEC_FOLDER, part, self._codec_device, None)

    def recordings(self, sound: Sound) -> Recordings | None:
        """The encoders of a Base checkpoint, in float32."""
        if self.config.tts_model_type != "base":
            return None
        prefix = "speaker_encoder."
        if self._random:
            weights = random_weights(self.config, None, 0, prefix=prefix, device=self._codec_device)
        else:
            weights = load_weights(self.folder, prefix, self._codec_device, torch.float32)
        with on_device(self._codec_device):
            return Recordings(
                SpeakerEncoder(self.config.speaker_encoder_config, weights, device=self._codec_device),
                ReferenceEncoder(self.codec, self.codec_part("encoder."), device=self._codec_device),
                sound,
            )

    def tokenizer(self) -> tuple[TextTokenizer, ChatIds]:
        """With random weights any ids will do: a folder need not have a tokenizer, nor its own one."""
        if not self._random:
            tokenizer = load_tokenizer(self.folder, self.config)
            return tokenizer, tokenizer.chat_ids(self.config)
        try:
            return load_tokenizer(self.folder, self.config), _PUBLISHED_CHAT
        except DuplexError as error:
            if error.code is not ErrorCode.BAD_CONFIG:
                raise
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder))
            return load_tokenizer(Path(folder), self.config), _PUBLISHED_CHAT

    def detail(self, core: Core) -> dict[str, str]:
        """What metrics and log tell of the model."""
        count = parameters(model_layout(self.config)) + parameters(codec_layout(self.codec))
        cache = core.state.keys.nbytes + core.state.values.nbytes
        return {
            "type": self.config.tts_model_type,
            "size": self.config.tts_model_size,
            "device": _device_name(self._device),
            "codec_device": _device_name(self._codec_device),
            "dtype": str(self._dtype).removeprefix("torch."),
            "parameters": f"{count / 1e6:.0f} M",
            "positions": str(core.positions),
            "cache": f"{cache / MIB:.0f} MiB",
            "weights": "random" if self._random else "checkpoint",
        }


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
