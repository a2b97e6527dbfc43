"""Mage-ViT and the merger against the straightforward reference, in windows of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="the reference needs transformers")

from mage_reference import Visual, load_reference  # noqa: E402

from duplex.adapters.mage_vl.layout import VISION  # noqa: E402
from duplex.adapters.mage_vl.tiny import tiny_config, tiny_weights, write_tiny_checkpoint  # noqa: E402
from duplex.adapters.mage_vl.vision import Vision  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

CONFIG = tiny_config()
Grid = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Visual:
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), seed=5)
    visual: Visual = load_reference(folder)[0].model.visual
    return visual


def vision(dtype: torch.dtype = torch.float32, **options: int) -> Vision:
    weights = {
        name: torch.from_numpy(values).to(dtype)
        for name, values in tiny_weights(CONFIG, 5).items()
        if name.startswith(VISION)
    }
    return Vision(CONFIG.vision_config, weights, **options)


def inputs(grid: Grid, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and positions: of any frames, rows and columns, as canvases have them."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(time * height * width for time, height, width in grid)
    pixels = torch.randn(count, 768, generator=generator)
    return pixels, torch.randint(0, 200, (count, 3), generator=generator)


_side = st.integers(1, 3).map(lambda blocks: 2 * blocks)
_grids = st.lists(st.tuples(st.integers(1, 6), _side, _side), min_size=1, max_size=4)


@given(grid=_grids, seed=st.integers(0, 99), most=st.sampled_from([1, 40, 65536]))
@settings(max_examples=15, deadline=None)
def test_equal_to_the_reference(reference: Visual, grid: Grid, seed: int, most: int) -> None:
    pixels, positions = inputs(grid, seed)
    kept = pixels.clone()
    tokens = vision(pass_patches=most)(pixels, grid, positions)
    wanted = reference(pixels, grid, positions)
    assert tokens.shape == (len(pixels) // 4, 64)
    torch.testing.assert_close(tokens, wanted, rtol=1e-4, atol=2e-5)
    assert torch.equal(pixels, kept)


def test_each_frame_sees_itself_alone_and_a_row_of_five_two_windows() -> None:
    pixels, positions = inputs([(5, 2, 4)])
    one = vision()
    apart = one(pixels, [(1, 2, 4)] * 5, positions)
    windows = one(pixels, [(5, 2, 4)], positions)
    other = pixels.clone()
    other[0] += 1
    changed = (one(other, [(5, 2, 4)], positions) != windows).any(1)
    assert changed[:8].all()  # four frames of two tokens
    assert not changed[8:].any()
    changed = (one(other, [(1, 2, 4)] * 5, positions) != apart).any(1)
    assert changed[:2].all()
    assert not changed[2:].any()


def test_time_row_and_column_of_a_patch_matter() -> None:
    pixels, positions = inputs([(1, 4, 4)])
    one = vision()
    tokens = one(pixels, [(1, 4, 4)], positions)
    for axis in range(3):
        moved = positions.clone()
        moved[0, axis] += 3
        assert not torch.allclose(one(pixels, [(1, 4, 4)], moved), tokens, atol=1e-4)


def test_a_grid_may_be_a_tensor_and_pixels_of_another_dtype() -> None:
    grid: Grid = [(1, 2, 2), (1, 4, 2), (1, 2, 2)]
    pixels, positions = inputs(grid)
    tokens = vision()(pixels.double(), torch.tensor(grid), positions.int())
    torch.testing.assert_close(tokens, vision()(pixels, grid, positions))


def test_half_precision_stays_near() -> None:
    grid: Grid = [(1, 4, 6), (1, 4, 6)]
    pixels, positions = inputs(grid)
    tokens, half = vision()(pixels, grid, positions), vision(torch.bfloat16)(pixels, grid, positions)
    assert half.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(tokens, half.float()).min() > 0.999


@pytest.mark.parametrize(
    ("grid", "patches", "words"),
    [
        ([(1, 3, 2)], 6, "no whole 2x2 blocks"),
        ([(0, 2, 2)], 4, "no whole 2x2 blocks"),
        ([(1, 2, 2)], 8, "the grid has 4 patches"),
        ([], 0, "the grid has 0 patches"),
    ],
)
def test_odd_grids_are_refused(grid: Grid, patches: int, words: str) -> None:
    with pytest.raises(DuplexError, match=words) as told:
        vision()(torch.zeros(patches, 768), grid, torch.zeros(patches, 3))
    assert told.value.code is ErrorCode.INVALID_MEDIA


def test_the_kernel_rotates_as_plain_torch_does() -> None:
    """In Triton's interpreter, in a process of its own: Triton decides at import whether to interpret."""
    pytest.importorskip("triton", reason="needs triton")
    script = Path(__file__).with_name("rotation_interpreted.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2x16", "3x32", "16x32"]
