"""A frame model driven without a worker: requests run to their end, in whatever order a test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from golden_cases import Case
from golden_talker import golden
from numpy.typing import NDArray

from duplex.adapters.engine.model import Finish, FrameModel, SlotView
from duplex.adapters.qwen3_tts.job import Job, Reference
from duplex.adapters.qwen3_tts.model import load
from duplex.adapters.qwen3_tts.tiny import write_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "slots": 3,
    "positions": 320,
    "prefill_rows": 64,
    "decode_frames": [1, 2, 4],
}


def model_of(case: Case, folder: Path, **options: Any) -> Any:
    """A warm model of a golden case's checkpoint, which is written into `folder`."""
    if not (folder / "config.json").exists():
        write_tiny_checkpoint(folder, case.model_type, case.size, case.seed, end_gain=case.end_gain)
    model = load({"model": str(folder), **OPTIONS, **options})
    model.warm_up()
    return model


def job_of(case: Case, **changes: Any) -> Job:
    """A golden case's request."""
    job = Job(
        text=case.text,
        ended=True,
        whole=case.whole,
        language=case.language,
        speaker=case.speaker,
        instructions=case.instructions,
        reference=reference_of(case),
        max_frames=case.frames,
    )
    return msgspec.structs.replace(job, **changes)


@cache
def reference_of(case: Case) -> Reference | None:
    if case.reference is None:
        return None
    arrays = golden(case.name)
    codes = arrays["reference_codes"].astype("<i2").tobytes() if case.reference == "context" else b""
    return Reference(
        embedding=arrays["embedding"].astype("<f4").tobytes(), codes=codes, text=case.reference_text
    )


@dataclass(slots=True)
class Run:
    """A request in a slot, and what came of it."""

    slot: int
    view: SlotView
    pieces: list[tuple[str, bool]] = field(default_factory=list)
    ready: int = 0
    finish: Finish | None = None
    audio: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def samples(self) -> NDArray[np.float32]:
        return np.concatenate(self.audio) if self.audio else np.zeros(0, np.float32)


class Driver:
    """Steps a model: prefills of at most `rows` rows, a frame of all that can, decodes of what is ready.

    `chunk` says how many frames to decode of so many that are ready, 0 for none yet.
    """

    def __init__(
        self, model: FrameModel, *, rows: int = 64, chunk: Callable[[int], int] | None = None
    ) -> None:
        self.model = model
        self.runs: dict[int, Run] = {}
        self._rows = rows
        self._chunk = chunk or (lambda ready: 1)

    def begin(self, slot: int, job: Job, pieces: Sequence[tuple[str, bool]] = ()) -> Run:
        """`pieces`: more text, one piece whenever the request has to wait for it."""
        view = self.model.begin(slot, msgspec.msgpack.encode(job))
        self.runs[slot] = run = Run(slot, view, list(pieces))
        return run

    def step(self) -> bool:
        """False: nothing is left to do."""
        room = self.model.info.prefill_rows
        work = []
        for run in self.runs.values():
            if rows := min(run.view.prompt_rows, self._rows, room):
                work.append((run.slot, rows))
                room -= rows
        if work:
            self.model.prefill(work)
        live = [run for run in self.runs.values() if run.finish is None]
        going = [run for run in live if run.view.steppable]
        if going:
            result = self.model.launch_frame([run.slot for run in going]).result()
            for run, audible, finish in zip(going, result.audible, result.finish, strict=True):
                run.ready += audible
                run.finish = finish
        fed = False
        for run in live:
            if run.finish is None and not run.view.steppable and not run.view.prompt_rows and run.pieces:
                text, ended = run.pieces.pop(0)
                self.model.add_text(run.slot, text, ended=ended)
                fed = True
        return self._decode() or bool(work or going) or fed

    def _decode(self) -> bool:
        due: dict[int, list[Run]] = {}
        for run in self.runs.values():
            frames = 1 if run.finish is not None else self._chunk(run.ready)
            if frames and run.ready >= frames:
                due.setdefault(frames, []).append(run)
        for frames, runs in due.items():
            audio = self.model.launch_decode([run.slot for run in runs], frames).result()
            for run, samples in zip(runs, audio, strict=True):
                run.ready -= frames
                run.audio.append(samples.copy())
        return bool(due)

    def finish(self) -> None:
        """Run everything to its end and free the slots."""
        while self.step():
            pass
        for slot in list(self.runs):
            self.free(slot)

    def free(self, slot: int) -> None:
        """Take a slot back at once."""
        self.model.free(slot)
        del self.runs[slot]


def speak(model: FrameModel, job: Job, *, slot: int = 0, **driven: Any) -> Run:
    """A request alone."""
    driver = Driver(model, **driven)
    run = driver.begin(slot, job)
    driver.finish()
    return run
