"""Finding checkpoints, looking into their files, loading them; the tiny and the random ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from duplex.adapters.qwen3_tts.config import read_codec_config, read_config
from duplex.adapters.qwen3_tts.layout import codec_layout, model_layout
from duplex.adapters.qwen3_tts.tiny import (
    tiny_codec_config,
    tiny_config,
    tiny_weights,
    write_tiny_checkpoint,
)
from duplex.adapters.qwen3_tts.weights import (
    find_checkpoint,
    load_weights,
    random_weights,
    read_checked,
    read_shapes,
)
from duplex.core.errors import DuplexError, ErrorCode

torch = pytest.importorskip("torch", reason="needs the extra qwen3-tts")
safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra qwen3-tts")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("base"), "base", "0.6B", seed=3)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra qwen3-tts")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub: Path, checkpoint: Path, *files: str) -> Path:
    """Put files of a checkpoint into the cache as acme/voice, as the hub's client lays them out."""
    repository = hub / "models--acme--voice"
    snapshot = repository / "snapshots" / COMMIT
    for file in files or [
        str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()
    ]:
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).symlink_to(checkpoint / file)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


def bad_config(act: Callable[[], object]) -> str:
    with pytest.raises(DuplexError) as caught:
        act()
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert caught.value.param == "model"
    return str(caught.value)


# finding


def test_a_folder_is_found(base: Path) -> None:
    assert find_checkpoint(str(base)) == base


def test_a_folder_below_home_is_found(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base.parent))
    assert find_checkpoint(f"~/{base.name}") == base


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "some/where/else", "none", "~/none/at all"])
def test_a_name_that_is_neither_folder_nor_repository_is_refused(name: str, hub: Path) -> None:
    assert "there is no folder" in bad_config(lambda: find_checkpoint(name))


def test_a_name_that_the_hub_does_not_allow_is_refused(hub: Path) -> None:
    assert "no name of the hub's" in bad_config(lambda: find_checkpoint("acme/a--b voice"))


def test_an_incomplete_folder_is_told_what_it_lacks(base: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((base / "config.json").read_bytes())
    told = bad_config(lambda: find_checkpoint(str(tmp_path)))
    assert (
        "it has no speech_tokenizer/config.json, model.safetensors, speech_tokenizer/model.safetensors"
        in told
    )


def test_a_repository_in_the_cache_is_found_without_a_download(base: Path, hub: Path) -> None:
    snapshot = cached(hub, base)
    assert find_checkpoint("acme/voice") == snapshot
    assert find_checkpoint("acme/voice", revision=COMMIT) == snapshot
    assert read_checked(snapshot)[0].tts_model_type == "base"


def test_a_repository_that_is_not_in_the_cache_is_refused_with_what_to_do(hub: Path) -> None:
    told = bad_config(lambda: find_checkpoint("acme/voice"))
    assert (
        "acme/voice is not in the hub's cache: fetch it with `hf download acme/voice`, or set download"
        in told
    )


def test_another_revision_than_the_cached_one_is_refused(base: Path, hub: Path) -> None:
    cached(hub, base)
    told = bad_config(lambda: find_checkpoint("acme/voice", revision="v2"))
    assert "acme/voice at v2 is not in the hub's cache" in told


def test_half_a_repository_in_the_cache_is_told_what_it_lacks(base: Path, hub: Path) -> None:
    cached(hub, base, "config.json", "speech_tokenizer/config.json", "speech_tokenizer/model.safetensors")
    assert bad_config(lambda: find_checkpoint("acme/voice")).endswith("it has no model.safetensors")


class FakeHub:
    """Stands for the hub's client: only a download that is allowed finds anything."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.downloads: list[tuple[str, str | None]] = []

    def snapshot_download(self, name: str, *, revision: str | None, local_files_only: bool = False) -> str:
        from huggingface_hub.errors import LocalEntryNotFoundError

        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        self.downloads.append((name, revision))
        if self.folder is None:
            raise ConnectionError("no route")
        return str(self.folder)


@pytest.mark.parametrize("reachable", [True, False])
def test_a_download_happens_only_when_it_is_allowed(
    base: Path, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    client = pytest.importorskip("huggingface_hub", reason="needs the extra qwen3-tts")
    fake = FakeHub(base if reachable else None)
    monkeypatch.setattr(client, "snapshot_download", fake.snapshot_download)
    bad_config(lambda: find_checkpoint("acme/voice", revision="v1"))
    assert fake.downloads == []
    if reachable:
        assert find_checkpoint("acme/voice", revision="v1", download=True) == base
    else:
        told = bad_config(lambda: find_checkpoint("acme/voice", revision="v1", download=True))
        assert told == "acme/voice at v1 cannot be fetched from the hub: no route"
    assert fake.downloads == [("acme/voice", "v1")]


# shapes


def test_shapes_are_read_from_both_files(base: Path) -> None:
    assert read_shapes(base) == model_layout(read_config(base))
    held = read_shapes(base / "speech_tokenizer")
    assert codec_layout(read_codec_config(base)).items() <= held.items()


def split(folder: Path, checkpoint: Path) -> dict[str, str]:
    """Write a checkpoint's model in two parts with an index. Returns the index's places."""
    weights = safetensors.load_file(checkpoint / "model.safetensors")
    names = sorted(weights)
    places = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        safetensors.save_file({name: weights[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_a_model_in_parts_reads_and_loads_as_a_whole_one(base: Path, tmp_path: Path) -> None:
    split(tmp_path, base)
    assert read_shapes(tmp_path) == read_shapes(base)
    whole = load_weights(base, "talker.", "cpu", None)
    parts = load_weights(tmp_path, "talker.", "cpu", None)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_missing_part_is_named(base: Path, tmp_path: Path) -> None:
    split(tmp_path, base)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "has no model-00002-of-00002.safetensors" in bad_config(lambda: read_shapes(tmp_path))


def test_a_part_without_a_tensor_that_the_index_promises_is_told(base: Path, tmp_path: Path) -> None:
    places = split(tmp_path, base) | {"talker.more": "model-00001-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert "model-00001-of-00002.safetensors has no talker.more" in bad_config(lambda: read_shapes(tmp_path))


def test_an_index_cannot_point_out_of_its_folder(base: Path, tmp_path: Path) -> None:
    outside = str(base / "model.safetensors")
    index = {"weight_map": {"talker.codec_head.weight": outside}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model.safetensors.index.json").touch()
    assert "has no model.safetensors" in bad_config(lambda: read_shapes(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "\xff"])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    assert "is no index of safetensors files" in bad_config(lambda: read_shapes(tmp_path))


def test_a_file_cut_short_is_told_before_it_is_loaded(base: Path, tmp_path: Path) -> None:
    data = (base / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-100])
    told = bad_config(lambda: read_shapes(tmp_path))
    assert f"has {len(data) - 100} bytes where its header tells of {len(data)}" in told
    assert "fetch it again" in bad_config(lambda: load_weights(tmp_path, "talker.", "cpu", None))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 3,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
        (2).to_bytes(8, "little") + b"[]",
        (2**62).to_bytes(8, "little") + b"{}",
        (29).to_bytes(8, "little") + b'{"a": {"shape": ["wide", 2]}}',
        (12).to_bytes(8, "little") + b'{"a": [1, 2]}',
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    assert "is no safetensors file" in bad_config(lambda: read_shapes(tmp_path))


def test_a_checkpoint_whose_weights_do_not_fit_its_configuration_is_refused(
    base: Path, tmp_path: Path
) -> None:
    folder = write_tiny_checkpoint(tmp_path, "base", "1.7B")
    assert read_checked(folder) == (tiny_config("base", "1.7B"), tiny_codec_config())
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(base / "model.safetensors")
    assert "do not fit its configuration" in bad_config(lambda: read_checked(folder))


# loading


def test_weights_are_loaded_by_prefix_and_converted(base: Path) -> None:
    expected = safetensors.load_file(base / "model.safetensors")
    weights = load_weights(base, "speaker_encoder.", "cpu", torch.bfloat16)
    assert weights.keys() == {name for name in expected if name.startswith("speaker_encoder.")}
    for name, tensor in weights.items():
        assert tensor.dtype is torch.bfloat16
        assert torch.equal(tensor, torch.from_numpy(expected[name]).bfloat16())


def test_the_files_own_dtype_is_kept_where_none_is_asked_for(base: Path) -> None:
    weights = load_weights(base / "speech_tokenizer", "decoder.", "cpu", None)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert weights.keys() == {
        name for name in codec_layout(tiny_codec_config()) if name.startswith("decoder.")
    }


def test_a_prefix_that_nothing_has_is_refused(base: Path) -> None:
    assert "begins with 'thinker.'" in bad_config(lambda: load_weights(base, "thinker.", "cpu", None))


# random ones


def test_random_weights_are_all_there_and_repeatable() -> None:
    config, codec = tiny_config("base", "1.7B"), tiny_codec_config()
    weights = random_weights(config, codec, 5)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == (
        model_layout(config) | codec_layout(codec)
    )
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    again, other = random_weights(config, codec, 5), random_weights(config, codec, 6)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["talker.codec_head.weight"], other["talker.codec_head.weight"])


def test_random_weights_have_the_values_that_each_kind_needs() -> None:
    config, codec = tiny_config("base", "1.7B"), tiny_codec_config()
    weights = random_weights(config, codec, 5, 0.5, dtype=torch.float32)
    assert (weights["talker.model.layers.0.self_attn.q_norm.weight"] == 1).all()
    assert (weights["talker.model.layers.0.input_layernorm.weight"] == 1).all()
    assert (weights["decoder.upsample.0.1.norm.bias"] == 0).all()
    assert (weights["decoder.decoder.1.block.0.alpha"] == 0).all()
    assert (weights["decoder.decoder.1.block.2.act1.beta"] == 0).all()
    first = "decoder.quantizer.rvq_first.vq.layers.0._codebook"
    assert (weights[f"{first}.cluster_usage"] == 1).all()
    for name in (f"{first}.embedding_sum", "talker.model.codec_embedding.weight"):
        assert float(weights[name].std()) == pytest.approx(0.5, rel=0.05)


def test_random_weights_without_the_codec_are_the_models_alone() -> None:
    assert random_weights(tiny_config(), None, 5).keys() == model_layout(tiny_config()).keys()


# tiny ones


@pytest.mark.parametrize("model_type", ["custom_voice", "voice_design", "base"])
@pytest.mark.parametrize("size", ["0.6B", "1.7B"])
def test_a_tiny_checkpoint_is_complete(tmp_path: Path, model_type: str, size: str) -> None:
    folder = write_tiny_checkpoint(tmp_path / "new", model_type, size, seed=1)  # type: ignore[arg-type]
    assert find_checkpoint(str(folder)) == folder
    config, codec = read_checked(folder)
    assert config == tiny_config(model_type, size)  # type: ignore[arg-type]
    assert codec == tiny_codec_config()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "speech_tokenizer/config.json",
        "speech_tokenizer/model.safetensors",
        "speech_tokenizer/preprocessor_config.json",
        "tokenizer_config.json",
        "vocab.json",
    }
    assert (config.talker_config.hidden_size == 64) == (size == "0.6B")
    assert ("talker.code_predictor.small_to_mtp_projection.weight" in read_shapes(folder)) == (size == "1.7B")


def test_a_seed_means_the_same_numbers_everywhere() -> None:
    """The golden codes hang on these; a test of parity that fails beside this one has its cause here."""
    weights = tiny_weights(tiny_config("base", "0.6B"), 7)
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    assert digest.hexdigest() == "76ced88cd034f2976872929f185c1306bce311d33b17b911fd6dc0e7845e20d6"
    head = tiny_weights(tiny_config("base", "0.6B"), 8)["talker.codec_head.weight"]
    assert not np.array_equal(head, weights["talker.codec_head.weight"])


def test_the_end_codes_gain_scales_its_logit_alone() -> None:
    config = tiny_config("voice_design", "0.6B")
    end = config.talker_config.codec_eos_token_id
    never, once, twice = (
        tiny_weights(config, 7, end_gain=gain)["talker.codec_head.weight"] for gain in (0.0, 1.0, 2.0)
    )
    assert not never[end].any()
    assert np.array_equal(twice[end], 2 * once[end])
    others = np.arange(len(once)) != end
    assert np.array_equal(never[others], once[others])
    assert np.array_equal(twice[others], once[others])


def test_the_tiny_tokenizer_reads_the_layout_as_the_real_one_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra qwen3-tts")
    config = read_config(write_tiny_checkpoint(tmp_path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    text = "Hello world, they said — 42 times! 你好\n"
    ids = tokenizer(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    assert ids[:3] == [config.im_start_token_id, config.assistant_token_id, 198]
    assert ids[-5:] == [config.im_end_token_id, 198, config.im_start_token_id, config.assistant_token_id, 198]
    assert tokenizer.decode(ids[3:-5]) == text
    assert max(ids) < config.talker_config.text_vocab_size
    assert tokenizer("user")["input_ids"] == [267]
    special = ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
    assert [tokenizer(token)["input_ids"] for token in special] == [
        [config.tts_pad_token_id],
        [config.tts_bos_token_id],
        [config.tts_eos_token_id],
    ]
