"""Sizes of images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.mage_vl.windows.geometry import MIN_PIXELS, image_size, raster
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode

sides = st.integers(2, 8192)
bounds = st.integers(1024, 4_000_000)


@given(width=sides, height=sides, most=bounds)
def test_sizes_are_multiples_of_32_within_the_bound(width: int, height: int, most: int) -> None:
    if max(width, height) >= 200 * min(width, height):
        with pytest.raises(DuplexError) as refused:
            image_size(width, height, most)
        assert refused.value.code is ErrorCode.INVALID_MEDIA
        return
    columns, rows = image_size(width, height, most)
    assert columns % 32 == rows % 32 == 0
    assert 32 * 32 <= columns * rows <= most


@given(width=st.integers(64, 4096), height=st.integers(64, 4096), most=st.integers(100_000, 4_000_000))
def test_the_shape_is_kept_to_a_block(width: int, height: int, most: int) -> None:
    if max(width, height) > 4 * min(width, height) or width * height < MIN_PIXELS:
        return
    columns, rows = image_size(width, height, most)
    scale = min(1.0, (most / (width * height)) ** 0.5)
    assert abs(columns - width * scale) <= 32
    assert abs(rows - height * scale) <= 32


@pytest.mark.parametrize(
    ("source", "most", "size"),
    [
        ((960, 540), 150_000, (512, 288)),  # as cv-preinfer makes them of these three clips
        ((1280, 720), 150_000, (512, 288)),
        ((640, 272), 150_000, (576, 224)),
        ((960, 540), 4_000_000, (960, 544)),
        ((960, 540), 960 * 540, (960, 512)),  # rounding up would go over the bound
        ((8192, 50), 150_000, (4672, 32)),  # never less than a block
        ((20, 20), 150_000, (64, 64)),  # tiny ones grow
    ],
)
def test_known_sizes(source: tuple[int, int], most: int, size: tuple[int, int]) -> None:
    assert image_size(*source, most) == size


def test_a_raster_has_each_patch_once() -> None:
    positions = raster([3, 7], 96, 64)
    assert positions.shape == (2, 4, 6, 3)
    assert positions[1, 2, 5].tolist() == [7, 2, 5]
    assert len(np.unique(positions.reshape(-1, 3), axis=0)) == 48


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": np.zeros((1, 48, 64, 3), np.uint8)},
        {"images": np.zeros((0, 64, 64, 3), np.uint8)},
        {"images": np.zeros((1, 64, 64, 3), np.float32)},
        {"positions": np.zeros((1, 4, 4, 2), np.int32)},
        {"positions": np.full((1, 4, 4, 3), -1, np.int32)},
        {"times_s": np.zeros(2)},
        {"positions": np.full((1, 4, 4, 3), 2, np.int32), "frame_times_s": np.zeros(2)},
    ],
)
def test_what_does_not_fit_together_is_no_visual_input(wrong: dict[str, np.ndarray]) -> None:
    right = {
        "images": np.zeros((1, 64, 64, 3), np.uint8),
        "positions": np.zeros((1, 4, 4, 3), np.int32),
        "times_s": np.zeros(1),
    }
    assert VisualInput(**right, segment_id="", pts_ms=0, duration_ms=0).visual_tokens == 4
    with pytest.raises(ValueError, match=r"images|positions|times"):
        VisualInput(**right | wrong, segment_id="", pts_ms=0, duration_ms=0)
