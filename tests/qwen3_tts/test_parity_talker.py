"""The frame loop against `qwen-tts` itself, on tiny random checkpoints of each variant.

The golden file holds the package's prompts in embeddings, its greedy codes and some of its logits;
golden/README.md says how it was made.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from golden_cases import CASES, LOGIT_FRAMES, Case

torch = pytest.importorskip("torch", reason="needs the extra qwen3-tts")
pytest.importorskip("tokenizers", reason="needs the extra qwen3-tts")

from golden_talker import (  # noqa: E402
    BY_NAME,
    Request,
    Spoken,
    begin,
    core_of,
    frame,
    golden,
    hidden,
    prefill,
    request_of,
    spans,
    speak,
    text_ids,
    weights_of,
)

from duplex.adapters.qwen3_tts.core import Core  # noqa: E402
from duplex.adapters.qwen3_tts.job import Sampling  # noqa: E402

END = 2150
LOGITS = 1e-4
"""The largest difference of a logit, in float32. The logits' standard deviation is 1.4."""

every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
        ),
    ],
)


@every_case
def test_the_weights_are_those_the_codes_were_made_with(case: Case) -> None:
    digest = hashlib.sha256()
    _, weights = weights_of(case)
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].numpy().tobytes())
    assert digest.hexdigest() == str(golden(case.name)["weights"])


@every_case
def test_the_text_ids_are_those_of_the_package(case: Case) -> None:
    """Its own tokenizer ran on the same files."""
    assert text_ids(case.text) == tuple(golden(case.name)["text_ids"][3:-5].tolist())


@devices
@every_case
def test_the_prompt_in_embeddings_is_that_of_the_package(case: Case, device: str) -> None:
    core, arrays = core_of(case, device=device), golden(case.name)
    request = request_of(case, core)
    assert_near(request.rows, arrays["prompt"], 1e-5)
    assert_near(core.pad_row, arrays["pad"], 1e-5)
    if len(request.trailing):
        assert_near(request.trailing, arrays["trailing"], 1e-5)
    else:  # nothing but tts_pad follows
        assert_near(core.pad_row, arrays["trailing"][0], 1e-5)
        assert len(arrays["trailing"]) == 1


@devices
@every_case
def test_greedy_codes_and_logits_are_those_of_the_package(case: Case, device: str) -> None:
    core, arrays = core_of(case, device=device), golden(case.name)
    expected = arrays["codes"]
    frames = len(expected)
    ends = frames < case.frames
    assert ends or frames >= 200
    spoken = speak(core, request_of(case, core), frames + ends)
    assert np.array_equal(np.stack(spoken.codes[:frames]), expected)
    if ends:
        assert spoken.codes[frames][0] == END
    head = weights_of(case)[1]["talker.codec_head.weight"]
    kept = [number for number in LOGIT_FRAMES if number < len(spoken.hidden)]
    assert len(kept) == len(arrays["logits"])
    for number, logits in zip(kept, arrays["logits"], strict=True):
        assert_near(head @ spoken.hidden[number], logits, LOGITS)


@devices
@pytest.mark.parametrize("size", [1, 3, 16, 52])
def test_a_prompt_prefilled_in_chunks_is_as_one_prefilled_whole(size: int, device: str) -> None:
    case = BY_NAME["base_context_whole"]
    core = core_of(case, device=device)
    request = request_of(case, core)
    assert len(request.rows) > size
    whole = speak(core, request, 12, slot=0)
    chunks = speak(core, request, 12, slot=1, size=size)
    assert_near(chunks.hidden[0], whole.hidden[0], 1e-5)
    assert np.array_equal(np.stack(chunks.codes), np.stack(whole.codes))
    assert np.array_equal(np.stack(chunks.codes), golden(case.name)["codes"][:12])


def test_a_saved_prefix_stands_for_its_rows() -> None:
    case = BY_NAME["custom_voice_whole"]
    core = core_of(case, slots=3)
    request = request_of(case, core)
    begin(core, 0, request)
    prefill(core, [(0, request, 0, len(request.rows))])
    prefix = core.save_prefix(0, 11)
    begin(core, 2, request)
    core.copy_prefix(2, prefix)
    prefill(core, [(2, request, 11, len(request.rows))])
    assert_near(hidden(core, 2), hidden(core, 0), 1e-5)
    spoken: dict[int, Spoken] = {}
    for _ in range(12):
        frame(core, [2], spoken)
    assert np.array_equal(np.stack(spoken[2].codes), golden(case.name)["codes"][:12])


@devices
def test_a_batch_of_eight_different_requests_is_as_each_alone(device: str) -> None:
    """They join one by one, half of them greedy, and leave at different frames; the prompts of two are
    prefilled together. Alone or not, the numbers are the same to the bit."""
    case = BY_NAME["custom_voice_whole"]
    core = core_of(case, slots=9, device=device)
    requests = eight_requests(case, core)
    frames = [40, 36, 32, 28, 24, 20, 16, 12]
    alone = [speak(core, request, count, slot=8) for request, count in zip(requests, frames, strict=True)]
    assert np.array_equal(np.stack(alone[0].codes), golden(case.name)["codes"][:40])
    assert len({made.codes[10].tobytes() for made in alone}) == 8

    order = [3, 0, 6, 1, 7, 2, 5, 4]  # slots are not in the order of the requests
    spoken: dict[int, Spoken] = {}
    running: list[int] = []
    for step in range(200):
        if step % 2 == 0 and step < 8:
            pair = (step, step + 1)
            for number in pair:
                begin(core, order[number], requests[number])
            prefill_together(core, [(order[number], requests[number]) for number in pair])
            running += pair
        running = [
            number
            for number in running
            if order[number] not in spoken or len(spoken[order[number]].codes) < frames[number]
        ]
        if not running:
            break
        frame(core, [order[number] for number in running], spoken)
    assert not running
    for number, made in enumerate(alone):
        together = spoken[order[number]]
        assert np.array_equal(np.stack(together.codes), np.stack(made.codes)), number
        assert torch.equal(torch.stack(together.hidden), torch.stack(made.hidden)), number


def eight_requests(case: Case, core: Core) -> list[Request]:
    sampled = Sampling()
    short = "Hello world, how are you?"
    return [
        request_of(case, core),
        request_of(case, core, sampling=sampled, seed=5),
        request_of(replace(case, whole=False), core),
        request_of(replace(case, speaker="ryan"), core, sampling=sampled, seed=6),
        request_of(replace(case, language="korean", instructions=""), core, text=short),
        request_of(replace(case, speaker="dylan"), core, sampling=sampled, seed=5, text=short),
        request_of(replace(case, whole=False, speaker=None, language="auto"), core),
        request_of(case, core, sampling=Sampling(top_k=3, temperature=1.5), seed=2**63 + 1),
    ]


def prefill_together(core: Core, work: list[tuple[int, Request]], size: int = 40) -> None:
    """Both prompts in the same launches, as long as both have rows left."""
    chunks = [list(spans(len(request.rows), size)) for _, request in work]
    for number in range(max(map(len, chunks))):
        prefill(
            core,
            [
                (slot, request, *own[number])
                for (slot, request), own in zip(work, chunks, strict=True)
                if number < len(own)
            ],
        )


def assert_near(ours: torch.Tensor, golden: np.ndarray | torch.Tensor, limit: float) -> None:
    ours = ours.float().cpu()
    golden = torch.as_tensor(golden)
    assert ours.shape == golden.shape
    assert float((ours - golden).abs().max()) <= limit
