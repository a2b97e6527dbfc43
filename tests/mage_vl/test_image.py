"""Pixels, grid and positions: against transformers' own processor, and each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.adapters.mage_vl.config import ImageConfig
from duplex.adapters.mage_vl.image import ImageProcessor, block_order, pack, raster_positions
from duplex.adapters.mage_vl.tiny import tiny_config, write_tiny_checkpoint
from duplex.core.errors import DuplexError, ErrorCode

CONFIG = ImageConfig()
_sides = st.integers(1, 4).map(lambda blocks: 32 * blocks)


def pictures(n: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), np.uint8)


@given(n=st.integers(1, 3), height=_sides, width=_sides, seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_patches_come_block_by_block_channel_by_channel(n: int, height: int, width: int, seed: int) -> None:
    images = pictures(n, height, width, seed)
    done = ImageProcessor(CONFIG)(images)
    at = 0
    for image in images:
        for top in range(0, height, 32):
            for left in range(0, width, 32):
                for down in (0, 16):
                    for right in (0, 16):
                        patch = image[top + down :, left + right :][:16, :16].transpose(2, 0, 1)
                        mean, std = np.float32(CONFIG.image_mean), np.float32(CONFIG.image_std)
                        rescaled = (patch.astype(np.float64) * CONFIG.rescale_factor).astype(np.float32)
                        wanted = (rescaled - mean[:, None, None]) / std[:, None, None]
                        assert np.array_equal(done.pixels[at], wanted.ravel())
                        assert done.positions[at].tolist() == [0, (top + down) // 16, (left + right) // 16]
                        at += 1
    assert at == len(done.pixels) == len(done.positions)
    assert done.grid.tolist() == [[1, height // 16, width // 16]] * n


def test_equal_to_the_published_processor_bit_by_bit(tmp_path: Path) -> None:
    """The checkpoint names Qwen2-VL's processor; its numpy form is the one that the authors use."""
    pil = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="needs transformers 5"
    )
    folder = write_tiny_checkpoint(tmp_path)
    published = pil.Qwen2VLImageProcessorPil(
        **{
            key: value
            for key, value in json.loads((folder / "preprocessor_config.json").read_text()).items()
            if key not in ("image_processor_type", "min_pixels", "max_pixels")
        }
    )
    images = pictures(2, 96, 160)
    wanted = published(images=list(images), return_tensors="np", input_data_format="channels_last")
    done = ImageProcessor(tiny_config().image_config)(images)
    assert np.array_equal(done.pixels, wanted["pixel_values"])
    assert np.array_equal(done.grid, wanted["image_grid_thw"])


@pytest.mark.parametrize("seed", range(20))
def test_sizes_fit_as_the_published_processor_has_them(seed: int) -> None:
    pil = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="needs transformers 5"
    )
    random = np.random.default_rng(seed)
    processor = ImageProcessor(CONFIG)
    for height, width in random.integers(8, 4000, (50, 2)).tolist():
        if max(height, width) > 200 * min(height, width):
            continue
        wanted = pil.smart_resize(height, width, 32, CONFIG.min_pixels, CONFIG.max_pixels)
        assert processor.fit(height, width) == wanted
        wanted = pil.smart_resize(height, width, 32, CONFIG.min_pixels, 150_000)
        assert processor.fit(height, width, max_pixels=150_000) == wanted


@given(n=st.integers(1, 3), height=_sides, width=_sides)
@settings(max_examples=20, deadline=None)
def test_a_device_gives_the_same_bits(n: int, height: int, width: int) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from duplex.adapters.mage_vl.image import DevicePixels

    images = pictures(n, height, width)
    frames = np.stack([raster_positions(7 * k, height // 16, width // 16) for k in range(n)])
    done = ImageProcessor(CONFIG)(images, frames)
    device = DevicePixels(CONFIG, "cpu", torch.float32)
    assert np.array_equal(device(torch.from_numpy(images)).numpy(), done.pixels)
    assert np.array_equal(device.positions(torch.from_numpy(frames)).numpy(), done.positions)
    half = DevicePixels(CONFIG, "cpu", torch.bfloat16)
    assert torch.equal(half(torch.from_numpy(images)), torch.from_numpy(done.pixels).bfloat16())


def test_positions_of_a_canvas_keep_their_place() -> None:
    """Patches of a canvas come from many frames: what belongs to a patch stays with it."""
    images = np.zeros((1, 64, 96, 3), np.uint8)
    images[0, ::16, ::16, 0] = np.arange(24).reshape(4, 6)
    positions = np.arange(24 * 3, dtype=np.int32).reshape(1, 4, 6, 3)
    packed, ordered = pack(images, 16, 2), block_order(positions, 2)
    assert (packed[:, 0] * 3 == ordered[:, 0]).all()
    assert packed[:5, 0].tolist() == [0, 1, 6, 7, 2]


@pytest.mark.parametrize("shape", [(1, 48, 64, 3), (1, 64, 40, 3), (0, 32, 32, 3), (1, 32, 32, 4)])
def test_odd_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DuplexError, match="multiples of 32 pixels") as told:
        ImageProcessor(CONFIG)(np.zeros(shape, np.uint8))
    assert told.value.code is ErrorCode.INVALID_MEDIA


def test_odd_positions_and_ribbons_are_refused() -> None:
    processor = ImageProcessor(CONFIG)
    with pytest.raises(DuplexError, match="do not fit"):
        processor(np.zeros((1, 32, 32, 3), np.uint8), np.zeros((1, 2, 3, 3), np.int32))
    with pytest.raises(DuplexError, match="200 times"):
        processor.fit(3, 601)
