"""Side information that a client sends of its own: `codec_window` messages, checked and bounded.

`codec` may hold, each for all n frames of the segment in display order (other keys are not looked at):

* `bit_cost`: (n, rows, columns), what each square of a grid over the picture cost, at least 0;
* `motion_vectors`: (n, rows, columns, 2 or more), the square's (dx, dy, …) in pixels;
* `residual_energy`: (n, rows, columns) of each square, or (n,) of whole frames, at least 0;
* `packet_bytes`: (n,), coded size of each frame;
* `frame_types`: n strings, `I` for a frame that is not predicted.

The grids may differ from each other and cover the whole upright picture. Numbers come as lists of lists, or
as the bytes of an array (`duplex.codecs.number_arrays`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.windows.costs import Costs, spread
from duplex.codecs.number_arrays import read_numbers
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow

KEYS: Final = ("bit_cost", "motion_vectors", "residual_energy", "packet_bytes", "frame_types")
MOST_FRAMES: Final = 4096
MOST_NUMBERS: Final = 2_000_000
"""Numbers of one array: 8 s of 30 frames/s with a vector for each 16 × 16 block of 1080p."""

_MOST: Final = np.float32(1e18)  # more is taken for this: sums of them are numbers still
_PERCENTILE: Final = 95.0
_FRAME_BITS: Final = 16.0  # bits of an average cell, where nothing tells a frame's size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideInformation:
    """What a client says of the n frames of a segment. At least one of the arrays is there.

    Attributes:
        frames: n.
        costs: float32 (n, rows, columns), at least 0: where each frame's bits are, in any unit.
        exact: `costs` are bits as they are, to be compared between frames.
        frame_bits: float32 (n,), at least 0: how many bits each frame has, in any one unit.
        key: bool (n,), the frames that are not predicted.
    """

    frames: int
    costs: Costs | None
    exact: bool
    frame_bits: NDArray[np.float32] | None
    key: NDArray[np.bool_] | None

    def is_key(self, index: int, of: int) -> bool | None:
        """Whether frame `index` of the `of` that were found is no predicted one; None: not said."""
        return None if self.key is None else bool(self.key[self._place(index, of)])

    def refine(self, index: int, of: int, estimate: Costs) -> Costs:
        """Costs of the cells of frame `index` of the `of` that were found.

        Args:
            index: Of the frame in the segment.
            of: Frames of the segment; where the client counted differently, the nearest in time is meant.
            estimate: (H // 8, W // 8), what is known without the client.
        """
        place = self._place(index, of)
        costs = estimate if self.costs is None else spread(self.costs[place], estimate.shape)
        if self.exact:
            return costs
        bits = np.float32(_FRAME_BITS * costs.size)
        if self.frame_bits is not None:
            bits *= self.frame_bits[place] / max(float(self.frame_bits.mean()), 1e-6)
        total = float(costs.sum())
        scaled: Costs = costs * (bits / np.float32(total) if total else np.float32(0))
        return scaled

    def _place(self, index: int, of: int) -> int:
        return min(max(0, index) * self.frames // max(1, of), self.frames - 1)


def read(window: CodecWindow) -> SideInformation:
    """Check a window's side information.

    Raises:
        DuplexError: `invalid_value` for what cannot be understood, `media_too_large` for more than the
            bounds; `param` names the field.
    """
    codec = window.codec
    bit_cost = _grid(codec, "bit_cost", 3)
    vectors = _grid(codec, "motion_vectors", 4, signed=True)
    residual = _grid(codec, "residual_energy", 3, 1)
    packets = _grid(codec, "packet_bytes", 1)
    key = _types(codec)
    if vectors is not None and vectors.shape[3] < 2:
        raise _wrong("motion_vectors", "its innermost lists must be (dx, dy, …)")
    named = {
        "bit_cost": bit_cost,
        "motion_vectors": vectors,
        "residual_energy": residual,
        "packet_bytes": packets,
        "frame_types": key,
    }
    counts = {name: len(array) for name, array in named.items() if array is not None}
    if not counts:
        raise _wrong("", f"it has none of {', '.join(named)}")
    if len(set(counts.values())) > 1:
        raise _wrong("", "its arrays are of different numbers of frames: " + _listed(counts))
    parts = []
    if vectors is not None:
        parts.append(_full_scale(np.hypot(vectors[..., 0], vectors[..., 1])))
    if residual is not None and residual.ndim == 3:
        parts.append(_full_scale(residual))
    costs = bit_cost if bit_cost is not None else _sum(parts)
    scalar = residual if residual is not None and residual.ndim == 1 else None
    return SideInformation(
        frames=next(iter(counts.values())),
        costs=costs,
        exact=bit_cost is not None,
        frame_bits=packets if packets is not None else scalar,
        key=key,
    )


def _grid(codec: Mapping[str, Any], name: str, *dimensions: int, signed: bool = False) -> Costs | None:
    given = codec.get(name)
    if given is None:
        return None
    if isinstance(given, dict):
        dense = read_numbers(given, f"codec.{name}", f"data.codec.{name}", most=MOST_NUMBERS)
        _few(name, len(dense))
        array = dense.astype(np.float32)
    elif isinstance(given, (list, tuple)):
        array = _listed_numbers(name, given)
    else:
        raise _wrong(name, "it must be lists of numbers, or an object of dtype, shape and data")
    if array.ndim not in dimensions or not array.size:
        wanted = " or ".join(str(d) for d in dimensions)
        raise _wrong(name, f"it must have {wanted} dimensions and no empty one, not the shape {array.shape}")
    if not np.isfinite(array).all() or (not signed and array.min() < 0):
        raise _wrong(name, "it must be of finite numbers" + ("" if signed else ", none below 0"))
    return np.clip(array, -_MOST, _MOST, out=array)


def _listed_numbers(name: str, given: Any) -> Costs:
    _bounded(name, given)
    try:
        with np.errstate(over="ignore"):  # infinity is refused by the caller
            return np.asarray(given, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(name, "it must be lists of numbers, of equal length") from error


def _few(name: str, frames: int) -> None:
    if frames > MOST_FRAMES:
        raise _too_large(name, f"{frames:,} frames; the limit is {MOST_FRAMES:,}")


def _bounded(name: str, given: Any) -> None:
    """Refuse too much by the lengths of the first lists of each level, before anything is copied."""
    size, level = 1, given
    for depth in range(6):
        if not isinstance(level, (list, tuple)):
            return
        if not depth:
            _few(name, len(level))
        size *= len(level)
        if size > MOST_NUMBERS:
            raise _too_large(name, f"more than {MOST_NUMBERS:,} numbers")
        if not level:
            return
        level = level[0]
    raise _wrong(name, "it is nested too deeply")


def _types(codec: Mapping[str, Any]) -> NDArray[np.bool_] | None:
    given = codec.get("frame_types")
    if given is None:
        return None
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(t, str) for t in given):
        raise _wrong("frame_types", "it must be a list of strings")
    _few("frame_types", len(given))
    return np.array([t[:1].upper() == "I" for t in given])


def _full_scale(grids: NDArray[Any]) -> Costs:
    """Each frame's grid as shares of its own 95th percentile, at most 1."""
    flat = grids.reshape(len(grids), -1)
    full = np.maximum(np.percentile(flat, _PERCENTILE, axis=1), 1e-6)
    shares: Costs = np.minimum(grids / full[:, None, None], 1).astype(np.float32)
    return shares


def _sum(parts: list[Costs]) -> Costs | None:
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    shape = max((part.shape[1:] for part in parts), key=lambda s: s[0] * s[1])
    return np.stack([sum(spread(part[i], shape) for part in parts) for i in range(len(parts[0]))])


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _wrong(name: str, words: str) -> DuplexError:
    what = f"codec.{name}" if name else "the codec window"
    return DuplexError(
        ErrorCode.INVALID_VALUE, f"{what}: {words}", param=f"data.codec.{name}" if name else "data.codec"
    )


def _too_large(name: str, words: str) -> DuplexError:
    return DuplexError(ErrorCode.MEDIA_TOO_LARGE, f"codec.{name}: {words}", param=f"data.codec.{name}")
