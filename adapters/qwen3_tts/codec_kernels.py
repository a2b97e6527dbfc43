"""Triton kernels of the codec decoder.

Tensors are (rows, channels), row b · length + t being position t of the pass's b-th slot. Shapes in comments:
m rows, n outputs, c input channels. State is the slots' context, one row of `stride` numbers each; `fresh`,
one row of them a slot of the pass, takes what the contexts are to be after the pass, so that no kernel
overwrites what another block of it still reads.

A layer's output is what the next one keeps of its past: whoever makes it also writes its last `tail_size`
numbers a slot to `fresh`.

Numbers that change with the batch and the chunk are not specialized on: a layer is compiled once a tile.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import triton
import triton.language as tl

NONE, SNAKE, GELU = 0, 1, 2  # activations
_SNAKE, _GELU = tl.constexpr(SNAKE), tl.constexpr(GELU)


@triton.jit
def reduced(x):
    """x - q π in ±π/2, and q. The library's sine has a slow path for large arguments, in every thread."""
    turns = tl.floor(tl.fma(x, 0.31830988618379067, 0.5))
    x = tl.fma(turns, -3.1415927410125732, x)
    return tl.fma(turns, 8.7422776573475858e-08, x), turns  # what float32's π leaves over


@triton.jit
def sine(x):
    """sin x for x in ±π/2, within 1e-7: the least-maximum fit of four terms."""
    square = x * x
    series = tl.fma(square, 2.6000516734897322e-06, -0.00019806613562797892)
    series = tl.fma(square, series, 0.008333017264123341)
    series = tl.fma(square, series, -0.16666657095080442)
    return tl.fma(x * square, series, x)


@triton.jit
def squared_sine(x):
    """sin² x, within 3e-7 for |x| < 400."""
    x, _ = reduced(x)
    wave = sine(x)
    return wave * wave


@triton.jit
def cos_sin(x):
    """cos x and sin x."""
    x, turns = reduced(x)
    sign = 1.0 - 2.0 * (turns.to(tl.int32) & 1).to(tl.float32)
    return sign * sine(1.5707963267948966 - tl.abs(x)), sign * sine(x)


@triton.jit(do_not_specialize=["rows", "length", "dilation"])
def product(
    x,
    state,
    slots,
    fresh,
    w,
    bias,
    residual,
    alpha,
    gain,
    plain,
    out,
    rows,
    length,
    outputs,
    stride,
    start,
    tail_start,
    tail_size,
    dilation,
    eps,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    PLAIN: tl.constexpr,
    TAIL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """out = act(conv(x) + bias + residual): a causal convolution of w (n, TAPS · c) as one product, without
    laying the taps out in memory. Position t - d comes from x, or from the slot's context at `start` where t
    < d.

    With NORM x is scaled to a root mean square of one first (TAPS 1). `plain` takes the sum before the
    activation. Grid (m / BM · n / BN,): blocks of the same rows side by side.
    """
    across = tl.cdiv(outputs, BN)
    ms = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    ns = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    here, wanted = ms < rows, ns < outputs
    batch, place = ms // length, ms % length
    depth = TAPS * CHANNELS
    w_at = w + ns[None, :] * depth + ks[:, None]
    if TAPS > 1:
        slot = tl.load(slots + batch, mask=here, other=0)
        past = state + slot * stride + start
        now = x + batch.to(tl.int64) * length * CHANNELS
    else:
        now = x + ms.to(tl.int64) * CHANNELS
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    power = tl.zeros([BM], dtype=tl.float32)
    for k in tl.range(0, depth, BK, num_stages=STAGES):
        if TAPS > 1:
            tap = k // CHANNELS
            at = place - (TAPS - 1 - tap) * dilation
            before = past + (at + (TAPS - 1) * dilation) * CHANNELS
            row = tl.where(at < 0, before, now + at * CHANNELS) + (k - tap * CHANNELS)
            row = tl.multiple_of(row, 16)  # bytes; a choice between two pointers hides it
        else:
            row = now + k
        part = tl.load(row[:, None] + ks[None, :], mask=here[:, None], other=0.0)
        weight = tl.load(w_at + k, mask=wanted[None, :], other=0.0)
        if NORM:
            wide = part.to(tl.float32)
            power += tl.sum(wide * wide, axis=1)
        sums = tl.dot(part, weight, sums, input_precision="ieee")
    if NORM:
        sums *= tl.rsqrt(power / CHANNELS + eps)[:, None]
    if BIAS:
        sums += tl.load(bias + ns, mask=wanted, other=0.0).to(tl.float32)[None, :]
    cells = ms.to(tl.int64)[:, None] * outputs + ns[None, :]  # a large batch of long chunks passes 2^31
    inside = here[:, None] & wanted[None, :]
    if RESIDUAL:
        sums += tl.load(residual + cells, mask=inside, other=0.0).to(tl.float32)
    if PLAIN:
        tl.store(plain + cells, sums, mask=inside)
    if ACT == _SNAKE:
        wave = squared_sine(sums * tl.load(alpha + ns, mask=wanted, other=0.0)[None, :])
        sums += tl.load(gain + ns, mask=wanted, other=0.0)[None, :] * wave
    elif ACT == _GELU:
        sums = 0.5 * sums * (1.0 + tl.erf(sums * 0.7071067811865476))
    tl.store(out + cells, sums, mask=inside)
    if TAIL:
        # counted in numbers, so that an upsampled row, several positions wide, needs nothing else
        past_end = (place[:, None] - length) * outputs + ns[None, :] + tail_size
        tl.store(fresh + batch[:, None] * stride + tail_start + past_end, sums, mask=inside & (past_end >= 0))


@triton.jit(do_not_specialize=["rows"])
def gated(
    x,
    w,
    out,
    rows,
    outputs,
    eps,
    CHANNELS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """out = silu(gate) · up of x scaled to a root mean square of one; w (2 n, c): the gate's rows, then up's.
    Grid (m / BM · n / BN,)."""
    across = tl.cdiv(outputs, BN)
    ms = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    ns = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    here, wanted = ms < rows, ns < outputs
    x_at = x + ms[:, None] * CHANNELS + ks[None, :]
    w_at = w + ns[None, :] * CHANNELS + ks[:, None]
    gate = tl.zeros([BM, BN], dtype=tl.float32)
    up = tl.zeros([BM, BN], dtype=tl.float32)
    power = tl.zeros([BM], dtype=tl.float32)
    for k in tl.range(0, CHANNELS, BK, num_stages=STAGES):
        part = tl.load(x_at + k, mask=here[:, None], other=0.0)
        wide = part.to(tl.float32)
        power += tl.sum(wide * wide, axis=1)
        gate = tl.dot(part, tl.load(w_at + k, mask=wanted[None, :], other=0.0), gate, input_precision="ieee")
        weight = tl.load(w_at + outputs * CHANNELS + k, mask=wanted[None, :], other=0.0)
        up = tl.dot(part, weight, up, input_precision="ieee")
    scale = tl.rsqrt(power / CHANNELS + eps)[:, None]
    gate *= scale
    result = gate * tl.sigmoid(gate) * (up * scale)
    tl.store(out + ms[:, None] * outputs + ns[None, :], result, mask=here[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["length"])
def embed(
    codes,
    table,
    fresh,
    out,
    length,
    width,
    size,
    stride,
    tail_start,
    tail_size,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out (m, width): the sum of a frame's rows in `table` (GROUPS · size, width) float32. Grid (m,)."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for group in range(GROUPS):
        code = tl.load(codes + row * GROUPS + group).to(tl.int32)
        code = tl.minimum(tl.maximum(code, 0), size - 1)
        total += tl.load(table + (group * size + code) * width + columns, mask=inside, other=0.0)
    tl.store(out + row * width + columns, total, mask=inside)
    past_end = (row % length - length) * width + columns + tail_size
    tl.store(fresh + (row // length) * stride + tail_start + past_end, total, mask=inside & (past_end >= 0))


@triton.jit(do_not_specialize=["frames"])
def attend(
    qkv,
    ring,
    slots,
    position,
    frequencies,
    out,
    frames,
    slot_stride,
    cell_stride,
    layer_offset,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CELLS: tl.constexpr,
    NEW: tl.constexpr,
):
    """Attention of one head of one slot over its ring of WINDOW frames and `frames` (at most NEW) new ones,
    which then join the ring. ring (slots, WINDOW, layers, 2, HEADS, SIZE); qkv (m, 3 · HEADS · SIZE), queries
    scaled; `frequencies` (SIZE / 2,) float32: keys and queries turn by frequency · place. Grid (slots of the
    pass, HEADS).
    """
    batch, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + batch)
    first = tl.load(position + slot).to(tl.int32)
    half: tl.constexpr = SIZE // 2
    low = tl.arange(0, half)
    wide: tl.constexpr = HEADS * SIZE

    # what the ring holds: cell i the last frame before `first` that is i modulo the window
    cells = tl.arange(0, CELLS)
    held = first - 1 - (first - 1 - cells + WINDOW) % WINDOW
    known = (cells < WINDOW) & (held >= 0)
    base = ring + slot * slot_stride + layer_offset + head * SIZE
    key_at = base + cells[:, None] * cell_stride + low[None, :]
    old_low = tl.load(key_at, mask=known[:, None], other=0.0).to(tl.float32)
    old_high = tl.load(key_at + half, mask=known[:, None], other=0.0).to(tl.float32)
    old_value_low = tl.load(key_at + wide, mask=known[:, None], other=0.0).to(tl.float32)
    old_value_high = tl.load(key_at + wide + half, mask=known[:, None], other=0.0).to(tl.float32)

    news = tl.arange(0, NEW)
    fresh = news < frames
    rows = batch * frames + news
    frequency = tl.load(frequencies + low)
    new_cos, new_sin = cos_sin((first + news).to(tl.float32)[:, None] * frequency[None, :])
    row_at = qkv + rows[:, None] * (3 * wide) + head * SIZE + low[None, :]
    key_low = tl.load(row_at + wide, mask=fresh[:, None], other=0.0).to(tl.float32)
    key_high = tl.load(row_at + wide + half, mask=fresh[:, None], other=0.0).to(tl.float32)
    # rounded as the ring keeps them, so that a key is the same from the first frame on
    kind = ring.dtype.element_ty
    new_low = (key_low * new_cos - key_high * new_sin).to(kind).to(tl.float32)
    new_high = (key_high * new_cos + key_low * new_sin).to(kind).to(tl.float32)
    new_value_low = tl.load(row_at + 2 * wide, mask=fresh[:, None], other=0.0).to(tl.float32)
    new_value_high = tl.load(row_at + 2 * wide + half, mask=fresh[:, None], other=0.0).to(tl.float32)

    for index in range(frames):
        row = batch * frames + index
        here = qkv + row * (3 * wide) + head * SIZE + low
        one_cos, one_sin = cos_sin((first + index).to(tl.float32) * frequency)
        query_low, query_high = tl.load(here).to(tl.float32), tl.load(here + half).to(tl.float32)
        turned_low = query_low * one_cos - query_high * one_sin
        turned_high = query_high * one_cos + query_low * one_sin
        old = tl.sum(old_low * turned_low[None, :] + old_high * turned_high[None, :], axis=1)
        new = tl.sum(new_low * turned_low[None, :] + new_high * turned_high[None, :], axis=1)
        old = tl.where(known & (held > first + index - WINDOW), old, float("-inf"))
        new = tl.where((news <= index) & (news > index - WINDOW), new, float("-inf"))
        most = tl.maximum(tl.max(old, axis=0), tl.max(new, axis=0))
        old, new = tl.exp(old - most), tl.exp(new - most)
        total = tl.sum(old, axis=0) + tl.sum(new, axis=0)
        mixed_low = tl.sum(old[:, None] * old_value_low, axis=0)
        mixed_low += tl.sum(new[:, None] * new_value_low, axis=0)
        mixed_high = tl.sum(old[:, None] * old_value_high, axis=0)
        mixed_high += tl.sum(new[:, None] * new_value_high, axis=0)
        to = out + row * wide + head * SIZE + low
        tl.store(to, mixed_low / total)
        tl.store(to + half, mixed_high / total)

    tl.debug_barrier()  # every thread has read the ring
    to = base + ((first + news) % WINDOW)[:, None] * cell_stride + low[None, :]
    tl.store(to, new_low, mask=fresh[:, None])
    tl.store(to + half, new_high, mask=fresh[:, None])
    tl.store(to + wide, new_value_low, mask=fresh[:, None])
    tl.store(to + wide + half, new_value_high, mask=fresh[:, None])


@triton.jit(do_not_specialize=["length"])
def depthwise(
    x,
    state,
    slots,
    w,
    bias,
    out,
    length,
    channels,
    stride,
    start,
    eps,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A causal depthwise convolution, w (TAPS, c) float32, and a layer norm without weights. Grid (m,)."""
    row = tl.program_id(0)
    batch, place = row // length, row % length
    slot = tl.load(slots + batch)
    columns = tl.arange(0, BLOCK)
    inside = columns < channels
    sums = tl.load(bias + columns, mask=inside, other=0.0)
    for tap in range(TAPS):
        at = place - (TAPS - 1) + tap
        before = state + slot * stride + start + (at + TAPS - 1) * channels
        source = tl.where(at < 0, before, x + (batch * length + at) * channels)
        part = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        sums += part * tl.load(w + tap * channels + columns, mask=inside, other=0.0)
    mean = tl.sum(sums, axis=0) / channels
    sums = tl.where(inside, sums - mean, 0.0)
    scale = tl.rsqrt(tl.sum(sums * sums, axis=0) / channels + eps)
    tl.store(out + row * channels + columns, sums * scale, mask=inside)


@triton.jit(do_not_specialize=["length"])
def sound(
    x,
    state,
    slots,
    w,
    bias,
    out,
    length,
    channels,
    stride,
    start,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    TIMES: tl.constexpr,
):
    """The last convolution, w (TAPS · c,) float32, to samples clamped to ±1. Grid (length / TIMES, slots)."""
    batch = tl.program_id(1).to(tl.int64)
    times = tl.program_id(0) * TIMES + tl.arange(0, TIMES)
    here = times < length
    slot = tl.load(slots + batch)
    columns = tl.arange(0, BLOCK)
    inside = here[:, None] & (columns < channels)[None, :]
    sums = tl.zeros([TIMES, BLOCK], dtype=tl.float32)
    for tap in range(TAPS):
        at = times - (TAPS - 1) + tap
        before = state + slot * stride + start + (at + TAPS - 1) * channels
        source = tl.where(at < 0, before, x + (batch * length + at) * channels)
        source = tl.multiple_of(source, 16)
        part = tl.load(source[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(w + tap * channels + columns, mask=columns < channels, other=0.0)
        sums += part * weight[None, :]
    samples = tl.sum(sums, axis=1) + tl.load(bias)
    samples = tl.minimum(tl.maximum(samples, -1.0), 1.0)
    tl.store(out + batch * length + times, samples, mask=here)
