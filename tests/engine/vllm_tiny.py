"""A tiny language model on vLLM's real engine core, on the CPU: one engine for all tests of a session."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from duplex.adapters.engine.language import LanguageEngine, Prompt, Sampling, TokenDelta, TokenPrompt
from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.engine.vllm_engine import VllmEngine
from duplex.adapters.engine.vllm_settings import VllmSettings

CONTEXT = 512
SLOTS = 8
WORDS = "the quick brown fox jumps over the lazy dog – naïve café, 日本語 and 🦊🦊 emoji"

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": CONTEXT,
    "max_num_seqs": SLOTS,
    "max_num_batched_tokens": CONTEXT,
    "enforce_eager": True,
    "enable_prompt_embeds": True,
    "kv_cache_memory_bytes": 32 << 20,
    "block_size": 32,
}


def write_model(folder: Path) -> Path:
    """A random Qwen3 of two layers, and a tokenizer whose tokens are often pieces of a character."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 9, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=2,
        initializer_range=0.5,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def settings(folder: Path, *, life: EngineSettings | None = None, **engine: Any) -> VllmSettings:
    """Of an engine on `folder` that comes back soon after it died."""
    return VllmSettings(
        model=str(folder),
        engine={**ENGINE, **engine},
        life=life or EngineSettings(hang_s=120, backoff_s=0.05, backoff_most_s=0.2, stop_timeout_s=20),
    )


@contextlib.asynccontextmanager
async def running(settings: VllmSettings) -> AsyncIterator[VllmEngine]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    engine = VllmEngine(settings, name="tiny")
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def tokens(*ids: int) -> TokenPrompt:
    return TokenPrompt(ids=ids)


def sampling(most: int, **fields: Any) -> Sampling:
    """Greedy, and not ended by the model, which is random."""
    return Sampling(**{"max_tokens": most, "ignore_end": True, **fields})


async def answer(engine: LanguageEngine, prompt: Prompt, sampling: Sampling) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(prompt, sampling)]


def ids_of(deltas: Sequence[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def text_of(deltas: Sequence[TokenDelta]) -> str:
    return "".join(delta.text for delta in deltas)
