"""How products are cut, for every weight of the published checkpoints."""

from __future__ import annotations

import json
import lzma

import msgspec
import pytest
from golden_cases import GOLDEN

from duplex.adapters.qwen3_tts.config import TtsConfig
from duplex.adapters.qwen3_tts.tiles import slice_of, tile_of

# of the authors' classes on the meta device: golden/make_layout.py
MODELS = json.loads(lzma.decompress((GOLDEN / "layout.json.xz").read_bytes()))
CONFIGS = {
    name: msgspec.convert(model["config"], TtsConfig) for name, model in MODELS.items() if name != "codec"
}
SHARED_BYTES = 227 * 1024
"""The most that a block can have with compute capability 9.0, by the CUDA programming guide."""

Shape = tuple[int, int]


def products(config: TtsConfig) -> set[Shape]:
    """Outputs and inputs of all products but the gated ones."""
    talker = config.talker_config
    predictor = talker.code_predictor_config
    found = {(predictor.hidden_size, talker.hidden_size)}
    for part in (talker, predictor):
        heads, kv, d = part.num_attention_heads, part.num_key_value_heads, part.head_dim
        hidden = part.hidden_size
        found |= {((heads + 2 * kv) * d, hidden), (hidden, heads * d), (hidden, part.intermediate_size)}
        found.add((part.vocab_size, hidden))
    return found


def gated_products(config: TtsConfig) -> set[Shape]:
    """The same of the MLPs' first halves, which are not cut into slices."""
    talker = config.talker_config
    return {(2 * part.intermediate_size, part.hidden_size) for part in (talker, talker.code_predictor_config)}


PLAIN = {shape for config in CONFIGS.values() for shape in products(config)}
GATED = {shape for config in CONFIGS.values() for shape in gated_products(config)}


def test_the_weights_are_those_of_both_sizes() -> None:
    assert {(4096, 2048), (4096, 1024), (2048, 6144), (1024, 3072), (3072, 2048), (3072, 1024)} <= PLAIN
    assert {(12288, 2048), (6144, 1024)} == GATED


@pytest.mark.parametrize(("n", "k"), sorted(PLAIN | GATED))
def test_a_slice_divides_the_sum_and_never_depends_on_the_rows(n: int, k: int) -> None:
    cut = slice_of(n, k)
    assert k % cut == 0
    assert cut >= 64


@pytest.mark.parametrize(
    ("shape", "gated"),
    [(shape, False) for shape in sorted(PLAIN)] + [(shape, True) for shape in sorted(GATED)],
)
def test_tiles_cover_the_weight_and_fit_a_block(shape: Shape, gated: bool) -> None:
    """Up to 512 rows of the talker, and twice that of the predictor."""
    n, k = shape
    cut = k if gated else slice_of(n, k)
    for rows in range(1, 1025):
        tile = tile_of(n, k, rows)
        depth = min(tile.depth, cut)
        block = min(tile.rows, max(16, 1 << (rows - 1).bit_length()))
        assert n % tile.outputs == 0, rows
        assert cut % depth == 0, rows
        assert depth * tile.ahead <= cut, rows
        assert 1 <= tile.ahead <= 4, rows
        in_flight = tile.ahead + min(tile.stages, cut // depth - tile.ahead)
        assert (tile.outputs + block) * depth * 2 * in_flight <= SHARED_BYTES, (rows, tile)
