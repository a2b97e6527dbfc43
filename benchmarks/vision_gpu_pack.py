"""Packages for the Mage-VL benchmark on a machine without network: a slim vLLM and what it needs.

    python benchmarks/vision_gpu_pack.py pack FOLDER [--python 3.12] [--part-mb 45]
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

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tts_gpu_pack import NOT_PACKED, download, link_tree

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


def pack(folder: Path, python: str, part_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tree, whole = Path(work) / "site", Path(work) / "vision.tar.xz"
        names = (VLLM, *REQUIREMENTS.read_text().split())
        for wheel in download(names, python, Path(work) / "wheels"):
            with zipfile.ZipFile(wheel) as file:
                for name in file.namelist():
                    if not name.startswith(LEFT_OUT) and not name.endswith(NOT_PACKED):
                        file.extract(name, tree)
            wheel.unlink()
        subprocess.run(["strip", "--strip-unneeded", str(tree / STRIPPED)], check=True)
        # the tool is many times faster than Python's module: it uses all cores
        subprocess.run(["tar", "-c", "-I", "xz -T0 -6", "-f", str(whole), "-C", work, "site"], check=True)
        data = whole.read_bytes()
    for part in folder.glob("vision.part.*"):
        part.unlink()
    for number, start in enumerate(range(0, len(data), part_bytes)):
        (folder / f"vision.part.{number}").write_bytes(data[start : start + part_bytes])
    print(f"{folder}: {len(data) / 1e6:.1f} MB in parts of {part_bytes / 1e6:g} MB")


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
    print(f"export PYTHONPATH={target / 'tree'}:{target / 'site'}${{PYTHONPATH:+:$PYTHONPATH}}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="the GPU machine's Python")
    packing.add_argument("--part-mb", type=float, default=45.0)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("target", type=Path)
    args = parser.parse_args()
    if args.command == "pack":
        pack(args.folder, args.python, int(args.part_mb * 1e6))
    else:
        unpack(args.folder, args.target.absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main())
