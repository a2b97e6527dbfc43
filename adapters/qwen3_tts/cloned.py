"""A voice to clone, as a job brings it, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.job import Reference
from duplex.core.errors import DuplexError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClonedVoice:
    """`embedding` (hidden,) float32; `codes` (frames, 16) int64, which say `text`; for x-vector cloning both
    are empty. `key` is the same for the same numbers, `code_key` for the same codes."""

    embedding: NDArray[np.float32]
    codes: NDArray[np.int64]
    text: str
    key: tuple[bytes, bytes]

    @property
    def code_key(self) -> bytes:
        """The codes as they came."""
        return self.key[1]


def read_reference(reference: Reference, config: TtsConfig) -> ClonedVoice:
    """A job's reference.

    Raises:
        DuplexError: `INVALID_VALUE`: it does not fit the checkpoint, or is no reference at all.
    """
    hidden, groups = config.talker_config.hidden_size, config.talker_config.num_code_groups
    if len(reference.embedding) != 4 * hidden:
        raise _bad(
            f"the speaker embedding has {len(reference.embedding) / 4:g} numbers, the checkpoint's {hidden}",
            "speaker_embedding",
        )
    embedding = np.frombuffer(reference.embedding, "<f4").astype(np.float32)
    if not np.isfinite(embedding).all():
        raise _bad("the speaker embedding is not finite", "speaker_embedding")
    if len(reference.codes) % (2 * groups):
        raise _bad(f"reference codes come in frames of {groups}", "ref_audio")
    codes = np.frombuffer(reference.codes, "<i2").reshape(-1, groups).astype(np.int64)
    books = config.talker_config.code_predictor_config.vocab_size
    if len(codes) and not (codes.min() >= 0 and codes.max() < books):
        raise _bad(f"reference codes are 0 … {books - 1}", "ref_audio")
    if len(codes) and not reference.text.strip():
        raise _bad("in-context cloning needs the text that the reference speaks", "ref_text")
    return ClonedVoice(
        embedding=embedding,
        codes=codes,
        text=reference.text if len(codes) else "",
        key=(reference.embedding, reference.codes),
    )


def _bad(message: str, param: str) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_VALUE, message, param=param)
