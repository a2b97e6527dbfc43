"""How each product is cut into blocks. Measured on an H200, see docs/performance-notes.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Tile:
    """`outputs` a block, `depth` values of k at a time, `ahead` of those before the wait for the activations,
    `stages` of the rest in flight, `warps`, `rows` a block at most. None of it touches the order of a sum."""

    outputs: int
    depth: int
    ahead: int
    stages: int
    warps: int
    rows: int = 128


_SLICES: Final = {
    (4096, 2048): 512,
    (2048, 2048): 512,
    (2048, 6144): 1536,
    (3072, 2048): 512,
    (1024, 2048): 512,
    (4096, 1024): 512,
    (1024, 3072): 1024,
    (2048, 1024): 256,
    (3072, 1024): 256,
}
_FEW: Final = {
    (4096, 2048): Tile(64, 256, 2, 2, 4),
    (2048, 2048): Tile(64, 256, 2, 2, 4),
    (12288, 2048): Tile(64, 128, 4, 3, 4),
    (2048, 6144): Tile(64, 256, 1, 3, 4),
    (3072, 2048): Tile(64, 256, 2, 2, 4),
    (1024, 2048): Tile(64, 256, 2, 2, 4),
    (4096, 1024): Tile(64, 256, 2, 2, 4),
    (6144, 1024): Tile(64, 256, 2, 2, 4),
    (1024, 3072): Tile(64, 256, 1, 3, 4),
    (2048, 1024): Tile(64, 256, 1, 2, 4),
    (3072, 1024): Tile(64, 256, 1, 2, 4),
}
_SOME: Final = {
    (4096, 2048): Tile(128, 128, 3, 2, 8),
    (2048, 2048): Tile(64, 128, 4, 2, 4),
    (12288, 2048): Tile(128, 128, 1, 3, 8),
    (2048, 6144): Tile(64, 128, 2, 3, 4),
    (3072, 2048): Tile(64, 64, 1, 4, 4),
    (1024, 2048): Tile(64, 128, 4, 2, 4),
    (4096, 1024): Tile(64, 128, 1, 3, 4),
    (6144, 1024): Tile(64, 128, 1, 4, 4),
    (1024, 3072): Tile(64, 128, 1, 4, 4),
    (2048, 1024): Tile(128, 128, 2, 2, 8),
    (3072, 1024): Tile(128, 128, 2, 2, 8),
}
_MORE: Final = {
    (1024, 2048): Tile(64, 128, 4, 2, 4, rows=64),
    (4096, 1024): Tile(64, 128, 1, 3, 4),
    (6144, 1024): Tile(128, 64, 2, 4, 8, rows=64),
    (1024, 3072): Tile(64, 128, 2, 3, 4, rows=64),
}
_MANY: Final = Tile(128, 64, 1, 3, 8)
_FEW_ROWS: Final = 16
_SOME_ROWS: Final = 64
_MORE_ROWS: Final = 128


def slice_of(n: int, k: int) -> int:
    """Values of k that one block sums for a weight of n by k. Never by the rows: it decides the rounding."""
    return _SLICES.get((n, k)) or next(size for size in (256, 128, 64) if k % size == 0)


def tile_of(n: int, k: int, rows: int) -> Tile:
    """The cut of a product of so many rows with a weight of n by k."""
    steps = (_FEW_ROWS, _FEW), (_SOME_ROWS, _SOME), (_MORE_ROWS, _MORE)
    tile = next((table.get((n, k)) for most, table in steps if rows <= most), None)
    if tile is not None:
        return tile
    if n % _MANY.outputs == 0 and k % 256 == 0:
        return _MANY
    return Tile(64, 64, 1, 2, 4)
