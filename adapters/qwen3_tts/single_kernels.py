"""Triton kernels of a frame of one row, where links of the chain count more than bytes.

Each does what two kernels of `kernels.py` do, number for number: every block works out for itself what it
reads, a row of some thousand numbers, where many rows would cost more than another launch.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _row(partial, residual, cols, H: tl.constexpr, SPLIT: tl.constexpr):
    """The residual with the partial sums added, at these columns."""
    sums = tl.load(residual + cols)
    for s in tl.static_range(SPLIT):
        sums += tl.load(partial + s * H + cols)
    return sums


@triton.jit
def _first_of(row, BM: tl.constexpr):
    """A row as the first one of BM, the others zero: (k, BM).

    By way of (BM, k): laid out the other way at once, Triton 3.6 gave what is no number on an H200.
    """
    return tl.trans(tl.where(tl.arange(0, BM)[:, None] == 0, row[None, :], 0.0))


@triton.jit
def normed_product(
    partial, residual, new_residual, norm, normed, w, out, n, eps,
    H: tl.constexpr, SPLIT: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    SLICE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`add_norm` and `product` of one row, SLICE = AHEAD · BK: out (k / SLICE, n), new_residual and
    normed (H,).

    Grid (n / BN, k / SLICE). `normed` is read by nobody: with its 16 bits Triton lays a row out as in
    `add_norm`, and so sums its squares in the same order.
    """
    if PDL:
        gdc_launch_dependents()
    kind: tl.constexpr = w.dtype.element_ty
    ns = tl.program_id(0) * BN + tl.arange(0, BN)
    ks = tl.program_id(1) * SLICE + tl.arange(0, BK)
    cols = tl.arange(0, H)
    weight = tl.load(norm + cols)
    w_at = w + ns[:, None] * H + ks[None, :]
    w0 = tl.load(w_at)
    n0 = tl.load(norm + ks)
    if AHEAD > 1:
        w1 = tl.load(w_at + BK)
        n1 = tl.load(norm + ks + BK)
    if AHEAD > 2:
        w2 = tl.load(w_at + 2 * BK)
        n2 = tl.load(norm + ks + 2 * BK)
    if AHEAD > 3:
        w3 = tl.load(w_at + 3 * BK)
        n3 = tl.load(norm + ks + 3 * BK)
    if PDL:
        gdc_wait()
    row = _row(partial, residual, cols, H, SPLIT)
    x0 = _row(partial, residual, ks, H, SPLIT)
    if AHEAD > 1:
        x1 = _row(partial, residual, ks + BK, H, SPLIT)
    if AHEAD > 2:
        x2 = _row(partial, residual, ks + 2 * BK, H, SPLIT)
    if AHEAD > 3:
        x3 = _row(partial, residual, ks + 3 * BK, H, SPLIT)
    scale = tl.rsqrt(tl.sum(row * row, 0) / H + eps)
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(new_residual + cols, row)
        tl.store(normed + cols, (row * scale * weight).to(kind))
    sums = tl.zeros([BN, BM], dtype=tl.float32)
    x0 = (x0 * scale * n0).to(kind)
    sums = tl.dot(w0, _first_of(x0, BM), sums, input_precision="ieee")
    if AHEAD > 1:
        x1 = (x1 * scale * n1).to(kind)
        sums = tl.dot(w1, _first_of(x1, BM), sums, input_precision="ieee")
    if AHEAD > 2:
        x2 = (x2 * scale * n2).to(kind)
        sums = tl.dot(w2, _first_of(x2, BM), sums, input_precision="ieee")
    if AHEAD > 3:
        x3 = (x3 * scale * n3).to(kind)
        sums = tl.dot(w3, _first_of(x3, BM), sums, input_precision="ieee")
    out_at = out + tl.program_id(1) * n + ns[:, None] + tl.arange(0, BM)[None, :] * 0
    tl.store(out_at, sums, mask=tl.arange(0, BM)[None, :] == 0)


@triton.jit
def normed_gated(
    partial, residual, new_residual, norm, w, out, own, n, eps,
    H: tl.constexpr, SPLIT: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    AHEAD: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`add_norm` and `gated` of one row: out (n / 2,), new_residual (H,). Grid (n / BN,).

    `own` (n / BN, H): where a block keeps the normed row, for what it reads of it later.
    """
    if PDL:
        gdc_launch_dependents()
    kind: tl.constexpr = w.dtype.element_ty
    ns = tl.program_id(0) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    cols = tl.arange(0, H)
    one = tl.arange(0, BM)
    w_at = w + ns[:, None] * H + ks[None, :]
    weight = tl.load(norm + cols)
    w0 = tl.load(w_at)
    n0 = tl.load(norm + ks)
    if AHEAD > 1:
        w1 = tl.load(w_at + BK)
        n1 = tl.load(norm + ks + BK)
    if AHEAD > 2:
        w2 = tl.load(w_at + 2 * BK)
        n2 = tl.load(norm + ks + 2 * BK)
    if AHEAD > 3:
        w3 = tl.load(w_at + 3 * BK)
        n3 = tl.load(norm + ks + 3 * BK)
    if PDL:
        gdc_wait()
    row = _row(partial, residual, cols, H, SPLIT)
    x0 = _row(partial, residual, ks, H, SPLIT)
    if AHEAD > 1:
        x1 = _row(partial, residual, ks + BK, H, SPLIT)
    if AHEAD > 2:
        x2 = _row(partial, residual, ks + 2 * BK, H, SPLIT)
    if AHEAD > 3:
        x3 = _row(partial, residual, ks + 3 * BK, H, SPLIT)
    scale = tl.rsqrt(tl.sum(row * row, 0) / H + eps)
    if tl.program_id(0) == 0:
        tl.store(new_residual + cols, row)
    if H > BK * AHEAD:
        tl.store(own + tl.program_id(0) * H + cols, (row * scale * weight).to(kind))
    sums = tl.zeros([BN, BM], dtype=tl.float32)
    x0 = (x0 * scale * n0).to(kind)
    sums = tl.dot(w0, _first_of(x0, BM), sums, input_precision="ieee")
    if AHEAD > 1:
        x1 = (x1 * scale * n1).to(kind)
        sums = tl.dot(w1, _first_of(x1, BM), sums, input_precision="ieee")
    if AHEAD > 2:
        x2 = (x2 * scale * n2).to(kind)
        sums = tl.dot(w2, _first_of(x2, BM), sums, input_precision="ieee")
    if AHEAD > 3:
        x3 = (x3 * scale * n3).to(kind)
        sums = tl.dot(w3, _first_of(x3, BM), sums, input_precision="ieee")
    if H > BK * AHEAD:
        tl.debug_barrier()  # the block's own row is read back below
        x_at = own + tl.program_id(0) * H + ks[:, None] + one[None, :] * 0
        for at in tl.range(BK * AHEAD, H, BK, num_stages=STAGES):
            own_x = tl.load(x_at + at, mask=one[None, :] == 0, other=0.0)
            sums = tl.dot(tl.load(w_at + at), own_x, sums, input_precision="ieee")
    gate, up = tl.split(tl.permute(tl.reshape(sums, (BN // 2, 2, BM)), (0, 2, 1)))
    made = gate / (1.0 + tl.exp(-gate)) * up
    half = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
    out_at = out + half[:, None] + one[None, :] * 0
    tl.store(out_at, made.to(out.dtype.element_ty), mask=one[None, :] == 0)
