"""A launch's kernel compiled ahead, and then asked for as the launch does: prints what came of it, as JSON.

    TRITON_CACHE_DIR=<an empty folder> python compiled_ahead.py

Runs in a process of its own, because what it compiles for where there is no GPU holds for all of a process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from duplex.adapters.qwen3_tts import compiling, kernels
from duplex.adapters.qwen3_tts.compiling import Kernel, compile_all, recorded


class HopperWithoutDevice:
    """What Triton asks of a driver to compile for compute capability 9.0; nothing can be launched."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def enter(width: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and options of a launch of `kernels.enter`."""
    x, normed = torch.zeros(2, width), torch.zeros(2, width, dtype=torch.bfloat16)
    return (normed, torch.ones(width), x, normed, 1e-6), {"H": width, "PDL": True, "launch_pdl": True}


def cached() -> set[str]:
    return {path.name for path in Path(os.environ["TRITON_CACHE_DIR"]).iterdir()}


def main() -> None:
    if not torch.cuda.is_available():
        driver.set_active(HopperWithoutDevice())
    warnings: list[str] = []
    compiling.log.warning = lambda text, *args: warnings.append(text % args)  # type: ignore[method-assign]

    args, options = enter(64)
    with recorded() as found:
        kernels.enter[(2,)](*args, **options)
    compile_all(msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=list[Kernel]))
    ahead = cached()
    # what was compiled is forgotten here, so that it must come from the cache
    kernels.enter.device_caches.clear()
    kernels.enter.warmup(*args, grid=(2,), **options)
    launched = cached() - ahead
    args, options = enter(128)
    kernels.enter.warmup(*args, grid=(2,), **options)
    another = cached() - ahead
    counts = {"ahead": len(ahead), "launched": len(launched), "another": len(another)}
    print(json.dumps(counts | {"warnings": warnings}))


if __name__ == "__main__":
    main()
