"""Voices that were computed ahead: a folder with `custom_voice_manifest.json` and a `.safetensors` file each.

The manifest is `{"voices": {name: {"name", "file", "mode", "ref_text"}}}`. A file has `speaker_embedding`
(float32, shape (d,)) and, mode `icl`, `ref_code` (int32, shape (frames, 16)), which `ref_text` is the words
of; mode `xvec` has the embedding alone. Files appear whole or not at all.

Blocking: callers run these functions off the event loop.
"""

from __future__ import annotations

import os
import tempfile
import unicodedata
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from duplex.adapters.speech import UploadedVoice
from duplex.core.errors import DuplexError, ErrorCode

MANIFEST: Final = "custom_voice_manifest.json"


def voice_key(name: str) -> str:
    """What tells voices apart: neither case nor the way in which an accent is written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


def voice_file_name(name: str) -> str:
    """The name of a voice's file."""
    return f"{voice_key(name)}.safetensors"


def load_profiles(folder: Path) -> dict[str, UploadedVoice]:
    """The voices of a folder, by their `voice_key`.

    Raises:
        DuplexError: `BAD_CONFIG`: the folder is not whole.
    """
    try:
        entries: dict[str, Any] = msgspec.json.decode((folder / MANIFEST).read_bytes())["voices"]
        return {voice_key(name): _load(folder, name, entry) for name, entry in entries.items()}
    except (
        OSError,
        SafetensorError,
        msgspec.MsgspecError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"precomputed voices in {folder}: {error}") from error


def save_profile(folder: Path, voice: UploadedVoice, *, replace: bool = False) -> Path:
    """Put a voice into a folder, which is made if need be, and return its file. `voice` has an embedding, and
    with codes also the text that they say.

    Raises:
        DuplexError: `VOICE_EXISTS` unless it may be replaced; `BAD_CONFIG` as `load_profiles`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = load_profiles(folder) if (folder / MANIFEST).exists() else {}
    if voice_key(voice.name) in known and not replace:
        raise DuplexError(ErrorCode.VOICE_EXISTS, f"{folder} has a voice {voice.name} already", param="name")
    tensors = {"speaker_embedding": np.asarray(voice.embedding, np.float32)}
    entry = {"name": voice.name, "file": voice_file_name(voice.name), "mode": "xvec"}
    if voice.codes is not None:
        tensors["ref_code"] = np.asarray(voice.codes, np.int32)
        entry |= {"mode": "icl", "ref_text": voice.text or ""}
    path = folder / entry["file"]
    write_whole(path, bytes(save(tensors)))
    write_whole(folder / MANIFEST, _with_entry(folder / MANIFEST, voice.name, entry))
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write beside, flush to disk, move into place: readers see all or nothing."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".upload-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _with_entry(manifest: Path, name: str, entry: dict[str, str]) -> bytes:
    """The manifest with that voice in it. What else it says stays."""
    tree: dict[str, Any] = msgspec.json.decode(manifest.read_bytes()) if manifest.exists() else {}
    voices = {
        known: old for known, old in tree.get("voices", {}).items() if voice_key(known) != voice_key(name)
    }
    tree["voices"] = voices | {name: entry}
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


def _load(folder: Path, name: str, entry: dict[str, Any]) -> UploadedVoice:
    path = folder / str(entry["file"])
    if path.resolve().parent != folder.resolve():
        raise ValueError(f"voice {name} names a file outside its folder")
    with safe_open(path, "np") as file:
        embedding = file.get_tensor("speaker_embedding").astype(np.float32).reshape(-1)
        in_context = entry.get("mode") != "xvec" and "ref_code" in file.keys()  # noqa: SIM118
        codes = file.get_tensor("ref_code") if in_context else None
    return UploadedVoice(
        name=name,
        text=entry.get("ref_text"),
        embedding=tuple(map(float, embedding)),
        codes=None if codes is None else tuple(tuple(map(int, row)) for row in codes),
    )
