"""Mage-VL on a GPU: the eye, the gate, the decoder, and how many sessions keep up; beside the peers' ways.

    python benchmarks/vision_gpu.py [--size full|tiny] [--device cuda|cpu] [--only eye,decoder,sessions,peers]
                                    [--clip FILE] [--silent] [--budget-s 300] [--out FOLDER] [--check]

Weights are random, sizes are the published ones; warm-up is not counted. Sections:

* *eye*: ms of the vision encoder, and of the gate for a segment of 8 and 16 images: the first and the 100th
  of a session, ours (stepped) and over the full history as the authors' code runs it;
* *decoder*: vLLM alone and behind the adapter: first token, per token, abort; tokens a second;
* *sessions*: real sessions with a real clip: how long from a window to the gate's word and from a question to
  the first token, for windows of 1 s and of 8 s, by frames and by codec;
* *peers*: the same clip through one lock, the gate over its last four windows anew each time.

With `--silent` the sessions ask nothing, and the decoder is not started for them: two minutes less.

Each part runs in a process of its own. `vision_gpu.json` is written after every result. `--check` ends with 1
when a bound does not hold. `--size tiny --device cpu` runs all of it in small, to try it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from gpu_parts import Report, machine, run
from vision_gpu_report import text, verdicts

FOLDER: Final = Path(__file__).parent
CLIP: Final = FOLDER.parent / "duplex" / "cli" / "media" / "clip.mp4"
PARTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "eye": ("vision_gpu_eye.py", ("eye",)),
    "serve": ("vision_gpu_serve.py", ("decoder", "sessions", "peers")),
}
SHARES: Final = {"eye": 0.1, "serve": 0.9}
SECTIONS: Final = tuple(section for _, sections in PARTS.values() for section in sections)


def orders(args: argparse.Namespace, sections: tuple[str, ...]) -> dict[str, Any]:
    """What every part is told."""
    small = args.size == "tiny"
    return {
        "size": args.size,
        "device": args.device,
        "sections": list(sections),
        "clip": str(args.clip.absolute()),
        "repeats": 2 if small else 20,
        "segments": 12 if small else 100,
        "shapes": [[2, 64, 64], [2, 64, 96]] if small else [[8, 544, 960], [8, 288, 512], [16, 288, 512]],
        "gate_images": [2, 4] if small else [8, 16],
        "gate_sessions": [1, 3] if small else [1, 8, 32],
        "answers": 3 if small else 18,
        "answer_tokens": 8 if small else 24,
        "batches": [1, 2] if small else [1, 8, 32],
        "batch_tokens": 8 if small else 64,
        # what matters most comes first: a run that is cut short has it
        "loads": [
            {"backend": backend, "window_ms": window_ms, "sessions": sessions, "seconds": seconds}
            for backend, window_ms, sessions, seconds in (
                (("codec", 1000, 2, 3.0), ("frames", 1000, 1, 2.0))
                if small
                else (
                    ("codec", 1000, 32, 10.0),
                    ("codec", 8000, 64, 16.0),
                    ("frames", 1000, 16, 6.0),
                    ("codec", 1000, 64, 8.0),
                    ("frames", 8000, 32, 16.0),
                    ("codec", 8000, 128, 16.0),
                )
            )
        ],
        "peer_loads": [2] if small else [2, 4, 8],
        "peer_seconds": 3.0 if small else 8.0,
        "decodes": not args.silent,
        "question_s": 0.0 if args.silent else 2.0 if small else 8.0,
        "max_new_tokens": 8 if small else 80,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--clip", type=Path, default=CLIP, help="an MP4 in H.264")
    parser.add_argument("--silent", action="store_true", help="sessions without questions")
    parser.add_argument("--budget-s", type=float, default=300.0)
    parser.add_argument("--out", type=Path, default=Path.cwd(), help="folder of vision_gpu.json")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    sections = tuple(args.only.split(","))
    if args.silent and set(sections) & {"decoder", "peers"}:
        raise SystemExit("--silent goes with --only eye,sessions: decoder and peers decode")
    if unknown := set(sections) - set(SECTIONS):
        raise SystemExit(f"there is no section {', '.join(sorted(unknown))}: {', '.join(SECTIONS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    head = {"size": args.size, "machine": machine(args.device), "command": " ".join(sys.argv)}
    report = Report(args.out / "vision_gpu.json", head)
    for part, (program, measures) in PARTS.items():
        if set(measures) & set(sections):
            told = orders(args, sections) | {"budget_s": args.budget_s * SHARES[part]}
            run(part, FOLDER / program, told, {}, report)
    print(text(report.tree))
    holds = all(verdict for *_, verdict in verdicts(report.tree))
    return 0 if holds or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
