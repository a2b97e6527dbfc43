"""What the tokenizers of Qwen2 and its successors have in common, and how one is read from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

QWEN2_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How they split text before BPE. Folders without a `tokenizer.json` do not say it."""


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint's folder: `tokenizer.json`, or `vocab.json` and `merges.txt`; without
    what makes control tokens of text or changes its length.

    Raises:
        DuplexError: `BAD_CONFIG`: the files are missing or broken.
    """
    whole, vocab, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    try:
        if whole.exists():
            return _from_json(json.loads(whole.read_bytes()))
        if vocab.exists() and merges.exists():
            return qwen2_tokenizer(vocab, merges)
    except Exception as error:  # the library raises bare Exception
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"the text tokenizer in {folder} cannot be read: {error}", param="model"
        ) from error
    raise DuplexError(
        ErrorCode.BAD_CONFIG,
        f"{folder} has neither tokenizer.json nor vocab.json and merges.txt",
        param="model",
    )


def qwen2_tokenizer(vocab: Path, merges: Path) -> Tokenizer:
    """A Qwen2 tokenizer from its two files, without added tokens."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _from_json(description: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    cleared: dict[str, Any] = {
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return Tokenizer.from_str(json.dumps(description | cleared))
