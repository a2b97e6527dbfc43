"""The stepped gate against the whole history, computed by the straightforward reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="the reference needs transformers")

import mage_reference  # noqa: E402

from duplex.adapters.mage_vl.gate import Gate  # noqa: E402
from duplex.adapters.mage_vl.tiny import tiny_config, tiny_gate_weights, write_tiny_checkpoint  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), seed=7)


@pytest.fixture(scope="module")
def whole(folder: Path) -> mage_reference.Gate:
    return mage_reference.load_reference(folder)[1]


@pytest.fixture(scope="module")
def gate() -> Gate:
    weights = {name: torch.from_numpy(v) for name, v in tiny_gate_weights(CONFIG, 7).items()}
    return Gate(CONFIG.gate_config, weights)


def stream(frames: int, tokens: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, tokens, 64, generator=generator)


def near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_segment_by_segment_is_the_whole_history(
    gate: Gate, whole: mage_reference.Gate, cuts: Sequence[int], seed: int
) -> None:
    tokens = stream(sum(cuts), seed=seed)
    state = gate.new_state()
    stepped = torch.cat([gate.step([(part, state)])[0] for part in tokens.split(list(cuts))])
    ends = torch.tensor(cuts).cumsum(0).tolist()
    near(stepped, whole(tokens, ends))
    near(stepped, whole(tokens))  # the second token of a pair changes nothing
    near(gate.step([(tokens, gate.new_state())])[0], whole(tokens))
    assert state.frames == len(tokens)


_batches = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=4),  # sessions of a batch
    min_size=1,
    max_size=4,
)


@given(batches=_batches, last_only=st.booleans())
@settings(max_examples=25, deadline=None)
def test_sessions_of_any_lengths_together_are_each_alone(
    gate: Gate, batches: list[list[tuple[int, int]]], last_only: bool
) -> None:
    together = {session: gate.new_state() for session in range(5)}
    alone = {session: gate.new_state() for session in range(5)}
    for turn, batch in enumerate(batches):
        sessions = dict(batch)
        segments = {
            session: stream(frames, 1 + session, seed=10 * turn + session)
            for session, frames in sessions.items()
        }
        got = gate.step([(segments[session], together[session]) for session in sessions], last_only=last_only)
        for session, probabilities in zip(sessions, got, strict=True):
            [wanted] = gate.step([(segments[session], alone[session])])
            near(probabilities, wanted[-1:] if last_only else wanted)
            near(together[session].memory, alone[session].memory)
    assert [together[s].frames for s in together] == [alone[s].frames for s in alone]


def test_the_tiny_gate_says_both_yes_and_no(gate: Gate) -> None:
    [probabilities] = gate.step([(stream(64), gate.new_state())])
    assert probabilities.min() < 0.4
    assert probabilities.max() > 0.6


def test_it_remembers_more_frames_than_its_convolution_sees(gate: Gate) -> None:
    first, second = gate.new_state(), gate.new_state()
    gate.step([(stream(1, seed=1), first), (stream(1, seed=2), second)])
    rest = stream(6, seed=3)
    got, other = gate.step([(rest, first), (rest, second)])
    assert not torch.allclose(got[-1], other[-1], atol=1e-6)


def test_half_precision_tokens_are_averaged_in_full(gate: Gate) -> None:
    tokens = stream(4, 50).bfloat16()
    near(gate.step([(tokens, gate.new_state())])[0], gate.step([(tokens.float(), gate.new_state())])[0])


def test_the_hundredth_segment_costs_what_the_first_does(gate: Gate) -> None:
    """Counted in the operations that torch runs, not in time."""
    from torch.profiler import ProfilerActivity, profile

    def operations(state: object) -> list[tuple[str, int]]:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            gate.step([(stream(8), state)])  # type: ignore[list-item]
        events = seen.key_averages(group_by_input_shape=True)
        return sorted((f"{event.key}{event.input_shapes}", event.count) for event in events)

    state = gate.new_state()
    first = operations(state)
    for _ in range(98):
        gate.step([(stream(8), state)])
    assert state.frames == 99 * 8
    assert operations(state) == first
    assert state.memory.shape == gate.new_state().memory.shape


@pytest.mark.parametrize("shape", [(0, 3, 64), (2, 0, 64), (2, 3, 32), (2, 64)])
def test_odd_tokens_are_refused_and_move_no_state(gate: Gate, shape: tuple[int, ...]) -> None:
    good = gate.new_state()
    with pytest.raises(DuplexError, match="the gate takes tokens of shape") as told:
        gate.step([(stream(2), good), (torch.zeros(shape), gate.new_state())])
    assert told.value.code is ErrorCode.INVALID_MEDIA
    assert good.frames == 0
    assert not good.memory.any()


def test_a_session_cannot_come_twice(gate: Gate) -> None:
    state = gate.new_state()
    with pytest.raises(ValueError, match="once at a time"):
        gate.step([(stream(2), state), (stream(2), state)])
    assert gate.step([]) == []
