"""Synthetic scenes, scripted detectors and an executor that runs when told, for the commentary tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.objects import Detection
from duplex.codecs.video_frame import Scaler, VideoFrame

Picture = NDArray[np.uint8]


def frame_of(pixels: Picture, pts_ms: float, **facts: Any) -> VideoFrame:
    """A frame without a codec behind it."""
    height, width = pixels.shape[:2]
    given = {"index": 0, "type": "?", "key": False, "packet_bytes": 0, "corrupt": False, **facts}
    return VideoFrame(
        pts_ms=pts_ms,
        width=width,
        height=height,
        picture=av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24"),
        scaler=Scaler(),
        **given,
    )


def frames_of(pictures: Iterable[Picture], *, start_ms: float = 0.0, fps: float = 25.0) -> list[VideoFrame]:
    """Frames of pictures at a steady rate."""
    return [frame_of(p, start_ms + i * 1000 / fps) for i, p in enumerate(pictures)]


def noisy(pictures: Iterable[Picture], seed: int = 0) -> list[Picture]:
    """Pictures with a little camera noise."""
    rng = np.random.default_rng(seed)
    return [
        np.clip(p.astype(np.int16) + rng.integers(-3, 4, p.shape), 0, 255).astype(np.uint8) for p in pictures
    ]


def seen(label: str, score: float = 0.8, x0: float = 0.1, x1: float = 0.3, y0: float = 0.2, y1: float = 0.8):
    """A detection, by default a tall box on the left."""
    return Detection(label=label, score=score, x0=x0, y0=y0, x1=x1, y1=y1)


class ScriptedDetector:
    """Gives the detections of the last script entry that has begun; remembers when it was asked."""

    def __init__(self, *script: tuple[float, Sequence[Detection]]) -> None:
        self.script = script
        self.asked: list[float] = []
        self.before: Callable[[], None] = lambda: None

    def detect(self, frame: VideoFrame, *, least: float = 0.3) -> list[Detection]:
        self.before()
        self.asked.append(frame.pts_ms)
        current: Sequence[Detection] = ()
        for begins_ms, detections in self.script:
            if frame.pts_ms >= begins_ms:
                current = detections
        return [d for d in current if d.score >= least]


class ScriptedTagger:
    """Always the same tag."""

    def __init__(self, word: str, score: float) -> None:
        self.word, self.score = word, score

    def tag(self, frame: VideoFrame) -> tuple[str, float]:
        return self.word, self.score


class ManualExecutor(Executor):
    """Runs what was submitted when told to, in the caller's thread."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self, most: int = 10_000) -> int:
        """Run until nothing is left; returns how many tasks ran."""
        ran = 0
        while self.tasks and ran < most:
            future, task = self.tasks.pop(0)
            future.set_result(task())
            ran += 1
        return ran
