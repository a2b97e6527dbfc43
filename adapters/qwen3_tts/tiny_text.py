"""The tiny checkpoints' text tokenizer: a byte-level BPE in Qwen2's file format."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

# Earlier merges are made first, so that the words of the prompt's frame, which stand first, stay whole.
# fmt: off
_WORDS = (
    "assistant", "user", "system", "the", "and", "you", "that", "was", "for", "are", "with", "his",
    "they", "this", "have", "from", "one", "had", "word", "but", "not", "what", "all", "were", "when",
    "your", "can", "said", "there", "use", "each", "which", "she", "how", "their", "will", "other",
    "about", "out", "many", "then", "them", "these", "some", "her", "would", "make", "like", "him",
    "into", "time", "has", "look", "two", "more", "write", "see", "number", "way", "could", "people",
    "than", "first", "water", "been", "call", "who", "its", "now", "find", "long", "down", "day", "did",
    "get", "come", "made", "may", "part", "hello", "world", "voice", "speak", "calm", "slow", "fast",
    "happy", "quiet",
)
# fmt: on
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


def special_ids() -> dict[str, int]:
    """The special tokens' ids: the last of the vocabulary."""
    first = len(_vocabulary()[0])
    return {token: first + index for index, token in enumerate(_SPECIAL)}


def token_id(token: str) -> int:
    """The id of a token that the vocabulary has, such as "assistant"."""
    return _vocabulary()[0][token]


def vocabulary_size() -> int:
    """Rows of the text embedding."""
    return len(_vocabulary()[0]) + len(_SPECIAL)


def write_tokenizer(folder: Path) -> None:
    """Write `vocab.json`, `merges.txt` and `tokenizer_config.json`, as Qwen2's tokenizer reads them."""
    vocabulary, merges = _vocabulary()
    _write(folder / "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    added = {
        str(number): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token, number in special_ids().items()
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(_SPECIAL[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    _write(folder / "tokenizer_config.json", config)


@cache
def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens with their ids, and merges in the order of their rank."""
    vocabulary = {letter: index for index, letter in enumerate(_letters())}
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        pairs = [(word[:end], word[end]) for end in range(1, len(word))]
        for left, right in [*pairs, ("Ġ", word)]:  # Ġ stands for the space before a word
            if left + right not in vocabulary:
                merges[left, right] = None
                vocabulary[left + right] = len(vocabulary)
    return vocabulary, list(merges)


def _letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of their ids."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in plain] + [chr(0x100 + index) for index in range(256 - len(plain))]


def _write(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
