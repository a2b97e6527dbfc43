"""Objects in a picture: NanoDet-g, 80 COCO classes, on one CPU thread.

The weights ship with the package (models/NOTICE.md). Measured here: 40 ms a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from duplex.codecs.video_frame import Pixels, VideoFrame

_NAMES: Final = """
    person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant stop_sign
    parking_meter bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella
    handbag tie suitcase frisbee skis snowboard sports_ball kite baseball_bat baseball_glove skateboard
    surfboard tennis_racket bottle wine_glass cup fork knife spoon bowl banana apple sandwich orange
    broccoli carrot hot_dog pizza donut cake chair couch potted_plant bed dining_table toilet tv laptop
    mouse remote keyboard cell_phone microwave oven toaster sink refrigerator book clock vase scissors
    teddy_bear hair_drier toothbrush
"""

CLASSES: Final = tuple(name.replace("_", " ") for name in _NAMES.split())
"""What the detector knows, by class number."""

_SIDE: Final = 416
_STRIDES: Final = (8, 16, 32)
_BINS: Final = 11  # a box side is a distribution over 0..10 strides
_MEAN: Final = np.array([103.53, 116.28, 123.675], np.float32)  # blue, green, red: the training values
_STD: Final = np.array([57.375, 57.12, 58.395], np.float32)
_SAME_BOX: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """One object.

    Attributes:
        label: Its class, one of `CLASSES`.
        score: The detector's confidence, 0 to 1.
        x0, y0, x1, y1: Its box as fractions of the picture's width and height.
    """

    label: str
    score: float
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def area(self) -> float:
        """Fraction of the picture that the box covers."""
        return max(0.0, self.x1 - self.x0) * max(0.0, self.y1 - self.y0)

    def mirrored(self) -> Detection:
        """The same in the picture that a mirror shows."""
        return Detection(
            label=self.label, score=self.score, x0=1 - self.x1, y0=self.y0, x1=1 - self.x0, y1=self.y1
        )


def overlap(a: Detection, b: Detection) -> float:
    """Intersection over union of two boxes."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / (a.area + b.area - both)


class ObjectDetector:
    """The network, loaded once and shared by all sessions; `detect` may run in several threads."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        weights = files("duplex.adapters.embedded").joinpath("models/nanodet-g-416.onnx").read_bytes()
        self._session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        self._centers = [_centers(stride) for stride in _STRIDES]

    def detect(self, frame: VideoFrame, *, least: float = 0.3) -> list[Detection]:
        """Objects with a score of at least `least`, best first.

        Where boxes of two classes lie on each other, both are given: the caller sees the doubt.
        """
        pixels, (left, top, width, height) = _letterbox(frame)
        blob = ((pixels[..., ::-1] - _MEAN) / _STD).transpose(2, 0, 1)[None]
        outputs = self._session.run(None, {"input_1": np.ascontiguousarray(blob)})
        found: list[Detection] = []
        for scores, boxes, centers, stride in zip(
            outputs[:3], outputs[3:], self._centers, _STRIDES, strict=True
        ):
            rows, classes = np.nonzero(scores[0] >= least)
            if not len(rows):
                continue
            reach = _distances(boxes[0][rows], stride)
            near = (centers[rows] - reach[:, :2] - (left, top)) / (width, height)
            far = (centers[rows] + reach[:, 2:] - (left, top)) / (width, height)
            corners = np.clip(np.concatenate((near, far), 1), 0.0, 1.0)
            found += [
                Detection(label=CLASSES[c], score=float(scores[0][r, c]), x0=x0, y0=y0, x1=x1, y1=y1)
                for r, c, (x0, y0, x1, y1) in zip(rows, classes, corners.tolist(), strict=True)
            ]
        return _best_of_each(found)


def _centers(stride: int) -> NDArray[np.float32]:
    cells = _SIDE // stride
    y, x = np.divmod(np.arange(cells * cells), cells)
    return ((np.stack((x, y), 1) + 0.5) * stride).astype(np.float32)


def _distances(logits: NDArray[np.float32], stride: int) -> NDArray[np.float32]:
    """Expected distance from the cell to each side, in network pixels, shape (n, 4)."""
    bins = logits.reshape(-1, 4, _BINS)
    weights = np.exp(bins - bins.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ np.arange(_BINS, dtype=np.float32)
    distances: NDArray[np.float32] = expected * stride
    return distances


def _letterbox(frame: VideoFrame) -> tuple[Pixels, tuple[float, float, float, float]]:
    """The picture in the middle of a black square, and where it lies there (left, top, width, height)."""
    scale = _SIDE / max(frame.width, frame.height)
    width, height = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
    square = np.zeros((_SIDE, _SIDE, 3), np.uint8)
    left, top = (_SIDE - width) // 2, (_SIDE - height) // 2
    square[top : top + height, left : left + width] = frame.scaled_rgb(width, height)
    return square, (left, top, width, height)


def _best_of_each(found: list[Detection]) -> list[Detection]:
    """Of boxes of one class that lie on each other, the best."""
    kept: list[Detection] = []
    for candidate in sorted(found, key=lambda d: -d.score)[:200]:
        if not any(k.label == candidate.label and overlap(k, candidate) > _SAME_BOX for k in kept):
            kept.append(candidate)
    return kept
