"""What is read of a checkpoint's files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duplex.adapters.mage_vl.config import GateConfig, ImageConfig, MageConfig, published, read_config
from duplex.adapters.mage_vl.tiny import tiny_config
from duplex.core.errors import DuplexError, ErrorCode

Change = Callable[[dict[str, Any]], Any]


def written(folder: Path, config: MageConfig | None = None, change: Change = lambda tree: None) -> Path:
    tree = published(config or MageConfig())
    change(tree)
    (folder / "config.json").write_text(json.dumps(tree))
    return folder


def test_defaults_are_the_published_checkpoints(tmp_path: Path) -> None:
    read = read_config(written(tmp_path))
    assert read == msgspec.structs.replace(MageConfig(), eos_token_ids=(151645,))
    assert read.vision_config.head_dim == 64
    assert read.vision_config.patch_width == 768
    assert read.vision_config.merged == 4
    assert read.vision_config.token_pixels == 32
    assert read.gate_config.inner_size == 5120


def test_the_published_file_says_nothing_of_its_gate(tmp_path: Path) -> None:
    assert "streammind_gate_config" not in published(MageConfig())
    assert read_config(written(tmp_path, tiny_config())).gate_config == tiny_config().gate_config


def test_keys_of_training_and_of_remote_code_are_ignored_and_nulls_are_defaults(tmp_path: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["auto_map"] = {"AutoConfig": "configuration_mage_vl.MageVLConfig"}
        tree["vision_config"] |= {"image_size": 448, "attention_dropout": 0.0, "frame_windows_size": None}
        tree["text_config"]["sliding_window"] = None

    assert read_config(written(tmp_path, None, change)).vision_config == MageConfig().vision_config


def test_rope_theta_may_stand_alone(tmp_path: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        del tree["text_config"]["rope_parameters"]
        tree["text_config"] |= {"rope_theta": 12345.0, "rope_scaling": None}

    assert read_config(written(tmp_path, None, change)).text_config.rope_theta == 12345.0


def test_generation_config_says_what_ends_an_answer(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    assert read_config(tmp_path).eos_token_ids == (151645, 151643)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert read_config(tmp_path).eos_token_ids == (7,)


def test_preprocessor_config_in_either_form(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"min_pixels": 2048, "max_pixels": 8192, "image_mean": [0.5, 0.5, 0.25]}')
    old = read_config(tmp_path).image_config
    assert old == ImageConfig(min_pixels=2048, max_pixels=8192, image_mean=(0.5, 0.5, 0.25))
    file.write_text('{"size": {"shortest_edge": 2048, "longest_edge": 8192}, "patch_size": 16}')
    assert read_config(tmp_path).image_config == ImageConfig(min_pixels=2048, max_pixels=8192)


def _set(*path: str, value: Any) -> Change:
    def change(tree: dict[str, Any]) -> None:
        for key in path[:-1]:
            tree = tree.setdefault(key, {})
        tree[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("model_type", value="qwen3_vl"), "model_type 'qwen3_vl' is not served"),
        (_set("text_config", "model_type", value="llama"), "text_config.model_type 'llama'"),
        (_set("text_config", "rope_parameters", "rope_type", value="yarn"), "rope of type 'yarn'"),
        (_set("text_config", "rope_parameters", "mrope_section", value=[24, 20, 20]), "only plain rope"),
        (_set("text_config", "rope_parameters", value=[1]), "rope_parameters is no table"),
        (_set("text_config", "num_key_value_heads", value=5), "no multiple of num_key_value_heads"),
        (_set("text_config", "hidden_size", value=0), "hidden_size"),
        (_set("text_config", "hidden_size", value=2048), "is not the decoder's 2048"),
        (_set("vision_config", "use_head", value=True), "use_head is not served"),
        (_set("vision_config", "use_patch_position_encoding", value=True), "use_patch_position_encoding"),
        (_set("vision_config", "layer_norm_type", value="rms_norm"), "layer_norm_type 'rms_norm'"),
        (_set("vision_config", "hidden_act", value="gelu_pytorch_tanh"), "hidden_act 'gelu_pytorch_tanh'"),
        (_set("vision_config", "temporal_patch_size", value=2), "temporal_patch_size is not 1"),
        (_set("vision_config", "num_attention_heads", value=24), "do not part 4:6:6"),
        (_set("vision_config", "num_attention_heads", value=64), "do not part 4:6:6"),
        (_set("vision_config", "patch_size", value="big"), "does not describe a Mage-VL checkpoint"),
        (_set("vision_config", "patch_size", value=14), "preprocessor_config.json has other patch_size"),
        (_set("streammind_gate_config", "hidden_size", value=64), "the gate's hidden_size 64"),
        (_set("eos_token_id", value="end"), "does not describe"),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, change: Change, words: str) -> None:
    with pytest.raises(DuplexError) as told:
        read_config(written(tmp_path, None, change))
    assert told.value.code is ErrorCode.BAD_CONFIG
    assert words in str(told.value)
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"), [(None, "there is no"), ("{", "is no JSON"), ("[]", "is no JSON object")]
)
def test_files_that_are_none(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(DuplexError, match=words):
        read_config(tmp_path)


def test_a_deviation_of_nought_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_std": [0.2, 0.0, 0.2]}')
    with pytest.raises(DuplexError, match="image_std is not positive"):
        read_config(tmp_path)


def test_another_gate_is_written_and_read(tmp_path: Path) -> None:
    config = msgspec.structs.replace(MageConfig(), gate_config=GateConfig(dt_rank=7))
    assert read_config(written(tmp_path, config)).gate_config.dt_rank == 7
