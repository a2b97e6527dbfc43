"""Finding a checkpoint, checking its files, loading its parts; random and tiny ones."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
safetensors = pytest.importorskip("safetensors.numpy", reason="needs safetensors")

from duplex.adapters.mage_vl.gate import Gate  # noqa: E402
from duplex.adapters.mage_vl.layout import VISION, gate_layout, model_layout  # noqa: E402
from duplex.adapters.mage_vl.tiny import (  # noqa: E402
    tiny_config,
    tiny_gate_weights,
    tiny_weights,
    write_tiny_checkpoint,
)
from duplex.adapters.mage_vl.vision import Vision  # noqa: E402
from duplex.adapters.mage_vl.weights import (  # noqa: E402
    GATE_FILE,
    find_checkpoint,
    load_gate,
    load_vision,
    random_gate_weights,
    random_weights,
    read_checked,
)
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

CONFIG = tiny_config()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "tiny", seed=3)


def test_a_tiny_checkpoint_is_found_checked_and_loaded(folder: Path) -> None:
    assert find_checkpoint(str(folder)) == folder
    config = read_checked(folder)
    assert config == CONFIG
    vision, gate = load_vision(folder, config, "cpu"), load_gate(folder, config, "cpu")
    assert vision.dtype == torch.float32
    pixels, positions = torch.randn(8, 768), torch.randint(0, 9, (8, 3))
    same = Vision(CONFIG.vision_config, _tensors(tiny_weights(CONFIG, 3)))
    grid = [(1, 2, 4)]
    tokens = vision(pixels, grid, positions)
    # near, not equal: where a tensor starts in memory decides how a CPU sums
    torch.testing.assert_close(tokens, same(pixels, grid, positions))
    other = Gate(CONFIG.gate_config, _tensors(tiny_gate_weights(CONFIG, 3)))
    torch.testing.assert_close(
        gate.step([(tokens[None], gate.new_state())])[0],
        other.step([(tokens[None], other.new_state())])[0],
    )
    assert load_vision(folder, config, "cpu", torch.bfloat16).dtype == torch.bfloat16


def _tensors(weights: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in weights.items()}


def test_without_its_gate_a_checkpoint_can_only_answer(folder: Path) -> None:
    (folder / GATE_FILE).unlink()
    with pytest.raises(DuplexError, match=f"it has no {GATE_FILE}") as told:
        find_checkpoint(str(folder))
    assert told.value.code is ErrorCode.BAD_CONFIG
    with pytest.raises(DuplexError, match=GATE_FILE):
        read_checked(folder)
    assert read_checked(find_checkpoint(str(folder), gate=False), gate=False) == CONFIG


def test_a_part_that_is_missing_cut_short_or_of_another_model_is_named(folder: Path) -> None:
    part = folder / "model-00002-of-00002.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-4])
    with pytest.raises(DuplexError, match=r"00002-of-00002\.safetensors has .* fetch it again"):
        read_checked(folder)
    part.unlink()
    with pytest.raises(DuplexError, match=r"has no model-00002-of-00002\.safetensors, which its index names"):
        read_checked(folder)
    part.write_bytes(whole)
    tree = json.loads((folder / "config.json").read_text())
    tree["vision_config"]["intermediate_size"] = 256
    (folder / "config.json").write_text(json.dumps(tree))
    with pytest.raises(DuplexError, match=r"model\.visual\.encoder\.layers\.0\.mlp\.fc1\.weight \(128×64"):
        read_checked(folder)


def test_a_name_of_the_hubs_is_looked_up_in_its_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(DuplexError, match="is not in the hub's cache"):
        find_checkpoint("acme/watcher")
    repository, commit = (
        tmp_path / "hub" / "models--acme--watcher",
        "0123456789abcdef0123456789abcdef01234567",
    )
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / commit).symlink_to(folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert read_checked(find_checkpoint("acme/watcher")) == CONFIG


def test_a_download_leaves_remote_code_where_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked: list[list[str]] = []

    def fetch(name: str, *, local_files_only: bool = False, **options: Any) -> str:
        assert name == "acme/watcher"
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        asked.append(options["allow_patterns"])
        return str(folder)

    monkeypatch.setattr(client, "snapshot_download", fetch)
    assert find_checkpoint("acme/watcher", download=True) == folder
    [patterns] = asked
    wanted = [any(fnmatch(path.name, pattern) for pattern in patterns) for path in folder.iterdir()]
    assert all(wanted)
    for other in ("modeling_mage_vl.py", "neural_codec/dcvc_intra.tar"):
        assert not any(fnmatch(other, pattern) for pattern in patterns)


def test_random_weights_fill_the_layout_and_run() -> None:
    weights = random_weights(CONFIG, 1, prefix=VISION, dtype=torch.float32)
    assert {name: tuple(t.shape) for name, t in weights.items()} == {
        name: shape for name, shape in model_layout(CONFIG).items() if name.startswith(VISION)
    }
    again = random_weights(CONFIG, 1, prefix=VISION, dtype=torch.float32)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    tokens = Vision(CONFIG.vision_config, weights)(torch.randn(4, 768), [(1, 2, 2)], torch.zeros(4, 3))
    assert tokens.isfinite().all()
    whole = random_weights(CONFIG, 1)
    assert whole.keys() == model_layout(CONFIG).keys()
    assert {tensor.dtype for tensor in whole.values()} == {torch.bfloat16}


def test_random_gate_weights_make_a_gate_that_forgets() -> None:
    weights = random_gate_weights(CONFIG, 1)
    assert {name: tuple(t.shape) for name, t in weights.items()} == gate_layout(CONFIG.gate_config)
    gate = Gate(CONFIG.gate_config, weights)
    state = gate.new_state()
    [probabilities] = gate.step([(torch.randn(50, 4, 64), state)])
    assert probabilities.isfinite().all()
    assert state.memory.isfinite().all()


def test_a_tiny_checkpoint_never_changes(tmp_path: Path) -> None:
    """A seed is a promise: golden results hang on it."""
    write_tiny_checkpoint(tmp_path, seed=0)
    digest = hashlib.sha256()
    for part in sorted(tmp_path.glob("*.safetensors")):
        for name, values in sorted(safetensors.load_file(part).items()):
            digest.update(name.encode())
            digest.update(values.tobytes())
    assert digest.hexdigest()[:16] == "51604a939c784a54"
