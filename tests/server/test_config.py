"""Defaults < TOML file < environment < flags; what is wrong is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duplex.config import ServerConfig, load_config
from duplex.core.errors import DuplexError, ErrorCode


def file_of(folder: Path, text: str) -> Path:
    path = folder / "duplex.toml"
    path.write_text(text)
    return path


def refused(**arguments: Any) -> DuplexError:
    with pytest.raises(DuplexError) as caught:
        load_config(**{"environ": {}, **arguments})
    assert caught.value.code is ErrorCode.BAD_CONFIG
    return caught.value


def test_defaults() -> None:
    assert load_config(environ={}) == ServerConfig()


def test_each_layer_overrides_the_one_before(tmp_path: Path) -> None:
    file = file_of(tmp_path, 'host = "file"\nport = 1\nmax_sessions = 1\n[adapters.voice]\nllm_url = "x"\n')
    environ = {"DUPLEX_PORT": "2", "DUPLEX_MAX_SESSIONS": "2", "DUPLEX_ADAPTER": "a, b:c", "PATH": "/"}
    config = load_config({"max_sessions": 3, "auth_token": None}, file=file, environ=environ)
    assert (config.host, config.port, config.max_sessions) == ("file", 2, 3)
    assert config.adapter == ("a", "b:c")
    assert config.adapters == {"voice": {"llm_url": "x"}}
    assert config.auth_token is None


def test_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = file_of(tmp_path, "port = 7")
    assert load_config(environ={"DUPLEX_CONFIG": str(file)}).port == 7


def test_adapter_options_in_the_environment() -> None:
    config = load_config(environ={"DUPLEX_ADAPTERS": '{"voice": {"threads": 2}}'})
    assert config.adapters == {"voice": {"threads": 2}}


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        ({"environ": {"DUPLEX_MAX_SESSION": "3"}}, "max_session", "did you mean 'max_sessions'?"),
        ({"flags": {"colour": "red"}}, "colour", "unknown configuration key 'colour' (flags)"),
        ({"environ": {"DUPLEX_PORT": "many"}}, "port", "environment, DUPLEX_PORT"),
        ({"environ": {"DUPLEX_PORT": "70000"}}, "port", "from 0 to 65535"),
        ({"environ": {"DUPLEX_AUTH_TOKEN": ""}}, "auth_token", "not empty"),
        ({"environ": {"DUPLEX_LOG_LEVEL": "loud"}}, "log_level", "loud"),
        ({"environ": {"DUPLEX_ADAPTERS": "nope"}}, "adapters", "not a JSON object"),
        ({"environ": {"DUPLEX_IDLE_TIMEOUT_S": "nan"}}, "idle_timeout_s", "more than 0"),
        ({"flags": {"max_sessions": 0}}, "max_sessions", "at least 1"),
        ({"flags": {"max_sessions": "3"}}, "max_sessions", "flags"),
        ({"flags": {"drain_grace_s": -1.0}}, "drain_grace_s", "0 or more"),
        ({"flags": {"max_message_bytes": 10}}, "max_message_bytes", "at least 1024"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], key: str, words: str) -> None:
    error = refused(**arguments)
    assert error.param == key
    assert words in error.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "not TOML"),
        ('port = "8600"', "port ("),
        ("prot = 1", "did you mean 'port'?"),
        ("[adapters]\nvoice = 1", "adapters ("),
    ],
)
def test_faults_of_a_file_name_it(tmp_path: Path, text: str, words: str) -> None:
    file = file_of(tmp_path, text)
    error = refused(file=file)
    assert words in error.message
    assert str(file) in error.message


def test_missing_file(tmp_path: Path) -> None:
    assert "cannot read" in refused(file=tmp_path / "none.toml").message


def test_limits_of_a_session_come_from_the_settings() -> None:
    limits = ServerConfig(idle_timeout_s=7, max_errors=3, response_stall_s=9).session_limits()
    assert (limits.idle_timeout_s, limits.max_errors, limits.response_stall_s) == (7, 3, 9)
