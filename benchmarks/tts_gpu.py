"""Qwen3-TTS on a GPU: the frame loop against the bytes floor, first audio at the socket, and the peers.

    python benchmarks/tts_gpu.py [--size 1.7B|0.6B|tiny] [--device cuda|cpu] [--only frame,codec,…]
                                 [--budget-s 480 [PART=SECONDS …]] [--set NAME=JSON …]
                                 [--peers FOLDER] [--out FOLDER] [--check]

Weights are random, sizes are the published ones; warm-up is not counted. Sections:

* *frame*: ms a frame at batch 1 to 128, ours and plain PyTorch in one CUDA graph, over the bytes floor;
* *codec*: ms a decode, and how many real-time streams fit with it;
* *exact*: the same seed alone and in a batch, codes and audio;
* *cancel*: from an abort until the slot is free and until the next request speaks;
* *latency*: request in to first PCM byte out of the gateway's socket, by streams at once and by rate;
* *load*: which of many real-time streams underrun, by the listeners' own clocks;
* *peers*: `qwen-tts` and `faster-qwen3-tts` on the same device, from the folders that
  `tts_gpu_pack.py unpack` made (`--peers`).

Each part runs in a process of its own with a share of the budget and is ended when it is over; what it found
until then counts. `tts_gpu.json` is written after every result. `--check` ends with 1 when a bound does not
hold. `--size tiny --device cpu` runs all of it in small, to try it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpu_parts import Report, machine, run
from tts_gpu_report import plot, text, verdicts
from tts_gpu_sizes import SENTENCE, SIZES

FOLDER: Final = Path(__file__).parent
SECTIONS: Final = ("frame", "codec", "exact", "cancel", "latency", "load", "peers")
PARTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "frame": ("tts_gpu_frame.py", ("frame", "exact")),
    "codec": ("tts_gpu_frame.py", ("codec",)),
    "engine": ("tts_gpu_engine.py", ("cancel", "exact")),
    "serve": ("tts_gpu_serve.py", ("latency", "load")),
    "qwen-tts": ("tts_gpu_peers.py", ("peers",)),
    "faster-qwen3-tts": ("tts_gpu_peers.py", ("peers",)),
}
"""Processes: their program, and the sections that each measures."""
SHARES: Final = {"frame": 17, "codec": 8, "engine": 10, "serve": 46, "qwen-tts": 8, "faster-qwen3-tts": 11}
"""Of the budget, in hundredths."""
LEAST_S: Final = 5.0
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CODEC_BATCHES: Final = (1, 8, 32, 64, 128)
REFERENCE_BYTES_PER_S: Final = 4.3e12
"""Of a large copy on an H200, read off once: the floor of all runs is over this, and over this run's own."""


def orders(args: argparse.Namespace, sections: tuple[str, ...]) -> dict[str, Any]:
    """What every part is told."""
    small = args.size == "tiny"
    return {
        "size": args.size,
        "device": args.device,
        "sections": list(sections),
        "text": SENTENCE,
        "batches": [1, 2, 4] if small else list(BATCHES),
        "codec_batches": [1, 2, 4] if small else list(CODEC_BATCHES),
        "cached": 48 if small else 512,
        "reference_bytes_per_s": REFERENCE_BYTES_PER_S,
        "repeats": 2 if small else 3,
        "frames": 6 if small else 40,
        "codec_frames": [1, 4] if small else [1, 2, 4, 8],
        "exact_batches": [4] if small else [8, 64],
        "exact_frames": 12 if small else 48,
        "slots": 4 if small else 64,
        "aborts": 6 if small else 200,
        "serve_slots": 8 if small else 512,
        "options": {name: json.loads(value) for name, _, value in (o.partition("=") for o in args.set)},
        "loads": loads(small),
        "warm_s": 1.0 if small else 3.0,
        "rest_s": 0.2 if small else 1.0,
        "rounds": 1 if small else 5,
        "chunk_frames": [1, 12],
        "positions": 512,
        "peer_frames": 6 if small else 48,
    }


def loads(small: bool) -> list[dict[str, Any]]:
    """What the gateway has to bear, one after the other. A probe stands in for one of the listeners."""
    if small:
        short: dict[str, Any] = {"seconds": 2.0, "settle_s": 0.5, "frames": [4, 8], "probe_frames": 2}
        return [
            {"section": "latency", "listeners": 0, "probes": 1, **short},
            {"section": "latency", "rate": 1.0, **short},
            {"section": "load", "listeners": 2, **short},
        ]

    def streams(count: int, settle_s: float) -> dict[str, Any]:
        point = {"section": "latency", "listeners": count - 1, "probes": 1}
        return point | {"settle_s": settle_s, "seconds": 6.0}

    def rate(a_second: float, seconds: float = 9.0) -> dict[str, Any]:
        return {"section": "latency", "rate": a_second, "settle_s": 2.0, "seconds": seconds}

    def load(count: int) -> dict[str, Any]:
        return {"section": "load", "listeners": count, "settle_s": 5.0, "seconds": 10.0}

    # what matters most comes first: a run that is cut short has it
    return [
        *(streams(1, 0.5), rate(20.0), load(256), streams(128, 4.5), streams(8, 3.0), streams(64, 4.5)),
        *(streams(32, 4.0), rate(10.0), load(400), rate(5.0), rate(1.0, 12.0), load(128), load(64)),
    ]


class Budget:
    """Seconds of each part: of what is left of the whole, its share among those that are still to come, so
    that what one part does not use or uses too much is shared by the others.

    `values`: `480` is the whole, `serve=120` one part's own.
    """

    def __init__(self, values: Sequence[str]) -> None:
        whole = next((float(value) for value in values if "=" not in value), 480.0)
        self._end = time.monotonic() + whole
        self._own: dict[str, float] = {}
        for value in values:
            name, mark, seconds = value.partition("=")
            if mark:
                if name not in SHARES:
                    raise SystemExit(f"there is no part {name!r}: {', '.join(SHARES)}")
                self._own[name] = float(seconds)

    def of(self, part: str, later: Sequence[str]) -> float:
        """Now that a part begins, with those that come after it."""
        if part in self._own:
            return self._own[part]
        left = self._end - time.monotonic() - sum(self._own.get(name, 0.0) for name in later)
        shares = SHARES[part] + sum(SHARES[name] for name in later if name not in self._own)
        return max(LEAST_S, left * SHARES[part] / shares)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1.7B")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--budget-s", nargs="+", default=[], help="seconds in all, or PART=SECONDS")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=JSON", help="options of the model")
    parser.add_argument("--peers", type=Path, help="folder with the peers' packages")
    parser.add_argument("--out", type=Path, default=Path.cwd(), help="folder of tts_gpu.json and plots")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    sections = tuple(args.only.split(","))
    if unknown := set(sections) - set(SECTIONS):
        raise SystemExit(f"there is no section {', '.join(sorted(unknown))}: {', '.join(SECTIONS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    head = {"size": args.size, "machine": machine(args.device), "command": " ".join(sys.argv)}
    report = Report(args.out / "tts_gpu.json", head)
    budget = Budget(args.budget_s)
    chosen = [part for part, (_, measures) in PARTS.items() if set(measures) & set(sections)]
    if args.peers is None:
        chosen = [part for part in chosen if PARTS[part][1] != ("peers",)]
    for index, part in enumerate(chosen):
        tell = orders(args, sections) | {"budget_s": budget.of(part, chosen[index + 1 :])}
        environment: dict[str, str] = {}
        if PARTS[part][1] == ("peers",):
            # its own packages only
            environment["PYTHONPATH"] = str(args.peers / part)
            tell["frames"] = tell["peer_frames"]
        run(part, FOLDER / PARTS[part][0], tell, environment, report)
    print(text(report.tree))
    try:
        plot(report.tree, args.out)
    except ImportError as error:
        print(f"no plots: {error}")
    holds = all(verdict for *_, verdict in verdicts(report.tree))
    return 0 if holds or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
