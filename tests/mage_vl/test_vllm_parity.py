"""The model in vLLM's engine core against plain torch: the same tokens, however the pictures come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from duplex.adapters.engine.language import Sampling
from duplex.adapters.mage_vl.config import MageConfig
from duplex.adapters.mage_vl.ports import Draft, Picture
from duplex.adapters.mage_vl.prompt import ChatWriter, Pixels, Spread, runs_of
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import HistoryItem

torch = pytest.importorskip("torch", reason="the reference is in plain torch")
pytest.importorskip("vllm", reason="the engine core is in the extra `cpu-engine`")

import mage_reference  # noqa: E402
import vllm_tiny  # noqa: E402
from PIL import Image  # noqa: E402

if TYPE_CHECKING:
    from duplex.adapters.engine.vllm_engine import VllmEngine

LENGTH = 24
SAID = (
    HistoryItem(role="user", text="Hello?"),
    HistoryItem(role="assistant", text="The voice was calm."),
)


@pytest.fixture(scope="module")
def reference(mage_folder: Path) -> mage_reference.Reference:
    return mage_reference.load_reference(mage_folder)[0]


def window(
    seed: int, *, frames: int = 3, height: int = 64, width: int = 96, canvas: bool = False
) -> VisualInput:
    """Noise, and where its patches came from: frames 0, 1, …, or for canvases a few frames each."""
    rng = np.random.default_rng(seed)
    rows, columns = height // 16, width // 16
    positions = np.stack(np.broadcast_arrays(*np.indices((frames, rows, columns))), -1).astype(np.int32)
    if canvas:
        source = np.sort(rng.integers(0, 9, (frames, rows // 2 * (columns // 2))), axis=1)
        blocks = source.reshape(frames, rows // 2, columns // 2)
        positions[..., 0] = blocks.repeat(2, axis=1).repeat(2, axis=2)
    return VisualInput(
        images=rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8),
        positions=positions,
        times_s=np.arange(frames, dtype=np.float64) / 2,
        segment_id=f"{'canvas' if canvas else 'window'} {seed}",
        pts_ms=0.0,
        duration_ms=1000.0,
    )


def tokens_of(visual: VisualInput, reference: mage_reference.Reference) -> Any:
    """(n, P, h): the reference's visual tokens."""
    packed = [mage_reference.patches(image, reference.tree) for image in visual.images]
    pixels = torch.cat([part[0] for part in packed])
    merge = reference.tree["vision_config"]["spatial_merge_size"]
    places = [
        torch.from_numpy(positions[row : row + merge, column : column + merge].reshape(-1, 3))
        for positions in visual.positions
        for row in range(0, visual.grid[0], merge)
        for column in range(0, visual.grid[1], merge)
    ]
    grid = [row for part in packed for row in part[1]]
    seen = reference.model.visual(pixels, grid, torch.cat(places))
    return seen.view(len(visual.images), visual.tokens_per_image, -1)


def pictures(
    visual: VisualInput, data: Sequence[Any], kind: str, frame_s: float | None = None
) -> list[Picture]:
    times = np.arange(16) * (frame_s or 0.0)
    return [
        Picture(
            key=f"{visual.segment_id} {kind} {index}",
            time_s=float(visual.times_s[index]),
            tokens=visual.tokens_per_image,
            data=data[index],
            size=0,
            runs=tuple(runs_of(visual.positions[index], times)) if frame_s is not None else (),
        )
        for index in range(len(data))
    ]


def pixels_of(visual: VisualInput, frame_s: float | None = None) -> list[Picture]:
    data = [
        Pixels(image=image, positions=positions)
        for image, positions in zip(visual.images, visual.positions, strict=True)
    ]
    return pictures(visual, data, "pixels", frame_s)


def seen_of(
    visual: VisualInput, reference: mage_reference.Reference, frame_s: float | None = None
) -> list[Picture]:
    return pictures(visual, list(tokens_of(visual, reference)), "seen", frame_s)


def whole_ids(draft: Draft, config: MageConfig) -> list[int]:
    """The prompt with all its pads, spread by hand."""
    items = iter(getattr(draft.prompt, "items", ()))
    ids: list[int] = []
    for token in draft.prompt.ids:
        if token != config.image_token_id:
            ids.append(token)
            continue
        item = next(items)
        ids += getattr(item.data, "ids", [token] * item.tokens)
    assert len(ids) == draft.tokens
    return ids


async def greedy(engine: VllmEngine, draft: Draft) -> list[int]:
    deltas = await vllm_tiny.answer(engine, draft.prompt, Sampling(max_tokens=LENGTH, ignore_end=True))
    assert deltas[-1].prompt_tokens == draft.tokens
    return vllm_tiny.ids_of(deltas)


def expected(
    draft: Draft, visual: Sequence[Any], config: MageConfig, reference: mage_reference.Reference
) -> list[int]:
    ids = whole_ids(draft, config)
    seen = torch.cat([part.flatten(0, 1) for part in visual]) if visual else None
    return reference.greedy(reference.merged(ids, seen), LENGTH)


async def test_words_alone(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    draft = writer.draft((), "What did you see?", instructions="Be quiet.", said=SAID)
    assert await greedy(mage_engine, draft) == expected(draft, [], config, reference)


@pytest.mark.parametrize("canvas", [False, True])
async def test_pixels_and_embeddings_give_the_tokens_of_plain_torch(
    mage_engine: VllmEngine,
    writer: ChatWriter,
    config: MageConfig,
    reference: mage_reference.Reference,
    canvas: bool,
) -> None:
    windows = [window(1, canvas=canvas), window(2, frames=2, height=96, width=64, canvas=canvas)]
    frame_s = 0.25 if canvas else None
    looked = [picture for visual in windows for picture in pixels_of(visual, frame_s)]
    given = [picture for visual in windows for picture in seen_of(visual, reference, frame_s)]
    wanted = expected(
        draft := writer.draft(given, "And now?", said=SAID),
        [tokens_of(visual, reference) for visual in windows],
        config,
        reference,
    )
    assert len(set(wanted)) > 3, "an answer of one token would tell nothing"
    assert await greedy(mage_engine, draft) == wanted
    assert await greedy(mage_engine, writer.draft(looked, "And now?", said=SAID)) == wanted


async def test_a_picture_of_any_size_is_resized_as_published(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    """As vLLM's own server gives it: PIL's, or an array."""
    image = np.random.default_rng(0).integers(0, 256, (70, 100, 3), dtype=np.uint8)
    resized = Image.fromarray(image).resize((96, 64), Image.Resampling.BICUBIC)
    pixels, grid, places = mage_reference.patches(np.array(resized), reference.tree)
    seen = reference.model.visual(pixels, grid, places)[None]
    for index, data in enumerate((Image.fromarray(image), image)):
        still = Picture(key=f"still {index}", time_s=None, tokens=6, data=data, size=0)
        draft = writer.draft([still], "what?")
        assert await greedy(mage_engine, draft) == expected(draft, [seen], config, reference)


async def test_pictures_matter(
    mage_engine: VllmEngine, writer: ChatWriter, reference: mage_reference.Reference
) -> None:
    """Else the tests above would pass for a model that does not look."""
    one, other = (seen_of(window(seed), reference) for seed in (3, 4))
    answers = [await greedy(mage_engine, writer.draft(seen, "what?")) for seen in (one, other)]
    assert answers[0] != answers[1]


async def test_a_batch_gives_what_each_gives_alone(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    """Pixels, embeddings, canvases and words at once, some with pictures of two sizes."""
    drafts: list[Draft] = []
    wanted: list[list[int]] = []
    for seed in range(10, 18):
        visual = window(seed, frames=1 + seed % 3, height=32 * (1 + seed % 2), canvas=seed % 4 == 0)
        frame_s = 0.5 if seed % 4 == 0 else None
        shown = pixels_of(visual, frame_s) if seed % 2 else seen_of(visual, reference, frame_s)
        looked = [tokens_of(visual, reference)]
        if seed % 3 == 0:
            more = window(seed + 100, frames=1, height=128)
            shown += pixels_of(more)
            looked.append(tokens_of(more, reference))
        drafts.append(writer.draft(shown, f"question {seed}", said=SAID))
        wanted.append(expected(drafts[-1], looked, config, reference))
    found = await asyncio.gather(*(greedy(mage_engine, draft) for draft in drafts))
    assert found == wanted


async def test_a_prompt_is_read_in_steps_that_part_a_picture(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    """Longer than a step of the engine, which is 1,024 tokens here, and near the end of its context."""
    rng = np.random.default_rng(0)
    seen = torch.from_numpy(rng.standard_normal((8, 230, 64), dtype=np.float32))
    shown = [
        Picture(key=f"long {index}", time_s=index / 2, tokens=230, data=data, size=0)
        for index, data in enumerate(seen)
    ]
    draft = writer.draft(shown, "what?")
    assert mage_engine.info.context_tokens is not None
    assert 1024 < draft.tokens < mage_engine.info.context_tokens - LENGTH
    assert await greedy(mage_engine, draft) == expected(draft, [seen], config, reference)


async def test_windows_that_stay_are_not_read_again(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    """A later prompt with the same first windows finds them in the prefix cache, and answers as without."""
    windows = [window(seed, frames=4, height=128, width=128) for seed in (30, 31, 32)]
    seen = [seen_of(visual, reference) for visual in windows]
    first = writer.draft([*seen[0], *seen[1]], "what?")
    later = writer.draft([*seen[0], *seen[1], *seen[2]], "and now?")
    await greedy(mage_engine, first)
    before = figure(mage_engine, "language_cache_found_tokens")
    answer = await greedy(mage_engine, later)
    found = figure(mage_engine, "language_cache_found_tokens") - before
    shared = common(whole_ids(first, config), whole_ids(later, config))
    assert shared > 8 * 16, "eight frames of 16 tokens are the same"
    block = vllm_tiny.ENGINE["block_size"]
    assert found == shared // block * block
    visual = [tokens_of(visual, reference) for visual in windows]
    assert answer == expected(later, visual, config, reference)


async def test_prompts_that_are_given_up_leave_their_pictures_as_they_were(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    """Cancelled before the engine has them, while it looks, and while it answers."""
    windows = [window(seed, frames=4, height=128, width=128) for seed in (50, 51)]
    draft = writer.draft([picture for visual in windows for picture in pixels_of(visual)], "what?")
    for turns in (0, 1, 2, 3, 5, 8):
        asking = asyncio.create_task(greedy(mage_engine, draft))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
    begun = mage_engine.generate(draft.prompt, Sampling(max_tokens=LENGTH, ignore_end=True))
    async with contextlib.aclosing(begun):
        await anext(begun)
    visual = [tokens_of(visual, reference) for visual in windows]
    assert await greedy(mage_engine, draft) == expected(draft, visual, config, reference)


async def test_another_picture_of_the_same_shape_is_not_taken_for_it(
    mage_engine: VllmEngine, writer: ChatWriter, config: MageConfig, reference: mage_reference.Reference
) -> None:
    for seed in (40, 41):
        visual = window(seed, frames=4, height=128, width=128)
        draft = writer.draft(pixels_of(visual), "what?")
        wanted = expected(draft, [tokens_of(visual, reference)], config, reference)
        assert await greedy(mage_engine, draft) == wanted


@pytest.mark.parametrize(
    "data",
    [
        torch.zeros(6, 32),
        torch.zeros(5, 64),
        torch.zeros(6, 64, dtype=torch.int32),
        np.zeros((6, 64), np.float32),
        Pixels(image=np.zeros((64, 90, 3), np.uint8), positions=np.zeros((4, 6, 3), np.int32)),
        Pixels(image=np.zeros((64, 96, 3), np.uint8), positions=np.zeros((4, 4, 3), np.int32)),
        Pixels(image=np.zeros((64, 96, 4), np.uint8), positions=np.zeros((4, 6, 3), np.int32)),
        Pixels(image=np.zeros((64, 96, 3), np.int16), positions=np.zeros((4, 6, 3), np.int32)),
        Pixels(image=np.zeros((0, 96, 3), np.uint8), positions=np.zeros((0, 6, 3), np.int32)),
        Spread(data=torch.zeros(6, 64), ids=(1, 2, 3, 4, 5, 6)),
        np.zeros((4, 4000, 3), np.uint8),
        None,
    ],
    ids=[
        *("width", "count", "integers", "numpy", "size", "positions", "channels", "type", "empty", "spread"),
        *("ribbon", "nothing"),
    ],
)
async def test_a_picture_that_is_none_is_refused_and_the_engine_lives(
    mage_engine: VllmEngine, writer: ChatWriter, data: Any
) -> None:
    odd = Picture(key="odd", time_s=0.0, tokens=6, data=data, size=0)
    with pytest.raises(DuplexError) as refused:
        await greedy(mage_engine, writer.draft([odd], "what?"))
    assert refused.value.code is ErrorCode.INVALID_VALUE
    assert len(await greedy(mage_engine, writer.draft((), "what?"))) == LENGTH


def figure(engine: VllmEngine, name: str) -> float:
    return next(figure.value for figure in engine.figures() if figure.name == name)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two prompts begin with in common."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)
