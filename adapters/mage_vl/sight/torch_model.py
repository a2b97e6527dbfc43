"""Mage-ViT, merger and cognition gate in torch, as a sight worker drives them.

On CUDA nothing here waits for the device but the result's own event. Pixels go up on one stream, the model
runs on a second, tokens go down on a third while the gate is still at work, so that the copies of the next
batch overlap the computation of this one. Shared memory is pinned: copies go straight to and from it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duplex.adapters.checkpoints import find_folder
from duplex.adapters.engine.hosting import resident_bytes
from duplex.adapters.mage_vl import weights as checkpoints
from duplex.adapters.mage_vl.config import MageConfig, read_config
from duplex.adapters.mage_vl.gate import Gate, GateState
from duplex.adapters.mage_vl.image import DevicePixels
from duplex.adapters.mage_vl.layout import VISION
from duplex.adapters.mage_vl.sight.messages import SightInfo, TokenType
from duplex.adapters.mage_vl.sight.model import Probabilities, View
from duplex.adapters.mage_vl.vision import Vision
from duplex.adapters.qwen3_tts.device import find_device, new_stream, on_device, on_stream
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.sight.model")

DEPTH: Final = 2
"""Batches at once on CUDA: one is computed while the next one's pixels go up."""
_WARM_UP: Final = ((8, 288, 512), (16, 288, 512), (8, 544, 960))


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the model.

    `model`: the checkpoint's folder, or its name in the hub's local cache. `dtype` of the encoder and of the
    visual tokens; "auto": bfloat16 on CUDA, float32 elsewhere. The gate is always in float32; `gate` False
    leaves it out. `judge`: the gate tells of each image of a window, or of the last one alone, which is what
    decides and costs less. `threads` of torch, 0: its own choice. `warm_up`: (images, height, width) in
    pixels of windows that are run once at the start, None: some common ones on CUDA. `random`: a seed: no
    weights are read but made up, for benchmarks at full size; the folder needs only its `config.json`.
    """

    model: str
    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gate: bool = True
    judge: Literal["last", "all"] = "last"
    threads: int = 0
    warm_up: tuple[tuple[int, int, int], ...] | None = None
    random: int | None = None


class Said:
    """A batch whose results are there."""

    def __init__(self, results: list[Probabilities]) -> None:
        self._results = results

    def done(self) -> bool:
        return True

    def result(self) -> list[Probabilities]:
        return self._results


class OnDevice:
    """A batch on a CUDA device: `words` are the gate's answers, on the host once `end` has come."""

    def __init__(self, end: Any, words: Sequence[Tensor | None]) -> None:
        self._end, self._words = end, words

    def done(self) -> bool:
        return bool(self._end.query())

    def result(self) -> list[Probabilities]:
        self._end.synchronize()
        return [() if words is None else tuple(words.tolist()) for words in self._words]


class TorchSight:
    """The `SightModel` of a checkpoint."""

    def __init__(
        self, vision: Vision, gate: Gate | None, config: MageConfig, options: ModelOptions, *, name: str
    ) -> None:
        self._vision, self._gate = vision, gate
        self._options = options
        self._device = vision.device
        self._cuda = vision.device.type == "cuda"
        self._pixels = DevicePixels(config.image_config, vision.device, vision.dtype)
        dtype: TokenType = "float32" if vision.dtype == torch.float32 else "bfloat16"
        self.info = SightInfo(
            name=name,
            hidden=config.vision_config.out_hidden_size,
            dtype=dtype,
            gate=gate is not None,
            depth=DEPTH if self._cuda else 1,
            detail={"device": str(vision.device), "dtype": dtype, "judge": options.judge},
        )
        self._work: Any = None
        if self._cuda:
            streams: list[Any] = [new_stream(self._device) for _ in range(3)]
            self._up, self._work, self._down = streams
            torch.cuda.synchronize(self._device)  # the weights came on another stream

    def share(self, memory: NDArray[np.uint8]) -> None:
        """Pin it, so that the device copies by itself."""
        if self._cuda:
            cuda: Any = torch.cuda  # partly without types
            with on_device(self._device):
                code = cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
            if int(code) != 0:
                log.warning("shared memory cannot be pinned (CUDA error %d): copies are slower", int(code))

    def warm_up(self) -> None:
        """Make kernels, handles and memory pools for common shapes, for one window and for two."""
        shapes = self._options.warm_up
        if shapes is None:
            shapes = _WARM_UP if self._cuda else ((1, 32, 32),)
        for images, height, width in shapes:
            rows, columns = height // 16, width // 16
            for sessions in (1, 2):
                batch = [
                    View(
                        pixels=np.zeros((images, height, width, 3), np.uint8),
                        positions=np.zeros((images, rows, columns, 3), np.int32),
                        tokens=np.zeros((images, rows * columns // 4, self.info.token_bytes), np.uint8),
                        state=self.new_state() if self._gate else None,
                    )
                    for _ in range(sessions)
                ]
                self.launch(batch).result()

    def new_state(self) -> GateState:
        if self._gate is None:
            raise RuntimeError("there is no gate")
        with on_device(self._device), on_stream(self._work):  # where it is read and written
            return self._gate.new_state()

    def launch(self, batch: Sequence[View]) -> Said | OnDevice:
        with torch.inference_mode(), on_device(self._device):
            return self._launch(batch) if self._cuda else self._compute(batch)

    def memory_bytes(self) -> int:
        """Device memory that tensors hold; on a CPU that of the process."""
        return int(torch.cuda.memory_allocated(self._device)) if self._cuda else resident_bytes()

    def _compute(self, batch: Sequence[View]) -> Said:
        """On a CPU: it is done when this returns."""
        parts = self._look([_host(view) for view in batch], batch)
        for view, part in zip(batch, parts, strict=True):
            self._room(view).copy_(part)
        words = self._ask(parts, batch)
        return Said([() if each is None else tuple(each.tolist()) for each in words])

    # --- CUDA ---------------------------------------------------------------------------------------

    def _launch(self, batch: Sequence[View]) -> OnDevice:
        with torch.cuda.stream(self._up):
            inputs = [
                tuple(part.to(self._device, non_blocking=True) for part in _host(view)) for view in batch
            ]
        self._work.wait_stream(self._up)
        with torch.cuda.stream(self._work):
            for part in (part for pair in inputs for part in pair):
                part.record_stream(self._work)
            parts = self._look(inputs, batch)
            seen = self._work.record_event()
            words = self._ask(parts, batch)
            judged = self._work.record_event()
        with torch.cuda.stream(self._down):
            self._down.wait_event(seen)
            for view, part in zip(batch, parts, strict=True):
                part.record_stream(self._down)
                self._room(view).copy_(part, non_blocking=True)
            self._down.wait_event(judged)
            heard = [None if each is None else self._fetch(each) for each in words]
            # not one that spins: the collector waits for most of the time
            make: Any = torch.cuda.Event
            end = make(blocking=True)
            end.record(self._down)
        return OnDevice(end, heard)

    def _fetch(self, words: Tensor) -> Tensor:
        words.record_stream(self._down)
        return torch.empty(words.shape, dtype=words.dtype, pin_memory=True).copy_(words, non_blocking=True)

    # --- any device ---------------------------------------------------------------------------------

    def _look(self, inputs: Sequence[Sequence[Tensor]], batch: Sequence[View]) -> list[Tensor]:
        """Visual tokens (n, P, hidden) of each window: one pass of the encoder for all."""
        grid = [
            (1, view.positions.shape[1], view.positions.shape[2])
            for view in batch
            for _ in range(len(view.pixels))
        ]
        tokens: Any = self._vision(
            torch.cat([self._pixels(pixels) for pixels, _ in inputs]),
            grid,
            torch.cat([self._pixels.positions(positions) for _, positions in inputs]),
        )
        shapes = [view.tokens.shape[:2] for view in batch]
        parts = tokens.split([images * each for images, each in shapes])
        return [part.view(*shape, -1) for part, shape in zip(parts, shapes, strict=True)]

    def _ask(self, parts: Sequence[Tensor], batch: Sequence[View]) -> list[Tensor | None]:
        """The gate's word on those that have a state: one step for all."""
        asked = [(n, view.state) for n, view in enumerate(batch) if view.state is not None]
        words: list[Tensor | None] = [None] * len(batch)
        if asked and self._gate is not None:
            segments = [(parts[n], state) for n, state in asked]
            last = self._options.judge == "last"
            for (n, _), said in zip(asked, self._gate.step(segments, last_only=last), strict=True):
                words[n] = said
        return words

    def _room(self, view: View) -> Tensor:
        """Where a window's tokens go, as a tensor of their type."""
        return torch.from_numpy(view.tokens).view(self._vision.dtype)


def _host(view: View) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(view.pixels), torch.from_numpy(view.positions)


def load(options: Mapping[str, Any]) -> TorchSight:
    """The model of a worker.

    Raises:
        DuplexError: `BAD_CONFIG`: an unknown option, a device or a checkpoint that is not there.
    """
    try:
        told = msgspec.convert(options, ModelOptions)
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"sight: {error}", param="sight") from error
    if told.threads:
        torch.set_num_threads(told.threads)
    device = find_device(told.device)
    name = told.dtype if told.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
    vision, gate, config = _parts(told, device, dtype)
    return TorchSight(vision, gate, config, told, name=os.path.basename(os.path.normpath(told.model)))


def _parts(
    told: ModelOptions, device: torch.device, dtype: torch.dtype
) -> tuple[Vision, Gate | None, MageConfig]:
    if told.random is not None:
        folder = find_folder(told.model)
        config = read_config(folder)
        made = checkpoints.random_weights(config, told.random, prefix=VISION, device=device, dtype=dtype)
        gate = None
        if told.gate:
            gate = Gate(
                config.gate_config, checkpoints.random_gate_weights(config, told.random, device=device)
            )
        return Vision(config.vision_config, made), gate, config
    folder = checkpoints.find_checkpoint(told.model, gate=told.gate)
    config = checkpoints.read_checked(folder, gate=told.gate)
    vision = checkpoints.load_vision(folder, config, device, dtype)
    return vision, checkpoints.load_gate(folder, config, device) if told.gate else None, config
