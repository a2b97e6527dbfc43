"""A model for the sight worker that can be foretold, held up and broken. No torch.

A token is the mean colour of its 32 × 32 block and the sum of its positions; the gate follows the brightness
of the images with half its inertia. `hold` names a FIFO: each batch takes one byte from it before it is done.
`journal` names a file that gets a line for each batch that is launched: the sessions' images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.sight.messages import SightInfo
from duplex.adapters.mage_vl.sight.model import Probabilities, View
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode

POISON = 255
"""A first pixel that breaks the model."""


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hidden: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    gate: bool = True
    depth: int = 1
    hold: str | None = None
    journal: str | None = None
    fault: str | None = None


def window(seed: int = 0, images: int = 2, height: int = 32, width: int = 64, **fields: Any) -> VisualInput:
    """A window of random pixels."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (images, height, width, 3), dtype=np.uint8)
    pixels[0, 0, 0, 0] = fields.pop("first", 0)
    grid = np.indices((images, height // 16, width // 16), dtype=np.int32)
    known = {"segment_id": f"s{seed}", "pts_ms": 1e3 * seed, "duration_ms": 1e3}
    return VisualInput(
        images=pixels,
        positions=np.ascontiguousarray(np.moveaxis(grid, 0, -1)) + np.int32(seed),
        times_s=np.arange(images, dtype=np.float64),
        **{**known, **fields},
    )


def tokens_of(pixels: NDArray[np.uint8], positions: NDArray[np.int32], hidden: int) -> NDArray[np.float32]:
    """(n, P, hidden)."""
    n, height, width, _ = pixels.shape
    blocks = pixels.reshape(n, height // 32, 32, width // 32, 32, 3).mean(axis=(2, 4))
    sums = positions.reshape(n, height // 32, 2, width // 32, 2, 3).sum(axis=(2, 4))
    both = np.concatenate([blocks, sums], -1).reshape(n, -1, 6)
    return np.resize(both.astype(np.float32), (*both.shape[:2], hidden)) if hidden != 6 else both


def expected_tokens(window: VisualInput, hidden: int = 8) -> NDArray[np.float32]:
    return tokens_of(window.images, window.positions, hidden)


class FakeGate:
    """A session's state."""

    def __init__(self) -> None:
        self.level = 0.0

    def look(self, images: NDArray[np.uint8]) -> Probabilities:
        said = []
        for image in images:
            self.level = (self.level + float(image.mean()) / 255) / 2
            said.append(self.level)
        return tuple(said)


class Later:
    """A batch that is computed when it is asked for, on the collector's thread."""

    def __init__(self, model: FakeModel, batch: Sequence[View]) -> None:
        self._model, self._batch = model, batch

    def done(self) -> bool:
        return False

    def result(self) -> list[Probabilities]:
        self._model.wait()
        said = []
        for view in self._batch:
            if view.pixels[0, 0, 0, 0] == POISON:
                raise RuntimeError("poison")
            tokens = tokens_of(view.pixels, view.positions, self._model.info.hidden)
            if self._model.info.dtype == "bfloat16":
                view.tokens.view(np.uint16)[...] = tokens.view(np.uint32) >> 16
            else:
                view.tokens.view(np.float32)[...] = tokens
            said.append(() if view.state is None else view.state.look(view.pixels))
        return said


class FakeModel:
    def __init__(self, options: FakeOptions) -> None:
        self.options = options
        self.info = SightInfo(
            name="fake",
            hidden=options.hidden,
            dtype=options.dtype,
            gate=options.gate,
            depth=options.depth,
        )
        self._hold = os.open(options.hold, os.O_RDONLY) if options.hold else None

    def share(self, memory: NDArray[np.uint8]) -> None:
        assert memory.ndim == 1

    def warm_up(self) -> None:
        if self.options.fault == "warm":
            raise RuntimeError("no kernels")

    def new_state(self) -> FakeGate:
        return FakeGate()

    def launch(self, batch: Sequence[View]) -> Later:
        if self.options.journal:
            with open(self.options.journal, "a") as file:
                file.write(" ".join(str(len(view.pixels)) for view in batch) + "\n")
        return Later(self, batch)

    def wait(self) -> None:
        """Until the test lets a batch go."""
        if self._hold is not None:
            os.read(self._hold, 1)

    def memory_bytes(self) -> int:
        return 54_321


def load(options: Mapping[str, Any]) -> FakeModel:
    if options.get("fault") == "refused":
        raise DuplexError(ErrorCode.BAD_CONFIG, "there is no such checkpoint", param="model")
    return FakeModel(msgspec.convert(options, FakeOptions))
