"""How flags reach the gateway's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duplex.cli.errors import UsageError
from duplex.cli.gateway import Target, _address, settings
from duplex.cli.options import build_parser, flags_of
from duplex.config import ServerConfig


def config(*words: str) -> ServerConfig:
    args: Any = build_parser(["serve"]).parse_args(["serve", *words])
    return settings(args, flags_of(args), args.config)


def test_flags_are_above_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("port = 1234\nmax_sessions = 5\n")
    found = config("--config", str(tmp_path / "c.toml"), "--port", "4321")
    assert (found.port, found.max_sessions) == (4321, 5)


def test_options_of_an_adapter_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[adapters.embedded-voice]\nvoice = "heart"\nllm_model = "a"\n')
    found = config(
        *("--config", str(tmp_path / "c.toml"), "--llm-model", "b", "--llm-url", "http://127.0.0.1:9/v1"),
        *("--option", "embedded-voice.llm_max_tokens=77", "--option", "other.plain=some words"),
        *("--option", "pkg.mod:create.flag=true"),
    )
    assert found.adapters == {
        "embedded-voice": {
            "voice": "heart",
            "llm_model": "b",
            "llm_url": "http://127.0.0.1:9/v1",
            "llm_max_tokens": 77,
        },
        "other": {"plain": "some words"},
        "pkg.mod:create": {"flag": True},
    }


@pytest.mark.parametrize("option", ["", "a", "a.b", "a=1", ".b=1", "a.=1"])
def test_an_option_without_its_parts_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"ADAPTER\.KEY=VALUE"):
        config("--option", option)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("ws://host:1", "ws://host:1"),
        ("http://host:1", "ws://host:1"),
        ("https://host/v1/duplex", "wss://host/v1/duplex"),
        ("host:1", "ws://host:1"),
        ("127.0.0.1:8600", "ws://127.0.0.1:8600"),
    ],
)
def test_addresses_are_taken_in_their_usual_forms(given: str, address: str) -> None:
    assert _address(given) == address


def test_an_address_in_full_is_left_alone() -> None:
    def path(url: str) -> str:
        return Target(url=url, token=None, model=None).path("/v1/duplex")

    assert path("ws://h:1") == path("ws://h:1/") == "ws://h:1/v1/duplex"
    assert path("ws://h:1/my/gateway") == "ws://h:1/my/gateway"
