"""`@openai/agents-realtime` and `openai-realtime-api` from npm, on Node, against the embedded voice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("hibari", reason="needs the embedded extra")
pytest.importorskip("moonshine_voice", reason="needs the embedded extra")

import client_runs

CLIENTS = [name for name, client in client_runs.CLIENTS.items() if client.on_node]


class Place(NamedTuple):
    url: str
    phrases: Path
    environments: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if missing := client_runs.node_is_missing():
        pytest.skip(f"needs {missing}")
    folder = tmp_path_factory.mktemp("clients")
    try:
        client_runs.install(CLIENTS[0], folder)
    except subprocess.CalledProcessError as error:
        if os.environ.get("CI"):
            raise RuntimeError(error.output) from error
        pytest.skip(f"npm cannot install the clients: {error.output[-200:]}")
    with client_runs.gateway(folder / "phrases") as url:
        yield Place(url, folder / "phrases", folder)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.timeout(300)
def test_a_spoken_turn_and_an_interruption_without_an_error(place: Place, name: str) -> None:
    command = client_runs.install(name, place.environments)
    done = client_runs.converse(command, place.url, place.phrases)
    assert done.returncode == 0, done.stdout
    assert "errors: []" in done.stdout
