"""The frame loop's kernels in Triton's interpreter beside plain torch: prints what was found, as JSON.

    TRITON_INTERPRET=1 python kernels_interpreted.py

Runs in a process of its own, because Triton decides at import whether to interpret. Each launch takes a
hundredth of a second: few layers, groups and codes, and few frames.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from torch import Tensor

from duplex.adapters.qwen3_tts import triton_math
from duplex.adapters.qwen3_tts.config import DecoderConfig, TalkerConfig, TtsConfig
from duplex.adapters.qwen3_tts.core import Core, PrefixCache, SlotState
from duplex.adapters.qwen3_tts.job import Sampling
from duplex.adapters.qwen3_tts.tiles import Tile
from duplex.adapters.qwen3_tts.triton_math import TritonMath
from duplex.adapters.qwen3_tts.weights import random_weights

torch.set_num_threads(1)
SLOTS = 5
SCRATCH = SLOTS
POSITIONS = 256
"""Eight shares of 32."""
PADDED = (2, 4)
"""Rows of a launch: one request has a row of padding beside it."""
END = 300
SEEN = 17

triton_math.BUCKETS = (1, 2, 4)  # type: ignore[misc]
triton_math.PROMPT_BUCKETS = (4, 12)  # type: ignore[misc]
# a row alone has eight blocks for its shares, two rows four, four rows two, twelve one
triton_math._BLOCKS = ((1, 8), (2, 4), (4, 2))  # type: ignore[misc]
triton_math._LEAST_BLOCKS = 1  # type: ignore[misc]


def config(*, hidden: int, groups: int, predictor_layers: int) -> TtsConfig:
    """The predictor is 64 wide: another width of the talker needs a projection. 256 codes 0."""
    predictor = DecoderConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=predictor_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=128,
    )
    talker = TalkerConfig(
        hidden_size=hidden,
        intermediate_size=192,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        text_hidden_size=64,
        text_vocab_size=256,
        vocab_size=256 + 1024,
        codec_eos_token_id=END,
        num_code_groups=groups,
        code_predictor_config=predictor,
    )
    return TtsConfig(talker_config=talker, tts_model_type="custom_voice", tts_pad_token_id=5)


def pair(config: TtsConfig, *, max_batch: int, prefill_rows: int) -> tuple[Core, Core]:
    """Plain torch and Triton with the same weights, in float32."""
    weights = random_weights(config, None, 0, 0.1, dtype=torch.float32)
    plain, core = (
        Core(
            config,
            weights,
            device="cpu",
            dtype=torch.float32,
            slots=SLOTS,
            positions=POSITIONS,
            max_batch=max_batch,
            prefill_rows=prefill_rows,
        )
        for _ in range(2)
    )
    core._math = TritonMath(core, pdl=False)
    return plain, core


def without_warm_up(core: Core) -> None:
    """Its launches as they are: warming up would make each of them once more."""
    math = core._math
    assert isinstance(math, TritonMath)
    math._graphs = {rows: partial(math._frame, rows) for rows in math._buckets}
    math._buckets = PADDED
    math._prompt_graphs = {rows: partial(math._prompt_rows, rows) for rows in math._prompt_buckets}


@dataclass(frozen=True, kw_only=True)
class Request:
    """`prefix` positions are there before the prompt of `rows`. `frame` is its first frame's number, `text`
    how many text rows it has from there on."""

    sampling: Sampling
    seed: int
    rows: int = 0
    prefix: int = 0
    frame: int = 0
    text: int = 0


GREEDY = Request(
    sampling=Sampling(temperature=0.0, predictor_temperature=0.0, repetition_penalty=1.5), seed=5, rows=6
)
# its prompt goes past the third share's end; the rings of text and of codes begin anew at its second frame
LONG = Request(sampling=Sampling(), seed=2**63 + 7, rows=7, prefix=188, frame=255, text=2)
OPEN = Request(sampling=Sampling(top_k=0, predictor_top_k=1), seed=-3, rows=4, text=1)
BEST = Request(sampling=Sampling(top_k=1, predictor_top_k=0, temperature=2.0), seed=8, rows=2, text=9)


def begin(core: Core, slot: int, request: Request) -> None:
    """All but the prompt."""
    core.reset(slot, seed=request.seed, sampling=request.sampling)
    core.copy_prefix(slot, prefix(core, request.prefix))
    core.state.frame[slot] = request.frame
    cells = core.text_cells(slot, range(request.frame, request.frame + request.text))
    core.put_text(torch.tensor(cells, dtype=torch.int64), core.text_rows(torch.arange(request.text) + 40))
    core.end_text(slot, request.frame + request.text)


def prefix(core: Core, length: int) -> PrefixCache:
    """As if a prompt of so many rows had gone before."""
    talker = core.config.talker_config
    shape = (talker.num_hidden_layers, talker.num_key_value_heads, length, talker.head_dim)
    generator = torch.Generator().manual_seed(length)
    return PrefixCache(*(torch.randn(shape, generator=generator) for _ in range(2)))


def prefill(core: Core, work: dict[int, Request], start: int = 0, stop: int = 99) -> None:
    """Rows `start` to `stop` of the slots' prompts, in one launch."""
    rows, slots, positions, last = [], [], [], []
    for slot, request in work.items():
        for i in range(start, min(stop, request.rows)):
            rows.append(i * 7 + request.seed % 91)
            slots.append(slot)
            positions.append(request.prefix + i)
            last.append(i == request.rows - 1)
    core.prefill(
        core.text_rows(torch.tensor(rows)),
        torch.tensor(slots),
        torch.tensor(positions),
        torch.tensor(last),
    )


def frame(core: Core, slots: Sequence[int]) -> list[list[int]]:
    """One frame of each; every row's codes, which the ticket's code 0 and frame number must agree with."""
    first, frames = core.launch_frame(slots).result()
    codes = core.codes[list(slots), torch.from_numpy(frames).long() % core.frames_kept]
    assert np.array_equal(first, codes[:, 0].numpy())
    rows: list[list[int]] = codes.tolist()
    return rows


def gap(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def state_gaps(cores: tuple[Core, Core], slots: Sequence[int]) -> float:
    """How far hidden states, and keys and values of the slots' positions, are from one another."""
    left, right = (core.state for core in cores)
    gaps = [gap(left.hidden[slot], right.hidden[slot]) for slot in slots]
    for slot in slots:
        length = int(left.position[slot])
        for name in ("keys", "values"):
            caches = (getattr(state, name)[:, slot, :, :length] for state in (left, right))
            gaps.append(gap(*caches))
    return max(gaps)


def counters(core: Core, slots: Sequence[int]) -> list[list[int]]:
    state = core.state
    at = list(slots)
    seen = state.seen[at].sum(1)
    return [state.position[at].tolist(), state.frame[at].tolist(), seen.tolist()]


def by_slot(state: SlotState) -> dict[str, Tensor]:
    """Everything that a slot has, slots first."""
    tensors = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: t.transpose(0, 1) if name in ("keys", "values") else t for name, t in tensors.items()}


@contextlib.contextmanager
def untouched(core: Core, slots: Sequence[int], found: list[str]) -> Iterator[None]:
    """Note what changes outside the given slots and the scratch slot."""
    others = [slot for slot in range(SLOTS) if slot not in slots]
    before = {name: t[others].clone() for name, t in by_slot(core.state).items()}
    yield
    after = by_slot(core.state)
    found += [name for name, tensor in before.items() if not torch.equal(tensor, after[name][others])]


def frames_of_a_batch(cores: tuple[Core, Core]) -> dict[str, object]:
    """Requests join and leave; the longest one then runs alone, its prompt in one piece."""
    requests = {0: GREEDY, 3: LONG, 1: OPEN, 4: BEST}
    short = {slot: request for slot, request in requests.items() if slot != 3}
    changed: list[str] = []
    codes: tuple[list[object], ...] = ([], [])
    gaps = []

    def both(slots: Sequence[int], work: Callable[[Core], object]) -> None:
        codes[0].append(work(cores[0]))
        with untouched(cores[1], slots, changed):
            codes[1].append(work(cores[1]))
        gaps.append(state_gaps(cores, slots))

    for slot, request in requests.items():
        for core in cores:
            begin(core, slot, request)
    both([*short], lambda core: prefill(core, short))
    both([3], lambda core: (prefill(core, {3: LONG}, stop=4), prefill(core, {3: LONG}, start=4)))
    for slots in ([0, 3], [4, 0, 3, 1], [3, 4, 1], [0]):
        both(slots, lambda core, slots=slots: frame(core, slots))  # type: ignore[misc]

    # a prompt in one launch, then frames alone and with a row of padding
    core, state = cores[1], cores[1].state
    math = core._math
    assert isinstance(math, TritonMath)
    begin(core, 2, LONG)
    prefill(core, {2: LONG})
    for alone in (True, False, True):
        math._buckets = (1, *PADDED) if alone else PADDED
        frame(core, [2])
    names = ("hidden", "position", "frame", "codes", "seen")
    same = {name: torch.equal(getattr(state, name)[2], getattr(state, name)[3]) for name in names}
    for name in ("keys", "values"):
        same[name] = torch.equal(getattr(state, name)[:, 2], getattr(state, name)[:, 3])
    return {
        "codes": codes,
        "gaps": gaps,
        "counters": [counters(core, [*requests]) for core in cores],
        "changed": changed,
        "same alone": same,
        "scratch": [int(state.position[SCRATCH]), int(state.frame[SCRATCH])],
    }


def asked_codes(cores: tuple[Core, Core]) -> list[list[int]]:
    """Code 0 of rows whose hidden state asks for the end code, in frames 0 (greedy), 1 (sampled) and 2
    (greedy), and of one whose hidden state asks for a code that was there before."""
    greedy, sampled = Sampling(temperature=0.0, repetition_penalty=50.0), Sampling()
    found = []
    for core in cores:
        asked = ((greedy, 0, END), (sampled, 1, END), (greedy, 2, END), (greedy, 5, SEEN))
        for slot, (sampling, number, code) in enumerate(asked):
            begin(core, slot, Request(sampling=sampling, seed=slot, frame=number))
            core.state.hidden[slot] = 20 * core.weights.codec_head[code]
        core.state.seen[3, SEEN] = 1
        found.append([row[0] for row in frame(core, [0, 1, 2, 3])])
    return found


def without_projection() -> dict[str, object]:
    """A talker as wide as the predictor, two layers of that, and tiles that fetch ahead."""
    triton_math.BUCKETS = ()  # type: ignore[misc]
    triton_math.PROMPT_BUCKETS = ()  # type: ignore[misc]
    ahead = itertools.cycle((1, 2, 3, 4))
    triton_math.tile_of = lambda n, k, rows: Tile(64, 16, next(ahead), 2, 4)  # type: ignore[assignment]
    cores = pair(config(hidden=64, groups=4, predictor_layers=2), max_batch=1, prefill_rows=1)
    assert cores[1].weights.predictor_input is None
    cores[1].warm_up()
    for core in cores:
        request = Request(sampling=Sampling(), seed=4, rows=1)
        begin(core, 0, request)
        prefill(core, {0: request})
    return {"codes": [frame(core, [0]) for core in cores], "gaps": [state_gaps(cores, [0])]}


@contextlib.contextmanager
def copies_with_gaps(found: list[str]) -> Iterator[None]:
    """Note the copies of which nobody should wait, but that torch makes in a way that does."""
    copy_ = Tensor.copy_

    def noting(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if non_blocking and not (self.is_contiguous() and source.is_contiguous()):
            found.append(f"{[*source.shape]} to {[*self.shape]}")
        return copy_(self, source, non_blocking)

    Tensor.copy_ = noting  # type: ignore[method-assign, assignment]
    yield
    Tensor.copy_ = copy_  # type: ignore[method-assign]


def main() -> None:
    cores = pair(config(hidden=128, groups=4, predictor_layers=1), max_batch=4, prefill_rows=12)
    assert cores[1].weights.predictor_input is not None
    without_warm_up(cores[1])
    gaps: list[str] = []
    with copies_with_gaps(gaps):
        batch = frames_of_a_batch(cores)
    found = {
        "batch": batch,
        "copies with gaps": gaps,
        "asked": asked_codes(cores),
        "no projection": without_projection(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
