"""What a look gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.mage_vl.sight.messages import TokenType
from duplex.adapters.mage_vl.windows.types import VisualInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """Visual tokens of one window, in memory of their own.

    Attributes:
        data: (n, P, hidden): float32, or the bits of bfloat16 as uint16.
        dtype: Which of them.
    """

    data: NDArray[Any]
    dtype: TokenType

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, P, hidden)."""
        return self.data.shape

    def numpy(self) -> NDArray[np.float32]:
        """Float32; a copy unless they are."""
        if self.dtype == "float32":
            return self.data
        return (self.data.astype(np.uint32) << 16).view(np.float32)

    def torch(self) -> Any:
        """A torch tensor of their type that shares their memory. Needs torch."""
        import torch

        tensor = torch.from_numpy(self.data)
        return tensor if self.dtype == "float32" else tensor.view(torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A window that was looked at.

    Attributes:
        window: Which.
        tokens: Its visual tokens.
        p_speak: The gate's probability to speak, at each image or at the last one alone, as the model was
            told to judge: the last decides. None when it was not asked, or there is none.
        lag_ms: From the window's submission until the result.
        behind_ms: The same, from the submission of the oldest window whose place it took.
        merged: Windows whose place it took: they were not looked at.
        restarted: The gate began anew: what it knew of the session was lost with a worker.
        sessions: Windows in the same batch, this one too.
    """

    window: VisualInput
    tokens: Tokens
    p_speak: tuple[float, ...] | None
    lag_ms: float
    behind_ms: float
    merged: int
    restarted: bool
    sessions: int
