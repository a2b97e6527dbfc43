"""First audio and underruns at the socket of a real gateway, with listeners in processes of their own.

    python benchmarks/tts_gpu_serve.py SPEC.json > RESULTS.jsonl

Starts `duplex serve` with the model on the device, waits until it is warm, and puts one load after the other
on it; `tts_gpu_client.py` says what a listener is. After each load the gateway is left alone until nothing
speaks any more. Beside what the listeners heard stand the gateway's own figures and the device's memory.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tts_gpu_client import merged
from tts_gpu_common import as_part, tell, time_left
from tts_gpu_model import adapter_options

FOLDER: Final = Path(__file__).parent
ADAPTER: Final = "duplex.adapters.qwen3_tts.adapter:create"
"""The entry point `qwen3-tts`, also where the package is not installed."""
LISTENERS_A_PROCESS: Final = 100
WARM_S: Final = 180.0
"""Longest start of the gateway."""
ENGINE: Final = re.compile(
    r"^(duplex_(?:engine|loop_lag|speech|qwen3?_tts)\w*(?:\{[^}]*\})?) ([-+.\deE]+)$", re.M
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@contextmanager
def gateway(orders: dict[str, Any]) -> Iterator[tuple[int, Path, int]]:
    """Its port, its log and its process id, once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "port": port,
            "adapter": [ADAPTER],
            "max_speech_requests": 4096,
            "log_level": "warning",
            "adapters": {ADAPTER: adapter_options(orders, Path(folder))},
        }
        file = Path(folder) / "gateway.toml"
        file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in settings.items()))
        log = Path(folder) / "gateway.log"
        # -P: a `duplex` folder in the current directory is not the package
        command = [sys.executable, "-P", "-m", "duplex.cli", "serve", "--config", str(file)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_ready(port, process, log)
            yield port, log, process.pid
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def tail(log: Path, size: int = 3000) -> str:
    return log.read_bytes()[-size:].decode(errors="replace")


def wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + WARM_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the gateway did not come up: {tail(log)}")
        time.sleep(0.1)


def figures(port: int) -> dict[str, float]:
    """The gateway's own metrics of engine and loop; none when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    left_out = ("_bucket", "_created")
    return {
        name: float(value)
        for name, value in ENGINE.findall(text)
        if not any(part in name for part in left_out)
    }


def counted(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Counters as their growth, gauges as they stand."""
    grows = ("_total", "_sum", "_count")
    return {
        name: round(value - (before.get(name, 0.0) if name.partition("{")[0].endswith(grows) else 0.0), 6)
        for name, value in after.items()
    }


def device_memory() -> int | None:
    """Bytes in use on the first GPU, by all processes."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return int(done.stdout.strip()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def cpu_s(pid: int) -> float | None:
    """Processor time of a process so far, without its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def heard(port: int, load: dict[str, Any]) -> dict[str, Any]:
    """One load, spread over as many processes as it needs."""
    listeners, rate = load.get("listeners", 0), load.get("rate", 0.0)
    count = max(1, -(-listeners // LISTENERS_A_PROCESS), round(rate / 10))
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            share = load | {
                "port": port,
                "seed": 7 + index,
                "listeners": listeners // count + (index < listeners % count),
                "rate": rate / count,
                "probes": load.get("probes", 0) if index == 0 else 0,
            }
            file = Path(folder) / f"{index}.json"
            file.write_text(json.dumps(share))
            command = [sys.executable, str(FOLDER / "tts_gpu_client.py"), str(file)]
            children.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        limit_s = load["settle_s"] + load["seconds"] + 30
        try:
            parts = [json.loads(child.communicate(timeout=limit_s)[0]) for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
    return merged(parts)


def serve(orders: dict[str, Any]) -> None:
    left = time_left(orders["budget_s"])
    began = time.monotonic()
    with gateway(orders) as (port, log, pid):
        tell("started", seconds=time.monotonic() - began, memory_bytes=device_memory())
        heard(port, {"seconds": 1.0, "settle_s": orders["warm_s"], "listeners": 4, "probes": 1})
        for load in orders["loads"]:
            section, asked = load["section"], {k: v for k, v in load.items() if k != "section"}
            if left() < asked["seconds"] + asked["settle_s"]:
                tell("out of time", section=section, load=asked)
                continue
            time.sleep(orders["rest_s"])
            before, used, since = figures(port), cpu_s(pid), time.monotonic()
            during: list[tuple[dict[str, float], int | None]] = []
            watch = threading.Timer(
                asked["settle_s"] + 0.8 * asked["seconds"],
                lambda during=during: during.append((figures(port), device_memory())),
            )
            watch.start()
            try:
                result = heard(port, asked)
            except Exception as error:
                tell("failed", section=section, load=asked, fault=repr(error), log=tail(log))
                continue
            took = time.monotonic() - since
            used_after = cpu_s(pid)
            watch.join()
            after, memory = during[0]
            tell(
                section,
                load=asked,
                **result,
                gateway_cores=None if used is None or used_after is None else (used_after - used) / took,
                memory_bytes=memory,
                engine=counted(before, after),
            )
        tell("log", tail=tail(log))


if __name__ == "__main__":
    serve(as_part())
