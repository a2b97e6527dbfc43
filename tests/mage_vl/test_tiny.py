"""Tiny checkpoints: what engines, tokenizers and the reference make of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from duplex.adapters.mage_vl.config import MageConfig, read_config
from duplex.adapters.mage_vl.tiny import (
    SPECIAL,
    tiny_config,
    tiny_tokenizer,
    tiny_weights,
    write_bare_checkpoint,
    write_tiny_checkpoint,
)

CONFIG = tiny_config()
TEXT = (
    "<|im_start|>user\nhello world, what is <|vision_start|><|image_pad|><|vision_end|> l'ete 42?<|im_end|>\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("safetensors", reason="needs safetensors")
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def test_the_configuration_reads_back(folder: Path, tmp_path: Path) -> None:
    assert read_config(folder) == CONFIG
    bare = read_config(write_bare_checkpoint(tmp_path))
    assert bare.vision_config == MageConfig().vision_config
    assert bare.text_config == MageConfig().text_config
    assert bare.gate_config == MageConfig().gate_config
    assert bare.image_token_id == CONFIG.image_token_id
    assert not list(tmp_path.glob("*.safetensors"))


def test_both_forms_of_the_tokenizer_agree(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = whole.encode(TEXT).ids
    assert whole.decode(ids, skip_special_tokens=False) == TEXT
    files = transformers.Qwen2Tokenizer(
        vocab=str(folder / "vocab.json"),
        merges=str(folder / "merges.txt"),
        extra_special_tokens=list(SPECIAL),
    )
    assert files(TEXT).input_ids == ids
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    assert auto(TEXT).input_ids == ids
    assert ids.count(CONFIG.image_token_id) == 1


def test_special_tokens_are_those_of_the_configuration(folder: Path) -> None:
    ids = tiny_tokenizer().special_ids
    assert list(ids) == list(SPECIAL)
    assert ids["<|image_pad|>"] == CONFIG.image_token_id
    assert ids["<|vision_start|>"] == CONFIG.vision_start_token_id
    assert ids["<|im_end|>"] == CONFIG.eos_token_ids[0]
    assert max(ids.values()) < CONFIG.text_config.vocab_size
    # the published ids are in the same order: 151643 to 151656
    assert SPECIAL.index("<|image_pad|>") + 151643 == MageConfig().image_token_id
    assert SPECIAL.index("<|vision_start|>") + 151643 == MageConfig().vision_start_token_id
    assert SPECIAL.index("<|im_end|>") + 151643 == MageConfig().eos_token_ids[0]
    written = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert {entry["content"]: int(number) for number, entry in written.items()} == ids


def test_the_chat_template_is_chatml(folder: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("jinja2", reason="needs jinja2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": "hi"}]
    assert tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be calm."}, {"role": "user", "content": content}],
        tokenize=False,
        add_generation_prompt=True,
    ) == (
        "<|im_start|>system\nBe calm.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_greedy_decoding_meets_no_special_token_unless_it_may_end() -> None:
    first = min(tiny_tokenizer().special_ids.values())
    head = tiny_weights(CONFIG, 0)["lm_head.weight"]
    assert not head[first:].any()
    assert head[:first].any(1).all()
    ending = tiny_weights(CONFIG, 0, end_gain=3.0)["lm_head.weight"]
    assert np.flatnonzero(ending[first:].any(1)).tolist() == [CONFIG.eos_token_ids[0] - first]


def test_the_reference_sees_speaks_and_depends_on_what_it_sees(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="the reference needs transformers")
    from mage_reference import load_reference, patches

    reference, gate = load_reference(folder)
    ids = [CONFIG.vision_start_token_id, CONFIG.image_token_id, CONFIG.vision_end_token_id, 300, 301]
    answers = []
    for seed in (1, 2):
        image = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
        tokens = reference.model.visual(*patches(image, msgspec.to_builtins(CONFIG)))
        assert tokens.shape == (1, 64)
        assert 0 < float(gate(tokens[None])) < 1
        answers.append(reference.greedy(reference.merged(ids, tokens), 8))
    assert answers[0] != answers[1]
    assert len(set(answers[0])) > 1
    assert max(max(answer) for answer in answers) < min(tiny_tokenizer().special_ids.values())
    assert torch.is_tensor(tokens)
