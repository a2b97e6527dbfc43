"""Packages for the Qwen3-TTS benchmark on a machine without network.

    python benchmarks/tts_gpu_pack.py pack FOLDER [--python 3.12]
    python benchmarks/tts_gpu_pack.py unpack FOLDER TARGET

`pack` runs where there is a package index. It writes `FOLDER/site.tar.xz` (about 40 MB) with packages for
x86-64 Linux: what the gateway needs beyond PyTorch, transformers and their own needs, and, each in a folder
of its own, the two other implementations with the versions that they want.

`unpack` runs on the GPU machine, beside a copy of the repository. It lays them out under TARGET, with this
working tree as the package `duplex`, and prints one line for the shell:

    eval "$(python3 benchmarks/tts_gpu_pack.py unpack dist/gpu /tmp/gpu)"
    python3 benchmarks/tts_gpu.py --peers /tmp/gpu

Only the standard library is needed there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ARCHIVE: Final = "site.tar.xz"
SITES: Final[dict[str, tuple[str, ...]]] = {
    "site": (
        *(
            "starlette",
            "uvicorn",
            "httptools",
            "websockets",
            "msgspec",
            "av",
            "soundfile",
            "soxr",
            "pybase64",
        ),
        *("python-multipart", "cffi", "pycparser", "anyio", "h11", "click", "idna", "prometheus-client"),
        "typing-extensions",
    ),
    "qwen-tts": (
        *("qwen-tts==0.1.1", "transformers==4.57.3", "tokenizers==0.22.2", "huggingface-hub==0.36.2"),
        "accelerate==1.12.0",
    ),
    "faster-qwen3-tts": (
        *("faster-qwen3-tts==0.5.4", "qwen-tts-hf==0.1.1.post1"),
        *("transformers==5.17.0", "tokenizers==0.23.2", "huggingface-hub==1.33.0"),
    ),
}
"""Folders, and what is in each: the product's needs, and one peer each."""
PLATFORMS: Final = ("2_28", "2_27", "2_17", "2_24", "2_31", "2_34")
NOT_PACKED: Final = (".pyi", ".pyx", ".pxd", ".c", ".h")


def download(names: tuple[str, ...], python: str, folder: Path) -> list[Path]:
    """Wheels of exactly those packages."""
    platforms = [
        *(f"manylinux_{version}_x86_64" for version in PLATFORMS),
        *("manylinux2014_x86_64", "manylinux1_x86_64"),
    ]
    command = [
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
        *("--python-version", python, "--implementation", "cp", "-d", str(folder)),
        *(part for platform in platforms for part in ("--platform", platform)),
    ]
    subprocess.run([*command, *names], check=True)
    return sorted(folder.glob("*.whl"))


def pack(folder: Path, python: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        for site, names in SITES.items():
            for wheel in download(names, python, Path(work) / f"wheels-{site}"):
                with zipfile.ZipFile(wheel) as file:
                    file.extractall(tree / site)
        with tarfile.open(folder / ARCHIVE, "w:xz", preset=6) as archive:
            for path in sorted(tree.rglob("*")):
                if path.is_file() and not path.name.endswith(NOT_PACKED):
                    archive.add(path, path.relative_to(tree))
    print(f"{folder / ARCHIVE}: {(folder / ARCHIVE).stat().st_size / 1e6:.1f} MB")


def link_tree(target: Path) -> None:
    """The working tree as an installed package: links, and the entry points of its adapters."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = target / "tree" / "duplex"
    package.mkdir(parents=True, exist_ok=True)
    folders = project["tool"]["setuptools"]["package-dir"]
    sources = {path.name: path for path in (ROOT / "duplex").iterdir()}
    sources |= {name.partition(".")[2]: ROOT / folder for name, folder in folders.items() if "." in name}
    for name, source in sources.items():
        place = package / name
        if place.is_symlink():
            place.unlink()
        place.symlink_to(source)
    about = project["project"]
    info = target / "tree" / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    lines = []
    for group, points in about["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


def unpack(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    link_tree(target)
    print(f"export PYTHONPATH={target / 'tree'}:{target / 'site'}${{PYTHONPATH:+:$PYTHONPATH}}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="the GPU machine's Python")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("target", type=Path)
    args = parser.parse_args()
    if args.command == "pack":
        pack(args.folder, args.python)
    else:
        unpack(args.folder, args.target.absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main())
