"""Checkpoints' folders: finding one, looking at its tensors without loading them, and loading them straight
onto a device."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duplex.adapters.layouts import Shape
from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    import torch

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_HEADER_LIMIT = 100_000_000  # bytes; safetensors' own limit


def find_folder(
    name: str, *, revision: str | None = None, download: bool = False, patterns: Sequence[str] | None = None
) -> Path:
    """The folder of a checkpoint.

    `name` is a folder, or a repository of the hub ("owner/name"), looked up in the hub's local cache
    (`HF_HOME` and `HF_HUB_CACHE` say where). `revision`: a branch, tag or commit of the repository; None: its
    main branch. Only with `download` is anything fetched: files of these `patterns`, None: all.

    Raises:
        DuplexError: `BAD_CONFIG`: it is not there.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise bad_checkpoint(f"there is no folder {folder}, and the hub's names have the form owner/name")
    return _from_hub(name, revision, download=download, patterns=patterns)


def missing_files(folder: Path, files: Iterable[str], weights: Iterable[str] = ("",)) -> list[str]:
    """Those of `files` that a folder lacks, and of its parts `weights` ("" is the folder itself) the weights
    that are not there."""
    lost = [
        f"{part}/{WEIGHTS}".removeprefix("/")
        for part in weights
        if not any((folder / part / file).is_file() for file in (WEIGHTS, INDEX))
    ]
    return [file for file in files if not (folder / file).is_file()] + lost


def read_shapes(place: Path) -> dict[str, Shape]:
    """Names and shapes of the tensors in a safetensors file, or in a folder's `model.safetensors` or the
    parts that `model.safetensors.index.json` names. Reads the files' headers only.

    Raises:
        DuplexError: `BAD_CONFIG`: a file is missing, cut short, or no safetensors file.
    """
    shapes: dict[str, Shape] = {}
    for path, names in _parts(place).items():
        held = _header(path)
        if lost := sorted(names - held.keys()):
            raise bad_checkpoint(f"{path} has no {lost[0]}, which {INDEX} says it has")
        shapes.update(held)
    return shapes


def load_tensors(
    place: Path, prefix: str, device: torch.device | str, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix`, on `device`, under their full names, of a folder or one
    file.

    Each file is mapped and copied tensor by tensor, so that the host never holds the whole of it. `dtype`
    None keeps the file's.

    Raises:
        DuplexError: `BAD_CONFIG`: a file is missing or unreadable, or nothing has that prefix.
    """
    from safetensors import SafetensorError, safe_open

    weights: dict[str, torch.Tensor] = {}
    for path in _parts(place):
        wanted = [name for name in _header(path) if name.startswith(prefix)]
        if not wanted:
            continue
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in wanted:
                    weights[name] = file.get_tensor(name).to(dtype=dtype)
        except (OSError, SafetensorError) as error:
            raise bad_checkpoint(f"{path} cannot be read: {error}") from error
    if not weights:
        raise bad_checkpoint(f"{place} has no tensor whose name begins with {prefix!r}")
    return weights


def bad_checkpoint(message: str) -> DuplexError:
    return DuplexError(ErrorCode.BAD_CONFIG, message, param="model")


def _from_hub(name: str, revision: str | None, *, download: bool, patterns: Sequence[str] | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise bad_checkpoint(
            f"there is no folder {name}, and the hub's cache needs the package huggingface_hub"
        ) from error

    at = f"{name} at {revision}" if revision else name
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except HFValidationError as error:
        raise bad_checkpoint(f"there is no folder {name}, and it is no name of the hub's: {error}") from error
    except LocalEntryNotFoundError as error:
        if not download:
            raise bad_checkpoint(
                f"there is no folder {name}, and {at} is not in the hub's cache: fetch it with "
                f"`hf download {name}`, or set download"
            ) from error
    try:
        if patterns is None:
            return Path(snapshot_download(name, revision=revision))
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # the hub's client raises several libraries' errors
        raise bad_checkpoint(f"{at} cannot be fetched from the hub: {error}") from error


def _parts(place: Path) -> Mapping[Path, set[str]]:
    """A folder's safetensors files, each with the names that the index says it holds: none where there is no
    index. Of a file: itself."""
    if place.suffix == ".safetensors":
        if not place.is_file():
            raise bad_checkpoint(f"there is no {place}")
        return {place: set()}
    if (place / WEIGHTS).is_file():
        return {place / WEIGHTS: set()}
    index = place / INDEX
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        parts: dict[Path, set[str]] = {}
        for name, file in places.items():
            parts.setdefault(place / os.path.basename(file), set()).add(name)
    except FileNotFoundError as error:
        raise bad_checkpoint(f"{place} has no {WEIGHTS}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad_checkpoint(f"{index} is no index of safetensors files") from error
    for path in parts:
        if not path.is_file():
            raise bad_checkpoint(f"{place} has no {path.name}, which its index names")
    return parts


def _header(path: Path) -> dict[str, Shape]:
    """Names and shapes from a safetensors file: 8 bytes little endian, the header's length, then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length < _HEADER_LIMIT else b""
        size = os.fstat(file.fileno()).st_size
    try:
        header: dict[str, Any] = json.loads(raw)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in tensors.items()}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad_checkpoint(f"{path} is no safetensors file") from error
    if 8 + length + end != size:
        raise bad_checkpoint(
            f"{path} has {size} bytes where its header tells of {8 + length + end}: fetch it again"
        )
    return shapes
