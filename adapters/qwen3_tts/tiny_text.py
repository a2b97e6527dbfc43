"""The tiny checkpoints' text tokenizer: a byte-level BPE in Qwen2's file format."""

from __future__ import annotations

from pathlib import Path

from duplex.adapters.tiny_files import TinyTokenizer

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
_TOKENIZER = TinyTokenizer(_SPECIAL)


def special_ids() -> dict[str, int]:
    """The special tokens' ids: the last of the vocabulary."""
    return _TOKENIZER.special_ids


def token_id(token: str) -> int:
    """The id of a token that the vocabulary has, such as "assistant"."""
    return _TOKENIZER.token_id(token)


def vocabulary_size() -> int:
    """Rows of the text embedding."""
    return _TOKENIZER.size


def write_tokenizer(folder: Path) -> None:
    """Write `vocab.json`, `merges.txt` and `tokenizer_config.json`, as Qwen2's tokenizer reads them."""
    _TOKENIZER.write(folder)
