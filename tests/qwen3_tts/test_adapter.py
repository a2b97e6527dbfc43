"""The adapter's options, and what it is before its workers run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duplex.adapters.base import Adapter, NotConfigured
from duplex.adapters.qwen3_tts import adapter as adapter_module
from duplex.adapters.qwen3_tts.adapter import QwenTts, create
from duplex.adapters.qwen3_tts.job import Sampling, TtsModelType
from duplex.adapters.qwen3_tts.options import ModelOptions, read_options
from duplex.adapters.qwen3_tts.tiny import SPEAKERS, tiny_codec_config, tiny_config
from duplex.adapters.registry import load_adapters
from duplex.adapters.speech import SpeechAdapter, UploadedVoice
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality
from duplex.speech.profiles import save_profile


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch were here: nothing of it is used before a worker runs."""
    monkeypatch.setattr(adapter_module, "_PACKAGES", ())


def checkpoint(folder: Path, kind: TtsModelType = "custom_voice", **generation: Any) -> Path:
    """The configurations of a checkpoint, and empty files for its weights."""
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True)
    (folder / "config.json").write_bytes(msgspec.json.encode(tiny_config(kind)))
    (codec / "config.json").write_bytes(msgspec.json.encode(tiny_codec_config()))
    for part in (folder, codec):
        (part / "model.safetensors").touch()
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def refused(**options: Any) -> DuplexError:
    with pytest.raises(DuplexError) as caught:
        create(options)
    assert caught.value.code is ErrorCode.BAD_CONFIG
    assert not isinstance(caught.value, NotConfigured)
    return caught.value


def workers(adapter: QwenTts) -> list[ModelOptions]:
    return [read_options(replica._spec.options) for replica in adapter.engine.replicas]


def test_it_is_an_adapter_that_speaks(tmp_path: Path) -> None:
    adapter = create({"model": str(checkpoint(tmp_path / "tts"))})
    assert isinstance(adapter, Adapter)
    assert isinstance(adapter, SpeechAdapter)
    info = adapter.info
    assert info.id == "qwen3-tts"
    assert (info.input_modalities, info.output_modalities) == (
        (Modality.TEXT,),
        (Modality.TEXT, Modality.AUDIO),
    )
    assert set(info.voices) == set(SPEAKERS)
    assert info.voices[0] == "vivian"
    assert adapter.speech.sample_rate == info.output_sample_rate == 24000
    assert not adapter.healthy
    assert adapter.fault is not None


def test_without_options_it_is_left_out_and_with_some_it_is_served(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="the option model is not set") as caught:
        create({})
    assert caught.value.param == "model"
    name = "duplex.adapters.qwen3_tts.adapter:create"
    config = ServerConfig(
        adapter=(name,), adapters={name: {"model": str(checkpoint(tmp_path / "tts")), "id": "mine"}}
    )
    assert [adapter.info.id for adapter in load_adapters(config)] == ["mine"]


def test_a_slow_machines_workers_may_be_silent_for_longer(tmp_path: Path) -> None:
    adapter = create({"model": str(checkpoint(tmp_path / "tts")), "hang_s": 120, "devices": ["cpu", "cpu"]})
    assert [replica._settings.hang_s for replica in adapter.engine.replicas] == [120, 120]


@pytest.mark.parametrize(
    ("options", "words", "param"),
    [
        ({"slots": 8}, "`model`", None),
        ({"model": "M", "vioce": "x"}, "vioce", None),
        ({"model": "M", "slots": "many"}, "slots", None),
        ({"model": "M", "slots": 0}, "slots is 0", "slots"),
        ({"model": "M", "text_layout": "upside down"}, "text_layout", None),
        ({"model": "M", "temperature": -1.0}, "temperature cannot be -1.0", "temperature"),
        ({"model": "M", "temperature": float("inf")}, "temperature cannot be inf", "temperature"),
        ({"model": "M", "repetition_penalty": float("inf")}, "repetition_penalty", "repetition_penalty"),
        ({"model": "M", "repetition_penalty": 0.0}, "repetition_penalty", "repetition_penalty"),
        ({"model": "M", "devices": ["cuda:0", ""]}, "devices cannot be", "devices"),
        ({"model": "M", "start_timeout_s": 0.0}, "start_timeout_s", "start_timeout_s"),
        ({"model": "M", "hang_s": 1.0}, "hang_s cannot be 1.0", "hang_s"),
        ({"model": "M", "id": ""}, "id cannot be", "id"),
        ({"model": "M", "positions": 151}, "positions cannot be 151", "positions"),  # no request would fit
        ({"model": "M", "voice": "nobody"}, "voice 'nobody': this model has: serena", "voice"),
        ({"model": "/no/such/folder"}, "there is no folder", "model"),
        ({"model": "M", "custom_voice_dir": "/no/such/folder"}, "precomputed voices in", None),
    ],
)
def test_options_that_cannot_be_had_are_named(
    tmp_path: Path, options: dict[str, Any], words: str, param: str | None
) -> None:
    if options.get("model") == "M":
        options = options | {"model": str(checkpoint(tmp_path / "tts"))}
    error = refused(**options)
    assert words in error.message
    assert error.param == param


def test_a_folder_that_is_no_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tts")
    (folder / "speech_tokenizer" / "model.safetensors").unlink()
    assert "has no speech_tokenizer/model.safetensors" in refused(model=str(folder)).message
    # a benchmark with random weights needs the configurations only
    (folder / "model.safetensors").unlink()
    assert create({"model": str(folder), "random_weights": True}).options.random_weights


def test_a_missing_package_is_named_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_module, "_PACKAGES", ("no_such_torch",))
    name = "duplex.adapters.qwen3_tts.adapter:create"
    config = ServerConfig(adapter=(name,), adapters={name: {"model": str(checkpoint(tmp_path / "tts"))}})
    with pytest.raises(DuplexError) as caught:
        load_adapters(config)
    assert "needs 'no_such_torch'" in caught.value.message
    assert 'pip install "duplex-gateway[qwen3-tts]"' in caught.value.message


def test_each_device_gets_a_worker(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tts")
    (only,) = workers(create({"model": str(folder), "slots": 7, "dtype": "float32"}))
    assert (only.device, only.slots, only.dtype, only.model) == ("auto", 7, "float32", str(folder))
    two = workers(create({"model": str(folder), "devices": ["cuda:0", "cuda:1"], "codec_device": "cpu"}))
    assert [(one.device, one.codec_device) for one in two] == [("cuda:0", "cpu"), ("cuda:1", "cpu")]
    assert not any(one.download for one in workers(create({"model": str(folder), "download": True})))


def test_sampling_is_the_checkpoints_own_unless_the_options_say_otherwise(tmp_path: Path) -> None:
    plain = checkpoint(tmp_path / "plain")
    assert create({"model": str(plain)}).speech._sampling == Sampling()
    own = checkpoint(
        tmp_path / "own", temperature=0.7, top_k=20, subtalker_dosample=False, max_new_tokens=8192
    )
    assert create({"model": str(own)}).speech._sampling == Sampling(
        temperature=0.7, top_k=20, predictor_temperature=0.0
    )
    changed = create({"model": str(own), "temperature": 0.0, "repetition_penalty": 1.2}).speech._sampling
    assert changed == Sampling(temperature=0.0, top_k=20, repetition_penalty=1.2, predictor_temperature=0.0)
    broken = checkpoint(tmp_path / "broken", temperature="warm")
    assert "generation_config.json" in refused(model=str(broken)).message


def test_precomputed_voices_are_the_models_own(tmp_path: Path) -> None:
    voices = tmp_path / "voices"
    save_profile(voices, UploadedVoice(name="Ann", embedding=(0.5,) * 128))
    base = checkpoint(tmp_path / "base", "base")
    adapter = create({"model": str(base), "custom_voice_dir": str(voices), "voice": "ann"})
    assert adapter.info.voices == ("Ann",)
    other = checkpoint(tmp_path / "other")
    assert "need a Base checkpoint" in refused(model=str(other), custom_voice_dir=str(voices)).message


def test_the_gateway_needs_no_torch(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tts")
    code = (
        "import sys\n"
        "from duplex.adapters.qwen3_tts import adapter\n"
        "adapter._PACKAGES = ()\n"
        f"print(adapter.create({{'model': {str(folder)!r}}}).info.id, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["qwen3-tts", "False"], done.stderr
