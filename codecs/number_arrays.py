"""Arrays of numbers as bytes, in the place of lists of lists: `{"dtype", "shape", "data"}`.

`dtype` is one of `DTYPES`, little-endian; `shape` a list of lengths from 1, the outermost first; `data` the
numbers in that order, without gaps: bytes, or base64 of them where a format has no bytes.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pybase64
from numpy.typing import NDArray

from duplex.core.errors import DuplexError, ErrorCode

DTYPES: Final = ("u1", "i1", "u2", "i2", "u4", "f2", "f4")
MOST_DIMENSIONS: Final = 8
_KEYS: Final = frozenset(("dtype", "shape", "data"))


def read_numbers(given: Mapping[str, Any], name: str, param: str, *, most: int) -> NDArray[Any]:
    """The array, read-only, without a copy of its bytes. Numbers may be NaN or infinite.

    Args:
        given: what came in the place of lists; nothing of it is trusted.
        name: of the field, for the words of a fault; `param` for the fault itself.
        most: numbers that are taken.

    Raises:
        DuplexError: `INVALID_VALUE`, `INVALID_BASE64`, or `MEDIA_TOO_LARGE` for more than `most` numbers.
    """

    def wrong(words: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> DuplexError:
        return DuplexError(code, f"{name}: {words}", param=param)

    if given.keys() != _KEYS:
        raise wrong("it must be lists of numbers, or an object of dtype, shape and data")
    dtype, shape, data = given["dtype"], given["shape"], given["data"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise wrong(f"its dtype must be one of {', '.join(DTYPES)}")
    if (
        not isinstance(shape, list | tuple)
        or not 1 <= len(shape) <= MOST_DIMENSIONS
        or not all(type(length) is int and length > 0 for length in shape)
    ):
        raise wrong(f"its shape must be a list of 1 to {MOST_DIMENSIONS} whole numbers from 1")
    count = 1
    for length in shape:  # ends at the bound: lengths may have any number of digits
        count *= length
        if count > most:
            raise wrong(f"more than {most:,} numbers", ErrorCode.MEDIA_TOO_LARGE)
    kind = np.dtype(f"<{dtype}")
    if isinstance(data, str):
        try:
            data = pybase64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            words = "its data must be base64: the standard alphabet, with padding, without white space"
            raise wrong(words, ErrorCode.INVALID_BASE64) from None
    if not isinstance(data, bytes):
        raise wrong("its data must be bin, or base64 in JSON")
    if len(data) != count * kind.itemsize:
        wanted = f"{count * kind.itemsize:,} bytes"
        raise wrong(f"its data has {len(data):,} bytes; its shape and dtype need {wanted}")
    return np.frombuffer(data, kind).reshape(shape)


def pack_numbers(array: NDArray[Any]) -> dict[str, Any]:
    """The array as `read_numbers` takes it, with bytes. Other numbers than those of `DTYPES` become f4.

    Raises:
        DuplexError: `INVALID_VALUE`: it is not of numbers, or of 0 or more than 8 dimensions.
    """
    if array.dtype.kind not in "buif" or not 1 <= array.ndim <= MOST_DIMENSIONS:
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            f"an array must be of numbers and of 1 to {MOST_DIMENSIONS} dimensions, not of {array.dtype} and"
            f" {array.ndim}",
        )
    dtype = array.dtype.str[1:]
    if dtype not in DTYPES:
        dtype = "u1" if array.dtype.kind == "b" else "f4"
    with np.errstate(over="ignore"):  # what becomes infinite is refused by whoever reads it
        data = array.astype(f"<{dtype}", copy=False).tobytes()
    return {"dtype": dtype, "shape": list(array.shape), "data": data}
