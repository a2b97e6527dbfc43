"""Drawing codes: repetition penalty, suppression, top-k and Gumbel noise from a counter-based generator.

The noise of a code depends on the request's seed, the frame, the group and the code alone (Philox 4x32-10,
key the seed, counter `((frame * 16) + group) * 4096 + code`), so that a seed gives the same codes alone or in
any batch. A draw is the argmax of logits / temperature + noise over the k best: a draw from their softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIN_FRAMES = 2
"""The reference's `min_new_tokens`: a stream cannot end before."""
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def first_code_logits(
    logits: Tensor, *, seen: Tensor, frame: Tensor, penalty: Tensor, end: int, codes: int
) -> Tensor:
    """What code 0 is drawn from: penalised, and without what it may not be.

    `logits` (rows, v) float32, `seen` (rows, v) codes drawn before, `frame` and `penalty` (rows,). Ids from
    `codes` on are control codes; only the `end` code may be drawn of them, and not before `MIN_FRAMES`.
    """
    penalty = penalty[:, None]
    logits = torch.where(seen != 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    ids = torch.arange(logits.shape[1], device=logits.device)
    banned = (ids >= codes) & ((ids != end) | (frame[:, None] < MIN_FRAMES))
    return logits.masked_fill(banned, -torch.inf)


def draw(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, seed: Tensor, frame: Tensor, group: int
) -> Tensor:
    """One code a row: `logits` (rows, v) float32, everything else (rows,). Returns (rows,) int64.

    `temperature` 0 takes the best code, `top_k` 0 draws from all.
    """
    greedy = temperature <= 0
    if bool(greedy.all()):  # noise is the larger part of the work
        return logits.argmax(dim=1)
    rows, size = logits.shape
    scaled = logits / torch.where(greedy, torch.ones_like(temperature), temperature)[:, None]
    ordered = torch.sort(scaled, dim=1, descending=True).values
    last = torch.where(top_k <= 0, size, top_k).clamp(max=size).long() - 1
    least = ordered.gather(1, last[:, None])
    counter = (frame.long()[:, None] * 16 + group) * 4096 + torch.arange(size, device=logits.device)
    uniform = philox(seed.long()[:, None].expand(rows, size), counter)
    noise = -torch.log(-torch.log(uniform.clamp(min=1e-10)))
    noisy = torch.where(greedy[:, None], scaled, scaled + noise)
    return noisy.masked_fill(scaled < least, -torch.inf).argmax(dim=1)


def philox(seed: Tensor, counter: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), float32: the first word of Philox 4x32-10.

    `seed` int64, its bits the key; `counter` int64 below 2^32, the first word of the counter. Gives what
    `triton.language.rand` gives.
    """
    c0, c1 = counter & _MASK, torch.zeros_like(counter)
    c2, c3 = torch.zeros_like(counter), torch.zeros_like(counter)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c2, 0xCD9E8D57)
        high1, low1 = _multiply(c0, 0xD2511F53)
        c0, c1, c2, c3 = high0 ^ c1 ^ k0, low0, high1 ^ c3 ^ k1, low1
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    signed = torch.where(c0 >= 2**31, c0 - 2**32, c0)
    folded = torch.where(signed < 0, -signed - 1, signed)
    return folded.float() * 4.6566127342e-10


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of products of 32-bit numbers held in int64 (which would overflow whole)."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16)
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
