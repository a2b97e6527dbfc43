"""Voices between voices: a weighted mean of speaker embeddings.

The mean is taken of directions and of lengths apart. A plain mean of two embeddings is shorter than both, the
more so the less they are alike, and the model has learnt nothing about short ones. For two voices this runs
along the arc between them; it goes on to any number of voices, where a spherical interpolation would depend
on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from duplex.core.errors import DuplexError, ErrorCode


def blend(embeddings: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float32]:
    """A speaker embedding, shape (d,), from at least two of that shape. Weights count by their proportions.

    Raises:
        DuplexError: `INVALID_VALUE`: weights below nought or all nought, embeddings of several sizes or
            without a direction, or voices that are opposites.
    """
    if len(embeddings) < 2 or len(embeddings) != len(weights):
        raise _bad("a blend needs two voices or more, and a weight for each")
    shares = np.asarray(weights, np.float64)
    if not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() == 0:
        raise _bad("weights must be 0 or more, and one of them more than 0")
    sizes = sorted({len(embedding) for embedding in embeddings})
    if len(sizes) > 1:
        raise _bad(f"voices of several model sizes: embeddings of {' and '.join(map(str, sizes))} numbers")
    shares /= shares.sum()
    rows = np.stack(embeddings).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    if not np.isfinite(lengths).all() or (lengths == 0).any():
        raise _bad("an embedding is all nought, or not finite")
    direction = shares @ (rows / lengths[:, None])
    size = np.linalg.norm(direction)
    if size < 1e-6:
        raise _bad("the voices are opposites: nothing lies between them")
    return np.asarray(direction / size * (shares @ lengths), np.float32)


def _bad(words: str) -> DuplexError:
    return DuplexError(ErrorCode.INVALID_VALUE, words, param="weights")
