"""What the tokenizers of Qwen2 and its successors have in common."""

from __future__ import annotations

from typing import Final

QWEN2_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How they split text before BPE. Folders without a `tokenizer.json` do not say it."""
