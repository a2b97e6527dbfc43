"""How long the codec decoder takes, and where: full size, random weights.

python codec_bench.py                  # CUDA, bfloat16, graphs; checks first
python codec_bench.py --plain          # the plain torch operations instead of the kernels
python codec_bench.py --tune           # every tile of every product, to choose `TILES` by
python codec_bench.py --same           # whether samples are the same bit for bit in every batch and chunks
python codec_bench.py --tiny --device cpu
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import codec_cases as cases
import msgspec
import torch
from torch import Tensor

from duplex.adapters.qwen3_tts.codec import CodecDecoder
from duplex.adapters.qwen3_tts.codec_weights import CodecWeights, Conv
from duplex.adapters.qwen3_tts.compiling import compile_ahead
from duplex.adapters.qwen3_tts.config import CodecConfig, CodecDecoderConfig
from duplex.adapters.qwen3_tts.layout import codec_layout

RING = 64
FRAME_MS = 80.0


def capture(codec: CodecDecoder, ring: Tensor) -> None:
    """Graphs of all shapes, their kernels compiled in parallel."""
    if codec.device.type == "cuda":
        compile_ahead(lambda: codec.rehearse(ring))
    codec.capture(ring)


def random_weights(config: CodecConfig, device: torch.device) -> dict[str, Tensor]:
    """Weights that keep the signal's size, on the device."""
    generator = torch.Generator(device=device).manual_seed(0)
    weights = {}
    last = f"decoder.decoder.{len(config.decoder_config.upsample_rates) + 2}.conv.weight"
    for name, shape in codec_layout(config).items():
        if not name.startswith("decoder."):
            continue
        tensor = torch.randn(shape, device=device, generator=generator)
        if name.endswith(("norm.weight", "cluster_usage")):
            tensor = 1.0 + 0.1 * tensor.clamp(-3, 3)
        elif name.endswith((".scale", ".gamma", ".bias", ".alpha", ".beta")):
            tensor = 0.1 * tensor
        elif not name.endswith("embedding_sum"):
            fan = tensor[0].numel()
            if ".block.1.conv" in name:  # transposed: two of its taps meet in a position
                fan = 2 * shape[0]
            gain = 0.3 if ".conv2." in name else 0.05 if name == last else 1.0
            tensor = tensor * (gain / fan**0.5)
        weights[name] = tensor
    return weights


def measure(run: Callable[[], Any], device: torch.device, repeats: int = 30) -> float:
    """Milliseconds a call, the least of three series."""
    if device.type == "cpu":
        started = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - started)
    best = float("inf")
    cuda: Any = torch.cuda
    for _ in range(3):
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / repeats)
    return best


def graphed(run: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    if device.type == "cpu":
        return run
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def products(weights: CodecWeights) -> Iterator[tuple[str, Conv, int]]:
    """Every product, its part of the network, and its rows a frame."""
    part = "codes and pre-transformer"
    yield part, weights.pre, 1
    for layer in weights.layers:
        for product in (layer.qkv, layer.out, layer.gate_up, layer.down):
            yield part, product, 1
    rate = 1
    for index, stage in enumerate(weights.upsamples):
        yield f"upsample {index}", stage.widen, rate
        rate *= stage.factor
        yield f"upsample {index}", stage.inner, rate
        yield f"upsample {index}", stage.outer, rate
    yield "first convolution", weights.first, rate
    for index, block in enumerate(weights.blocks):
        yield f"block {index}", block.widen, rate
        rate *= block.factor
        for unit in block.units:
            yield f"block {index}", unit.wide, rate
            yield f"block {index}", unit.point, rate
    yield "last convolution", weights.last, rate


def signal_to_noise(samples: Tensor, wanted: Tensor) -> float:
    """dB."""
    noise = (samples - wanted).double().square().mean().clamp(min=1e-30)
    return float(10 * torch.log10(wanted.double().square().mean() / noise))


def fill(ring: Tensor, size: int) -> None:
    ring.copy_(torch.randint(0, size, ring.shape, device=ring.device, dtype=ring.dtype))


def check(
    make: Callable[..., CodecDecoder], device: torch.device, dtype: torch.dtype, plain: bool | None
) -> None:
    """The captured decode against an eager one of the same arithmetic, plain torch, and float32 at once."""
    exact = make(dtype=torch.float32, plain=True, slots=5, max_batch=5)
    size = exact.config.codebook_size
    ring = torch.zeros(6, RING, 16, device=device, dtype=torch.int32)
    fill(ring, size)
    order = [3, 0, 4]
    chunks = [*exact.frames, 1, *exact.frames]
    ids = torch.tensor(order, device=device)

    def eager(codec: CodecDecoder) -> Tensor:
        return torch.cat([codec.decode(ids, codec.gather(ids, ring, n)) for n in chunks], dim=1).cpu()

    codec = make(dtype=dtype, plain=plain, slots=5, max_batch=5)
    capture(codec, ring)
    replayed = torch.cat([codec.replay(order, n).clone() for n in chunks], dim=1).cpu()
    for slot in order:
        codec.reset(slot)
    for name, other, wanted in (
        ("graph against eager", replayed, eager(codec)),
        ("graph against plain torch", replayed, eager(make(dtype=dtype, plain=True, slots=5, max_batch=5))),
        ("graph against float32", replayed, eager(exact)),
    ):
        print(
            f"{name}: largest difference {float((other - wanted).abs().max()):.2e}, "
            f"{signal_to_noise(other, wanted):.1f} dB, level {float(wanted.std()):.3f}"
        )


def bench(device: str, batch: list[int], frames: list[int], *, tiny: bool, dtype: str, plain: bool) -> None:
    """Check, then milliseconds a launch for each batch and chunk, then where they go."""
    place = torch.device(device)
    config = CodecConfig(
        decoder_config=msgspec.convert(cases.DECODERS["small"], CodecDecoderConfig)
        if tiny
        else CodecDecoderConfig(),
        encoder_config=cases.ENCODER,
    )
    weights = random_weights(config, place)
    kind = getattr(torch, dtype)
    choice = True if plain else None

    def make(**options: Any) -> CodecDecoder:
        return CodecDecoder(
            config.decoder_config, weights, device=place, frames=tuple(sorted(set(frames))), **options
        )

    check(make, place, kind, choice)
    started = time.perf_counter()
    codec = make(dtype=kind, plain=choice, slots=max(batch), max_batch=max(batch))
    if place.type == "cuda":
        torch.cuda.synchronize()
    print(f"weights folded in {time.perf_counter() - started:.1f} s")
    ring = torch.zeros(codec.slots + 1, RING, 16, device=place, dtype=torch.int32)
    fill(ring, codec.config.codebook_size)
    started = time.perf_counter()
    capture(codec, ring)
    took = time.perf_counter() - started
    print(f"graphs of {len(codec.buckets)} × {len(codec.frames)} shapes in {took:.1f} s")
    per_slot = codec.state.bytes / (codec.slots + 1)
    print(f"state {codec.state.bytes / 1e6:.0f} MB for {codec.slots} slots, {per_slot / 1e6:.2f} MB each")
    if place.type == "cuda":
        print(f"device memory {torch.cuda.max_memory_reserved() / 1e9:.1f} GB reserved")
    print("batch frames      ms  real-time streams")
    for size in batch:
        for count in frames:
            slots = list(range(size))
            ms = measure(lambda slots=slots, count=count: codec.replay(slots, count), place)  # type: ignore[misc]
            print(f"{size:5d} {count:6d} {ms:7.3f} {size * count * FRAME_MS / ms:10.0f}")
    for size in batch:
        breakdown(codec, size, frames[0], place)
    breakdown(codec, max(batch), frames[-1], place)


def breakdown(codec: CodecDecoder, size: int, frames: int, device: torch.device) -> None:
    """Each part alone, in a graph of its own."""
    flops = dict.fromkeys((name for name, _ in codec.parts), 0.0)
    for name, product, rate in products(codec.weights):
        flops[name] += 2.0 * product.weight.numel() * rate * size * frames
    ids = torch.arange(size, device=device)
    x = torch.randint(0, codec.config.codebook_size, (size, frames, 16), device=device, dtype=torch.int32)
    print(f"where it goes, batch {size}, {frames} frames:")

    def ends() -> None:
        codec.open_pass(ids, frames).finish(counted=True)

    if codec.kernels:  # the plain pass must have made keys before it can finish
        print(f"  {'state':28s} {measure(graphed(ends, device), device):7.3f} ms")
    for name, run in codec.parts:
        step = codec.open_pass(ids, frames)

        def part(run: Any = run, step: Any = step, x: Tensor = x) -> Any:
            return run(step, x)

        ms = measure(graphed(part, device), device)
        print(f"  {name:28s} {ms:7.3f} ms  {flops[name] / ms / 1e9:7.1f} TFLOP/s")
        x = run(step, x)


def same(batch: list[int], frames: list[int]) -> None:
    """One slot's samples in graphs of every batch size and chunk size against those alone, frame by frame."""
    place, most, length = torch.device("cuda"), max(batch), 2 * max(frames)
    config = CodecConfig(encoder_config=cases.ENCODER)
    codec = CodecDecoder(
        config.decoder_config,
        random_weights(config, place),
        device=place,
        dtype=torch.bfloat16,
        slots=most,
        max_batch=most,
        frames=tuple(sorted({1, *frames})),
    )
    ring = torch.zeros(most + 1, RING, 16, device=place, dtype=torch.int32)
    fill(ring, codec.config.codebook_size)
    capture(codec, ring)

    def spoken(slots: list[int], counts: list[int], ahead: int = 0) -> Tensor:
        """The last slot's samples in chunks of these sizes; the others have heard `ahead` frames before."""
        for slot in slots:
            codec.reset(slot)
        for _ in range(ahead if slots[:-1] else 0):
            codec.replay(slots[:-1], 1)
        return torch.cat([codec.replay(slots, count)[-1].clone() for count in counts])

    for slot in (0, most - 1):
        alone = spoken([slot], [1] * max(length, sum(MIXED)))
        for size in codec.buckets:
            others = [other for other in range(most) if other != slot][: size - 1]
            for count in frames:
                if length % count == 0:
                    found = spoken([*others, slot], [count] * (length // count))
                    compare(f"slot {slot} batch {size} frames {count}", found, alone)
            # a row of padding, unlike places, unlike chunks, and more than the window
            mixed = [count for count in MIXED if count in codec.frames]
            compare(f"slot {slot} batch {size} mixed", spoken([*others[1:], slot], mixed, ahead=5), alone)


MIXED = [1, 1, 2, 1, 4, 2, 8, 1, 4, 4, 2, 8, 8, 1, 1, 4, 8, 8, 8, 4, 2, 8]


def compare(name: str, found: Tensor, alone: Tensor) -> None:
    alone = alone[: len(found)]
    gap, differ = float((found - alone).abs().max()), int((found != alone).sum())
    print(f"{name}: {differ} samples differ, at most {gap:.1e}")


def tune(batch: list[int], frames: list[int]) -> None:
    """The time of every tile for every distinct product, and which one `tile` takes."""
    from duplex.adapters.qwen3_tts.codec_triton import TritonPass, tile

    place = torch.device("cuda")
    config = CodecConfig(encoder_config=cases.ENCODER)
    codec = CodecDecoder(
        config.decoder_config,
        random_weights(config, place),
        device=place,
        dtype=torch.bfloat16,
        slots=max(batch),
        max_batch=max(batch),
        frames=tuple(frames),
    )
    lost = total = 0.0
    for size in batch:
        for count in frames:
            step = codec.open_pass(torch.arange(size, device=place), count)
            assert isinstance(step, TritonPass)
            seen = set()
            for _, layer, rate in products(codec.weights):
                key = (layer.inputs, layer.taps, layer.outputs, rate)
                if layer.outputs == 1 or key in seen:
                    continue
                seen.add(key)
                rows = size * count * rate
                x = torch.randn(size, count * rate, layer.inputs, device=place, dtype=torch.bfloat16)
                chosen = tile(rows, layer.outputs, layer.inputs)  # of one without a norm
                times = {
                    option: time_tile(step, x, layer, option) for option in options(rows, layer) | {chosen}
                }
                best = min(times, key=lambda option: times[option])
                total += times[best]
                lost += times[chosen] - times[best]
                rate_of = 2e-9 * layer.weight.numel() * rows / times[best]
                print(
                    f"batch {size} frames {count} {key}: best {tuple(best)} {1000 * times[best]:.1f} us, "
                    f"{rate_of:.0f} TFLOP/s; chosen {tuple(chosen)} {1000 * times[chosen]:.1f} us",
                    flush=True,
                )
    print(f"one of each: the choice loses {lost:.3f} of {total:.3f} ms")


def options(rows: int, layer: Conv) -> set[Any]:
    """Tiles worth trying."""
    from duplex.adapters.qwen3_tts.codec_triton import Tile

    shapes = SMALL if rows <= 64 else LARGE if rows >= 2048 else SMALL[1:] + LARGE
    depths = [depth for depth in (32, 64, 128) if layer.inputs % depth == 0][-2:]
    return {Tile(m, n, k, w, s) for m, n, w in shapes for k in depths for s in (3, 4) if m * k <= 128 * 64}


def time_tile(step: Any, x: Tensor, layer: Conv, option: Any) -> float:
    """Milliseconds of one product, infinite where the tile is too much for the device."""
    try:
        return measure(graphed(lambda: step._product(x, layer, cut=option), x.device), x.device, 10)
    except Exception as error:  # of shared memory, or registers
        print("   no", tuple(option), type(error).__name__)
        return float("inf")


LARGE = [
    (128, 256, 8),
    (128, 32, 4),
    (128, 128, 8),
    (128, 128, 4),
    (128, 64, 4),
    (256, 64, 8),
    (64, 128, 4),
    (64, 64, 4),
]
SMALL = [(64, 16, 4), (64, 32, 4), (64, 64, 4)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--frames", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--same", action="store_true")
    given = parser.parse_args()
    if given.same:
        same(given.batch, given.frames)
    elif given.tune:
        tune(given.batch, given.frames)
    else:
        bench(given.device, given.batch, given.frames, tiny=given.tiny, dtype=given.dtype, plain=given.plain)
