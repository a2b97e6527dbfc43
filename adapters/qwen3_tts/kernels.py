"""Triton kernels of the frame loop.

Every kernel is a function of rows: row m's results are made by one fixed sequence of operations, whatever
the number of rows, so that a request's codes do not depend on its batch. That is why matrix products are
split over k in fixed slices, and attention over fixed shares of the positions, whose sums are added in order.

With `PDL` a kernel starts while its predecessor still runs (programmatic dependent launch): it fetches its
weights, which nobody writes, and only then waits for the predecessor's results. `gdc_wait` stands before the
first read of anything that another kernel of the frame writes.

Shapes in comments: m rows, n outputs, k inputs, d head size.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _fetch(at):
    """Ask for the lines at these addresses in the second-level cache. Nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _sums(
    x, w, rows, k, ns, ms, start,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SLICE: tl.constexpr, AHEAD: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """sum of x[m, k] w[n, k] over SLICE values of k from `start` on: (BN, BM) float32.

    AHEAD blocks of weights are fetched before the wait for x. The order of the sum is that of k.
    """
    ks = start + tl.arange(0, BK)
    w_at = w + ns[:, None] * k + ks[None, :]
    x_at = x + ms[None, :] * k + ks[:, None]
    here = ms[None, :] < rows
    w0 = tl.load(w_at)
    if AHEAD > 1:
        w1 = tl.load(w_at + BK)
    if AHEAD > 2:
        w2 = tl.load(w_at + 2 * BK)
    if AHEAD > 3:
        w3 = tl.load(w_at + 3 * BK)
    if PDL:
        gdc_wait()
    sums = tl.zeros([BN, BM], dtype=tl.float32)
    x0 = tl.load(x_at, mask=here, other=0.0)
    if AHEAD > 1:
        x1 = tl.load(x_at + BK, mask=here, other=0.0)
    if AHEAD > 2:
        x2 = tl.load(x_at + 2 * BK, mask=here, other=0.0)
    if AHEAD > 3:
        x3 = tl.load(x_at + 3 * BK, mask=here, other=0.0)
    sums = tl.dot(w0, x0, sums, input_precision="ieee")
    if AHEAD > 1:
        sums = tl.dot(w1, x1, sums, input_precision="ieee")
    if AHEAD > 2:
        sums = tl.dot(w2, x2, sums, input_precision="ieee")
    if AHEAD > 3:
        sums = tl.dot(w3, x3, sums, input_precision="ieee")
    if SLICE > BK * AHEAD:
        for at in tl.range(BK * AHEAD, SLICE, BK, num_stages=STAGES):
            sums = tl.dot(
                tl.load(w_at + at), tl.load(x_at + at, mask=here, other=0.0), sums, input_precision="ieee"
            )
    return sums


@triton.jit(do_not_specialize=["rows"])
def product(
    x, w, out, rows, n, k,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SLICE: tl.constexpr, AHEAD: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[s, m, n] = sum over slice s of x[m, k] w[n, k]: float32 partial sums of SLICE values of k.

    Grid (n / BN, k / SLICE, rows / BM).
    """
    if PDL:
        gdc_launch_dependents()
    ns = tl.program_id(0) * BN + tl.arange(0, BN)
    ms = tl.program_id(2) * BM + tl.arange(0, BM)
    sums = _sums(x, w, rows, k, ns, ms, tl.program_id(1) * SLICE, BN, BM, BK, SLICE, AHEAD, STAGES, PDL)
    out_at = out + (tl.program_id(1) * rows + ms[None, :]) * n + ns[:, None]
    tl.store(out_at, sums, mask=ms[None, :] < rows)


@triton.jit(do_not_specialize=["rows"])
def gated(
    x, w, out, rows, n, k: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[m, i] = silu(gate) * up, gate and up being outputs 2i and 2i + 1 of x w: the MLP's first half.

    Grid (n / BN, rows / BM); out (rows, n / 2) in x's dtype.
    """
    if PDL:
        gdc_launch_dependents()
    ns = tl.program_id(0) * BN + tl.arange(0, BN)
    ms = tl.program_id(1) * BM + tl.arange(0, BM)
    sums = _sums(x, w, rows, k, ns, ms, 0, BN, BM, BK, k, AHEAD, STAGES, PDL)
    gate, up = tl.split(tl.permute(tl.reshape(sums, (BN // 2, 2, BM)), (0, 2, 1)))
    made = gate / (1.0 + tl.exp(-gate)) * up
    half = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
    out_at = out + ms[None, :] * (n // 2) + half[:, None]
    tl.store(out_at, made.to(out.dtype.element_ty), mask=ms[None, :] < rows)


@triton.jit(do_not_specialize=["rows"])
def add_norm(
    partial, residual, norm, normed, bias, rows, eps,
    H: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """residual[m] = residual[m] (or the bias) + the partial sums; normed[m] = its RMS norm. Grid (rows,)."""
    if PDL:
        gdc_launch_dependents()
    m = tl.program_id(0)
    cols = tl.arange(0, H)
    weight = tl.load(norm + cols)
    if BIAS:
        sums = tl.load(bias + cols)
    if PDL:
        gdc_wait()
    if not BIAS:
        sums = tl.load(residual + m * H + cols)
    for s in tl.static_range(SPLIT):
        sums += tl.load(partial + (s * rows + m) * H + cols)
    tl.store(residual + m * H + cols, sums)
    scale = tl.rsqrt(tl.sum(sums * sums, 0) / H + eps)
    tl.store(normed + m * H + cols, (sums * scale * weight).to(normed.dtype.element_ty))


@triton.jit(do_not_specialize=["rows"])
def finish(
    partial, residual, norm, slots, last, hidden, position, frame, new_position, rows, scratch, eps,
    H: tl.constexpr, SPLIT: tl.constexpr, FRAME: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The talker's end: the last norm into the slot's hidden state, and its counters. Grid (rows,).

    FRAME: every row counts, position and frame go up by one; but rows of padding, in slot `scratch`, stay
    where they are: they would leave the cache, which has an end. Else a prefill: only rows with `last` count,
    and the position becomes `new_position` + 1.
    """
    if PDL:
        gdc_launch_dependents()
    m = tl.program_id(0)
    cols = tl.arange(0, H)
    weight = tl.load(norm + cols)
    if PDL:
        gdc_wait()
    slot = tl.load(slots + m).to(tl.int64)
    sums = tl.load(residual + m * H + cols)
    for s in tl.static_range(SPLIT):
        sums += tl.load(partial + (s * rows + m) * H + cols)
    scale = tl.rsqrt(tl.sum(sums * sums, 0) / H + eps)
    made = sums * scale * weight
    if FRAME:
        if slot != scratch:
            tl.store(hidden + slot * H + cols, made)
            tl.store(position + slot, tl.load(position + slot) + 1)
            tl.store(frame + slot, tl.load(frame + slot) + 1)
    elif tl.load(last + m) != 0:
        tl.store(hidden + slot * H + cols, made)
        tl.store(position + slot, tl.load(new_position + m) + 1)


@triton.jit
def gather_hidden(hidden, position, slots, out, positions, H: tl.constexpr, PDL: tl.constexpr):
    """A frame's beginning: out[m] = hidden[slots[m]] in out's dtype, positions[m] = position[slots[m]]. Grid
    (rows,)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    m = tl.program_id(0)
    cols = tl.arange(0, H)
    slot = tl.load(slots + m).to(tl.int64)
    tl.store(out + m * H + cols, tl.load(hidden + slot * H + cols).to(out.dtype.element_ty))
    tl.store(positions + m, tl.load(position + slot))


@triton.jit
def enter(rows_in, norm, residual, normed, eps, H: tl.constexpr, PDL: tl.constexpr):
    """residual[m] = rows_in[m]; normed[m] = its RMS norm: a stack's beginning. Grid (rows,)."""
    if PDL:
        gdc_launch_dependents()
    m = tl.program_id(0)
    cols = tl.arange(0, H)
    weight = tl.load(norm + cols)
    if PDL:
        gdc_wait()
    x = tl.load(rows_in + m * H + cols).to(tl.float32)
    tl.store(residual + m * H + cols, x)
    scale = tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    tl.store(normed + m * H + cols, (x * scale * weight).to(normed.dtype.element_ty))


@triton.jit
def _halves(partial, m, rows, width, heads, here, SPLIT: tl.constexpr, D: tl.constexpr):
    """The summed product's columns of `heads`, a vector of head numbers: its two halves (heads, D / 2)."""
    at = partial + m * width + heads[:, None] * D + tl.arange(0, D // 2)[None, :]
    a = tl.load(at, mask=here[:, None], other=0.0)
    b = tl.load(at + D // 2, mask=here[:, None], other=0.0)
    for s in tl.static_range(1, SPLIT):
        a += tl.load(at + s * rows * width, mask=here[:, None], other=0.0)
        b += tl.load(at + s * rows * width + D // 2, mask=here[:, None], other=0.0)
    return a, b


@triton.jit
def _norm_rotate(a, b, norm_a, norm_b, cos, sin, eps, D: tl.constexpr):
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)[:, None]
    a = a * scale * norm_a[None, :]
    b = b * scale * norm_b[None, :]
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _attend(
    qa, qb, new, keys, values, position, scale, start, top, total, sums_a, sums_b,
    D: tl.constexpr, BT: tl.constexpr, INSERT: tl.constexpr,
):  # fmt: skip
    """Attention over BT more positions from `start` on, up to `position`.

    Queries (16, D / 2), and everything else, in halves of D. INSERT: the position's own key (D / 2, 1) and
    value (1, D / 2), `new`, are not yet to be read from the cache. What is known before and after: the
    scores' top (16,), their weights' total (16,) and the unnormalised sums (16, D / 2).
    """
    half = tl.arange(0, D // 2)
    cached = position if INSERT else position + 1
    ts = start + tl.arange(0, BT)
    k_at = keys + ts[None, :] * D + half[:, None]
    v_at = values + ts[:, None] * D + half[None, :]
    ka = tl.load(k_at, mask=ts[None, :] < cached, other=0.0)
    kb = tl.load(k_at + D // 2, mask=ts[None, :] < cached, other=0.0)
    va = tl.load(v_at, mask=ts[:, None] < cached, other=0.0)
    vb = tl.load(v_at + D // 2, mask=ts[:, None] < cached, other=0.0)
    if INSERT:
        ka = tl.where(ts[None, :] == position, new[0], ka)
        kb = tl.where(ts[None, :] == position, new[1], kb)
        va = tl.where(ts[:, None] == position, new[2], va)
        vb = tl.where(ts[:, None] == position, new[3], vb)
    scores = tl.dot(qb, kb, tl.dot(qa, ka, input_precision="ieee"), input_precision="ieee") * scale
    scores = tl.where(ts[None, :] <= position, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp(scores - new_top[:, None])
    shrink = tl.exp(top - new_top)
    total = total * shrink + tl.sum(weights, 1)
    rounded = weights.to(va.dtype)
    sums_a = tl.dot(rounded, va, sums_a * shrink[:, None], input_precision="ieee")
    sums_b = tl.dot(rounded, vb, sums_b * shrink[:, None], input_precision="ieee")
    return new_top, total, sums_a, sums_b


@triton.jit
def _sixteen(rows, LANES: tl.constexpr, D: tl.constexpr):
    """(LANES, D / 2) over and over: (16, D / 2)."""
    many = tl.broadcast_to(rows[None, :, :], (16 // LANES, LANES, D // 2))
    return tl.reshape(many, (16, D // 2))


@triton.jit
def _keep_share(at, here, top, total, sums_a, sums_b, D: tl.constexpr):
    """A share's outcome into memory, D + 2 numbers of each query head at `at` (16,)."""
    half = tl.arange(0, D // 2)
    tl.store(at[:, None] + half[None, :], sums_a, mask=here[:, None])
    tl.store(at[:, None] + D // 2 + half[None, :], sums_b, mask=here[:, None])
    tl.store(at + D, total, mask=here)
    tl.store(at + D + 1, top, mask=here)


@triton.jit
def _add_shares(at, live, PARTS: tl.constexpr, LANES: tl.constexpr, D: tl.constexpr):
    """What PARTS shares, kept at `at` (LANES,) and behind, come to: normalised halves (LANES, D / 2)."""
    half = tl.arange(0, D // 2)
    next: tl.constexpr = 16 * (D + 2)
    top = tl.load(at + D + 1, mask=live, other=0.0, cache_modifier=".cg")
    for i in tl.static_range(1, PARTS):
        top = tl.maximum(top, tl.load(at + i * next + D + 1, mask=live, other=0.0, cache_modifier=".cg"))
    total = tl.zeros([LANES], dtype=tl.float32)
    a = tl.zeros([LANES, D // 2], dtype=tl.float32)
    b = tl.zeros([LANES, D // 2], dtype=tl.float32)
    for i in tl.static_range(PARTS):
        its = at + i * next
        weight = tl.exp(tl.load(its + D + 1, mask=live, other=0.0, cache_modifier=".cg") - top)
        total += weight * tl.load(its + D, mask=live, other=1.0, cache_modifier=".cg")
        cells = its[:, None] + half[None, :]
        a += weight[:, None] * tl.load(cells, mask=live[:, None], other=0.0, cache_modifier=".cg")
        b += weight[:, None] * tl.load(cells + D // 2, mask=live[:, None], other=0.0, cache_modifier=".cg")
    return a / total[:, None], b / total[:, None]


@triton.jit(do_not_specialize=["rows", "length"])
def attention(
    partial, q_out, out, keys, values, slots, positions, q_norm, k_norm, cosines, sines,
    shares, arrived, rows, length, eps, scale,
    SPLIT: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr, D: tl.constexpr,
    BT: tl.constexpr, PARTS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr,
    READ: tl.constexpr, FETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Queries, keys and values from the summed product; the cache; attention up to the row's own position.

    The positions are taken in PARTS shares, each every PARTS-th block of BT positions, whose sums are added
    in order. Grid (rows, KV, BLOCKS): a block has PARTS / BLOCKS shares, one after the other, of one
    key-value head and its GROUP query heads, and the last one to finish adds the shares, (rows, KV, PARTS,
    16, D + 2) float32. With FETCH it asks for its share of the cache, its only one, before it waits.

    Queries are laid out as LANES rows, a power of two, GROUP or more, and then made 16, the least that a
    matrix unit takes: few lanes spare loads, 16 spare the way from the one to the other.

    Rows that see one another (a prompt's) need all of them in the cache before any is read: then one launch
    has KEEP alone, in one share, and leaves the queries in `q_out`, and the next has READ alone. Rows of
    different slots do both at once.
    """
    if PDL:
        gdc_launch_dependents()
    m = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.program_id(2)
    half = tl.arange(0, D // 2)
    lanes = tl.arange(0, LANES)
    live = lanes < GROUP
    slot = tl.load(slots + m).to(tl.int64)
    position = tl.load(positions + m)
    base = (slot * KV + head) * length * D
    q_at = q_out + m * (GROUP * KV * D) + (head * GROUP + lanes[:, None]) * D + half[None, :]
    if KEEP:
        width: tl.constexpr = (GROUP + 2) * KV * D
        cos = tl.load(cosines + position * (D // 2) + half)[None, :]
        sin = tl.load(sines + position * (D // 2) + half)[None, :]
        q_norm_a = tl.load(q_norm + half)
        q_norm_b = tl.load(q_norm + D // 2 + half)
        k_norm_a = tl.load(k_norm + half)
        k_norm_b = tl.load(k_norm + D // 2 + half)
    if PDL:
        if FETCH:
            lines = tl.arange(0, BT * D // 64)
            for start in tl.range(part * BT, position, BT * PARTS):
                at = base + tl.minimum(start * D + lines * 64, position * D)
                _fetch(keys + at)
                _fetch(values + at)
        gdc_wait()
    kind: tl.constexpr = keys.dtype.element_ty
    ka = tl.zeros([D // 2, 1], dtype=kind)
    va = tl.zeros([1, D // 2], dtype=kind)
    new = (ka, ka, va, va)
    if KEEP:
        one = tl.arange(0, 1)
        a, b = _halves(partial, m, rows, width, GROUP * KV + head + one, one < 1, SPLIT, D)
        a, b = _norm_rotate(a, b, k_norm_a, k_norm_b, cos, sin, eps, D)
        ka_row, kb_row = a.to(kind), b.to(kind)
        a, b = _halves(partial, m, rows, width, (GROUP + 1) * KV + head + one, one < 1, SPLIT, D)
        va, vb = a.to(kind), b.to(kind)
        new = (tl.trans(ka_row), tl.trans(kb_row), va, vb)
        if part == (position // BT) % PARTS // (PARTS // BLOCKS) or not READ:  # the one that reads it back
            at = base + position * D + half[None, :]
            tl.store(keys + at, ka_row)
            tl.store(keys + at + D // 2, kb_row)
            tl.store(values + at, va)
            tl.store(values + at + D // 2, vb)
        a, b = _halves(partial, m, rows, width, head * GROUP + lanes, live, SPLIT, D)
        a, b = _norm_rotate(a, b, q_norm_a, q_norm_b, cos, sin, eps, D)
        qa = a.to(q_out.dtype.element_ty)
        qb = b.to(q_out.dtype.element_ty)
        if not READ:
            tl.store(q_at, qa, mask=live[:, None])
            tl.store(q_at + D // 2, qb, mask=live[:, None])
    if READ:
        # a tile that is changed in registers costs a long cache more than the way through memory
        INSERT: tl.constexpr = KEEP and PARTS == 1
        if KEEP:
            if not INSERT:
                tl.debug_barrier()  # the block's own key and value are read back below
        else:
            qa = tl.load(q_at, mask=live[:, None], other=0.0)
            qb = tl.load(q_at + D // 2, mask=live[:, None], other=0.0)
        if LANES < 16:
            qa = _sixteen(qa, LANES, D)
            qb = _sixteen(qb, LANES, D)
        group = tl.arange(0, 16)
        here = group < GROUP
        k_at, v_at = keys + base, values + base
        top = tl.full([16], -1e30, dtype=tl.float32)
        total = tl.zeros([16], dtype=tl.float32)
        a = tl.zeros([16, D // 2], dtype=tl.float32)
        b = tl.zeros([16, D // 2], dtype=tl.float32)
        out_row = out + m * (GROUP * KV * D) + head * GROUP * D
        if PARTS == 1:
            for start in tl.range(0, position + 1, BT, num_stages=STAGES):
                top, total, a, b = _attend(
                    qa, qb, new, k_at, v_at, position, scale, start, top, total, a, b, D, BT, INSERT
                )
            out_at = out_row + group[:, None] * D + half[None, :]
            tl.store(out_at, (a / total[:, None]).to(out.dtype.element_ty), mask=here[:, None])
            tl.store(out_at + D // 2, (b / total[:, None]).to(out.dtype.element_ty), mask=here[:, None])
        else:
            mine = shares + (m * KV + head) * PARTS * (16 * (D + 2))
            if BLOCKS == PARTS:
                for start in tl.range(part * BT, position + 1, BT * PARTS, num_stages=STAGES):
                    top, total, a, b = _attend(
                        qa, qb, new, k_at, v_at, position, scale, start, top, total, a, b, D, BT, INSERT
                    )
                _keep_share(mine + part * (16 * (D + 2)) + group * (D + 2), here, top, total, a, b, D)
            else:
                # one loop over all shares, so that the cache keeps coming from one to the next
                turns = tl.cdiv(position + 1, BT * PARTS)
                for number in tl.range(0, turns * (PARTS // BLOCKS), num_stages=STAGES):
                    share = part * (PARTS // BLOCKS) + number // turns
                    turn = number % turns
                    begins = turn == 0
                    top = tl.where(begins, -1e30, top)
                    total = tl.where(begins, 0.0, total)
                    a = tl.where(begins, 0.0, a)
                    b = tl.where(begins, 0.0, b)
                    start = (turn * PARTS + share) * BT
                    top, total, a, b = _attend(
                        qa, qb, new, k_at, v_at, position, scale, start, top, total, a, b, D, BT, INSERT
                    )
                    done = group < tl.where(turn == turns - 1, GROUP, 0)
                    _keep_share(mine + share * (16 * (D + 2)) + group * (D + 2), done, top, total, a, b, D)
            tl.debug_barrier()
            before = BLOCKS - 1
            if BLOCKS > 1:
                before = tl.atomic_add(arrived + m * KV + head, 1, sem="acq_rel")
            if before == BLOCKS - 1:
                if BLOCKS > 1:
                    tl.store(arrived + m * KV + head, 0)
                low, high = _add_shares(mine + lanes * (D + 2), live, PARTS, LANES, D)
                lane_at = out_row + lanes[:, None] * D + half[None, :]
                tl.store(lane_at, low.to(out.dtype.element_ty), mask=live[:, None])
                tl.store(lane_at + D // 2, high.to(out.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["group", "out_row", "rows", "end", "code_count"])
def draw(
    partial, slots, frames, seeds, sampling, seen, codes, report, total, embedding, next_rows, norm, residual,
    normed, text, text_count, pad, group, out_row, rows, eps, end, code_count,
    FIRST: tl.constexpr, LAST: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, H: tl.constexpr,
    N: tl.constexpr, KEPT: tl.constexpr, TEXT_KEPT: tl.constexpr, GROUPS: tl.constexpr, SPLIT: tl.constexpr,
    MIN_FRAMES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Draw one code a row from the summed logits and lay out what comes next. Grid (rows,).

    Adds the code's embedding to `total`; `report` (2, rows) takes code 0 and the frame's number. The next
    input is `next_rows[code]` (width N) for the predictor, or, after the LAST group, `total` plus the text
    row for the talker (N == H): written to `residual` and, normed, to `normed`, from row `out_row` on. See
    `sampling.py` for the arithmetic.
    """
    if PDL:
        gdc_launch_dependents()
    m = tl.program_id(0)
    slot = tl.load(slots + m).to(tl.int64)
    cols = tl.arange(0, H)
    ns = tl.arange(0, N)
    weight = tl.load(norm + ns)
    seed = tl.load(seeds + slot)
    ids = tl.arange(0, BV)
    within = ids < V
    frame = tl.load(frames + slot)
    uniform = tl.maximum(tl.rand(seed, (frame * 16 + group) * 4096 + ids), 1e-10)
    noise = -tl.log(-tl.log(uniform))
    if PDL:
        gdc_wait()
    logits = tl.load(partial + m * V + ids, mask=within, other=-float("inf"))
    for s in tl.static_range(1, SPLIT):
        logits += tl.load(partial + (s * rows + m) * V + ids, mask=within, other=0.0)
    if FIRST:
        penalty = tl.load(sampling + slot * 5 + 2)
        was = tl.load(seen + slot * V + ids, mask=within, other=0) != 0
        logits = tl.where(was, tl.where(logits > 0, logits / penalty, logits * penalty), logits)
        banned = (ids >= code_count) & ((ids != end) | (frame < MIN_FRAMES))
        logits = tl.where(banned, -float("inf"), logits)
        temperature = tl.load(sampling + slot * 5)
        top_k = tl.load(sampling + slot * 5 + 1).to(tl.int32)
    else:
        temperature = tl.load(sampling + slot * 5 + 3)
        top_k = tl.load(sampling + slot * 5 + 4).to(tl.int32)
    noisy = logits
    if temperature > 0:
        scaled = logits / temperature
        noisy = scaled + noise
        if top_k > 0:
            bits = scaled.to(tl.int32, bitcast=True)
            # floats in the order of unsigned integers
            order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000
            # the k-th best, two bits a turn; done early when exactly k are above
            least = tl.full([], 0, dtype=tl.uint32)
            count = tl.full([], BV + 1, dtype=tl.int64)
            shift = tl.full([], 30, dtype=tl.int32)
            while (shift >= 0) & (count != top_k):
                one = least | (tl.full([], 1, dtype=tl.uint32) << shift.to(tl.uint32))
                two = least | (tl.full([], 2, dtype=tl.uint32) << shift.to(tl.uint32))
                three = one | two
                counts = tl.sum(
                    (order >= one).to(tl.int64)
                    + ((order >= two).to(tl.int64) << 20)
                    + ((order >= three).to(tl.int64) << 40),
                    0,
                )
                ones, twos, threes = counts & 0xFFFFF, (counts >> 20) & 0xFFFFF, counts >> 40
                if threes >= top_k:
                    least = three
                    count = threes
                elif twos >= top_k:
                    least = two
                    count = twos
                elif ones >= top_k:
                    least = one
                    count = ones
                shift -= 2
            noisy = tl.where(order >= least, noisy, -float("inf"))
    code = tl.minimum(tl.argmax(noisy, 0), V - 1)  # of numbers that are none, the best may be padding
    tl.store(codes + (slot * KEPT + frame % KEPT) * GROUPS + group, code)
    made = tl.load(embedding + code.to(tl.int64) * H + cols).to(tl.float32)
    if FIRST:
        tl.store(seen + slot * V + code, 1)
        tl.store(report + m, code)
        tl.store(report + rows + m, frame)
    else:
        made += tl.load(total + m * H + cols)
    if LAST:
        row = text + (slot * TEXT_KEPT + frame % TEXT_KEPT) * H
        if frame >= tl.load(text_count + slot):
            row = pad
        x = made + tl.load(row + cols).to(tl.float32)
    else:
        tl.store(total + m * H + cols, made)
        x = tl.load(next_rows + code.to(tl.int64) * N + ns).to(tl.float32)
    tl.store(residual + (out_row + m) * N + ns, x)
    scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    tl.store(normed + (out_row + m) * N + ns, (x * scale * weight).to(normed.dtype.element_ty))
