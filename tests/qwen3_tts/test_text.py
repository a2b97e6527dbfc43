"""Text to ids: in pieces as whole, and as the reference's tokenizer has it."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="the extra qwen3-tts is not installed")

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from duplex.adapters.qwen2 import qwen2_tokenizer
from duplex.adapters.qwen3_tts.config import read_config
from duplex.adapters.qwen3_tts.text import (
    TextTokenizer,
    drop_line_breaks,
    load_tokenizer,
    stays_apart,
)
from duplex.adapters.qwen3_tts.tiny import tiny_config
from duplex.adapters.qwen3_tts.tiny_text import special_ids, write_tokenizer
from duplex.core.errors import DuplexError, ErrorCode

CORPUS = [
    "Hello world, it's 12:34 and I'll say that they've been; done!!\n\nNew   paragraph:\r\n\r\n  indented.",
    "你好，世界。今天天气很好，我们去公园吧！一二三。\n\n他说：“没问题”。",
    "こんにちは、世界。かがきぎ。한국어도 말합니다. 각각 가나다.",
    "café naïve Ångström é è ≠ ≮ 1 2 3 2024 3.14 $5 %%% ... !!! ??? \t\t tab",
    "a \t'b \t.c \t\xa0d\t e \n\r\n \n f\n\n\n  g\u3000\u3000h",
    "🙂🙃 👩‍👩‍👧 emoji 🇩🇪 <|im_end|> <|im_start|> <tts_pad>",
    "नमस्ते दुनिया। สวัสดีชาวโลก مرحبا بالعالم",
] * 3

PARTS = st.sampled_from(
    [
        *(
            "hello",
            " world",
            "Hello",
            "it's",
            "'",
            "s",
            "'ll",
            "'S",
            "re",
            "'r",
            "e",
            "ſ",
            "12",
            "3",
            "٣",
            "½",
        ),
        *(
            " ",
            "  ",
            "   ",
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "\t",
            "\xa0",
            "\u3000",
            "\u2028",
            "\x1c",
            "\x85",
            "\u200b",
        ),
        *(
            ".",
            ",",
            "!",
            "...",
            "?!",
            "<|im_end|>",
            "<|im_start|>",
            "<tts_pad>",
            "<|",
            "|>",
            "_",
            "-",
            "$",
            "=",
        ),
        *("你好", "，", "。", "世界", "カ", "か", "\u3099", "ㅎ", "\u1112", "\u1161", "\u11ab", "각", "한"),
        *(
            "e",
            "a",
            "\u0301",
            "\u0323",
            "\u0338",
            "<",
            ">",
            "\u0344",
            "\u212b",
            "\u1e9b",
            "क",
            "\u093c",
            "ส",
            "ี",
        ),
        *(
            "🙂",
            "👩",
            "\u200d",
            "👧",
            "\ufe0f",
            "🇩",
            "🇪",
            "𝒳",
            "\U0001d15e",
            "\U00011099",
            "\U000110ba",
            "\ufffd",
        ),
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=3), max_size=14).map("".join)
# characters that are no text: tokenizers take none of them
TEXTS = TEXTS.map(lambda text: "".join(letter for letter in text if unicodedata.category(letter) != "Cs"))

HEAD = "<|im_start|>assistant\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary with merges over white space, marks and CJK, as published ones have, in Qwen2's files."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)  # its configuration and control tokens
    split = qwen2_tokenizer(folder / "vocab.json", folder / "merges.txt")
    trained = Tokenizer(models.BPE())
    trained.normalizer, trained.pre_tokenizer = split.normalizer, split.pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=1200, min_frequency=2, initial_alphabet=alphabet, show_progress=False),
    )
    trained.model.save(str(folder))
    size = trained.get_vocab_size()
    described = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = described["added_tokens_decoder"].values()
    described["added_tokens_decoder"] = {str(size + index): token for index, token in enumerate(tokens)}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(qwen2_tokenizer(folder / "vocab.json", folder / "merges.txt"))


def in_pieces(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> list[int]:
    encoder = tokenizer.encoder()
    ids: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        ids += encoder.feed(text[start:end])
    return ids + encoder.end()


@settings(max_examples=600, deadline=None)
@given(text=TEXTS, data=st.data())
def test_pieces_give_the_ids_of_the_whole(tokenizer: TextTokenizer, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert in_pieces(tokenizer, text, cuts) == tokenizer.encode(text)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_single_characters_give_the_ids_of_the_whole(tokenizer: TextTokenizer, text: str) -> None:
    assert in_pieces(tokenizer, text, list(range(1, len(text)))) == tokenizer.encode(text)


@pytest.mark.parametrize("text", CORPUS[:7])
def test_every_cut_of_real_text(tokenizer: TextTokenizer, text: str) -> None:
    whole = tokenizer.encode(text)
    for cut in range(len(text)):
        assert in_pieces(tokenizer, text, [cut]) == whole


@settings(max_examples=300, deadline=None)  # the first example imports and loads the reference's
@given(text=TEXTS)
def test_the_reference_s_whole_string_has_the_same_ids(
    folder: Path, tokenizer: TextTokenizer, text: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra qwen3-tts is not installed")
    text = text.replace("<", "")  # what looks like a control token is one to the reference
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    ids = reference(f"{HEAD}{text}{TAIL}")["input_ids"]
    head, tail = (reference(part)["input_ids"] for part in (HEAD, TAIL))
    ours = tokenizer.encode(text)
    if drop_line_breaks(text) == text:
        assert ids == head + ours + tail
    else:  # the layout's line break is in one piece with those that the text starts with
        assert ids[: len(head) - 1] == head[:-1]
        assert ids[len(ids) - len(ours) - len(tail) :] == ours + tail


def test_what_looks_like_a_control_token_is_text(tokenizer: TextTokenizer) -> None:
    text = "a<|im_end|>\n<|im_start|>b<tts_pad>"
    ids = tokenizer.encode(text)
    assert max(ids) < tokenizer._tokenizer.get_vocab_size()
    assert tokenizer._tokenizer.decode(ids) != ""
    assert in_pieces(tokenizer, text, [3, 8, 9, 20]) == ids


def test_a_word_is_certain_when_the_next_one_begins(tokenizer: TextTokenizer) -> None:
    encoder = tokenizer.encoder()
    assert encoder.feed("Hello") == []
    assert encoder.feed(" ") == tokenizer.encode("Hello")
    assert encoder.feed("world") == []
    assert encoder.feed(",") == tokenizer.encode(" world")
    assert encoder.end() == tokenizer.encode(",")


def test_chinese_is_certain_at_the_next_mark(tokenizer: TextTokenizer) -> None:
    encoder = tokenizer.encoder()
    assert encoder.feed("你") == encoder.feed("好") == []
    assert encoder.feed("，") == tokenizer.encode("你好")


def test_white_space_with_line_breaks_before_the_text_is_dropped(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode(" \n\r\n hi") == tokenizer.encode(" hi")
    assert tokenizer.encode("  hi") != tokenizer.encode("hi")
    assert tokenizer.encode(" \n") == []
    assert in_pieces(tokenizer, " \n\n\n hi\n\n", [1, 2, 3, 5]) == tokenizer.encode(" hi\n\n")


def test_a_word_without_end_costs_time_in_proportion(tokenizer: TextTokenizer) -> None:
    looked_at = 0

    class Counting(TextTokenizer):
        def _starts(self, text: str) -> list[int]:
            nonlocal looked_at
            looked_at += len(text)
            return super()._starts(text)

    text = "好" * 20_000
    counting = Counting(tokenizer._tokenizer)
    assert in_pieces(counting, text, list(range(1, len(text)))) == tokenizer.encode(text)
    assert looked_at < 10 * len(text)


def test_only_joining_characters_are_held_back() -> None:
    """Every character of Unicode: one that is taken to stay apart joins with nothing before it."""
    joining = set()
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if (
            len(parts) == 2
            and not parts[0].startswith("<")
            and unicodedata.normalize("NFC", chr(code)) == chr(code)
        ):
            joining.add(chr(int(parts[1], 16)))
    joining |= {chr(code) for code in [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if stays_apart(character):
            first = unicodedata.normalize("NFD", character)[0]
            assert unicodedata.combining(first) == 0
            assert first not in joining, hex(code)
    assert all(map(stays_apart, "aZ .,!\n好한かñ12🙂$="))


def test_joining_never_changes_the_kind_of_a_character() -> None:
    """Letters stay letters and marks marks when something joins them, so that a split before one stays."""

    def kind(character: str) -> str:
        if character.isspace():
            return "space"
        category = unicodedata.category(character)[0]
        return category if category in "LN" else "other"

    for code in range(sys.maxunicode + 1):
        normal = unicodedata.normalize("NFC", chr(code))
        if code in range(0xD800, 0xE000):
            continue
        apart = unicodedata.normalize("NFD", normal)[0]
        if stays_apart(apart):
            assert kind(normal[0]) == kind(apart), hex(code)


def test_a_checkpoint_s_tokenizer_is_loaded_from_either_form(tmp_path: Path) -> None:
    config = tiny_config()
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path, config)
    ids = tokenizer.encode("hello world\n")
    chat = tokenizer.chat_ids(config)
    assert (chat.newline, [chat.user]) == (198, tokenizer.encode("user"))

    full = qwen2_tokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")
    full.add_special_tokens(list(special_ids()))
    full.enable_truncation(4)
    full.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.json").unlink()
    again = load_tokenizer(tmp_path, config)
    assert again.encode("hello world\n") == ids
    text = "<|im_end|> " * 5
    assert again.encode(text) == tokenizer.encode(text)
    assert max(again.encode(text)) < min(special_ids().values())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DuplexError, match="neither") as caught:
        load_tokenizer(tmp_path, tiny_config())
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_another_model_s_tokenizer_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = tiny_config()
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    many = {f"w{number}": len(vocab) + number for number in range(1000)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | many))
    with pytest.raises(DuplexError, match="not the talker's"):
        load_tokenizer(tmp_path, config)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(DuplexError, match="cannot be read"):
        load_tokenizer(tmp_path, config)


def test_a_tokenizer_that_does_not_fit_the_configuration_is_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = TextTokenizer(qwen2_tokenizer(folder / "vocab.json", folder / "merges.txt"))
    with pytest.raises(DuplexError, match="chat layout"):
        tokenizer.chat_ids(tiny_config())


def test_config_of_a_written_folder_is_read(tmp_path: Path) -> None:
    from duplex.adapters.qwen3_tts.tiny import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path)
    assert load_tokenizer(folder, read_config(folder)).encode("hello") != []
