"""Voices computed ahead, by the encoders that a Base model hears recordings with. Needs torch."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from duplex.adapters.qwen3_tts.device import find_device
from duplex.adapters.qwen3_tts.encoder import ReferenceEncoder
from duplex.adapters.qwen3_tts.job import EncodeReference, Reference
from duplex.adapters.qwen3_tts.recordings import Recordings
from duplex.adapters.qwen3_tts.rules import GROUPS, check_length
from duplex.adapters.qwen3_tts.speaker import SpeakerEncoder
from duplex.adapters.qwen3_tts.weights import CODEC_FOLDER, load_weights, read_checked
from duplex.adapters.speech import ReferenceAudio, UploadedVoice
from duplex.core.errors import DuplexError, ErrorCode


class VoiceEncoder:
    """The two encoders of a Base checkpoint, without the model: some 50 M parameters, on the CPU in a blink.

    Raises:
        DuplexError: `BAD_CONFIG`: `folder` holds no Base checkpoint, or there is no such device.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        config, codec = read_checked(folder)
        if config.tts_model_type != "base":
            raise DuplexError(
                ErrorCode.BAD_CONFIG,
                f"{folder} is a {config.tts_model_type} checkpoint: voices are cloned by a Base one",
                param="model",
            )
        where = find_device(device)
        heard = load_weights(folder, "speaker_encoder.", where, torch.float32)
        coded = load_weights(folder / CODEC_FOLDER, "encoder.", where, torch.float32)
        self._recordings = Recordings(
            SpeakerEncoder(config.speaker_encoder_config, heard, device=where),
            ReferenceEncoder(codec, coded, device=where),
            cast(Any, _NoSound()),
        )

    def encode(self, name: str, recording: ReferenceAudio, text: str | None) -> UploadedVoice:
        """The voice: with `text`, what the recording says, for in-context cloning, else its embedding alone.

        Raises:
            DuplexError: `INVALID_VALUE` or `INVALID_AUDIO`: the recording is too short, or not finite.
        """
        check_length(recording, "recording")
        asked = EncodeReference(
            samples=recording.samples.astype("<f4").tobytes(),
            sample_rate=recording.sample_rate,
            codes=text is not None,
        )
        reference: Reference = self._recordings.encode(msgspec.msgpack.encode(asked))
        codes = np.frombuffer(reference.codes, "<i2").reshape(-1, GROUPS)
        return UploadedVoice(
            name=name,
            text=text,
            embedding=tuple(np.frombuffer(reference.embedding, "<f4").tolist()),
            codes=tuple(tuple(row) for row in codes.tolist()) if text is not None else None,
        )


class _NoSound:
    """Stands for the codec's decoder, which is told of codes that it will be given."""

    def remember(self, codes: NDArray[np.int64], key: Hashable) -> None:
        return None
