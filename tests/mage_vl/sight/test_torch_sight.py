"""The sight worker with the model itself, on a tiny checkpoint, against the same torch in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from sight_bench import figures, kill, seeing, until

torch = pytest.importorskip("torch", reason="the model needs torch")

from duplex.adapters.mage_vl import weights as checkpoints  # noqa: E402
from duplex.adapters.mage_vl.config import published  # noqa: E402
from duplex.adapters.mage_vl.image import ImageProcessor  # noqa: E402
from duplex.adapters.mage_vl.sight.client import Eye, Seen, Sight, SightOptions  # noqa: E402
from duplex.adapters.mage_vl.sight.model import View  # noqa: E402
from duplex.adapters.mage_vl.sight.torch_model import load  # noqa: E402
from duplex.adapters.mage_vl.tiny import tiny_config, write_tiny_checkpoint  # noqa: E402
from duplex.adapters.mage_vl.windows.types import VisualInput  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

SHAPES = ((2, 64, 96), (1, 32, 32), (4, 32, 64), (3, 96, 64))
"""Images, height, width."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("mage"))


def options(folder: Path, **fields: Any) -> SightOptions:
    own = {name: fields.pop(name) for name in list(fields) if name in SightOptions.__struct_fields__}
    told = {"model": str(folder), "threads": 1, "judge": "all", **fields}
    return SightOptions(options=told, **{"stats_s": 0.05, "max_patches": 4096, **own})


def segment(seed: int, shape: tuple[int, int, int], at: int = 0) -> VisualInput:
    """Random pixels; the frames of a stream from `at` on."""
    images, height, width = shape
    rng = np.random.default_rng(seed)
    frame, row, column = np.indices((images, height // 16, width // 16), dtype=np.int32)
    return VisualInput(
        images=rng.integers(0, 256, (*shape, 3), dtype=np.uint8),
        positions=np.stack([frame + np.int32(at), row, column], axis=-1),
        times_s=np.arange(images, dtype=np.float64),
        segment_id=f"{seed}",
        pts_ms=0,
        duration_ms=1000,
    )


def history(session: int) -> list[VisualInput]:
    """Three segments of a session, all of one shape."""
    shape = SHAPES[session % len(SHAPES)]
    return [segment(1000 * session + n, shape, at=n * shape[0]) for n in range(3)]


@dataclass
class Here:
    """The model in this process: one window at a time, pixels by numpy."""

    folder: Path

    def __post_init__(self) -> None:
        config = checkpoints.read_checked(self.folder)
        self.processor = ImageProcessor(config.image_config)
        self.vision = checkpoints.load_vision(self.folder, config, "cpu", torch.float32)
        self.gate = checkpoints.load_gate(self.folder, config, "cpu")

    def look(self, segments: Sequence[VisualInput]) -> list[tuple[NDArray[np.float32], list[float]]]:
        """Tokens and probabilities of a session's segments."""
        state, seen = self.gate.new_state(), []
        for what in segments:
            patches = self.processor(what.images, what.positions)
            tokens = self.vision(
                torch.from_numpy(patches.pixels),
                patches.grid.tolist(),
                torch.from_numpy(patches.positions),
            ).view(len(what.images), what.tokens_per_image, -1)
            (said,) = self.gate.step([(tokens, state)])
            seen.append((tokens.numpy(), said.tolist()))
        return seen


def check(results: Sequence[Seen], expected: Sequence[tuple[NDArray[np.float32], list[float]]]) -> None:
    for result, (tokens, said) in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.tokens.numpy(), tokens, atol=2e-5, rtol=1e-5)
        assert result.p_speak == pytest.approx(said, abs=1e-5)


async def look(eye: Eye, segments: Sequence[VisualInput]) -> list[Seen]:
    results = [await eye.look(what) for what in segments]
    assert all(results)
    return [result for result in results if result is not None]


@pytest.fixture(scope="module")
def here(folder: Path) -> Here:
    return Here(folder)


@pytest.fixture(scope="module")
async def sight(folder: Path) -> AsyncIterator[Sight]:
    """One for many tests: importing torch is what takes time here."""
    async with seeing(options(folder)) as sight:
        yield sight


async def test_worker_sees_what_the_model_sees_in_this_process(sight: Sight, here: Here) -> None:
    assert (sight.info.hidden, sight.info.dtype, sight.info.gate) == (64, "float32", True)
    for session in range(4):
        segments = history(session)
        with contextlib.closing(sight.open()) as eye:
            check(await look(eye, segments), here.look(segments))


async def test_32_sessions_in_a_batch_see_what_each_sees_alone(sight: Sight, here: Here) -> None:
    before = figures(sight)["windows"]
    eyes = [sight.open() for _ in range(32)]
    together = await asyncio.gather(*(look(eye, history(n)) for n, eye in enumerate(eyes)))
    for n, results in enumerate(together):
        check(results, here.look(history(n)))
    assert max(result.sessions for results in together for result in results) == 32
    assert figures(sight)["windows"] == before + 96
    await until(lambda: figures(sight)["gate_states"] == 32)
    for eye in eyes:
        eye.close()
    await until(lambda: figures(sight)["gate_states"] == 0)


async def test_after_a_kill_the_session_goes_on_from_a_fresh_state(sight: Sight, here: Here) -> None:
    segments = history(2)
    with contextlib.closing(sight.open()) as eye:
        check(await look(eye, segments[:2]), here.look(segments)[:2])
        kill(sight)
        await until(lambda: not sight.healthy)
        await until(lambda: sight.healthy)
        again = await look(eye, segments)
        check(again, here.look(segments))
        assert [result.restarted for result in again] == [True, False, False]


async def test_kill_under_load_fails_by_name_and_nothing_else_is_lost(sight: Sight, here: Here) -> None:
    eyes = [sight.open() for _ in range(16)]
    looks = [asyncio.create_task(look(eye, history(n))) for n, eye in enumerate(eyes)]
    await until(lambda: figures(sight)["flying"] > 0)
    kill(sight)
    outcomes = await asyncio.gather(*looks, return_exceptions=True)
    faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert faults
    for fault in faults:
        assert isinstance(fault, DuplexError)
        assert fault.code in (ErrorCode.ADAPTER_FAILED, ErrorCode.ENGINE_DOWN)
    await until(lambda: sight.healthy)
    together = await asyncio.gather(*(look(eye, history(n)) for n, eye in enumerate(eyes)))
    for n, results in enumerate(together):
        check(results, here.look(history(n)))
    for eye in eyes:
        eye.close()


async def test_gate_keeps_float32_while_the_encoder_is_in_bfloat16(folder: Path, here: Here) -> None:
    """Its probabilities are those of a float32 gate on the tokens that were given out; here of the last image
    alone, which is what decides."""
    async with seeing(options(folder, dtype="bfloat16", judge="last")) as sight:
        assert sight.info.dtype == "bfloat16"
        results = await look(sight.open(), history(0))
    state = here.gate.new_state()
    for result in results:
        tokens = result.tokens.torch()
        assert tokens.dtype == torch.bfloat16
        (said,) = here.gate.step([(tokens, state)])
        assert result.p_speak == pytest.approx(said.tolist()[-1:], abs=1e-6)


async def test_without_a_gate_tokens_are_the_same(folder: Path, here: Here) -> None:
    expected = here.look(history(1))
    async with seeing(options(folder, gate=False)) as sight:
        results = await look(sight.open(), history(1))
    for result, (tokens, _) in zip(results, expected, strict=True):
        assert result.p_speak is None
        np.testing.assert_allclose(result.tokens.numpy(), tokens, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
async def test_gpu_sees_what_the_cpu_sees(folder: Path, here: Here) -> None:
    """Two batches at once, copies on streams of their own: nothing is read before it is there."""
    async with seeing(options(folder, device="cuda", dtype="float32", max_sessions=5)) as sight:
        assert sight.info.depth == 2
        eyes = [sight.open() for _ in range(32)]
        together = await asyncio.gather(*(look(eye, history(n)) for n, eye in enumerate(eyes)))
    for n, results in enumerate(together):
        for result, (tokens, said) in zip(results, here.look(history(n)), strict=True):
            np.testing.assert_allclose(result.tokens.numpy(), tokens, atol=1e-3, rtol=1e-3)
            assert result.p_speak == pytest.approx(said, abs=1e-3)


def test_random_weights_need_no_files(tmp_path: Path) -> None:
    """Full-size benchmarks load no weights."""
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(published(tiny_config())))
    model = load({"model": str(tmp_path), "random": 7, "judge": "all"})
    what, state = segment(1, SHAPES[0]), model.new_state()
    room = np.zeros((2, what.tokens_per_image, model.info.token_bytes), np.uint8)
    batch = [View(pixels=what.images, positions=what.positions, tokens=room, state=state)]
    (said,) = model.launch(batch).result()
    assert len(said) == 2
    assert all(0 < p < 1 for p in said)
    tokens = room.view(np.float32)
    assert np.isfinite(tokens).all()
    assert tokens.any()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"model": "/nowhere"}, "no folder /nowhere"),
        ({"device": "toaster"}, "no device 'toaster'"),
        ({"device": "cuda:7"}, "no device 'cuda:7'"),
        ({"dtype": "float8"}, "float8"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(folder: Path, told: dict[str, Any], words: str) -> None:
    with pytest.raises(DuplexError, match=words) as caught:
        load({"model": str(folder), **told})
    assert caught.value.code is ErrorCode.BAD_CONFIG


async def test_worker_tells_the_gateway_what_is_wrong_with_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DuplexError, match=r"sight worker cannot start: .*config\.json") as caught:
        async with seeing(options(tmp_path)):
            pytest.fail("it started")
    assert caught.value.code is ErrorCode.BAD_CONFIG
