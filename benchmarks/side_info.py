"""What a codec's side information costs a live session, and what it saves.

    python benchmarks/side_info.py CLIP [--window-s 1] [--json FILE] [--check] [--cv-preinfer PROGRAM]

* cost: CPU time of one core at 25 frames/s, of decoding alone, with motion vectors, with both read as arrays,
  and of the window backends whole;
* tokens: visual tokens of the clip by both backends, that look at the same source frames and make images of
  the same size: `frames` in windows of 1 s, `codec` in windows of 8 s;
* overlap: with a cv-preinfer at hand, how many of the blocks that it selects we select too, in its groups,
  against what chance would give.

`--check` fails when side information costs 6 % of a core or more, or saves less than a factor of 3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duplex.adapters.mage_vl.windows.backends import CANVAS_PIXELS, WindowOptions, open_windows
from duplex.adapters.mage_vl.windows.costs import CostEstimator, is_key
from duplex.adapters.mage_vl.windows.cv_preinfer import find_program, run_program
from duplex.adapters.mage_vl.windows.selection import Candidate, block_scores, canvases
from duplex.codecs.video import VideoStream
from duplex.codecs.video_split import split_clip
from duplex.core.types import VideoWindow

FPS = 25
MOST_SHARE = 0.06
LEAST_SAVING = 3.0


def windows(clip: Path, seconds: float) -> list[VideoWindow]:
    return [
        VideoWindow(kind=w.kind, data=w.data, pts_ms=w.pts_ms, duration_ms=w.duration_ms)
        for w in split_clip(clip, window_ms=seconds * 1000)
    ]


def decode(pieces: Sequence[VideoWindow], *, motion: bool, read: bool) -> int:
    stream = VideoStream(motion=motion)
    frames = 0
    for piece in pieces:
        for frame in stream.decode(piece.data, piece.kind, pts_ms=piece.pts_ms):
            frames += 1
            if read:
                frame.residual_proxy(frame.motion())
    return frames


def see(pieces: Sequence[VideoWindow], options: WindowOptions) -> int:
    backend = open_windows(options)
    for piece in pieces:
        backend.see(piece)
    return 0


def cost(pieces: Sequence[VideoWindow], rounds: int) -> dict[str, float]:
    """CPU milliseconds a source frame; the median of interleaved rounds."""
    work: dict[str, Callable[[], int]] = {
        "decoding": lambda: decode(pieces, motion=False, read=False),
        "with motion vectors": lambda: decode(pieces, motion=True, read=False),
        "with both read": lambda: decode(pieces, motion=True, read=True),
        "backend codec": lambda: see(pieces, WindowOptions(backend="codec")),
        "backend frames, 2 a second": lambda: see(pieces, WindowOptions(backend="frames", target_fps=2)),
    }
    frames = work["decoding"]()
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            began = time.process_time()
            run()
            taken[name].append((time.process_time() - began) / frames * 1000)
    return {name: statistics.median(times) for name, times in taken.items()}


def tokens(clip: Path, options: WindowOptions, seconds: float) -> tuple[int, int]:
    """Images and visual tokens of a whole clip, sent in windows of so many seconds."""
    backend = open_windows(options)
    segments = [*map(backend.see, windows(clip, seconds)), backend.finish()]
    seen = [segment for segment in segments if segment is not None]
    return sum(len(segment.images) for segment in seen), sum(segment.visual_tokens for segment in seen)


def overlap(clip: Path, program: str) -> dict[str, float]:
    """Share of cv-preinfer's selected blocks that are ours too, and by chance; means of its groups."""
    frames = _scored(clip)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        run_program(program, clip, out, len(frames), max_pixels=CANVAS_PIXELS, timeout_s=300)
        theirs = np.load(out / "src_patch_position.npy")
        meta = json.loads((out / "meta.json").read_text())
    per = meta["S_full"]
    theirs = theirs.reshape(-1, per, 3)
    shares, chances = [], []
    for group in meta["groups"]:
        at, count = group["global_img_offset"], group["num_canvases"]
        picked = theirs[at + 1 : at + count].reshape(-1, 3)
        wanted = _blocks(picked[picked[:, 0] >= 0])
        members = [frames[t] for t in group["frame_ids"]]
        ours = _blocks(canvases(members).positions[1:].reshape(-1, 3))
        if wanted:
            shares.append(len(wanted & ours) / len(wanted))
            chances.append(len(ours) / ((len(members) - 1) * per // 4))
    return {"overlap": statistics.mean(shares), "chance": statistics.mean(chances), "groups": len(shares)}


def _blocks(patches: np.ndarray[Any, Any]) -> set[tuple[int, int, int]]:
    return {(t, row // 2, column // 2) for t, row, column in patches.tolist()}


def _scored(clip: Path) -> list[Candidate]:
    from duplex.adapters.mage_vl.windows.geometry import fitted, image_size

    estimator = CostEstimator()
    found = []
    for frame in _frames(clip):
        image = fitted(frame, *image_size(frame.width, frame.height, CANVAS_PIXELS), CANVAS_PIXELS)
        scores = block_scores(estimator.costs(frame, image))
        found.append(
            Candidate(index=frame.index, pts_ms=frame.pts_ms, key=is_key(frame), image=image, scores=scores)
        )
    return found


def _frames(clip: Path) -> Iterator[Any]:
    yield from VideoStream().decode(clip.read_bytes(), f"video/{clip.suffix[1:]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", type=Path)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fps", type=float, nargs="*", default=[2, 4, 8, 24])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cv-preinfer")
    args = parser.parse_args()

    pieces = windows(args.clip, args.window_s)
    took = cost(pieces, args.rounds)
    results: dict[str, Any] = {
        "clip": args.clip.name,
        "window_s": args.window_s,
        "cost_ms": took,
        "tokens": {},
    }
    print(f"{args.clip.name}, windows of {args.window_s:g} s: CPU of one core at {FPS} frames/s")
    for name, ms in took.items():
        print(f"  {name:28s} {ms:6.3f} ms a frame  {ms * FPS / 10:5.1f} %")
    share = took["with both read"] * FPS / 1000
    extra = (took["with both read"] - took["decoding"]) * FPS / 1000
    print(f"side information: {share:.2%} of a core with the decoding, {extra:.2%} on top of it")

    savings = []
    print("visual tokens of the clip; both look at the same source frames, and their images are as large")
    for fps in args.fps:
        by_frames = WindowOptions(backend="frames", target_fps=fps, max_pixels=CANVAS_PIXELS)
        frames, whole = tokens(args.clip, by_frames, 1)
        canvas, chosen = tokens(args.clip, WindowOptions(backend="codec", codec_fps=fps), 8)
        savings.append(whole / chosen)
        results["tokens"][fps] = {
            "frames": frames,
            "by_frames": whole,
            "canvases": canvas,
            "by_codec": chosen,
        }
        print(
            f"  {fps:4g} a second: {frames:4d} frames, {whole:6d} tokens; {canvas:3d} canvases, {chosen:5d} "
            f"tokens: {whole / chosen:.1f}x fewer"
        )

    if args.cv_preinfer:
        results["overlap"] = found = overlap(args.clip, find_program(args.cv_preinfer))
        print(
            f"of the blocks that cv-preinfer selects, {found['overlap']:.1%} are ours too "
            f"(chance {found['chance']:.1%}) in {found['groups']} groups"
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.check and (share >= MOST_SHARE or min(savings) < LEAST_SAVING):
        print(f"over the bounds: {MOST_SHARE:.0%} of a core, {LEAST_SAVING:g}x fewer tokens", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
