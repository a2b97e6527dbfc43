"""The words of a prompt: a checkpoint's text tokenizer, control tokens, and the system line of its template.

What a user writes is never a control token: `<|im_end|>` in a text is read as the characters it is made of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from duplex.adapters.mage_vl.config import MageConfig
from duplex.adapters.qwen2 import read_tokenizer
from duplex.core.errors import DuplexError, ErrorCode

DEFAULT_SYSTEM: Final = "You are a helpful assistant."
"""What Qwen2-VL's template, which is the model's, says where the messages have no system line."""

_SHORT: Final = 24  # characters
_SHORT_KEPT: Final = 1 << 16  # about 10 MB; an hour has 36,000 times in tenths of a second

# The line that a ChatML template writes by itself: plain words, with a line break or the two characters \n.
_SYSTEM_LINE: Final = re.compile(r"<\|im_start\|>system(?:\n|\\n)([^{}<]*)<\|im_end\|>")


class Text:
    """Text to ids, with control tokens where the prompt's frame puts them and nowhere else."""

    def __init__(self, tokenizer: Any, *, control: dict[str, int], system: str) -> None:
        """`tokenizer`: a `tokenizers.Tokenizer` without added tokens. `control`: ids by token. `system`: the
        system line of a prompt that has no instructions, empty for none. See `load_text`."""
        self._tokenizer = tokenizer
        self._short = lru_cache(_SHORT_KEPT)(self._encode)  # the same times come in every prompt
        self.control = control
        self.system = system

    def encode(self, parts: Iterable[str | int]) -> list[int]:
        """Ids of a prompt: of text, and of control tokens given by their ids. Text that stands side by side
        is encoded as one, as in the whole prompt."""
        ids: list[int] = []
        text = ""
        for part in parts:
            if isinstance(part, str):
                text += part
                continue
            ids += self._ids(text)
            ids.append(part)
            text = ""
        ids += self._ids(text)
        return ids

    def _ids(self, text: str) -> Sequence[int]:
        if not text:
            return ()
        return self._short(text) if len(text) <= _SHORT else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no character
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def load_text(folder: Path, config: MageConfig) -> Text:
    """The text side of a checkpoint's folder: `tokenizer.json`, or `vocab.json` and `merges.txt`; the control
    tokens and the chat template of `tokenizer_config.json` (or `chat_template.jinja`, `chat_template.json`).

    Raises:
        DuplexError: `BAD_CONFIG`: files are missing or broken, or have other ids than `config.json`.
    """
    whole = folder / "tokenizer.json"
    tree = _tree(whole) if whole.is_file() else {}
    settings = folder / "tokenizer_config.json"
    control = _control(tree, _tree(settings) if settings.is_file() else {})
    _check(folder, control, config)
    text = Text(read_tokenizer(folder), control=control, system=_system(folder))
    if (largest := text._tokenizer.get_vocab_size()) > config.text_config.vocab_size:
        raise _bad(f"{folder}: the tokenizer has {largest} ids, the model {config.text_config.vocab_size}")
    return text


def _control(whole: dict[str, Any], settings: dict[str, Any]) -> dict[str, int]:
    found = {entry["content"]: int(entry["id"]) for entry in whole.get("added_tokens", ())}
    for number, entry in settings.get("added_tokens_decoder", {}).items():
        found[entry["content"]] = int(number)
    return found


def _check(folder: Path, control: dict[str, int], config: MageConfig) -> None:
    """The tokenizer's control tokens are those that `config.json` says."""
    named = {
        "<|image_pad|>": config.image_token_id,
        "<|vision_start|>": config.vision_start_token_id,
        "<|vision_end|>": config.vision_end_token_id,
    }
    for token in ("<|im_start|>", "<|im_end|>", *named):
        if token not in control:
            raise _bad(f"the text tokenizer in {folder} has no {token}")
        if control[token] != named.get(token, control[token]):
            raise _bad(f"{folder}: {token} is {control[token]}, config.json says {named[token]}")


def _system(folder: Path) -> str:
    """The system line that the folder's template writes where the messages have none."""
    template = _template(folder)
    if template is None:
        return DEFAULT_SYSTEM
    line = _SYSTEM_LINE.search(template)
    return line[1] if line else ""


def _template(folder: Path) -> str | None:
    plain = folder / "chat_template.jinja"
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file() and isinstance(found := _tree(path).get("chat_template"), str):
            return found
    return None


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise _bad(f"{path} is no JSON: {error}") from error
    if not isinstance(tree, dict):
        raise _bad(f"{path} is no JSON object")
    return tree


def _bad(message: str) -> DuplexError:
    return DuplexError(ErrorCode.BAD_CONFIG, message, param="model")
