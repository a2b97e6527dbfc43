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
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from packing import archive, command, download, extract, python_path, unpack_archive

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


def pack(folder: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        for site, names in SITES.items():
            extract(download(names, python, Path(work) / f"wheels-{site}"), tree / site)
        archive(tree, folder / ARCHIVE)


def unpack(folder: Path, target: Path) -> None:
    unpack_archive(folder / ARCHIVE, target)
    print(python_path(target))


if __name__ == "__main__":
    sys.exit(command(__doc__, pack, unpack))
