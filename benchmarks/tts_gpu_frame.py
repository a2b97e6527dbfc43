"""The frame loop beside the bytes floor and beside plain PyTorch in one CUDA graph; the codec beside both.

    python benchmarks/tts_gpu_frame.py frame|codec SPEC.json > RESULTS.jsonl

`ours` drives the adapter's own `Core` as the engine does: the next frame is launched before the last one is
read, and the time is the host's, from the first launch to the last result; beside it the time of the frame's
graph alone, by the device's clock. `naive` (`tts_gpu_naive.py`) is the same model written with PyTorch's own
operators, one graph a batch size, its time that of the graph alone. Ratios compare the graphs. Both run with
512 cached positions, `ours` in the mean. The floor is the fewest bytes that a frame moves over
the bandwidth of a large copy.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from tts_gpu_common import as_part, tell, time_left
from tts_gpu_naive import NaiveLoop
from tts_gpu_sizes import FRAME_MS, codec_config, config, frame_bytes

from duplex.adapters.qwen3_tts.codec import CodecDecoder
from duplex.adapters.qwen3_tts.compiling import compile_ahead
from duplex.adapters.qwen3_tts.config import CodecConfig, TtsConfig
from duplex.adapters.qwen3_tts.core import FRAMES_KEPT, Core
from duplex.adapters.qwen3_tts.job import Sampling
from duplex.adapters.qwen3_tts.weights import random_weights

FIRST_BATCHES = (1, 64, 128, 8, 32)
"""In this order, so that a run cut short has the ones that matter."""
MOST_NAIVE = 128
MOST_DECODED = 512
"""Frames of all slots in one decode: more take no less time each."""


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def copy_bytes_per_s(device: str) -> float:
    """Of a large copy on the device, bytes read and bytes written."""
    size = 1 << (31 if device != "cpu" else 24)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        synchronise(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronise(device)
        times.append(time.perf_counter() - began)
    return 2 * size / statistics.median(times[2:])


def ordered(batches: Sequence[int]) -> list[int]:
    first = [batch for batch in FIRST_BATCHES if batch in batches]
    return first + [batch for batch in batches if batch not in first]


class OurLoop:
    """The adapter's core with a full cache in every slot."""

    def __init__(self, orders: dict[str, Any], cached: int) -> None:
        self.device = orders["device"]
        dtype = torch.bfloat16 if self.device != "cpu" else torch.float32
        sizes = msgspec.convert(config(orders["size"]), TtsConfig)
        weights = random_weights(sizes, None, 0, device=self.device, dtype=dtype)
        self.repeats, self.frames = orders["repeats"], orders["frames"]
        self.warm = max(2, self.frames // 4)
        self.prompt = cached - (self.warm + self.repeats * self.frames) // 2
        slots = max(orders["batches"])
        self.core = Core(
            sizes,
            weights,
            device=self.device,
            dtype=dtype,
            slots=slots,
            positions=cached + self.warm + self.repeats * self.frames,
            max_batch=slots,
            prefill_rows=64,
        )
        del weights
        began = time.perf_counter()
        if self.device != "cpu":
            compile_ahead(self.core.rehearse)
        self.core.warm_up()
        synchronise(self.device)
        self.warm_up_s = time.perf_counter() - began
        hidden = sizes.talker_config.hidden_size
        torch.manual_seed(0)
        self.rows = torch.randn(self.prompt, hidden, device=self.device).mul_(0.02).to(dtype)
        self._fill(0)
        self.prefix = self.core.save_prefix(0, self.prompt - 1)

    def _fill(self, slot: int) -> None:
        """The whole prompt, into a new request's slot."""
        self._reset(slot, 0, Sampling())
        for at in range(0, self.prompt, self.core.prefill_rows):
            count = min(self.core.prefill_rows, self.prompt - at)
            self._prefill([slot] * count, list(range(at, at + count)))

    def _reset(self, slot: int, seed: int, sampling: Sampling) -> None:
        self.core.reset(slot, seed=seed, sampling=sampling)
        self.core.end_text(slot, 0)

    def _prefill(self, slots: list[int], positions: list[int]) -> None:
        at = torch.tensor(positions)
        self.core.prefill(self.rows[positions], torch.tensor(slots), at, at == self.prompt - 1)

    def _ready(self, slots: list[int], seeds: Sequence[int], sampling: Sampling) -> None:
        """New requests, up to their first frame: the prompt's cache is copied, its last row computed."""
        for slot, seed in zip(slots, seeds, strict=True):
            self._reset(slot, seed, sampling)
            self.core.copy_prefix(slot, self.prefix)
        for at in range(0, len(slots), self.core.prefill_rows):
            some = slots[at : at + self.core.prefill_rows]
            self._prefill(some, [self.prompt - 1] * len(some))

    def codes(self, batch: int, seed: int, frames: int, sampling: Sampling) -> torch.Tensor:
        """The codes (frames, 16) that a seed gives among `batch` rows of other seeds."""
        slots, mine = list(range(batch)), batch // 2
        seeds = [seed if slot == mine else slot for slot in slots]
        self._ready(slots, seeds, sampling)
        self._run(slots, frames)
        return self.core.codes[mine, :frames].cpu().clone()

    def frame_ms(self, batch: int) -> float:
        """Median of the repeats' means."""
        slots = list(range(batch))
        self._ready(slots, slots, Sampling())
        self._run(slots, self.warm)
        return statistics.median(self._run(slots, self.frames) for _ in range(self.repeats))

    def graph_ms(self, batch: int) -> float | None:
        """The frame's graph alone, by the device's clock: what `naive` is measured by. After `frame_ms`."""
        if self.device == "cpu":
            return None
        slots = list(range(batch))
        self._ready(slots, slots, Sampling())
        self._run(slots, self.warm)
        times = []
        for _ in range(self.repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(self.frames):
                self.core.replay(batch)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / self.frames)
        return statistics.median(times)

    def _run(self, slots: list[int], count: int) -> float:
        pending: deque[Any] = deque()
        synchronise(self.device)
        began = time.perf_counter()
        for _ in range(count):
            pending.append(self.core.launch_frame(slots))
            if len(pending) > 1:
                pending.popleft().result()
        while pending:
            pending.popleft().result()
        return (time.perf_counter() - began) * 1000 / count


def measured(attempt: Callable[[], float | None]) -> tuple[float | None, str | None]:
    """The figure, or what went wrong."""
    try:
        return attempt(), None
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return None, f"{type(error).__name__}: {error}"


def frame(orders: dict[str, Any]) -> None:
    left = time_left(orders["budget_s"])
    device, size = orders["device"], orders["size"]
    reference = orders["reference_bytes_per_s"]
    copied = copy_bytes_per_s(device)
    tell("copy", bytes_per_s=copied, reference_bytes_per_s=reference)
    ours = OurLoop(orders, orders["cached"])
    memory = torch.cuda.memory_allocated() if device != "cpu" else 0
    tell("ready", warm_up_s=ours.warm_up_s, memory_bytes=memory)
    if "exact" in orders["sections"]:
        exact(ours, orders)
    if "frame" not in orders["sections"]:
        return
    naive = NaiveLoop(size, device, orders["cached"])
    for batch in ordered(orders["batches"]):
        if left() < 0:
            tell("out of time", batch=batch)
            break
        mine, fault = measured(lambda batch=batch: ours.frame_ms(batch))
        graph, graph_fault = measured(lambda batch=batch: ours.graph_ms(batch))
        best = graph or mine
        other, other_fault = None, None
        if batch <= MOST_NAIVE:
            other, other_fault = measured(lambda batch=batch: naive.frame_ms(batch, orders["frames"]))
        floor = frame_bytes(size, batch, orders["cached"]) / reference * 1000
        tell(
            "batch",
            batch=batch,
            ours_ms=mine,
            graph_ms=graph,
            naive_ms=other,
            floor_bytes=frame_bytes(size, batch, orders["cached"]),
            floor_ms=floor,
            floor_copy_ms=floor * reference / copied,
            ratio=best and best / floor,
            naive_ratio=other and other / floor,
            streams=mine and batch * FRAME_MS / mine,
            fault=fault or graph_fault,
            naive_fault=other_fault,
        )


def exact(ours: OurLoop, orders: dict[str, Any]) -> None:
    """The same seed alone and in a batch."""
    frames = orders["exact_frames"]
    for greedy in (False, True):
        sampling = Sampling(temperature=0.0, predictor_temperature=0.0) if greedy else Sampling()
        alone = ours.codes(1, 1234, frames, sampling)
        for batch in orders["exact_batches"]:
            again = ours.codes(batch, 1234, frames, sampling)
            same = (again == alone).all(1).tolist()
            tell(
                "codes",
                batch=batch,
                greedy=greedy,
                frames=frames,
                identical=all(same),
                first_difference=None if all(same) else same.index(False),
                distinct=len(alone.unique()),
            )


def codec(orders: dict[str, Any]) -> None:
    """Decodes of `frames` frames of each of `batch` slots, the copy to the host included."""
    left = time_left(orders["budget_s"])
    device = orders["device"]
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    settings = msgspec.convert(codec_config(orders["size"]), CodecConfig)
    slots = max(orders["codec_batches"])
    weights = random_codec(settings, device, dtype)
    decoder = CodecDecoder(
        settings.decoder_config,
        weights,
        device=device,
        dtype=dtype,
        slots=slots,
        frames=tuple(orders["codec_frames"]),
        max_batch=slots,
    )
    ring = torch.randint(0, 2048, (slots + 1, FRAMES_KEPT, 16), dtype=torch.int32, device=device)
    began = time.perf_counter()
    if device != "cpu":
        compile_ahead(lambda: decoder.rehearse(ring))
    decoder.capture(ring)
    synchronise(device)
    memory = torch.cuda.memory_allocated() if device != "cpu" else 0
    tell("ready", warm_up_s=time.perf_counter() - began, memory_bytes=memory)

    def launch_ms(batch: int, frames: int, count: int) -> float:
        pending: deque[Any] = deque()
        chosen = list(range(batch))
        synchronise(device)
        began = time.perf_counter()
        for _ in range(count):
            pending.append(decoder.launch(chosen, frames))
            if len(pending) > 1:
                pending.popleft().result()
        while pending:
            pending.popleft().result()
        return (time.perf_counter() - began) * 1000 / count

    for batch in ordered(orders["codec_batches"]):
        for frames in decoder.frames:
            if batch * frames > MOST_DECODED:
                continue
            if left() < 0:
                tell("out of time", batch=batch, frames=frames)
                return

            def attempt(batch: int = batch, frames: int = frames) -> float:
                launch_ms(batch, frames, 3)
                return statistics.median(launch_ms(batch, frames, orders["frames"]) for _ in range(3))

            value, fault = measured(attempt)
            tell("decode", batch=batch, frames=frames, ms=value, fault=fault)


def random_codec(settings: CodecConfig, device: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The decoder's tensors, by their names without "decoder." in front."""
    tiny = msgspec.convert(config("tiny"), TtsConfig)
    weights = random_weights(tiny, settings, 0, device=device, dtype=dtype)
    return {name.removeprefix("decoder."): t for name, t in weights.items() if name.startswith("decoder.")}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    {"frame": frame, "codec": codec}[sys.argv[1]](as_part())
