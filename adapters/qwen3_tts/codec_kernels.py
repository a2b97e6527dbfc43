"""Triton kernels of the codec decoder.

Tensors are (rows, channels), row b · length + t being position t of the pass's b-th slot. Shapes in comments:
m rows, n outputs, c input channels. State is the slots' context, one row of `stride` numbers each; `fresh`,
one row of them a slot of the pass, takes what the contexts are to be after the pass, so that no kernel
overwrites what another block of it still reads.

A layer's output is what the next one keeps of its past: whoever makes it also writes its last `tail_size`
numbers a slot to `fresh`.

Numbers that change with the batch and the chunk are not specialized on: a layer is compiled once a tile.

A sample is the same bit for bit in any batch and any chunk. Each number of a row comes from the same
operations in the same order, whatever the other rows are: sums over channels run in steps of one matrix
instruction, taps oldest first; what a tile could reorder (the sums of squares, see `codec_triton.tile`) has
one tile; and context is what the pass before stored, in the type in which a pass reads its own.
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


@triton.jit
def turned(low_at, high_at, cos, sin):
    """The two halves of a vector, turned."""
    low, high = tl.load(low_at).to(tl.float32), tl.load(high_at).to(tl.float32)
    return tl.fma(low, cos, -(high * sin)), tl.fma(high, cos, low * sin)


@triton.jit
def _power(row, ks, here, CHANNELS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """The sum of squares of the rows at `row`, (m,).

    In a loop of its own: in one that also multiplies these numbers, whose copies run ahead, Triton 3.6 lets a
    copy overwrite what is still to be squared, now and then, when the device has other work too.
    """
    power = tl.zeros([BM], dtype=tl.float32)
    for k in tl.range(0, CHANNELS, BK, num_stages=1):
        wide = tl.load(row[:, None] + ks[None, :] + k, mask=here[:, None], other=0.0).to(tl.float32)
        power += tl.sum(wide * wide, axis=1)
    return power


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
    if NORM:
        power = _power(now, ks, here, CHANNELS, BM, BK)
    sums = tl.zeros([BM, BN], dtype=tl.float32)
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
        sums = tl.dot(part, weight, sums, input_precision="ieee")
    # a sum after a product is written as one operation: else the compiler chooses, tile by tile
    shift = tl.zeros([BN], dtype=tl.float32)
    if BIAS:
        shift = tl.load(bias + ns, mask=wanted, other=0.0).to(tl.float32)
    if NORM:
        sums = tl.fma(sums, tl.rsqrt(power / CHANNELS + eps)[:, None], shift[None, :])
    elif BIAS:
        sums += shift[None, :]
    cells = ms.to(tl.int64)[:, None] * outputs + ns[None, :]  # a large batch of long chunks passes 2^31
    inside = here[:, None] & wanted[None, :]
    if RESIDUAL:
        sums += tl.load(residual + cells, mask=inside, other=0.0).to(tl.float32)
    if PLAIN:
        tl.store(plain + cells, sums, mask=inside)
    if ACT == _SNAKE:
        wave = squared_sine(sums * tl.load(alpha + ns, mask=wanted, other=0.0)[None, :])
        sums = tl.fma(tl.load(gain + ns, mask=wanted, other=0.0)[None, :], wave, sums)
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
    row = x + ms * CHANNELS
    w_at = w + ns[None, :] * CHANNELS + ks[:, None]
    power = _power(row, ks, here, CHANNELS, BM, BK)
    gate = tl.zeros([BM, BN], dtype=tl.float32)
    up = tl.zeros([BM, BN], dtype=tl.float32)
    for k in tl.range(0, CHANNELS, BK, num_stages=STAGES):
        part = tl.load(row[:, None] + ks[None, :] + k, mask=here[:, None], other=0.0)
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
):
    """Attention of one head of one slot over the last WINDOW frames, for `frames` new ones in turn. ring
    (slots, WINDOW, layers, 2, HEADS, SIZE), frame p in cell p % WINDOW; qkv (m, 3 · HEADS · SIZE), queries
    scaled; `frequencies` (SIZE / 2,) float32: keys and queries turn by frequency · place. Grid (slots of the
    pass, HEADS).

    The window is in registers and a new frame takes the cell of the one that leaves it, so that sums always
    run over the cells, whichever frames are new.
    """
    batch, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + batch)
    first = tl.load(position + slot).to(tl.int32)
    half: tl.constexpr = SIZE // 2
    low = tl.arange(0, half)
    wide: tl.constexpr = HEADS * SIZE
    kind = ring.dtype.element_ty

    cells = tl.arange(0, CELLS)
    base = ring + slot * slot_stride + layer_offset + head * SIZE + low
    at = base[None, :] + cells[:, None] * cell_stride
    there = (cells < WINDOW)[:, None]
    keys_low = tl.load(at, mask=there, other=0.0).to(tl.float32)
    keys_high = tl.load(at + half, mask=there, other=0.0).to(tl.float32)
    values_low = tl.load(at + wide, mask=there, other=0.0).to(tl.float32)
    values_high = tl.load(at + wide + half, mask=there, other=0.0).to(tl.float32)
    tl.debug_barrier()  # every thread has read the ring
    frequency = tl.load(frequencies + low)

    for index in range(frames):
        place = first + index
        row = batch * frames + index
        query_at = qkv + row * (3 * wide) + head * SIZE + low
        key_at, value_at = query_at + wide, query_at + 2 * wide
        cos, sin = cos_sin(place.to(tl.float32) * frequency)
        # rounded as the ring keeps them, so that a key is the same from the first frame on
        key_low, key_high = turned(key_at, key_at + half, cos, sin)
        key_low, key_high = key_low.to(kind), key_high.to(kind)
        value_low, value_high = tl.load(value_at).to(kind), tl.load(value_at + half).to(kind)
        to = base + (place % WINDOW) * cell_stride
        tl.store(to, key_low)
        tl.store(to + half, key_high)
        tl.store(to + wide, value_low)
        tl.store(to + wide + half, value_high)
        this = (cells == place % WINDOW)[:, None]
        keys_low = tl.where(this, key_low.to(tl.float32)[None, :], keys_low)
        keys_high = tl.where(this, key_high.to(tl.float32)[None, :], keys_high)
        values_low = tl.where(this, value_low.to(tl.float32)[None, :], values_low)
        values_high = tl.where(this, value_high.to(tl.float32)[None, :], values_high)

        query_low, query_high = turned(query_at, query_at + half, cos, sin)
        scores = tl.sum(tl.fma(keys_low, query_low[None, :], keys_high * query_high[None, :]), axis=1)
        scores = tl.where((cells < WINDOW) & (cells <= place), scores, float("-inf"))
        scores = tl.exp(scores - tl.max(scores, axis=0))
        total = tl.sum(scores, axis=0)
        to = out + row * wide + head * SIZE + low
        tl.store(to, tl.sum(scores[:, None] * values_low, axis=0) / total)
        tl.store(to + half, tl.sum(scores[:, None] * values_high, axis=0) / total)


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
