"""Vision encoder and gate of Mage-VL on one device: what a segment costs, early and late in a session.

python benchmarks/vision_gpu_eye.py eye SPEC.json > RESULTS.jsonl
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tts_gpu_common import as_part, tell, time_left
from vision_gpu_model import eye_of, folder_of

from duplex.adapters.mage_vl.gate import Gate, GateState
from duplex.adapters.mage_vl.image import DevicePixels, raster_positions
from duplex.adapters.mage_vl.vision import Vision

SHOWN = 5
"""Segments around the first and the last whose median counts."""


def timed(work: Callable[[], Any], device: str) -> float:
    """Milliseconds until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1000


def measure(work: Callable[[], Any], device: str, repeats: int) -> float:
    """The median, warm."""
    for _ in range(3):
        work()
    return median(timed(work, device) for _ in range(repeats))


def encoder(orders: dict[str, Any], vision: Vision, pixels: DevicePixels) -> None:
    device, size = orders["device"], vision.config.patch_size
    for images, height, width in orders["shapes"]:
        raw = torch.randint(0, 256, (images, height, width, 3), dtype=torch.uint8, device=device)
        rows, columns = height // size, width // size
        places = torch.stack(
            [torch.from_numpy(raster_positions(frame, rows, columns)) for frame in range(images)]
        )
        grid = [(1, rows, columns)] * images
        positions = pixels.positions(places.to(device))
        ms = measure(lambda: vision(pixels(raw), grid, positions), device, orders["repeats"])  # noqa: B023
        tokens = images * rows * columns // vision.config.merged
        tell("encoder", images=images, height=height, width=width, tokens=tokens, ms=round(ms, 3))


def one_segment(gate: Gate, orders: dict[str, Any], images: int, tokens: int) -> None:
    """The gate of a session's first and last segment, stepped and over the whole history."""
    device, count = orders["device"], orders["segments"]
    hidden, dtype = gate.config.hidden_size, torch.bfloat16 if device == "cuda" else torch.float32
    segment = torch.randn(images, tokens, hidden, device=device, dtype=dtype)
    for _ in range(3):
        gate.step([(segment, gate.new_state())], last_only=True)
    state = gate.new_state()
    steps = [timed(lambda: gate.step([(segment, state)], last_only=True), device) for _ in range(count)]
    full = [
        measure(partial(whole_history, gate, segment, segments), device, max(2, orders["repeats"] // 4))
        for segments in (1, count)
    ]
    first, last = median(steps[:SHOWN]), median(steps[-SHOWN:])
    tell(
        "gate",
        images=images,
        tokens=tokens,
        segments=count,
        first_ms=round(first, 3),
        last_ms=round(last, 3),
        full_first_ms=round(full[0], 3),
        full_last_ms=round(full[1], 3),
    )


def whole_history(gate: Gate, segment: torch.Tensor, segments: int) -> None:
    """The gate over all segments from nothing."""
    gate.step([(segment.repeat(segments, 1, 1), gate.new_state())], last_only=True)


def many_sessions(gate: Gate, orders: dict[str, Any], tokens: int) -> None:
    device, images = orders["device"], orders["gate_images"][0]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for sessions in orders["gate_sessions"]:
        segment = torch.randn(images, tokens, gate.config.hidden_size, device=device, dtype=dtype)
        batch: list[tuple[torch.Tensor, GateState]] = [(segment, gate.new_state()) for _ in range(sessions)]
        ms = measure(partial(gate.step, batch, last_only=True), device, orders["repeats"])
        tell("gate_batch", sessions=sessions, images=images, ms=round(ms, 3))


def main() -> None:
    orders = as_part()
    left = time_left(orders["budget_s"])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        vision, gate, config = eye_of(folder_of(orders, Path(folder)), orders["device"])
    pixels = DevicePixels(config.image_config, vision.device, vision.dtype)
    _, height, width = orders["shapes"][-1]
    tokens = height * width // config.vision_config.token_pixels**2
    for images in orders["gate_images"]:
        one_segment(gate, orders, images, tokens)
    if left() > 0:
        many_sessions(gate, orders, tokens)
    if left() > 0:
        encoder(orders, vision, pixels)
    if orders["device"] == "cuda":
        tell("memory", part="eye", bytes=torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
