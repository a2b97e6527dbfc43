"""`config.json` as published, and as it may be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from duplex.adapters.qwen3_tts.config import read_config
from duplex.adapters.qwen3_tts.tiny import tiny_config
from duplex.core.errors import DuplexError, ErrorCode


def written(folder: Path, **changes: Any) -> Path:
    """A folder whose config.json has other keys in the talker's part."""
    config = msgspec.to_builtins(tiny_config())
    config["talker_config"] |= changes
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    assert (
        read_config(written(tmp_path, rope_scaling={"type": "mrope"}, sliding_window=None)) == tiny_config()
    )


@pytest.mark.parametrize("name", ["spk_id", "spk_is_dialect", "codec_language_id"])
def test_a_null_is_the_default(tmp_path: Path, name: str) -> None:
    talker = read_config(written(tmp_path, **{name: None})).talker_config
    assert getattr(talker, name) == {}
    assert msgspec.structs.replace(talker, **{name: getattr(tiny_config().talker_config, name)}) == (
        tiny_config().talker_config
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": None}, "`hidden_size` - at `$.talker_config`"),
        ({"hidden_size": "wide"}, "Expected `int`, got `str` - at `$.talker_config.hidden_size`"),
        ({"spk_id": {"vivian": None, "eric": "first"}}, "at `$.talker_config.spk_id[...]`"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(DuplexError) as error:
        read_config(written(tmp_path, **changes))
    assert error.value.code is ErrorCode.BAD_CONFIG
    assert told in error.value.message
    assert str(tmp_path) in error.value.message


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DuplexError, match="does not describe a Qwen3-TTS checkpoint"):
        read_config(tmp_path)
