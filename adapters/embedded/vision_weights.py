"""Model files that are made at first use: where they are kept, and how a PyTorch file is read."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAGIC: Final = 0x1950A86A20F9469CFC6C  # first pickle of every file that torch.save wrote before 1.6
_PROTOCOL: Final = 1001
_KINDS: Final = {"FloatStorage": "<f4", "HalfStorage": "<f2", "DoubleStorage": "<f8", "LongStorage": "<i8"}


def cache_folder() -> Path:
    """`$DUPLEX_CACHE`, else the platform's cache folder for this program."""
    named = os.environ.get("DUPLEX_CACHE")
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "duplex"


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """The bytes of a cached file, made when it is not there yet.

    The file appears whole or not at all, however many processes make it at once. Where the folder cannot be
    written the bytes are made anew each time.
    """
    path = cache_folder() / name
    try:
        return path.read_bytes()
    except OSError:
        pass
    made = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{name}.", delete=False) as part:
            part.write(made)
        os.replace(part.name, path)
    except OSError:
        pass
    return made


class _Storage(NamedTuple):
    key: str
    kind: str
    size: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _rebuild(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


class _Restricted(pickle.Unpickler):
    """Knows ordered dictionaries, tensors and storages. Anything else in the pickle is refused."""

    _ALLOWED: Final[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
        **{("torch", name): name for name in _KINDS},
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a weight file") from None

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or pid[1] not in _KINDS:
            raise pickle.UnpicklingError("unknown reference in a weight file")
        return _Storage(str(pid[2]), pid[1], int(pid[4]))


def read_legacy_pth(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """Arrays by name from a state dictionary that `torch.save` wrote in its format before 1.6.

    Nothing in the file is executed.

    Raises:
        ValueError: The file is not of that format, or is damaged.
    """
    try:
        if _Restricted(file).load() != _MAGIC or _Restricted(file).load() != _PROTOCOL:
            raise ValueError("not a legacy PyTorch weight file")
        _Restricted(file).load()  # what machine wrote it
        tensors = _Restricted(file).load()
        keys = _Restricted(file).load()
        storages = {t.storage.key: t.storage for t in tensors.values() if isinstance(t, _Tensor)}
        contents = {}
        for key in keys:
            storage = storages[key]
            size = int.from_bytes(file.read(8), "little")
            if size != storage.size:
                raise ValueError(f"storage {key} has {size} elements, not {storage.size}")
            kind = np.dtype(_KINDS[storage.kind])
            contents[key] = np.frombuffer(file.read(size * kind.itemsize), kind)
            if len(contents[key]) != size:
                raise ValueError("the weight file is truncated")
        return {
            name: _view(contents[t.storage.key], t) for name, t in tensors.items() if isinstance(t, _Tensor)
        }
    except (pickle.UnpicklingError, EOFError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"the weight file cannot be read: {error}") from error


def _view(storage: NDArray[Any], tensor: _Tensor) -> NDArray[Any]:
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride, strict=True))
    if min((*tensor.stride, tensor.offset, 0)) < 0 or (0 not in tensor.shape and last >= len(storage)):
        raise ValueError("a tensor reaches beyond its storage")
    strides = tuple(s * storage.itemsize for s in tensor.stride)
    return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides).copy()
