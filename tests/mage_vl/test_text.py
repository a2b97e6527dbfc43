"""The text side of a checkpoint's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from duplex.adapters.mage_vl.config import MageConfig, read_config
from duplex.adapters.mage_vl.text import DEFAULT_SYSTEM, Text, load_text
from duplex.core.errors import DuplexError, ErrorCode

pytest.importorskip("tokenizers", reason="in the extras `vllm` and `cpu-engine`")

PARTS = ("Hello, ", "world! ", 3, "naïve ", "日本語\n", 1, 2, "\n\n", "12 <|im_end|>")


@pytest.fixture
def folder(mage_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in mage_folder.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, copy)
    return copy


def load(folder: Path) -> Text:
    return load_text(folder, read_config(folder))


def refused(folder: Path, config: MageConfig | None = None) -> str:
    with pytest.raises(DuplexError) as error:
        load_text(folder, config or read_config(folder))
    assert error.value.code is ErrorCode.BAD_CONFIG
    return error.value.message


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))


def test_it_encodes_as_the_checkpoints_own_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = load(folder)
    start, end = text.control["<|im_start|>"], text.control["<|im_end|>"]
    ids = text.encode([start, "user\n", "What is ", "this? café 12", end, "\n"])
    assert ids == own.encode("<|im_start|>user\nWhat is this? café 12<|im_end|>\n").ids


def test_what_a_user_writes_is_no_control_token(folder: Path) -> None:
    text = load(folder)
    control = set(text.control.values())
    assert not control & set(text.encode(["a<|im_end|>b<|image_pad|>"]))
    assert text.encode(["<|im_", "end|>"]) == text.encode(["<|im_end|>"])


def test_half_a_character_is_a_question_mark(folder: Path) -> None:
    text = load(folder)
    assert text.encode(["a\ud83e b"]) == text.encode(["a? b"])


def test_a_folder_without_the_whole_file_encodes_the_same(folder: Path) -> None:
    whole = load(folder)
    (folder / "tokenizer.json").unlink()
    parts = load(folder)
    assert parts.encode(PARTS) == whole.encode(PARTS)
    assert parts.control == whole.control


def test_padding_and_truncation_of_the_file_are_not_taken_over(folder: Path) -> None:
    wanted = load(folder).encode(PARTS)
    change(
        folder / "tokenizer.json",
        truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    )
    assert load(folder).encode(PARTS) == wanted


@pytest.mark.parametrize(
    ("template", "system"),
    [
        (None, DEFAULT_SYSTEM),
        ("{% if x %}<|im_start|>system\nYou see.<|im_end|>\n{% endif %}", "You see."),
        ("{{ '<|im_start|>system\\nYou see.<|im_end|>\\n' }}", "You see."),
        ("<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n", ""),
        ("{{ messages }}", ""),
    ],
)
def test_the_system_line_is_that_of_the_template(folder: Path, template: str | None, system: str) -> None:
    change(folder / "tokenizer_config.json", chat_template=template)
    assert load(folder).system == system


def test_a_template_in_a_file_of_its_own_comes_first(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("<|im_start|>system\nFrom the file.<|im_end|>")
    assert load(folder).system == "From the file."


def test_files_that_are_missing_or_broken_are_named(folder: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    load(folder)
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json is no JSON" in refused(folder)
    change_whole = {"version": "1.0", "model": {"type": "Nothing"}}
    (folder / "tokenizer.json").write_text(json.dumps(change_whole))
    assert "cannot be read" in refused(folder)
    (folder / "tokenizer.json").unlink()
    assert "neither tokenizer.json nor" in refused(folder)


def test_control_tokens_that_are_missing_or_others_are_named(folder: Path) -> None:
    config = read_config(folder)
    message = refused(folder, MageConfig(text_config=config.text_config))
    assert "<|image_pad|> is" in message
    assert "151655" in message
    (folder / "tokenizer.json").unlink()
    change(folder / "tokenizer_config.json", added_tokens_decoder={})
    assert "no <|im_start|>" in refused(folder)


def test_more_ids_than_the_model_has_are_refused(folder: Path) -> None:
    tree = json.loads((folder / "config.json").read_bytes())
    change(folder / "config.json", text_config=tree["text_config"] | {"vocab_size": 64})
    assert "the model 64" in refused(folder)
