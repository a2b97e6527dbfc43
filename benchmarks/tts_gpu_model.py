"""How the benchmark loads the model: a tiny checkpoint on disk, or a published size with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tts_gpu_sizes import SENTENCE, codec_config, config

from duplex.adapters.engine.settings import WorkerSpec
from duplex.adapters.qwen3_tts.tiny import write_tiny_checkpoint

POSITIONS = 256
"""Prompt rows and frames of one request: its 80 frames and prompt of 30 rows leave room to spare."""


def model_options(orders: dict[str, Any], folder: Path, slots: int) -> dict[str, Any]:
    """Options of the model in the worker; the folder gets what it needs of a checkpoint."""
    checkpoint = folder / "checkpoint"
    options = {"model": str(checkpoint), "device": orders["device"], "slots": slots, "positions": POSITIONS}
    options |= orders.get("options", {})
    if orders["size"] == "tiny":
        write_tiny_checkpoint(checkpoint)
        return options | {"threads": 1}
    (checkpoint / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    (checkpoint / "config.json").write_text(json.dumps(config(orders["size"])))
    write_words(checkpoint)
    (checkpoint / "speech_tokenizer" / "config.json").write_text(json.dumps(codec_config(orders["size"])))
    return options | {"random_weights": True}


def write_words(folder: Path) -> None:
    """A byte-level BPE that knows the sentence's words, each of which is one id as in the real tokenizer."""
    # GPT-2's stand-ins for bytes that do not print; 'Ġ' is the space
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in printable] + [
        chr(0x100 + index) for index in range(256 - len(printable))
    ]
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    merges: dict[tuple[str, str], None] = {}
    for word in ("user", "assistant", *SENTENCE.rstrip(".").split()):
        pairs = [(word[:end], word[end]) for end in range(1, len(word))]
        for left, right in [*pairs, ("Ġ", word)]:
            merges[left, right] = None
            vocabulary.setdefault(left + right, len(vocabulary))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def worker_spec(orders: dict[str, Any], folder: Path) -> WorkerSpec:
    """A worker of its own, with as many slots as the cancel section keeps busy."""
    options = model_options(orders, folder, orders["slots"]) | {"positions": 1024}
    return WorkerSpec(factory="duplex.adapters.qwen3_tts.model:load", options=options)


def adapter_options(orders: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Options of the adapter in the gateway."""
    return model_options(orders, folder, orders["serve_slots"])
