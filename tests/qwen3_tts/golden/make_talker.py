"""Write `talker.npz`: what `qwen-tts` 0.1.1 makes of every golden case, greedily, in float32 on the CPU. Runs
in its environment, on the checkpoints that `write_checkpoints.py` wrote:

    python make_talker.py FOLDER [CASE ...]

With cases named, only those are run and nothing is written: to look for a seed.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).parents[1]))

from golden_cases import AUDIO_FRAMES, CASES, GOLDEN, LOGIT_FRAMES, Case
from talker_run import GAP, Run, run_case


def checksum(folder: Path) -> str:
    """Of the weights themselves, so that a later writer of checkpoints can be told from this one."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(name.encode() + np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def check(case: Case, run: Run) -> None:
    """Refuse a case that would prove little."""
    ended = len(run.codes) < case.frames
    assert ended == (case.end_gain > 0), f"{case.name}: {len(run.codes)} frames"
    assert min(run.gap, run.predictor_gap) >= GAP, f"{case.name}: {run.gap} {run.predictor_gap}"
    distinct = len(set(run.codes[:, 0].tolist()))
    assert distinct >= len(run.codes) / 4, f"{case.name}: {distinct} distinct codes 0"
    assert run.penalised, f"{case.name}: the repetition penalty changed nothing"
    assert run.suppressed, f"{case.name}: no control code was best"
    if ended:
        assert run.held_back, f"{case.name}: it never would have ended too early"


def kept(case: Case, run: Run, folder: Path) -> dict[str, NDArray[Any]]:
    frames = [frame for frame in LOGIT_FRAMES if frame < len(run.logits)]
    arrays: dict[str, NDArray[Any]] = {
        "codes": run.codes,
        "logits": np.stack([run.logits[frame] for frame in frames]),
        "prompt": run.prompt,
        "trailing": run.trailing,
        "pad": run.pad,
        "text_ids": run.text_ids,
        "weights": np.array(checksum(folder)),
    }
    if case.audio:
        arrays["audio"] = run.audio[: AUDIO_FRAMES * 1920]
    if run.embedding is not None:
        arrays["embedding"] = run.embedding
    if run.reference_codes is not None:
        arrays["reference_codes"] = run.reference_codes
    return {f"{case.name}/{key}": array for key, array in arrays.items()}


def main() -> None:
    wanted = sys.argv[2:]
    arrays: dict[str, NDArray[Any]] = {}
    print("| case | seed | prompt rows | frames | distinct codes 0 | penalty, ban changed | least lead |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        if wanted and case.name not in wanted:
            continue
        folder = Path(sys.argv[1]) / case.name
        run = run_case(case, folder)
        check(case, run)
        arrays |= kept(case, run, folder)
        distinct = len(set(run.codes[:, 0].tolist()))
        print(
            f"| {case.name} | {case.seed} | {len(run.prompt)} | {len(run.codes)} | {distinct} "
            f"| {run.penalised}, {run.suppressed} | {min(run.gap, run.predictor_gap):.4f} |",
            flush=True,
        )
    if not wanted:
        out = GOLDEN / "talker.npz"
        np.savez_compressed(out, **arrays)
        print(f"{out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
