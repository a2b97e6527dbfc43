"""Which blocks of a group are chosen, and how they are laid out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from window_pieces import cut_from, patches

from duplex.adapters.mage_vl.windows.selection import (
    GROUP_FRAMES,
    GROUP_IMAGES,
    Candidate,
    Canvases,
    block_scores,
    canvases,
)
from duplex.adapters.mage_vl.windows.types import VisualInput


def group_of(count: int, rows: int, columns: int, seed: int, **changes: object) -> list[Candidate]:
    random = np.random.default_rng(seed)
    return [
        Candidate(
            index=2 * number + 3,
            pts_ms=40.0 * number,
            key=bool(changes.get("keys")) and random.random() < 0.3,
            image=random.integers(0, 256, (rows * 32, columns * 32, 3), np.uint8),
            scores=random.integers(0, 5, (rows, columns)).astype(np.float32),  # with many ties
        )
        for number in range(count)
    ]


def as_input(made: Canvases) -> VisualInput:
    return VisualInput(
        images=made.images,
        positions=made.positions,
        times_s=made.pts_ms,
        segment_id="",
        pts_ms=0,
        duration_ms=0,
    )


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, GROUP_FRAMES),
    rows=st.integers(1, 4),
    columns=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    keys=st.booleans(),
)
def test_canvases_of_any_group(count: int, rows: int, columns: int, seed: int, keys: bool) -> None:
    group = group_of(count, rows, columns, seed, keys=keys)
    seen = as_input(canvases(group))
    shown = [frame for frame in group if not frame.key] or group

    assert len(seen.images) == min(len(shown), GROUP_IMAGES)
    assert seen.visual_tokens == len(seen.images) * rows * columns
    # every patch is the pixels of the place that it names
    pictures = np.zeros((2 * count + 3, rows * 32, columns * 32, 3), np.uint8)
    for frame in group:
        pictures[frame.index] = frame.image
    np.testing.assert_array_equal(patches(seen), cut_from(seen, pictures))
    # none is there twice, none is of a key frame
    flat = seen.positions.reshape(-1, 3)
    assert len(np.unique(flat, axis=0)) == len(flat)
    assert set(flat[:, 0].tolist()) <= {frame.index for frame in shown}
    assert (flat[:, 1:] < (rows * 2, columns * 2)).all()
    # the four patches of a token are one block of the source
    blocks = seen.positions.reshape(len(seen.images), rows, 2, columns, 2, 3).transpose(0, 1, 3, 2, 4, 5)
    corner = blocks[:, :, :, :1, :1]
    assert (corner[..., 1:] % 2 == 0).all()
    np.testing.assert_array_equal(
        blocks - corner, np.broadcast_to([[[0, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 1]]], blocks.shape)
    )
    # first the anchor, whole; then by time and place
    assert (seen.positions[0, ..., 0] == shown[0].index).all()
    order = corner[1:, :, :, 0, 0].reshape(-1, 3).tolist()
    assert order == sorted(order)
    assert seen.times_s.tolist() == [(positions[..., 0].min() - 3) / 2 * 40 for positions in seen.positions]


@settings(deadline=None, max_examples=60)
@given(count=st.integers(2, GROUP_FRAMES), seed=st.integers(0, 2**32 - 1))
def test_no_block_that_was_left_out_scores_more(count: int, seed: int) -> None:
    group = group_of(count, 3, 4, seed)
    made = canvases(group)
    chosen = {(t, row // 2, column // 2) for t, row, column in made.positions[1:].reshape(-1, 3).tolist()}
    scores = {
        (frame.index, row, column): frame.scores[row, column]
        for frame in group[1:]
        for row in range(3)
        for column in range(4)
    }
    left = [score for place, score in scores.items() if place not in chosen]
    assert len(chosen) == min(len(scores), 3 * 3 * 4)
    assert max(left, default=-1) <= min(scores[place] for place in chosen)


def test_frames_that_show_nothing_are_left_out() -> None:
    group = group_of(6, 2, 2, seed=1)
    for at in (0, 3):
        black = np.zeros_like(group[at].image)
        loud = np.full_like(group[at].scores, 99)
        group[at] = Candidate(index=group[at].index, pts_ms=0, key=False, image=black, scores=loud)
    shown = set(canvases(group).positions[..., 0].ravel().tolist())
    assert shown.isdisjoint({3, 9})


def test_a_group_of_blank_frames_still_gives_its_first() -> None:
    blank = [
        Candidate(
            index=i,
            pts_ms=0,
            key=False,
            image=np.full((64, 64, 3), 7, np.uint8),
            scores=np.zeros((2, 2), np.float32),
        )
        for i in range(5)
    ]
    made = canvases(blank)
    assert made.images.shape == (1, 64, 64, 3)
    assert (made.positions[..., 0] == 0).all()


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e6))
def test_scores_are_bounded_and_follow_the_costs(seed: int, scale: float) -> None:
    costs = (np.random.default_rng(seed).random((16, 24)) * scale).astype(np.float32)
    scores = block_scores(costs)
    assert scores.shape == (4, 6)
    assert 0 <= scores.min() <= scores.max() <= 16
    more = costs.copy()
    more[4:8, 4:8] *= 2
    assert block_scores(more)[1, 1] >= scores[1, 1] * 0.9  # the frame's own scale moves a little
    assert block_scores(np.zeros((8, 8), np.float32)).max() == 0


def test_noise_of_a_few_bits_is_not_blown_up() -> None:
    costs = np.full((16, 16), 0.05, np.float32)
    busy = np.full((16, 16), 500.0, np.float32)
    assert block_scores(costs).max() < 0.05 * block_scores(busy).min()
