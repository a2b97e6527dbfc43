"""The vLLM model by itself, without an engine: what it loads, and what the decoder is given."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duplex.adapters.mage_vl.config import MageConfig, published, read_config
from duplex.adapters.mage_vl.layout import VISION, gate_layout, model_layout
from duplex.adapters.mage_vl.prompt import Pixels
from duplex.adapters.mage_vl.vllm_plugin import ARCHITECTURE, engine_arguments, register

torch = pytest.importorskip("torch", reason="the reference is in plain torch")
pytest.importorskip("vllm", reason="the engine core is in the extra `cpu-engine`")

import mage_reference  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from duplex.adapters.mage_vl.vllm_processor import image_config  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """vLLM's layers ask how many ranks there are."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    register()
    place = tmp_path_factory.mktemp("ranks") / "store"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, f"file://{place}", 0, "gloo")
        parallel_state.initialize_model_parallel(1)
        yield
        parallel_state.cleanup_dist_env_and_memory()


def configured(folder: Path, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    options = {**engine_arguments(folder, **arguments), "max_model_len": 2048, "skip_tokenizer_init": True}
    return EngineArgs(**options, enforce_eager=True, dtype="float32").create_engine_config()


def build(folder: Path, device: str, **arguments: Any) -> Any:
    """The model with no weights in it."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    config = configured(folder, **arguments)
    assert config.model_config.architectures == [ARCHITECTURE]
    with torch.device(device), set_current_vllm_config(config), dtype_of(torch.float32):
        return initialize_model(config)


@contextlib.contextmanager
def dtype_of(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published configuration, which names remote code that is not there."""
    folder = tmp_path_factory.mktemp("full")
    remote = {
        "AutoConfig": "configuration_mage_vl.MageVLConfig",
        "AutoModelForCausalLM": "modeling_mage_vl.MageVLForConditionalGeneration",
        "AutoProcessor": "processing_mage_vl.MageVLProcessor",
    }
    (folder / "config.json").write_text(json.dumps(published(MageConfig()) | {"auto_map": remote}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 4_000_000}))
    return folder


def full_tensors() -> dict[str, Any]:
    return {
        name: torch.empty(shape, device="meta", dtype=torch.bfloat16)
        for name, shape in model_layout(MageConfig()).items()
    }


def gate_tensors() -> dict[str, Any]:
    layout = gate_layout(MageConfig().gate_config)
    return {name: torch.empty(shape, device="meta") for name, shape in layout.items()}


def test_it_takes_every_tensor_of_the_full_checkpoint(full_folder: Path) -> None:
    model = build(full_folder, "meta", pixels=True)
    tensors = full_tensors()
    loaded = model.load_weights((tensors | gate_tensors()).items())
    assert loaded == set(dict(model.named_parameters()))
    # queries, keys and values stand in one matrix of vLLM's decoder, gates and ups in another
    assert sum(value.numel() for value in model.parameters()) == sum(t.numel() for t in tensors.values())


def test_it_refuses_a_tensor_that_it_does_not_know_or_of_another_shape(full_folder: Path) -> None:
    model = build(full_folder, "meta", pixels=True)
    with pytest.raises(ValueError, match="nonsense"):
        model.load_weights([(f"{VISION}nonsense.weight", torch.empty(1, device="meta"))])
    name = f"{VISION}merger.ln_q.weight"
    with pytest.raises((ValueError, AssertionError), match="load weight"):
        model.load_weights([(name, torch.empty(7, device="meta"))])


def test_without_pixels_the_encoder_is_left_out(full_folder: Path) -> None:
    model = build(full_folder, "meta")
    loaded = model.load_weights(full_tensors().items())
    assert not any(name.startswith("visual.") for name in loaded)
    assert loaded == set(dict(model.named_parameters()))
    decoder = {name for name in full_tensors() if not name.startswith(VISION)}
    assert sum(value.numel() for value in model.parameters()) == sum(
        full_tensors()[name].numel() for name in decoder
    )


@pytest.fixture(scope="module")
def tiny(mage_folder: Path) -> Any:
    model = build(mage_folder, "cpu", pixels=True)
    for part in sorted(mage_folder.glob("model-*.safetensors")):
        model.load_weights(load_file(part).items())
    return model


def test_the_decoder_is_given_what_plain_torch_gives_it(mage_folder: Path, tiny: Any) -> None:
    """Words' embeddings and visual tokens in their places: of pixels of two sizes, and of embeddings."""
    reference = mage_reference.load_reference(mage_folder)[0]
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((64, 96, 3), (96, 32, 3))]
    packed = [mage_reference.patches(image, reference.tree) for image in images]
    wanted = [reference.model.visual(*part) for part in packed]
    positions = [
        torch.from_numpy(
            np.stack(np.broadcast_arrays(0, *np.indices((h // 16, w // 16))), -1).astype(np.int32)
        )
        for h, w, _ in (image.shape for image in images)
    ]
    looked = tiny.embed_multimodal(pixels=[torch.from_numpy(i) for i in images], positions=positions)
    twice = tiny.embed_multimodal(
        pixels=torch.from_numpy(np.stack([images[0]] * 2)), positions=torch.stack([positions[0]] * 2)
    )
    given = tiny.embed_multimodal(image_embeds=torch.stack([wanted[0]] * 2))
    for tokens, like in zip([*looked, *twice, *given], [*wanted, *[wanted[0]] * 4], strict=True):
        torch.testing.assert_close(tokens, like, rtol=1e-4, atol=1e-5)
    pad = reference.tree["image_token_id"]
    ids = [5, 6, *[pad] * len(wanted[0]), 7, *[pad] * len(wanted[1]), 8]
    merged = tiny.embed_input_ids(
        torch.tensor(ids), looked, is_multimodal=torch.tensor([token == pad for token in ids])
    )
    torch.testing.assert_close(merged, reference.merged(ids, torch.cat(wanted))[0], rtol=1e-4, atol=1e-5)


def test_a_picture_takes_its_place_in_time_from_its_positions(tiny: Any) -> None:
    """And nothing else tells the encoder when it was."""
    image = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    place = torch.zeros(1, 4, 4, 3, dtype=torch.int32)
    later = place.clone()
    later[0, 0, 0, 0] = 5
    first, second = (tiny.embed_multimodal(pixels=image, positions=at)[0] for at in (place, later))
    assert not torch.allclose(first, second)


@pytest.mark.parametrize(
    "values", [{}, {"min_pixels": None, "max_pixels": None, "image_mean": [0.5, 0.4, 0.3], "resample": 3}]
)
def test_pictures_are_prepared_as_the_checkpoint_says(
    mage_folder: Path, tmp_path: Path, values: dict[str, Any]
) -> None:
    """Also where limits stand in `size` alone, and where keys are null."""
    folder = tmp_path / "copy"
    shutil.copytree(mage_folder, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))
    wanted = read_config(folder).image_config
    assert wanted.max_pixels == 512 * 512
    assert image_config(configured(folder).model_config) == wanted
    assert build(folder, "meta", pixels=True).visual._image_config == wanted


def test_without_an_encoder_pixels_are_refused_and_embeddings_are_not_counted(mage_folder: Path) -> None:
    from vllm.multimodal import MULTIMODAL_REGISTRY

    processor = MULTIMODAL_REGISTRY.create_processor(configured(mage_folder).model_config)
    seen = [torch.zeros(6, 64)] * 70
    assert len(processor.info.parse_mm_data({"image": seen})["image"]) == 70
    pixels = Pixels(image=np.zeros((64, 96, 3), np.uint8), positions=np.zeros((4, 6, 3), np.int32))
    for data in ([pixels], [*seen, pixels]):
        with pytest.raises(Exception, match="At most 0 image"):  # of a class that differs between versions
            processor.info.parse_mm_data({"image": data})
