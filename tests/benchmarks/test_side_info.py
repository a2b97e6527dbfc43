"""The benchmark of side information measures what it says, in small."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from video_clips import encode
from window_pieces import H264, moving_square

from duplex.adapters.mage_vl.windows.backends import WindowOptions

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "side_info.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("side_info_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    path.write_bytes(encode(moving_square(50), options=H264))
    return path


def test_costs_are_counted_a_frame(benchmark: ModuleType, clip: Path) -> None:
    pieces = benchmark.windows(clip, 1)
    assert len(pieces) == 2
    took = benchmark.cost(pieces, 1)
    assert len(took) == 5
    assert min(took.values()) > 0
    assert took["decoding"] < took["backend codec"]


def test_tokens_are_those_of_the_whole_clip(benchmark: ModuleType, clip: Path) -> None:
    images, tokens = benchmark.tokens(clip, WindowOptions(backend="frames", target_fps=25), 1)
    assert (images, tokens) == (50, 50 * 3 * 5)
    images, tokens = benchmark.tokens(clip, WindowOptions(backend="codec"), 1)
    assert images <= 10
    assert tokens == images * 3 * 5
