"""The frame loop's Triton kernels beside its plain torch arithmetic, in the interpreter on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
from interpreter import interpreted

pytest.importorskip("torch", reason="needs the extra qwen3-tts")
pytest.importorskip("triton", reason="the kernels need triton")

NEAR = 1e-4
"""The largest difference of a hidden state, a key or a value, in float32; hidden states are about 1."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What `kernels_interpreted.py` saw; pairs are plain torch's and the kernels'."""
    answer: dict[str, Any] = json.loads(interpreted("kernels_interpreted.py").splitlines()[-1])
    return answer


def test_codes_of_a_changing_batch_are_those_of_plain_torch(found: dict[str, Any]) -> None:
    """Greedy and sampled rows, top_k 0, 1 and 50, shares of attention apart and together, text and code
    rings that begin anew."""
    plain, kernels = found["batch"]["codes"]
    assert [len(rows) for rows in kernels[2:]] == [2, 4, 3, 1]
    assert kernels == plain
    assert len({tuple(row) for rows in kernels[2:] for row in rows}) == 10


def test_states_of_a_changing_batch_are_those_of_plain_torch(found: dict[str, Any]) -> None:
    assert len(found["batch"]["gaps"]) == 6
    assert max(found["batch"]["gaps"]) < NEAR
    plain, kernels = found["batch"]["counters"]
    assert kernels == plain
    assert kernels[:2] == [[9, 198, 6, 4], [3, 258, 2, 2]]  # positions and frames


def test_nothing_but_a_launchs_own_slots_changes(found: dict[str, Any]) -> None:
    """Rows of padding write to the scratch slot alone."""
    assert found["batch"]["changed"] == []


def test_rows_of_padding_stay_at_the_scratch_slots_first_position(found: dict[str, Any]) -> None:
    """They went one position further with each launch: past the last one, over the next layer's first slot,
    and ever slower."""
    assert found["batch"]["scratch"] == [0, 0]


def test_alone_is_as_in_a_batch_to_the_bit(found: dict[str, Any]) -> None:
    """Also a prompt in one launch as in two, and shares of attention together as apart."""
    same = found["batch"]["same alone"]
    assert set(same) == {"hidden", "position", "frame", "codes", "seen", "keys", "values"}
    assert all(same.values()), same


def test_a_launch_never_waits_for_the_device(found: dict[str, Any]) -> None:
    """A frame's launch took 4.2 ms on a GPU: its results were copied from and to rows with gaps between."""
    assert found["copies with gaps"] == []


def test_the_end_comes_no_sooner_than_frame_2_and_repeats_cost(found: dict[str, Any]) -> None:
    plain, kernels = found["asked"]
    assert kernels == plain
    assert kernels[2] == 300
    assert 300 not in kernels[:2]
    assert kernels[3] != 17


def test_a_talker_as_wide_as_its_predictor_needs_no_projection(found: dict[str, Any]) -> None:
    plain, kernels = found["no projection"]["codes"]
    assert kernels == plain
    assert max(found["no projection"]["gaps"]) < NEAR
