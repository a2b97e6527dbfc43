"""Text to ids, whole or as it comes.

The tokenizer is the checkpoint's own: byte-level BPE after NFC and the Qwen2 split. Text fed in any pieces
gives exactly the ids of the whole text: what may still change with the next character is held back, that is
the last word, number or mark, white space at the end, and a character that a combining mark may follow.

What a user writes is never a control token: `<|im_end|>` in a text is read as the characters it is made of.
(The authors' package reads it as the control token.)

The chat layout around the text is made of fixed ids, not encoded together with the text. That gives the same
ids but for text that starts with white space that has a line break in it: there the authors' package merges
the layout's line break with the text's. Here that white space is dropped, so that the ids after it are the
same, and the rows before them are the same for every text, as the prefix cache needs.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from duplex.adapters.qwen2 import read_tokenizer
from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.prompt import ChatIds
from duplex.core.errors import DuplexError, ErrorCode

# Unicode's White_Space, the split's \s. str.isspace has four control characters more.
_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
_LONG_HELD: Final = 256
"""Characters held back from which on text is looked at in growing steps, so that a word of any length costs
time in proportion to its length."""


class TextTokenizer:
    """The text tokenizer of a checkpoint, without its control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` must be without added tokens; see `load_tokenizer`."""
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a whole text."""
        return self._ids(drop_line_breaks(text))

    def encoder(self) -> TextEncoder:
        """For one text that comes in pieces."""
        return TextEncoder(self)

    def chat_ids(self, config: TtsConfig) -> ChatIds:
        """The ids of the chat layout that the configuration lacks.

        Raises:
            DuplexError: `BAD_CONFIG`: the tokenizer is not the configuration's.
        """
        found = {word: self._ids(word) for word in ("user", "assistant", "\n")}
        if any(len(ids) != 1 for ids in found.values()) or found["assistant"] != [config.assistant_token_id]:
            raise DuplexError(
                ErrorCode.BAD_CONFIG,
                f"the text tokenizer is not that of config.json: it encodes the chat layout as {found}",
                param="model",
            )
        return ChatIds(user=found["user"][0], newline=found["\n"][0])

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _normal(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _starts(self, text: str) -> list[int]:
        """Where the pieces that BPE works on start."""
        return [span[0] for _, span in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]


class TextEncoder:
    """One text that comes in pieces. The ids that `feed` and `end` give are together those of the whole."""

    __slots__ = ("_fresh", "_look_at", "_normal", "_tail", "_tokenizer")

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._normal = ""  # held back: no later character changes how it is written
        self._tail = ""  # held back, as it came
        self._fresh = True  # nothing but white space so far
        self._look_at = 0  # characters held back below which it is not looked at

    def feed(self, text: str) -> list[int]:
        """The ids that are certain now."""
        self._tail += text
        if len(self._normal) + len(self._tail) < max(self._look_at, 1):
            return []
        self._settle()
        view = self._normal + self._tokenizer._normal(self._tail)
        certain = self._certain(view)
        held = len(view) - certain
        self._look_at = held + held // 4 if held > _LONG_HELD else 0
        text, self._normal = self._normal[:certain], self._normal[certain:]
        return self._encode(text)

    def end(self) -> list[int]:
        """The ids of what was held back. Nothing may be fed afterwards."""
        text = self._normal + self._tail
        self._normal = self._tail = ""
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        if self._fresh:
            text = drop_line_breaks(text)
            self._fresh = False
        return self._tokenizer._ids(text)

    def _settle(self) -> None:
        """Normalise what no later character can change: all before the last character that stays apart."""
        for at in range(len(self._tail) - 1, 0, -1):
            if stays_apart(self._tail[at]):
                self._normal += self._tokenizer._normal(self._tail[:at])
                self._tail = self._tail[at:]
                return

    def _certain(self, view: str) -> int:
        """How many characters of the text held back will be split as they are now, whatever follows."""
        starts = self._tokenizer._starts(view)
        # the last piece may grow, and a run of white space is split by what comes after it
        limit = min(len(self._normal), len(view.rstrip(_SPACE)), starts[-1] if starts else 0)
        # white space at the end of a text would be split in another way than before a word
        return max(
            (start for start in starts if 0 < start <= limit and view[start - 1] not in _SPACE), default=0
        )


def stays_apart(character: str) -> bool:
    """True when NFC never joins a character with one before it, nor moves it before one."""
    code = ord(character)
    if 0x1100 <= code <= 0x11FF or 0xD7B0 <= code <= 0xD7FF or 0x16D40 <= code <= 0x16D7F:
        return False  # Hangul and Kirat Rai letters that join
    return unicodedata.category(character)[0] in "LNPSZC" and unicodedata.category(character) != "Cn"


def drop_line_breaks(text: str) -> str:
    """A text without the white space it starts with, up to the last line break of that."""
    lead = text[: len(text) - len(text.lstrip(_SPACE))]
    return text[max(lead.rfind("\n"), lead.rfind("\r")) + 1 :]


def load_tokenizer(folder: Path, config: TtsConfig) -> TextTokenizer:
    """The text tokenizer of a checkpoint's folder: `tokenizer.json`, or `vocab.json` and `merges.txt`, as the
    published folders have.

    Raises:
        DuplexError: `BAD_CONFIG`: the files are missing or broken, or have more ids than the talker.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer.pre_tokenizer is None or tokenizer.get_vocab_size() > config.talker_config.text_vocab_size:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"the text tokenizer in {folder} is not the talker's: {tokenizer.get_vocab_size()} ids, at most"
            f" {config.talker_config.text_vocab_size} are known",
            param="model",
        )
    return TextTokenizer(tokenizer)
