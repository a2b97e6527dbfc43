"""What a Qwen3-TTS worker is told: the options of its replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from duplex.core.errors import DuplexError, ErrorCode


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the model is, where it runs and how much of it.

    Attributes:
        model: a checkpoint's folder, or a repository of the hub in its cache.
        revision: of the repository.
        download: fetch the repository if it is not in the cache.
        device: "auto" (the first GPU, or the CPU where there is none), "cpu", "cuda", "cuda:1" …
        codec_device: where the codec decodes; None: on `device`.
        dtype: of weights and caches; None: bfloat16 on a GPU, float32 on the CPU.
        slots: requests at once.
        max_batch: slots that one frame can advance; None: all.
        positions: prompt rows and frames (80 ms each) that a request can have together. A slot's cache takes
            112 KiB a position in 16 bits, whether it is used or not.
        prefill_rows: prompt rows that go in between two frames at most.
        decode_frames: sizes of one codec decode, in frames; 1 must be one of them.
        prefix_cache_mb: MiB of memory for voices' prompts that were computed before; 0: none.
        random_weights: random values instead of the checkpoint's, whose folder then needs only the two
            `config.json`; for benchmarks.
        graphs: CUDA graphs and own kernels on a GPU; without, plain torch, slow, to compare.
        threads: torch's threads on the CPU; None: torch's choice.
    """

    model: str
    revision: str | None = None
    download: bool = False
    device: str = "auto"
    codec_device: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    slots: int = 32
    max_batch: int | None = None
    positions: int = 2048
    prefill_rows: int = 256
    decode_frames: tuple[int, ...] = (1, 2, 4, 8, 16)
    prefix_cache_mb: int = 512
    random_weights: bool = False
    graphs: bool = True
    threads: int | None = None


def read_options(options: Mapping[str, Any]) -> ModelOptions:
    """The options of a mapping.

    Raises:
        DuplexError: `BAD_CONFIG`: an unknown name or an impossible value.
    """
    try:
        read = msgspec.convert(dict(options), ModelOptions)
    except msgspec.ValidationError as error:
        raise _bad(str(error), None) from error
    least = {
        "slots": 1,
        "positions": 64,
        "prefill_rows": 1,
        "max_batch": 1,
        "threads": 1,
        "prefix_cache_mb": 0,
    }
    for name, value in least.items():
        given = getattr(read, name)
        if given is not None and given < value:
            raise _bad(f"{name} is {given}, the least is {value}", name)
    if list(read.decode_frames) != sorted({1, *read.decode_frames}) or read.decode_frames[0] != 1:
        raise _bad("decode_frames ascend from 1", "decode_frames")
    return read


def _bad(message: str, param: str | None) -> DuplexError:
    return DuplexError(ErrorCode.BAD_CONFIG, f"options of the Qwen3-TTS worker: {message}", param=param)
