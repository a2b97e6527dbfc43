"""Finding a checkpoint, looking at it without loading it, and loading it straight onto a device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duplex.adapters.qwen3_tts.config import CodecConfig, TtsConfig, read_codec_config, read_config
from duplex.adapters.qwen3_tts.layout import Shape, check_layout, codec_layout, model_layout
from duplex.core.errors import DuplexError, ErrorCode

if TYPE_CHECKING:
    import torch

CODEC_FOLDER = "speech_tokenizer"
_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_HEADER_LIMIT = 100_000_000  # bytes; safetensors' own limit
_FILES = ("config.json", f"{CODEC_FOLDER}/config.json")


def find_checkpoint(name: str, *, revision: str | None = None, download: bool = False) -> Path:
    """The folder of a checkpoint.

    `name` is a folder, or a repository of the hub ("owner/name"), looked up in the hub's local cache
    (`HF_HOME` and `HF_HUB_CACHE` say where). `revision`: a branch, tag or commit of the repository; None: its
    main branch. Only with `download` is anything fetched.

    Raises:
        DuplexError: `BAD_CONFIG`: it is not there, or not all of it.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
            raise _bad(f"there is no folder {folder}, and the hub's names have the form owner/name")
        folder = _from_hub(name, revision, download=download)
    missing = [file for file in _FILES if not (folder / file).is_file()]
    missing += [
        f"{part.name}/{_FILE}" if part != folder else _FILE
        for part in (folder, folder / CODEC_FOLDER)
        if not (part / _FILE).is_file() and not (part / _INDEX).is_file()
    ]
    if missing:
        raise _bad(f"{folder} is no complete Qwen3-TTS checkpoint: it has no {', '.join(missing)}")
    return folder


def read_checked(folder: Path) -> tuple[TtsConfig, CodecConfig]:
    """A checkpoint's two configurations, its tensors' names and shapes checked against them; no weights.

    Raises:
        DuplexError: `BAD_CONFIG`: what is wrong, by file or tensor.
    """
    config, codec = read_config(folder), read_codec_config(folder)
    check_layout(config, read_shapes(folder))
    check_layout(codec, read_shapes(folder / CODEC_FOLDER))
    return config, codec


def read_shapes(folder: Path) -> dict[str, Shape]:
    """Names and shapes of the tensors in a folder's `model.safetensors`, or in the parts that
    `model.safetensors.index.json` names. Reads the files' headers only. The codec's are in
    `speech_tokenizer/`.

    Raises:
        DuplexError: `BAD_CONFIG`: a file is missing, cut short, or no safetensors file.
    """
    shapes: dict[str, Shape] = {}
    for path, names in _parts(folder).items():
        held = _header(path)
        if lost := sorted(names - held.keys()):
            raise _bad(f"{path} has no {lost[0]}, which {_INDEX} says it has")
        shapes.update(held)
    return shapes


def load_weights(
    folder: Path, prefix: str, device: torch.device | str, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix`, on `device`, under their full names: "talker." and
    "speaker_encoder." in a checkpoint's folder, "decoder." and "encoder." in its `speech_tokenizer/`.

    Each file is mapped and copied tensor by tensor, so that the host never holds the whole of it. `dtype`
    None keeps the file's.

    Raises:
        DuplexError: `BAD_CONFIG`: a file is missing or unreadable, or nothing has that prefix.
    """
    from safetensors import SafetensorError, safe_open

    weights: dict[str, torch.Tensor] = {}
    for path in _parts(folder):
        wanted = [name for name in _header(path) if name.startswith(prefix)]
        if not wanted:
            continue
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in wanted:
                    weights[name] = file.get_tensor(name).to(dtype=dtype)
        except (OSError, SafetensorError) as error:
            raise _bad(f"{path} cannot be read: {error}") from error
    if not weights:
        raise _bad(f"{folder} has no tensor whose name begins with {prefix!r}")
    return weights


def random_weights(
    config: TtsConfig,
    codec_config: CodecConfig | None,
    seed: int,
    scale: float = 0.02,
    *,
    prefix: str = "",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Random values for a checkpoint's tensors, made on `device`: full-size models without the weights.

    Only tensors whose names begin with `prefix` are made.

    Matrices, convolutions and codebooks are normal with standard deviation `scale`; norms are one, biases and
    the logarithmic `alpha` and `beta` of the codec's activations zero, a codebook's `cluster_usage` one,
    layer scales 0.01. A seed means the same values only on one kind of device and with one version of torch.
    `codec_config` None leaves the codec out. `dtype` None: bfloat16, the checkpoints' own.
    """
    import torch

    dtype = torch.bfloat16 if dtype is None else dtype
    generator = torch.Generator(device=device).manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    layout = model_layout(config) | (codec_layout(codec_config) if codec_config is not None else {})
    for name, shape in layout.items():
        if not name.startswith(prefix):
            continue
        tensor = torch.empty(shape, device=device, dtype=dtype)
        if name.endswith(("norm.weight", "cluster_usage")):
            tensor.fill_(1.0)
        elif name.endswith((".bias", ".alpha", ".beta")):
            tensor.zero_()
        elif name.endswith((".scale", ".gamma")):
            tensor.fill_(0.01)
        else:
            tensor.normal_(0.0, scale, generator=generator)
        weights[name] = tensor
    return weights


def _from_hub(name: str, revision: str | None, *, download: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise _bad(
            f"there is no folder {name}, and the hub's cache needs the package huggingface_hub"
        ) from error

    at = f"{name} at {revision}" if revision else name
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except HFValidationError as error:
        raise _bad(f"there is no folder {name}, and it is no name of the hub's: {error}") from error
    except LocalEntryNotFoundError as error:
        if not download:
            raise _bad(
                f"there is no folder {name}, and {at} is not in the hub's cache: fetch it with "
                f"`hf download {name}`, or set download"
            ) from error
    try:
        return Path(snapshot_download(name, revision=revision))
    except Exception as error:  # the hub's client raises several libraries' errors
        raise _bad(f"{at} cannot be fetched from the hub: {error}") from error


def _parts(folder: Path) -> Mapping[Path, set[str]]:
    """A folder's safetensors files, each with the names that the index says it holds: none where there is no
    index."""
    if (folder / _FILE).is_file():
        return {folder / _FILE: set()}
    index = folder / _INDEX
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        parts: dict[Path, set[str]] = {}
        for name, file in places.items():
            parts.setdefault(folder / os.path.basename(file), set()).add(name)
    except FileNotFoundError as error:
        raise _bad(f"{folder} has no {_FILE}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad(f"{index} is no index of safetensors files") from error
    for path in parts:
        if not path.is_file():
            raise _bad(f"{folder} has no {path.name}, which its index names")
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
        raise _bad(f"{path} is no safetensors file") from error
    if 8 + length + end != size:
        raise _bad(f"{path} has {size} bytes where its header tells of {8 + length + end}: fetch it again")
    return shapes


def _bad(message: str) -> DuplexError:
    return DuplexError(ErrorCode.BAD_CONFIG, message, param="model")
