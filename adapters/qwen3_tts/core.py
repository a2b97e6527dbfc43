"""Talker and code predictor over slots: the frame loop without prompts, text and codec.

A slot holds one request's state on the device: the talker's key-value cache, its last hidden state, the text
rows to come, the codes made and the sampling parameters. A frame starts at the last hidden state:

    hidden -> code 0 -> 15 predictor steps -> sum of the 16 embeddings + text row -> talker step -> hidden

so a slot whose prompt is in makes its first frame as any other. All shapes are static; what differs between
frames is data on the device, so that the whole frame is one CUDA graph a batch size.

Rows never see one another: whatever else is in a launch, a slot's numbers come out the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.device import send
from duplex.adapters.qwen3_tts.job import Sampling
from duplex.adapters.qwen3_tts.packing import pack

FRAMES_KEPT: Final = 64
"""Frames whose codes a slot keeps: what the codec may be behind."""
TEXT_KEPT: Final = 256
"""Text rows a slot keeps ahead of the frame that uses them; at most one a frame goes."""
OPEN: Final = 2**30
"""The text count of a slot whose text has not ended."""


@dataclass(slots=True, kw_only=True)
class SlotState:
    """What the device knows of all slots (s of them, and one more as scratch for padding rows).

    `keys`, `values` (layers, s + 1, heads, positions, d); `hidden` (s + 1, h) float32, after the last norm;
    `position`, `frame`, `text_count` (s + 1,) int32: cached positions, frames made, text rows in all (`OPEN`
    while the text has not ended); `seen` (s + 1, v) uint8: codes 0 drawn; `codes` (s + 1, FRAMES_KEPT, 16)
    int32, frame f at f % FRAMES_KEPT; `text` (s + 1, TEXT_KEPT, h), the row of frame f at f % TEXT_KEPT;
    `seed` (s + 1,) int64; `sampling` (s + 1, 5) float32: `SAMPLING` columns.
    """

    keys: Tensor
    values: Tensor
    hidden: Tensor
    position: Tensor
    frame: Tensor
    text_count: Tensor
    seen: Tensor
    codes: Tensor
    text: Tensor
    seed: Tensor
    sampling: Tensor


SAMPLING: Final = (
    "temperature",
    "top_k",
    "repetition_penalty",
    "predictor_temperature",
    "predictor_top_k",
)


class FrameTicket(Protocol):
    """A launched frame."""

    def done(self) -> bool:
        """True when `result` would not wait."""
        ...

    def result(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Code 0 of each row, shape (rows,), and the number of the frame that it belongs to, from 0."""
        ...

    def wait_on(self, stream: object) -> None:
        """Let a stream's later work wait for this frame. Nothing to do on the CPU."""
        ...


class Math(Protocol):
    """The arithmetic: plain torch, or Triton on CUDA."""

    def rehearse(self) -> None:
        """Make every launch that `warm_up` will capture, for `compiling.compile_ahead`."""
        ...

    def warm_up(self) -> None:
        """Compile and capture all that `prefill` and `frame` will launch."""
        ...

    def prefill(self, rows: Tensor, slots: Tensor, positions: Tensor, last: Tensor) -> None:
        """See `Core.prefill`."""
        ...

    def frame(self, slots: Sequence[int]) -> FrameTicket:
        """See `Core.launch_frame`."""
        ...


class PrefixCache:
    """The keys and values of a slot's first positions, (layers, heads, length, d) each."""

    __slots__ = ("keys", "length", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.length = int(keys.shape[2])

    @property
    def bytes(self) -> int:
        """Device memory, bytes."""
        return int(self.keys.nbytes + self.values.nbytes)


class Core:
    """The frame loop of one checkpoint on one device. All methods are called from one thread.

    Args:
        weights: by their published names, any dtype and device.
        dtype: of weights and caches; float32 sums and float32 hidden states either way.
        slots: requests at once.
        positions: cache positions a slot: prompt and frames.
        max_batch: slots that one frame can advance.
        prefill_rows: prompt rows that one prefill can take.
        plain: use the plain torch arithmetic on CUDA too (to compare).
    """

    frames_kept: Final = FRAMES_KEPT
    text_kept: Final = TEXT_KEPT

    def __init__(
        self,
        config: TtsConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        slots: int,
        positions: int,
        max_batch: int,
        prefill_rows: int,
        plain: bool = False,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        self.slots = slots
        self.positions = positions
        self.max_batch = min(max_batch, slots)
        self.prefill_rows = prefill_rows
        self.weights = pack(config, weights, device=self.device, dtype=dtype)
        self.state = self._new_state()
        pad = torch.tensor([config.tts_pad_token_id])
        self.pad_row = self.text_rows(pad)[0]
        self._math: Math
        if self.device.type == "cuda" and not plain:
            from duplex.adapters.qwen3_tts.triton_math import TritonMath

            self._math = TritonMath(self)
        else:
            from duplex.adapters.qwen3_tts.torch_math import TorchMath

            self._math = TorchMath(self)

    def _new_state(self) -> SlotState:
        talker = self.config.talker_config
        slots = self.slots + 1
        cache = (talker.num_hidden_layers, slots, talker.num_key_value_heads, self.positions, talker.head_dim)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, device=self.device, dtype=dtype)

        return SlotState(
            keys=zeros(*cache, dtype=self.dtype),
            values=zeros(*cache, dtype=self.dtype),
            hidden=zeros(slots, talker.hidden_size, dtype=torch.float32),
            position=zeros(slots, dtype=torch.int32),
            frame=zeros(slots, dtype=torch.int32),
            text_count=zeros(slots, dtype=torch.int32),
            seen=zeros(slots, talker.vocab_size, dtype=torch.uint8),
            codes=zeros(slots, FRAMES_KEPT, talker.num_code_groups, dtype=torch.int32),
            text=zeros(slots, TEXT_KEPT, talker.hidden_size, dtype=self.dtype),
            seed=zeros(slots, dtype=torch.int64),
            sampling=torch.ones(slots, len(SAMPLING), device=self.device, dtype=torch.float32),
        )

    @property
    def codes(self) -> Tensor:
        """(slots + 1, frames_kept, 16) int32 on the device: frame f of a slot is at f % frames_kept."""
        return self.state.codes

    def rehearse(self) -> None:
        """Make every launch that `warm_up` will capture, for `compiling.compile_ahead`."""
        self._math.rehearse()

    def warm_up(self) -> None:
        """Compile and capture everything. State of slots in use is lost."""
        self._math.warm_up()
        for field in (self.state.position, self.state.frame, self.state.seen, self.state.hidden):
            field.zero_()

    # embeddings

    def text_rows(self, ids: Tensor) -> Tensor:
        """Text ids (n,) as rows of the talker's input: (n, h)."""
        fc1, bias1, fc2, bias2 = self.weights.text_projection
        rows = self.weights.text_embedding[ids.to(self.device)].to(self.dtype)
        return _fixed_rows(lambda part: F.linear(F.silu(F.linear(part, fc1, bias1)), fc2, bias2), rows)

    def codec_rows(self, ids: Tensor) -> Tensor:
        """Ids of the talker's own vocabulary (n,), codes 0 and control codes, as rows (n, h)."""
        return self.weights.embeddings[0][ids.to(self.device)]

    def code_rows(self, codes: Tensor) -> Tensor:
        """Whole frames' codes (n, 16) as rows (n, h): the sum of the groups' embeddings."""
        codes = codes.to(self.device)
        rows = self.weights.embeddings[0][codes[:, 0]].float()
        for group, table in enumerate(self.weights.embeddings[1:], start=1):
            rows = rows + table[codes[:, group]].float()
        return rows.to(self.dtype)

    # slots

    def reset(self, slot: int, *, seed: int, sampling: Sampling) -> None:
        """A new request owns the slot. `seed` is any integer; its low 64 bits count."""
        state = self.state
        for field in (state.position, state.frame, state.seen):
            field[slot].zero_()
        state.text_count[slot].fill_(OPEN)
        seed %= 2**64
        state.seed[slot].fill_(seed - 2**64 if seed >= 2**63 else seed)
        # by way of locked memory: from any other a copy may wait for what the stream has to do
        parameters = torch.tensor([float(getattr(sampling, name)) for name in SAMPLING])
        state.sampling[slot].copy_(send(parameters, self.device))

    @staticmethod
    def text_cells(slot: int, frames: Iterable[int]) -> list[int]:
        """Where `put_text` puts the rows that are added to a slot's talker input after these frames."""
        return [slot * TEXT_KEPT + frame % TEXT_KEPT for frame in frames]

    def put_text(self, cells: Tensor, rows: Tensor) -> None:
        """Text rows (n, h) into cells (n,), int64 on the device, of any slots.

        At most `text_kept` rows may be ahead of a slot's frame counter.
        """
        self.state.text.flatten(0, 1).index_copy_(0, cells, rows.to(self.dtype))

    def end_text(self, slot: int, count: int) -> None:
        """The slot's text has `count` rows in all: later frames get the pad row."""
        self.state.text_count[slot].fill_(count)

    def save_prefix(self, slot: int, length: int) -> PrefixCache:
        """A copy of the slot's first `length` positions."""
        state = self.state
        return PrefixCache(state.keys[:, slot, :, :length].clone(), state.values[:, slot, :, :length].clone())

    def copy_prefix(self, slot: int, prefix: PrefixCache) -> None:
        """Put a saved prefix in the slot's first positions; prefill goes on after it."""
        state = self.state
        state.keys[:, slot, :, : prefix.length].copy_(prefix.keys)
        state.values[:, slot, :, : prefix.length].copy_(prefix.values)

    # work

    def prefill(self, rows: Tensor, slots: Tensor, positions: Tensor, last: Tensor) -> None:
        """Run prompt rows (n, h), n at most `prefill_rows`, through the talker.

        `slots`, `positions` (n,) integers say where each row goes; a slot's rows are in ascending order and
        come after what it has cached. `last` (n,) bool marks a slot's last prompt row: it leaves its hidden
        state and the slot's length, and the slot can make a frame. The three are on the host.
        """
        self._math.prefill(rows, slots, positions, last)

    def replay(self, rows: int) -> None:
        """The last frame once more on the device, nothing read: for measuring it alone. CUDA only."""
        replay: Callable[[int], None] = self._math.replay  # type: ignore[attr-defined]
        replay(rows)

    def launch_frame(self, slots: Sequence[int]) -> FrameTicket:
        """One frame of each of the slots, which are distinct, at most `max_batch`, without a wait."""
        return self._math.frame(slots)


def _fixed_rows(function: Callable[[Tensor], Tensor], rows: Tensor, size: int = 16) -> Tensor:
    """Apply a row-wise function to blocks of `size` rows, so that a row's result never depends on how many
    others there are: libraries pick their method by the shape."""
    count = rows.shape[0]
    padded = F.pad(rows, (0, 0, 0, -count % size))
    parts = [function(part) for part in torch.split(padded, size)]
    return torch.cat(parts)[:count] if parts else rows
