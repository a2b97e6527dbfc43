"""The codec decoder as a sequence of parts over a set of operations.

Tensors are (slots in this pass, positions, channels), channels contiguous, so that every convolution is a
product of rows. A part takes its input already activated and gives its output activated for the next one: an
activation and a residual sum always stand at the end of a product, where a kernel can do them on its way out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from torch import Tensor

from duplex.adapters.qwen3_tts.codec_weights import Block, CodecWeights, Conv, Upsample


class Pass(Protocol):
    """The operations of one pass, over the carried state of its slots.

    Every layer with a `context` takes it from the state and leaves the last positions of its own input there.
    """

    def gather(self, ring: Tensor) -> Tensor:
        """The slots' next codes (b, n, groups) out of a ring (slots, kept, groups): frame f is at f %
        kept."""
        ...

    def finish(self, *, counted: bool) -> None:
        """Put the state back. The slots' positions move on, and their places in the ring of codes if the
        frames are `counted`."""
        ...

    def embed(self, codes: Tensor) -> Tensor:
        """Codes (b, n, groups) of any integer kind, out of range ones clamped: the sum of their rows
        (b, n, width)."""
        ...

    def conv(self, x: Tensor, layer: Conv, residual: Tensor | None = None) -> Tensor:
        """act(conv(x) + residual): (b, t, layer.outputs)."""
        ...

    def branch(self, x: Tensor, layer: Conv, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """conv(x) + residual, and the same activated."""
        ...

    def norm_linear(self, x: Tensor, layer: Conv) -> Tensor:
        """layer(RMS norm of x), the norm's weight being in the layer's."""
        ...

    def norm_gated(self, x: Tensor, layer: Conv) -> Tensor:
        """silu(gate) · up of the RMS norm of x."""
        ...

    def attend(self, index: int, qkv: Tensor) -> Tensor:
        """Attention of layer `index` over the window. `qkv` (b, n, queries + keys + values), queries scaled;
        gives (b, n, queries). Keys and values join the slot's ring."""
        ...

    def depthwise(self, x: Tensor, layer: Upsample) -> Tensor:
        """The depthwise convolution and the layer norm without weights."""
        ...

    def gelu_linear(self, x: Tensor, layer: Conv) -> Tensor:
        """gelu(layer(x))."""
        ...

    def sound(self, x: Tensor, layer: Conv) -> Tensor:
        """The last convolution, to one channel, clamped to ±1: (b, t) float32."""
        ...


Part: TypeAlias = Callable[[Pass, Tensor], Tensor]


def trunk(weights: CodecWeights) -> list[tuple[str, Part]]:
    """From codes to the pre-transformer's output (b, n, hidden), before its last norm."""
    return [("codes and pre-transformer", partial(_transformer, weights))]


def vocoder(weights: CodecWeights) -> list[tuple[str, Part]]:
    """From there to samples."""
    parts: list[tuple[str, Part]] = [
        (f"upsample {index}", partial(_upsample, index, stage))
        for index, stage in enumerate(weights.upsamples)
    ]
    parts.append(("first convolution", lambda step, x: step.conv(x, weights.first)))
    parts += [(f"block {index}", partial(_block, block)) for index, block in enumerate(weights.blocks)]
    parts.append(("last convolution", lambda step, x: step.sound(x, weights.last)))
    return parts


def frames_of_history(weights: CodecWeights) -> int:
    """Frames that the vocoder's state depends on: what came before them has left no trace in it."""
    rows = weights.last.taps - 1  # of the last convolution's input
    for block in reversed(weights.blocks):
        rows += sum(unit.wide.dilation * (unit.wide.taps - 1) for unit in block.units)
        rows = -(-rows // block.factor) + 1  # and the position before, of the transposed convolution
    rows += weights.first.taps - 1
    for stage in reversed(weights.upsamples):
        rows = -(-(rows + stage.context.rows) // stage.factor)
    return rows


def _transformer(weights: CodecWeights, step: Pass, codes: Tensor) -> Tensor:
    x = step.conv(step.embed(codes), weights.pre)
    for index, layer in enumerate(weights.layers):
        mixed = step.attend(index, step.norm_linear(x, layer.qkv))
        x = step.conv(mixed, layer.out, x)
        x = step.conv(step.norm_gated(x, layer.gate_up), layer.down, x)
    return x


def _upsample(index: int, stage: Upsample, step: Pass, x: Tensor) -> Tensor:
    # the first one's input is the pre-transformer's, whose last norm comes here
    wide = step.norm_linear(x, stage.widen) if index == 0 else step.conv(x, stage.widen)
    x = _spread(wide, stage.factor)
    return step.conv(step.gelu_linear(step.depthwise(x, stage), stage.inner), stage.outer, x)


def _block(block: Block, step: Pass, x: Tensor) -> Tensor:
    plain, x = (_spread(both, block.factor) for both in step.branch(x, block.widen))
    for unit in block.units[:-1]:
        plain, x = step.branch(step.conv(x, unit.wide), unit.point, plain)
    return step.conv(step.conv(x, block.units[-1].wide), block.units[-1].point, plain)


def _spread(x: Tensor, factor: int) -> Tensor:
    """(b, t, factor · c) as (b, t · factor, c): a view."""
    batch, length, channels = x.shape
    return x.view(batch, length * factor, channels // factor)
