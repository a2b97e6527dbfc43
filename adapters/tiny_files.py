"""What tiny random checkpoints are made of: values by name and seed, and a small text tokenizer.

The values come from numpy's PCG64 by a rule that no version changes, so that a seed means the same model
everywhere. The tokenizer is a byte-level BPE in Qwen2's file format: its first 256 ids are Qwen2's own ("\\n"
is 198), then come some merges, then the special tokens, whose ids are therefore smaller than published ones.
"""

from __future__ import annotations

import json
import math
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.qwen2 import QWEN2_SPLIT

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


class TinyTokenizer:
    """A text tokenizer with these special tokens at the end of its vocabulary."""

    def __init__(self, special: tuple[str, ...]) -> None:
        self._special = special

    @property
    def special_ids(self) -> dict[str, int]:
        first = len(self._vocabulary[0])
        return {token: first + index for index, token in enumerate(self._special)}

    def token_id(self, token: str) -> int:
        """The id of a token that the vocabulary has, such as "assistant"."""
        return self._vocabulary[0][token]

    @property
    def size(self) -> int:
        """Ids, the special tokens' among them."""
        return len(self._vocabulary[0]) + len(self._special)

    def write(self, folder: Path, *, whole: bool = False, **settings: Any) -> None:
        """Write `vocab.json`, `merges.txt` and `tokenizer_config.json`, as Qwen2's tokenizer reads them; with
        `whole` a `tokenizer.json` too. `settings` are added to `tokenizer_config.json`."""
        vocabulary, merges = self._vocabulary
        write_json(folder / "vocab.json", vocabulary)
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
            for token, number in self.special_ids.items()
        }
        config = {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": list(self._special[1:]),
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
            **settings,
        }
        write_json(folder / "tokenizer_config.json", config)
        if whole:
            write_json(folder / "tokenizer.json", self._whole())

    def _whole(self) -> dict[str, Any]:
        vocabulary, merges = self._vocabulary
        bytes_too = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": number,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for token, number in self.special_ids.items()
            ],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Split",
                        "pattern": {"Regex": QWEN2_SPLIT},
                        "behavior": "Isolated",
                        "invert": False,
                    },
                    bytes_too,
                ],
            },
            "post_processor": bytes_too,
            "decoder": bytes_too,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [list(pair) for pair in merges],
            },
        }

    @cached_property
    def _vocabulary(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
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


def uniform(
    name: str, shape: tuple[int, ...], seed: int, mean: float, width: float, *, heavy_rows: bool = False
) -> NDArray[np.float32]:
    """Values within mean ± width, from the name and the seed alone. Only operations that IEEE 754 rounds
    exactly are used.

    `heavy_rows` scales the rows by up to 3, few of them by much, so that one row's product leads clearly.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    raw = bits.random_raw(math.prod(shape)) >> np.uint64(40)  # 24 bits: exact in float32
    unit = (raw.astype(np.float32) / np.float32(2**23) - np.float32(1.0)).reshape(shape)  # [-1, 1)
    values = unit * np.float32(width) + np.float32(mean)
    if heavy_rows:
        rare = (bits.random_raw(shape[0]) >> np.uint64(40)).astype(np.float64) / 2**24
        values *= np.minimum(1 / np.sqrt(np.sqrt(1 - rare)), 3).astype(np.float32)[:, None]
    return values


def write_json(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of their ids."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in plain] + [chr(0x100 + index) for index in range(256 - len(plain))]
