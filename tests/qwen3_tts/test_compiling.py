"""Kernels compiled ahead: what a rehearsal notes, and what becomes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="needs the extra qwen3-tts")
pytest.importorskip("triton", reason="the kernels need triton")

from triton.runtime.jit import JITFunction  # noqa: E402

from duplex.adapters.qwen3_tts import compiling, kernels  # noqa: E402
from duplex.adapters.qwen3_tts.compiling import Kernel, compile_all, recorded  # noqa: E402
from duplex.adapters.qwen3_tts.core import Core  # noqa: E402
from duplex.adapters.qwen3_tts.tiny import tiny_config  # noqa: E402
from duplex.adapters.qwen3_tts.triton_math import TritonMath  # noqa: E402
from duplex.adapters.qwen3_tts.weights import random_weights  # noqa: E402


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process is told, whatever became of its loggers."""
    told: list[str] = []
    monkeypatch.setattr(compiling.log, "warning", lambda text, *args: told.append(text % args))
    return told


def core_without_device() -> Core:
    """Its launches would fail: the tensors are the CPU's."""
    config = tiny_config()
    weights = random_weights(config, None, 0)
    core = Core(
        config,
        weights,
        device="cpu",
        dtype=torch.bfloat16,
        slots=40,
        positions=128,
        max_batch=40,
        prefill_rows=64,
    )
    core._math = TritonMath(core, pdl=True)
    return core


def product_of(rows: int, n: int, k: int) -> None:
    x, w, out = torch.zeros(rows, k), torch.zeros(n, k), torch.zeros(rows, n)
    kernels.product[(1, 1, 1)](
        x, w, out, rows, n, k, BN=16, BM=16, BK=16, SLICE=16, AHEAD=1, STAGES=1, PDL=False, num_warps=4
    )


def enter(width: int, dtype: Any, eps: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, normed, norm = torch.zeros(2, width), torch.zeros(2, width, dtype=dtype), torch.ones(width)
    return (normed, norm, x, normed, eps), {"H": width, "PDL": False, "num_warps": 4}


BROKEN = Kernel(module="duplex.adapters.qwen3_tts.kernels", name="enter", arguments=(), options={"H": 64})


def test_a_rehearsal_lists_each_kernel_once_and_launches_none() -> None:
    core = core_without_device()
    with recorded() as found:
        core.rehearse()
        assert found == []  # until it is over
    assert {kernel.name for kernel in found} == {
        "gather_hidden",
        "normed_product",
        "normed_gated",
        "product",
        "gated",
        "add_norm",
        "attention",
        "draw",
        "enter",
        "finish",
    }
    modules = {kernel.module.rpartition(".")[2] for kernel in found}
    assert modules == {"kernels", "single_kernels"}
    assert all(kernel.options["PDL"] and kernel.options["launch_pdl"] for kernel in found)
    assert len({msgspec.msgpack.encode(kernel) for kernel in found}) == len(found)
    # 9 sizes of frames and 3 of prompts have 16 groups each, and differ in little
    assert len(found) < 60
    for name in ("hidden", "keys", "position", "frame", "codes"):
        assert not getattr(core.state, name).any()
    with recorded() as again:
        core.rehearse()
    assert again == found


def test_what_is_listed_survives_its_way_to_another_process() -> None:
    core = core_without_device()
    with recorded() as found:
        core.rehearse()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=list[Kernel]) == found


def test_numbers_count_as_far_as_they_decide_what_is_compiled() -> None:
    with recorded() as found:
        product_of(2, 32, 48)
        product_of(3, 64, 160)  # rows never count; multiples of 16 are alike
    assert len(found) == 1
    with recorded() as found:
        for n in (32, 33, 35, 1):
            product_of(2, n, 48)
    assert len(found) == 3
    with recorded() as found:
        for width, dtype, eps in (
            (64, torch.float32, 1e-6),
            (64, torch.float32, 1e-5),
            (64, torch.bfloat16, 1e-6),
            (128, torch.float32, 1e-6),
        ):
            args, options = enter(width, dtype, eps)
            kernels.enter[(2,)](*args, **options)
    assert len(found) == 3


def test_launches_are_launches_again_after_an_error() -> None:
    run = JITFunction.run
    with pytest.raises(ZeroDivisionError), recorded():
        product_of(2, 32, 1 // 0)
    assert JITFunction.run is run


def test_nothing_to_compile_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_compile", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    compile_all([])


def test_a_listed_kernel_is_the_one_its_launch_asks_for(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiled_ahead.py"))],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["warnings"] == []
    assert found["ahead"] > 0
    assert found["launched"] == 0  # all that the launch needs was there
    assert found["another"] > 0


def test_a_kernel_that_cannot_be_compiled_is_a_warning(warnings: list[str]) -> None:
    compile_all([BROKEN])
    assert len(warnings) == 1
    assert warnings[0].startswith("enter was not compiled ahead: ")


def test_processes_share_the_kernels(
    warnings: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is tried once. None can be compiled, which is what tells of them."""
    monkeypatch.setattr(compiling, "_CACHED_S", -1.0)  # the first one does not seem to come from a cache
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    names = ["enter", "gated", "add_norm", "finish", "draw"]
    compile_all([msgspec.structs.replace(BROKEN, name=name) for name in names])
    told = capfd.readouterr().err.splitlines()
    others = sorted(line.split()[0] for line in told if "was not compiled ahead" in line)
    assert others == sorted(names[1:])
    assert [warning.split()[0] for warning in warnings] == names[:1]
