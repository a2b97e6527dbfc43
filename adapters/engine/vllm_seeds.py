"""Seeded draws on a CPU: what vLLM draws for half of a prompt does not count.

A prompt that is read in pieces is drawn for after each piece. vLLM throws such a draw away by setting the
request's generator back, which generators of CUDA can and those of a CPU cannot: it raises, and the engine
ends for all (vLLM 0.32). So here, on a CPU, the generators of these requests are put aside meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def draw_for_whole_prompts_alone() -> None:
    """Mend the runner of vLLM's CPU build; without one, or with one that is made otherwise, do nothing."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    except ImportError:
        return
    sample_tokens = getattr(CPUModelRunner, "sample_tokens", None)
    if sample_tokens is not None and "sample_tokens" not in vars(CPUModelRunner):  # not yet, it is inherited
        CPUModelRunner.sample_tokens = _without_halves(sample_tokens)


def _without_halves(sample_tokens: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(sample_tokens)
    def sample(self: Any, *args: Any, **fields: Any) -> Any:
        batch = self.input_batch
        halves = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        aside = {index: batch.generators.pop(index) for index in halves if index in batch.generators}
        try:
            return sample_tokens(self, *args, **fields)
        finally:
            batch.generators.update(aside)

    return sample
