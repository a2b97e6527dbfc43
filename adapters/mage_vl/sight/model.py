"""What a sight worker drives: a vision encoder with a gate, which keeps no session's state itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.model import Pending
from duplex.adapters.mage_vl.sight.messages import SightInfo

State: TypeAlias = Any
"""A session's gate state: the model's own, changed by each look in which the gate is asked."""

Probabilities: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One window for the model, in shared memory.

    Attributes:
        pixels: uint8 (n, H, W, 3), RGB.
        positions: int32 (n, H // 16, W // 16, 3): frame, row, column of each patch, in raster order.
        tokens: where the visual tokens go: (n, P, `info.token_bytes`) bytes.
        state: the session's gate state; None: the gate is not asked.
    """

    pixels: NDArray[np.uint8]
    positions: NDArray[np.int32]
    tokens: NDArray[np.uint8]
    state: State | None


class SightModel(Protocol):
    """A loaded model. One thread calls all of it but the results of what it launched.

    It may also have `memory_bytes() -> int`, from any thread.
    """

    info: SightInfo

    def share(self, memory: NDArray[np.uint8]) -> None:
        """All memory that windows will be in, before the first one: to be pinned, for example."""
        ...

    def warm_up(self) -> None:
        """Run what is slow the first time."""
        ...

    def new_state(self) -> State:
        """The gate's state before a session's first image."""
        ...

    def launch(self, batch: Sequence[View]) -> Pending[list[Probabilities]]:
        """Look at windows of different sessions, at most `info.depth` batches at once; they run in the order
        of their launch. When the result is there, so are the tokens.

        Returns:
            The probability to speak, at each image of each window or at its last one; empty for those without
            a state.
        """
        ...


class SightFactory(Protocol):
    """What a worker's `factory` names.

    Raises:
        DuplexError: `BAD_CONFIG`: an unknown option, a checkpoint that is not there …
    """

    def __call__(self, options: Mapping[str, Any]) -> SightModel: ...
