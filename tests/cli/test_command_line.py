"""The command line itself: quick, complete, and clear about what is wrong."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duplex.cli import main
from duplex.cli.options import build_parser, flags_of
from duplex.config import ServerConfig

HEAVY = ("numpy", "av", "onnxruntime", "matplotlib", "starlette", "uvicorn", "soundfile", "msgspec")


def parse(*words: str) -> Any:
    return build_parser(words).parse_args(words)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from duplex.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "duplex demo" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["serve", "demo", "say", "watch", "talk", "voices"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: duplex {command}" in capsys.readouterr().out


def test_every_setting_of_the_server_has_a_flag_with_words() -> None:
    parser = build_parser(["serve"])
    serve = parser._subparsers._group_actions[0].choices["serve"]  # type: ignore[union-attr, index]
    flags = {action.dest: action for action in serve._actions}
    for name in ServerConfig.__struct_fields__:
        if name == "adapters":
            assert "option" in flags
            continue
        assert flags[name].option_strings[0] == "--" + name.replace("_", "-")
        assert flags[name].help, f"duplex serve --help says nothing about {name}"


def flags_in(parser: argparse.ArgumentParser) -> set[str]:
    """All long flags, those of the tools that it is made of included."""
    flags = {f for f in parser._option_string_actions if f.startswith("--")} - {"--help"}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            flags = flags.union(*(flags_in(tool) for tool in action.choices.values()))
    return flags


@pytest.mark.parametrize("command", ["serve", "demo", "say", "watch", "talk", "voices"])
def test_the_page_of_the_command_line_has_the_flags_that_there_are(command: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    common, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    flag = re.compile(r"(?<=`)--[a-z-]+")
    named = {part.split("\n", 1)[0]: set(flag.findall(part)) for part in sections}[command]
    (commands,) = (a for a in build_parser([command])._actions if isinstance(a, argparse._SubParsersAction))
    flags = flags_in(commands.choices[command])
    assert named <= flags
    if command == "serve":  # the page of the configuration has the others
        flags -= {"--" + name.replace("_", "-") for name in ServerConfig.__struct_fields__} - named
    assert flags <= named | set(flag.findall(common))


def test_flags_become_settings_of_their_own_types() -> None:
    args = parse(
        *("serve", "--port", "0", "--adapter", "a", "--adapter", "b:c", "--max-sessions", "3"),
        *("--idle-timeout-s", "1.5", "--log-level", "debug", "--auth-token", "t"),
    )
    flags = flags_of(args)
    assert flags == {
        "port": 0,
        "adapter": ("a", "b:c"),
        "max_sessions": 3,
        "idle_timeout_s": 1.5,
        "log_level": "debug",
        "auth_token": "t",
    }
    assert msgspec.convert(flags, ServerConfig).adapter == ("a", "b:c")


def test_flags_that_were_not_given_are_no_settings() -> None:
    assert flags_of(parse("serve")) == {}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["sing"],
        ["serve", "--port", "many"],
        ["serve", "--log-level", "loud"],
        ["serve", "--volume", "11"],
        ["say", "hello"],
        ["watch"],
        ["watch", "clip.mp4", "--speed", "slow"],
    ],
)
def test_a_bad_command_line_ends_with_2_and_one_line_of_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert [line for line in capsys.readouterr().err.splitlines() if "error:" in line]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duplex.cli", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


def test_the_module_runs_like_the_script() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("duplex 0.")
