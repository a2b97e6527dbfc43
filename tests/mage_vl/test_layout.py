"""Names and shapes of the published checkpoint, from the configuration alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from duplex.adapters.layouts import parameters
from duplex.adapters.mage_vl.config import MageConfig, TextConfig, published
from duplex.adapters.mage_vl.layout import (
    DECODER,
    HEAD,
    VISION,
    check_gate,
    check_model,
    gate_layout,
    model_layout,
)
from duplex.adapters.mage_vl.tiny import tiny_config
from duplex.core.errors import DuplexError, ErrorCode

FULL = MageConfig()


def test_counts_are_those_of_the_published_files() -> None:
    """The index tells of 398 + 297 + 1 tensors and 9,483,587,584 bytes in bfloat16; the gate's file of 64
    tensors has 1,073,494,728 bytes, its header's among them."""
    layout = model_layout(FULL)
    vision = {name: shape for name, shape in layout.items() if name.startswith(VISION)}
    decoder = {name: shape for name, shape in layout.items() if name.startswith(DECODER)}
    assert (len(decoder), len(vision), len(layout)) == (398, 297, 696)
    assert 2 * parameters(layout) == 9_483_587_584
    assert round(parameters(vision) / 1e6, 1) == 330.4
    assert round((parameters(layout) - parameters(vision)) / 1e6, 1) == 4411.4
    gate = gate_layout(FULL.gate_config)
    assert len(gate) == 64
    assert round(parameters(gate) / 1e6, 1) == 536.7
    header = 1_073_494_728 - 2 * parameters(gate)
    assert 0 < header < 64 * 200


@pytest.mark.parametrize("config", [FULL, tiny_config()], ids=["full", "tiny"])
def test_the_reference_has_the_same_tensors(config: MageConfig) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="the reference needs transformers")
    import mage_reference

    with torch.device("meta"):
        reference = mage_reference.Reference(published(config))
        gate = mage_reference.Gate(SimpleNamespace(**msgspec.to_builtins(config.gate_config)))
    found = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert found == model_layout(config)
    assert {name: tuple(t.shape) for name, t in gate.state_dict().items()} == gate_layout(config.gate_config)


def test_faults_are_told_by_name() -> None:
    layout = model_layout(FULL)
    del layout[f"{VISION}encoder.layers.23.mlp.fc2.bias"]
    layout[HEAD] = (151936, 2048)
    layout[f"{VISION}layernorm_post.weight"] = (1024,)
    layout[f"{DECODER}rotary_emb.inv_freq"] = (64,)
    with pytest.raises(DuplexError) as told:
        check_model(FULL, layout)
    assert told.value.code is ErrorCode.BAD_CONFIG
    words = str(told.value)
    assert "1 missing: model.visual.encoder.layers.23.mlp.fc2.bias" in words
    assert "1 unexpected: model.visual.layernorm_post.weight" in words
    assert "lm_head.weight (151936×2048, not 151936×2560)" in words
    assert "inv_freq" not in words


def test_a_tied_head_may_be_missing() -> None:
    layout = model_layout(FULL)
    del layout[HEAD]
    check_model(msgspec.structs.replace(FULL, tie_word_embeddings=True), layout)
    with pytest.raises(DuplexError, match=r"lm_head\.weight"):
        check_model(FULL, layout)


def test_a_gate_of_another_size_is_told() -> None:
    check_gate(FULL.gate_config, gate_layout(FULL.gate_config))
    with pytest.raises(DuplexError, match=r"of the gate .* of another shape: pre_net\.fc3\.weight \(64×64"):
        check_gate(FULL.gate_config, gate_layout(tiny_config().gate_config))
    # and a decoder with more layers asks for more tensors
    more = msgspec.structs.replace(FULL, text_config=TextConfig(num_hidden_layers=37))
    with pytest.raises(DuplexError, match=r"11 missing: model\.language_model\.layers\.36"):
        check_model(more, model_layout(FULL))


def test_the_index_of_a_tiny_checkpoint_is_in_the_published_form(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="needs safetensors")
    from duplex.adapters.mage_vl.tiny import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == model_layout(tiny_config()).keys()
    assert set(index["weight_map"].values()) == {
        path.name for path in folder.glob("model-*-of-00002.safetensors")
    }
    assert index["metadata"]["total_size"] == 4 * parameters(model_layout(tiny_config()))
