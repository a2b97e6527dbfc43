"""Packages for the Mage-VL benchmark on a machine without network: a slim vLLM and what it needs.

    python benchmarks/vision_gpu_pack.py pack FOLDER [--python 3.12]
    python benchmarks/vision_gpu_pack.py unpack FOLDER TARGET

`pack` runs where there is a package index, and takes minutes and 2 GB of temporary space. It writes
`FOLDER/vision.part.0`, `.1`, …, for a machine that has PyTorch 2.11 with CUDA 13, triton and transformers.
Kernels for other GPUs than Hopper are left out of vLLM.

`unpack` runs on the GPU machine, with all parts in one folder and beside a copy of the repository. It lays
them out under TARGET, with this working tree as the package `duplex`, and prints one line for the shell:

    eval "$(python3 benchmarks/vision_gpu_pack.py unpack /tmp/parts /tmp/vision)"
    python3 benchmarks/vision_gpu.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from packing import command, download, extract, link_tree, python_path

VLLM: Final = "vllm==0.26.0"
"""The newest that is built for PyTorch 2.11."""
REQUIREMENTS: Final = Path(__file__).with_name("vision_gpu_requirements.txt")
LEFT_OUT: Final = (
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
    "vllm/vllm-rs",
    "vllm/third_party/fmha_sm100",
    *(f"vllm/third_party/deep_gemm/_C.cpython-{version}-" for version in ("310", "311", "313", "314")),
)
STRIPPED: Final = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
PART_BYTES: Final = 45_000_000
"""A part is carried in one go."""


def pack(folder: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as work:
        tree, whole = Path(work) / "site", Path(work) / "vision.tar.xz"
        names = (VLLM, *REQUIREMENTS.read_text().split())
        extract(download(names, python, Path(work) / "wheels"), tree, without=LEFT_OUT)
        subprocess.run(["strip", "--strip-unneeded", str(tree / STRIPPED)], check=True)
        # the tool is many times faster than Python's module: it uses all cores
        subprocess.run(["tar", "-c", "-I", "xz -T0 -6", "-f", str(whole), "-C", work, "site"], check=True)
        data = whole.read_bytes()
    for part in folder.glob("vision.part.*"):
        part.unlink()
    for number, start in enumerate(range(0, len(data), PART_BYTES)):
        (folder / f"vision.part.{number}").write_bytes(data[start : start + PART_BYTES])
    print(f"{folder}: {len(data) / 1e6:.1f} MB in parts of {PART_BYTES / 1e6:g} MB")


def unpack(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    parts = sorted(folder.glob("vision.part.*"), key=lambda path: int(path.suffix[1:]))
    with subprocess.Popen(["tar", "-x", "-J", "-C", str(target)], stdin=subprocess.PIPE) as tar:
        assert tar.stdin is not None
        for part in parts:
            tar.stdin.write(part.read_bytes())
    if tar.returncode:
        raise SystemExit(f"the parts in {folder} are not whole")
    link_tree(target)
    print(python_path(target))


if __name__ == "__main__":
    sys.exit(command(__doc__, pack, unpack))
