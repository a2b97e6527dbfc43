"""What commentary makes of codec windows: of the side information it reads motion vectors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from duplex.codecs.number_arrays import read_numbers
from duplex.core.errors import DuplexError, ErrorCode

_NAME: Final = "motion_vectors"
KEYS: Final = frozenset({_NAME})
"""Fields that are read."""
_PARAM: Final = f"data.codec.{_NAME}"
_MOST_NUMBERS: Final = 2_000_000


def mean_speed(codec: dict[str, Any]) -> float:
    """Mean length of the motion vectors, in pixels a frame.

    `motion_vectors` is any nesting of lists whose innermost are (dx, dy, …), or the bytes of such an array
    (`duplex.codecs.number_arrays`).

    Raises:
        DuplexError: `INVALID_VALUE`, `INVALID_BASE64` or `MEDIA_TOO_LARGE`.
    """
    given = codec.get(_NAME, ())
    if isinstance(given, dict):
        given = read_numbers(given, _NAME, _PARAM, most=_MOST_NUMBERS)
    try:
        vectors = np.asarray(given, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DuplexError(
            ErrorCode.INVALID_VALUE, f"{_NAME} must be lists of numbers of equal length", param=_PARAM
        ) from error
    if not vectors.size:
        return 0.0
    if vectors.ndim < 2 or vectors.shape[-1] < 2 or not np.isfinite(vectors).all():
        raise DuplexError(ErrorCode.INVALID_VALUE, f"{_NAME} must be lists of finite (dx, dy)", param=_PARAM)
    return float(np.hypot(vectors[..., 0], vectors[..., 1]).mean())
