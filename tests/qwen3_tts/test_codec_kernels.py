"""The codec's Triton kernels: in the interpreter on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import ast
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from interpreter import interpreted

torch = pytest.importorskip("torch", reason="the codec needs torch")
pytest.importorskip("triton", reason="the kernels need triton")

from codec_small import codes, config, decoder, weights  # noqa: E402

from duplex.adapters.qwen3_tts.codec_triton import (  # noqa: E402
    NORM_TILE,
    TILES,
    KeepTables,
    Tile,
    TritonPass,
    tile,
)
from duplex.adapters.qwen3_tts.codec_weights import fold  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.timeout(300)
def test_kernels_in_the_interpreter_give_the_authors_samples() -> None:
    found = json.loads(interpreted("codec_interpreted.py").splitlines()[-1])
    assert len(found) == 5
    assert all(gap < 2e-5 for gap in found.values()), found


@pytest.mark.timeout(300)
def test_samples_are_the_same_bit_for_bit_in_any_batch_and_chunks() -> None:
    """Both dtypes at once: either takes a core for a while."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(interpreted, "codec_interpreted_cuts.py"), ["float32", "bfloat16"]))


def test_what_stays_in_a_long_context_moves_back() -> None:
    folded = fold(config("kernels").decoder_config, weights("kernels"), device=CPU, dtype=torch.float32)
    tables = KeepTables(folded, CPU)
    for frames in (1, 2, 3, 6, 8):
        before = torch.arange(folded.context)
        after = torch.full((folded.context,), -1)
        pair = tables.get(frames)
        if pair is not None:
            after[pair[1].long()] = before[pair[0].long()]
        for context in folded.contexts:
            part = slice(context.start, context.start + context.size)
            added = min(frames * context.rate, context.rows) * context.channels
            kept = context.size - added
            assert torch.equal(after[part][:kept], before[part][added:])
            assert bool((after[part][kept:] == -1).all())  # whoever makes the input writes these


@pytest.mark.parametrize("rows", [1, 4, 32, 160, 2048, 491520])
@pytest.mark.parametrize(("outputs", "channels"), [(96, 96), (192, 192), (6144, 1536), (512, 1024)])
def test_tiles_fit_the_layer(rows: int, outputs: int, channels: int) -> None:
    chosen = tile(rows, outputs, channels)
    assert channels % chosen.depth == 0
    assert chosen.depth >= 16
    assert (chosen.rows, chosen.outputs) in {(option.rows, option.outputs) for option in TILES}


@pytest.mark.parametrize("option", [*TILES, NORM_TILE])
def test_every_tile_takes_the_same_matrix_instruction(option: Tile) -> None:
    """Triton takes HGMMA for 64 rows and 8 outputs or more, four warps of a group together; HMMA below."""
    assert option.rows % 64 == 0
    assert option.outputs % 8 == 0
    assert option.warps % 4 == 0
    assert option.depth % 16 == 0
    assert option.rows * option.outputs >= 64 * 8 * (option.warps // 4)


@pytest.mark.parametrize("outputs", [512, 2048, 3072])
def test_a_product_with_a_norm_has_one_tile(outputs: int) -> None:
    assert len({tile(rows, outputs, 512, norm=True) for rows in (1, 16, 200, 4096)}) == 1


@pytest.mark.parametrize(("name", "fit"), [("kernels", True), ("small", False), ("window", False)])
def test_kernels_take_channels_in_sixteens(name: str, fit: bool) -> None:
    folded = fold(config(name).decoder_config, weights(name), device=CPU, dtype=torch.float32)
    assert TritonPass.fits(config(name).decoder_config, folded) is fit


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["kernels", "small"])
def test_replayed_graphs_equal_plain_decoding(name: str) -> None:
    device = torch.device("cuda")
    plain = decoder(name, device=device, plain=True)
    codec = decoder(name, device=device, plain=False if name == "kernels" else None)
    ring = torch.stack([codes(slot, 8) for slot in range(7)]).int().to(device)
    codec.capture(ring)
    order = [4, 0, 2]
    ids = torch.tensor(order, device=device)
    for frames in (1, 8, 2, 3, 5):
        ticket = codec.launch(order, frames)
        wanted = plain.decode(ids, plain.gather(ids, ring, frames)).cpu()
        assert float((torch.from_numpy(ticket.result()) - wanted).abs().max()) < 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_samples_are_the_same_bit_for_bit_on_the_device() -> None:
    device, sizes, count = torch.device("cuda"), (1, 2, 8), 64
    options = {"device": device, "plain": False, "slots": count, "max_batch": count, "frames": sizes}
    codec = decoder("kernels", dtype=torch.bfloat16, **options)
    streams = torch.stack([codes(slot, 11) for slot in range(count)]).to(device)
    every = torch.arange(count, device=device)
    together = torch.cat([codec.decode(every, part) for part in streams.split((8, 1, 2), dim=1)], dim=1)
    for slot in (0, count - 1):
        codec.reset(slot)
        ids = every[slot : slot + 1]
        alone = torch.cat([codec.decode(ids, part) for part in streams[ids].split(1, dim=1)], dim=1)
        assert torch.equal(alone[0], together[slot])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_samples_are_the_same_beside_other_work() -> None:
    """The squares of a row for its norm were now and then those of what the pipeline had copied over it."""
    device = torch.device("cuda")
    codec = decoder("kernels", dtype=torch.bfloat16, device=device, plain=False, slots=1, max_batch=1)
    stream = codes(0, 8)[None].to(device)
    slot = torch.zeros(1, device=device, dtype=torch.int64)
    matrix = torch.randn(4096, 4096, device=device).bfloat16()
    beside = torch.cuda.Stream()

    def spoken() -> torch.Tensor:
        codec.reset(0)
        return torch.cat([codec.decode(slot, part) for part in stream.split(1, dim=1)], dim=1)

    alone = spoken()
    for _ in range(8):
        torch.cuda.synchronize()
        with torch.cuda.stream(beside):
            for _ in range(200):
                matrix @ matrix
        assert torch.equal(spoken(), alone)


def test_a_loop_whose_copies_run_ahead_only_multiplies() -> None:
    """What else such a loop did with a row, Triton 3.6 did to the copy behind it now and then."""
    tree = ast.parse(
        (Path(__file__).parents[2] / "adapters/qwen3_tts/codec_kernels.py").read_text(encoding="utf-8")
    )
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and "STAGES" in ast.dump(node.iter)]
    assert len(loops) == 2
    for loop in loops:
        nodes = list(ast.walk(loop))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        made = [node for node in nodes if isinstance(node, ast.Assign)]
        loads = [node for node in made if ast.unparse(node.value).startswith("tl.load(")]
        loaded = {ast.unparse(target) for load in loads for target in load.targets}
        assert loaded == {"part", "weight"}
        dots = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "tl.dot"]
        multiplied = {id(argument) for dot in dots for argument in dot.args[:2]}
        read = {id(name) for name in names if isinstance(name.ctx, ast.Load) and name.id in loaded}
        assert read <= multiplied
