"""What the codec carries from frame to frame, of every slot, in tensors that never move."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duplex.adapters.qwen3_tts.config import CodecDecoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecState:
    """Carried state of s slots.

    `context` (s, c): the last inputs of every causal convolution, one after the other. `ring` (s, window,
    layers, 2, heads, head_dim): keys (rotated) and values, frame p at p % window. `position` (s,) int64:
    frames that went through, reference frames included: the next one's place in time. `frame` (s,) int64:
    frames of the talker's that went through: where in its ring of codes the next one is.
    """

    context: Tensor
    ring: Tensor
    position: Tensor
    frame: Tensor

    @classmethod
    def zeros(
        cls,
        config: CodecDecoderConfig,
        context: int,
        *,
        slots: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> CodecState:
        """A state of nothing heard yet. `context`: `CodecWeights.context`."""
        heads, size = config.num_key_value_heads, config.head_dim
        ring = (slots, config.sliding_window, config.num_hidden_layers, 2, heads, size)
        return cls(
            context=torch.zeros(slots, context, device=device, dtype=dtype),
            ring=torch.zeros(ring, device=device, dtype=dtype),
            position=torch.zeros(slots, device=device, dtype=torch.int64),
            frame=torch.zeros(slots, device=device, dtype=torch.int64),
        )

    def row(self, slot: int) -> CodecState:
        """A view of one slot."""
        part = slice(slot, slot + 1)
        return CodecState(
            context=self.context[part],
            ring=self.ring[part],
            position=self.position[part],
            frame=self.frame[part],
        )

    def clone(self) -> CodecState:
        """A copy of its own."""
        return CodecState(
            context=self.context.clone(),
            ring=self.ring.clone(),
            position=self.position.clone(),
            frame=self.frame.clone(),
        )

    def copy_(self, other: CodecState) -> None:
        """Take over another state of as many slots."""
        self.context.copy_(other.context)
        self.ring.copy_(other.ring)
        self.position.copy_(other.position)
        self.frame.copy_(other.frame)

    def zero_(self) -> None:
        """Back to nothing heard. The ring is cleared too: a masked key times an infinity would still be
        NaN."""
        for tensor in (self.context, self.ring, self.position, self.frame):
            tensor.zero_()

    @property
    def bytes(self) -> int:
        """Device memory, bytes."""
        return sum(t.nbytes for t in (self.context, self.ring, self.position, self.frame))
