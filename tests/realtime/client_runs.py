"""Runs the client programs of `clients/` against a gateway with the embedded voice, each from an environment
of its own, because their packages pin versions of what they share.

    clients/run_all [--folder DIR] [CLIENT ...]

All of them without a name. Environments are made in DIR, a temporary folder by default, and kept there for
the next run. Exits with 1 when a client fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent / "clients"
RUN_S = 150.0
INSTALL_S = 600.0
LINES, WIDTH = 25, 1000
"""What is shown of a program's output."""


class Client(NamedTuple):
    """`requires`: what pip installs; a client of Node has its packages in `package.json`."""

    script: str
    requires: tuple[str, ...] = ()

    @property
    def on_node(self) -> bool:
        return self.script.endswith(".mjs")


CLIENTS = {
    "openai-agents": Client("openai_agents.py", ("openai-agents==0.24.0", "websockets")),
    "pipecat-ai": Client("pipecat_service.py", ("pipecat-ai[openai]==1.14.0",)),
    "livekit-plugins-openai": Client("livekit_model.py", ("livekit-plugins-openai==1.8.9",)),
    "@openai/agents-realtime": Client("agents_realtime.mjs"),
    "openai-realtime-api": Client("realtime_api.mjs"),
}


def node_is_missing() -> str:
    """What is not there of what clients of Node need; empty when all is."""
    return " and ".join(name for name in ("node", "npm") if shutil.which(name) is None)


def install(name: str, folder: Path) -> list[str]:
    """Make the client's environment, unless it is there; the command that runs its program.

    Raises `subprocess.CalledProcessError` with the installer's words as `output`.
    """
    client = CLIENTS[name]
    if client.on_node:
        home = folder / "node"
        home.mkdir(parents=True, exist_ok=True)
        for file in (HERE / "package.json", *HERE.glob("*.mjs")):
            shutil.copy(file, home)
        if not (home / "node_modules" / name).exists():
            _call(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=home)
        return ["node", str(home / client.script)]
    home = folder / name
    python = home / "bin" / "python"
    ready = home / "ready"
    wanted = "\n".join(client.requires)
    if not ready.exists() or ready.read_text() != wanted:
        _call([sys.executable, "-m", "venv", "--clear", str(home)])
        _call([str(python), "-m", "pip", "install", "-q", *client.requires])
        ready.write_text(wanted)
    return [str(python), str(HERE / client.script)]


def _call(command: list[str], cwd: Path | None = None) -> None:
    """Run an installer."""
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)


@contextlib.contextmanager
def gateway(phrases: Path) -> Iterator[str]:
    """A gateway in a process of its own, and its ws address. `phrases` gets what the clients say."""
    phrases.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", str(HERE / "server.py"), str(phrases), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError("the gateway did not start")
            yield url
        finally:
            process.terminate()


def converse(command: list[str], url: str, phrases: Path) -> subprocess.CompletedProcess[str]:
    """One client's conversation. It failed when it did not return 0; it tells what it saw."""
    pythonless = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [*command, url, str(phrases)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        env=pythonless,
    )


def _end(output: str) -> str:
    """The last lines of what a program said."""
    return "\n".join(line[:WIDTH] for line in output.splitlines()[-LINES:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="run_all", description=(__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    )
    parser.add_argument("client", nargs="*", help=f"of {', '.join(CLIENTS)}; all of them without")
    parser.add_argument("--folder", type=Path, help="where the environments are, and stay")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.client if name not in CLIENTS]:
        parser.error(f"no such client: {', '.join(unknown)}")
    failed: list[str] = []
    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = (asked.folder or temporary / "environments").resolve()
        phrases = temporary / "phrases"
        url = stack.enter_context(gateway(phrases))
        for name in asked.client or CLIENTS:
            began = time.monotonic()
            try:
                command = install(name, folder)
                installed = time.monotonic()
                done = converse(command, url, phrases)
            except subprocess.CalledProcessError as error:
                print(f"== {name}: cannot be installed\n{_end(error.output)}", flush=True)
                failed.append(name)
                continue
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"== {name}: {error}", flush=True)
                failed.append(name)
                continue
            verdict = "passed" if done.returncode == 0 else "FAILED"
            times = f"{installed - began:.0f} s to install, {time.monotonic() - installed:.0f} s to run"
            print(f"== {name} {verdict} ({times})\n{_end(done.stdout)}", flush=True)
            if done.returncode:
                failed.append(name)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
