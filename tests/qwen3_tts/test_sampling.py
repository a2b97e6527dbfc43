"""Drawing codes from logits: what may be drawn, how often, and from which noise."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra qwen3-tts")

from torch import Tensor  # noqa: E402

from duplex.adapters.qwen3_tts.sampling import draw, first_code_logits, philox  # noqa: E402

LOGITS = torch.tensor([2.0, 1.5, 0.0, -1.0, 1.9])
"""Best first: codes 0, 4, 1, 2, 3."""


def drawn(rows: int, *, temperature: Any = 1.0, top_k: int = 0, seed: int = 0, **changes: Any) -> Tensor:
    """The codes of `rows` frames of one request; `temperature` one number or one a row."""
    given = {
        "temperature": torch.as_tensor(temperature).expand(rows),
        "top_k": torch.full((rows,), float(top_k)),
        "seed": torch.full((rows,), seed),
        "frame": torch.arange(rows),
        "group": 0,
    }
    codes: Tensor = draw(LOGITS.repeat(rows, 1), **{**given, **changes})
    return codes


def test_noise_is_that_of_philox() -> None:
    """Key and counter 0 of Random123's known answers for philox4x32-10."""
    found = float(philox(torch.tensor([0]), torch.tensor([0])))
    assert found == pytest.approx(0x6627E8D5 / 2**31, rel=1e-6)


def test_noise_is_uniform_and_of_its_own_for_every_seed_and_count() -> None:
    counts = torch.arange(20_000)
    for seed in (0, 1, -1, 2**40):
        noise = philox(torch.full_like(counts, seed), counts)
        assert float(noise.min()) >= 0
        assert float(noise.max()) < 1
        assert float(noise.mean()) == pytest.approx(0.5, abs=0.01)
        assert float(noise.var()) == pytest.approx(1 / 12, abs=0.002)
    one, other = (philox(torch.full_like(counts, seed), counts) for seed in (1, 2**32 + 1))
    assert float((one == other).float().mean()) < 0.01  # the key's upper half counts


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.7, 0), (1.5, 3), (1.0, 2), (1.0, 99)])
def test_codes_come_as_often_as_their_softmax_says(temperature: float, top_k: int) -> None:
    rows = 20_000
    found = torch.bincount(drawn(rows, temperature=temperature, top_k=top_k, seed=7), minlength=5) / rows
    kept = LOGITS.clone()
    if 0 < top_k < 5:
        kept[LOGITS.argsort(descending=True)[top_k:]] = -torch.inf
    assert torch.allclose(found, (kept / temperature).softmax(0), atol=0.012)


def test_the_best_code_is_taken_without_temperature_or_with_one_to_choose_from() -> None:
    assert drawn(50, temperature=0.0).unique().tolist() == [0]
    assert drawn(50, temperature=3.0, top_k=1).unique().tolist() == [0]


def test_a_row_draws_the_same_whatever_the_others_are() -> None:
    """Greedy rows among sampled ones too, which alone make no noise."""
    temperature = torch.tensor([0.0, 1.0, 0.0, 2.0])
    together = drawn(4, temperature=temperature, seed=3)
    for row in range(4):
        one = slice(row, row + 1)
        alone = draw(
            LOGITS[None],
            temperature=temperature[one],
            top_k=torch.zeros(1),
            seed=torch.tensor([3]),
            frame=torch.tensor([row]),
            group=0,
        )
        assert alone.tolist() == together[one].tolist()


def test_seed_frame_and_group_decide() -> None:
    codes = drawn(200, seed=1)
    assert torch.equal(codes, drawn(200, seed=1))
    assert not torch.equal(codes, drawn(200, seed=2))
    assert not torch.equal(codes, drawn(200, seed=1, group=1))
    assert torch.equal(codes[1:], drawn(199, seed=1, frame=torch.arange(1, 200)))


def test_codes_that_were_there_are_penalised_and_control_codes_banned() -> None:
    logits = torch.tensor([[4.0, -4.0, 1.0, 9.0, 9.0, 9.0]]).repeat(3, 1)
    seen = torch.zeros(3, 6, dtype=torch.uint8)
    seen[:, :2] = 1
    found = first_code_logits(
        logits,
        seen=seen,
        frame=torch.tensor([0, 1, 2]),
        penalty=torch.tensor([2.0, 1.0, 2.0]),
        end=4,
        codes=3,
    )
    no = -torch.inf
    assert found.tolist() == [
        [2.0, -8.0, 1.0, no, no, no],
        [4.0, -4.0, 1.0, no, no, no],
        [2.0, -8.0, 1.0, no, 9.0, no],  # the end may come
    ]
