"""What the cognition gate costs as a session goes on: stepped, and over the whole history as peers run it.

    python benchmarks/gate_cpu.py [--rounds 15] [--hidden 512] [--out FILE.json] [--check]

On the CPU, with random weights: a gate of the published depth and of the width that is asked for (2560 is the
published one: 2 GB). Three ways to judge segments of 8 frames:

*stepped*: each segment moves the session's state on, as the sight worker does it.
*full history*: a segment's decision is made over all frames since the session's start, from an empty state.
Visual tokens are kept, which flatters it: the published code encodes all frames again as well.
*look*: the whole way of a segment through a sight worker: pixels in shared memory, encoder, gate, tokens
back.

Sessions of different age are measured in turns, one segment each a round, so that a busy machine disturbs all
alike; a figure is the median of the rounds. `--check` ends with 1 when the hundredth segment costs over 1.2
times the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch

from duplex.adapters.mage_vl.config import GateConfig, MageConfig, published
from duplex.adapters.mage_vl.gate import Gate
from duplex.adapters.mage_vl.sight.client import Eye, Sight, SightOptions
from duplex.adapters.mage_vl.tiny import tiny_config
from duplex.adapters.mage_vl.weights import random_gate_weights
from duplex.adapters.mage_vl.windows.types import VisualInput

FRAMES = 8
TOKENS = 72
"""Visual tokens a frame in the gate's own part: 288 x 256 pixels."""
PIXELS = 128
"""Side of a frame on the whole way."""
AGES = (1, 10, 50, 100)
"""Segments, counted from 1, that are measured."""
BOUND = 1.2


def medium(hidden: int) -> MageConfig:
    """Tiny but for the gate."""
    gate = GateConfig(
        hidden_size=hidden,
        dt_rank=-(-hidden // 16),
        intermediate_size=hidden * 24 // 5,
        num_attention_heads=max(1, hidden // 80),
        num_key_value_heads=max(1, hidden // 320),
        head_dim=max(16, hidden // 20),
    )
    config = tiny_config()
    vision = msgspec.structs.replace(config.vision_config, out_hidden_size=hidden)
    text = msgspec.structs.replace(config.text_config, hidden_size=hidden)
    return msgspec.structs.replace(config, gate_config=gate, vision_config=vision, text_config=text)


def measure_gate(config: MageConfig, rounds: int) -> tuple[list[float], list[float]]:
    """Median ms at each age: stepped, full history."""
    gate = Gate(config.gate_config, random_gate_weights(config, 0))
    hidden = config.gate_config.hidden_size
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randn(FRAMES, TOKENS, hidden, generator=generator) for _ in range(max(AGES))]
    histories = [torch.cat(tokens[:age]) for age in AGES]
    old = []
    for age in AGES:
        state = gate.new_state()
        for segment in tokens[: age - 1]:
            gate.step([(segment, state)])
        old.append(state)
    stepped: list[list[float]] = [[] for _ in AGES]
    whole: list[list[float]] = [[] for _ in AGES]
    for _ in range(rounds):
        for n, age in enumerate(AGES):
            state = gate.new_state() if age == 1 else old[n]
            began = time.perf_counter()
            gate.step([(tokens[age - 1], state)])
            stepped[n].append((time.perf_counter() - began) * 1e3)
        for n, history in enumerate(histories):
            began = time.perf_counter()
            gate.step([(history, gate.new_state())])
            whole[n].append((time.perf_counter() - began) * 1e3)
    return [median(times) for times in stepped], [median(times) for times in whole]


async def measure_looks(config: MageConfig, rounds: int) -> list[float]:
    """Median ms at each age, on the whole way."""
    window = _window()
    times: list[list[float]] = [[] for _ in AGES]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(msgspec.json.encode(published(config)))
        sight = Sight(SightOptions(options={"model": folder, "random": 0, "threads": 1}, max_patches=4096))
        await sight.start()
        try:
            old = [sight.open() for _ in AGES]
            for eye, age in zip(old, AGES, strict=True):
                for _ in range(age - 1):
                    await _look(eye, window)
            for _ in range(rounds):
                for n, age in enumerate(AGES):
                    eye = sight.open() if age == 1 else old[n]
                    times[n].append(await _look(eye, window))
        finally:
            await sight.stop()
    return [median(each) for each in times]


async def _look(eye: Eye, window: VisualInput) -> float:
    began = time.perf_counter()
    assert await eye.look(window) is not None
    return (time.perf_counter() - began) * 1e3


def _window() -> VisualInput:
    frame, row, column = np.indices((FRAMES, PIXELS // 16, PIXELS // 16), dtype=np.int32)
    pixels = np.random.default_rng(0).integers(0, 256, (FRAMES, PIXELS, PIXELS, 3), dtype=np.uint8)
    return VisualInput(
        images=pixels,
        positions=np.stack([frame, row, column], axis=-1),
        times_s=np.arange(FRAMES, dtype=np.float64),
        segment_id="segment",
        pts_ms=0,
        duration_ms=1e3,
    )


def measure(hidden: int, rounds: int) -> dict[str, Any]:
    config = medium(hidden)
    stepped, whole = measure_gate(config, rounds)
    ways = {
        "stepped": stepped,
        "full_history": whole,
        "look": asyncio.run(measure_looks(config, rounds)),
    }
    return {
        "hidden": hidden,
        "frames": FRAMES,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "segments": AGES,
        "ms": ways,
        "ratio": {name: times[-1] / times[0] for name, times in ways.items()},
    }


def show(result: dict[str, Any]) -> None:
    print(
        f"gate of width {result['hidden']}, segments of {FRAMES} frames, {result['threads']} threads, median"
        f" of {result['rounds']} rounds, ms\n"
    )
    print("| segment | stepped | full history | look |\n| --- | --- | --- | --- |")
    for n, age in enumerate(AGES):
        print(f"| {age} | " + " | ".join(f"{times[n]:.2f}" for times in result["ms"].values()) + " |")
    print("| last / first | " + " | ".join(f"{ratio:.2f}" for ratio in result["ratio"].values()) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    result = measure(flags.hidden, flags.rounds)
    show(result)
    if flags.out:
        flags.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(flags.check and result["ratio"]["stepped"] > BOUND)


if __name__ == "__main__":
    sys.exit(main())
