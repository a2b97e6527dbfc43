"""Where the time until the first audio goes, stage by stage.

    python benchmarks/tts_first_audio.py [--requests 150] [--json FILE]
    python benchmarks/tts_first_audio.py --device cuda --size 1.7B      # the same on a GPU, random weights

A gateway with the `qwen3-tts` adapter runs in a process of its own and its worker in another; both are the
product's code, with stamps of the monotonic clock put around a few of its functions from outside. One client
asks for one short utterance after the other, half over HTTP, half over the WebSocket. Shown is the median
time from the stamp before to each stamp. What the model computes ("model": its launches, which on the CPU are
the work itself) is the tiny checkpoint's on this machine and tells nothing; the rest ("host") is the same
code as beside a GPU, whose own time shows where samples are waited for. A second frame that is made before
the first decode shows as host time in front of it.
The worker's CPU time a request, which other work on the machine changes little, stands below.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

STAMPS: Final = "FIRST_AUDIO_STAMPS"
"""The folder that processes leave their stamps in."""
ORDER: Final = (
    ("bytes", "the request's bytes are in the gateway"),
    ("handler", "its handler runs"),
    ("prepare", "its options are looked at"),
    ("prepared", "they are checked"),
    ("start", "Start goes to the worker"),
    ("read", "the worker has read it"),
    ("taken", "its step thread has it"),
    ("begin", "the model's begin"),
    ("begun", "the prompt is laid out"),
    ("prefill", "the model's prefill"),
    ("prefilled", "is launched (model)"),
    ("frame", "the model's first frame"),
    ("framed", "is launched (model)"),
    ("decode", "the first decode"),
    ("decoded", "is launched (model)"),
    ("result", "its samples are there"),
    ("out", "Audio goes to the gateway"),
    ("audio", "the gateway has it"),
    ("encoder", "its encoder is asked"),
    ("encoded", "it is encoded"),
    ("heard", "the client has the first byte"),
)
MODEL: Final = {"prefilled", "framed", "decoded"}
SENTENCE: Final = "One, two, three, four, and then some more."


# --- in the processes that are measured ---------------------------------------------------------------


class _Stamps:
    def __init__(self, name: str) -> None:
        self.entries: list[tuple[str, float]] = []
        self.path = Path(os.environ[STAMPS]) / f"{name}.json"
        atexit.register(self.write)

    def write(self) -> None:
        times = time.process_time()
        self.path.write_text(json.dumps({"cpu_s": times, "stamps": list(self.entries)}))

    def put(self, name: str) -> None:
        self.entries.append((name, time.monotonic()))

    def around(self, owner: Any, method: str, before: str | None, after: str | None) -> None:
        """Stamp the calls of a method, or of a coroutine until it ends."""
        inner = getattr(owner, method)

        def began() -> None:
            if before:
                self.put(before)

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            began()
            result = inner(*args, **kwargs)
            if after:
                self.put(after)
            return result

        @functools.wraps(inner)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            began()
            result = await inner(*args, **kwargs)
            if after:
                self.put(after)
            return result

        setattr(owner, method, wait if inner.__code__.co_flags & 0x80 else call)


def load(options: Mapping[str, Any]) -> Any:
    """The worker's factory: the model, with stamps."""
    from duplex.adapters.engine.messages import Start
    from duplex.adapters.engine.outlet import Outlet
    from duplex.adapters.engine.steps import Stepper
    from duplex.adapters.qwen3_tts import model

    stamps = _Stamps("worker")
    loaded = model.load(options)
    take = Stepper.take

    def taken(self: Stepper, message: Any, now: float) -> Any:
        if isinstance(message, Start):
            stamps.entries.append(("read", now / 1e3))
            stamps.put("taken")
        return take(self, message, now)

    Stepper.take = taken  # type: ignore[method-assign]
    kind = type(loaded)
    stamps.around(kind, "begin", "begin", "begun")
    stamps.around(kind, "prefill", "prefill", "prefilled")
    stamps.around(kind, "launch_frame", "frame", "framed")
    stamps.around(kind, "launch_decode", "decode", "decoded")
    stamps.around(Outlet, "audio", "result", "out")

    # the worker ends without its exit handlers: the stamps are written beside the work, once a second
    def write() -> None:
        while True:
            time.sleep(1.0)
            stamps.write()

    threading.Thread(target=write, daemon=True).start()
    return loaded


def serve(config: str) -> None:
    """The gateway, with stamps."""
    from duplex.adapters.engine.messages import Start
    from duplex.adapters.engine.process import WorkerProcess
    from duplex.adapters.engine.request import EngineRequest
    from duplex.adapters.qwen3_tts import adapter
    from duplex.cli import main
    from duplex.runtime.encoding import ResponseEncoder
    from duplex.server.http_protocol import GatewayHttp
    from duplex.speech.connection import SpeechConnection
    from duplex.speech.http import SpeechRoutes
    from duplex.speech.synthesis import Synthesis

    stamps = _Stamps("gateway")
    adapter.FACTORY = "tts_first_audio:load"  # type: ignore[misc]
    stamps.around(GatewayHttp, "data_received", "bytes", None)
    stamps.around(SpeechConnection, "receive", "bytes", None)
    stamps.around(SpeechRoutes, "speech", "handler", None)
    stamps.around(Synthesis, "prepare", "prepare", "prepared")
    stamps.around(ResponseEncoder, "encode", "encoder", "encoded")
    stamps.around(EngineRequest, "deliver", "audio", None)
    send = WorkerProcess.send

    def sent(self: WorkerProcess, message: Any) -> None:
        if isinstance(message, Start):
            stamps.put("start")
        send(self, message)

    WorkerProcess.send = sent  # type: ignore[method-assign]
    sys.exit(main(["serve", "--config", config]))


# --- the client ---------------------------------------------------------------------------------------


def over_http(port: int, seed: int) -> tuple[float, float]:
    """When the request was sent and its first audio was there."""
    body = json.dumps(
        {
            "input": SENTENCE,
            "response_format": "pcm",
            "stream_format": "audio",
            "max_new_tokens": 3,
            "seed": seed,
        }
    ).encode()
    head = (
        "POST /v1/audio/speech HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(head.encode() + body)
        answer = b""
        while not answer.partition(b"\r\n\r\n")[2].partition(b"\r\n")[2]:
            data = link.recv(1 << 16)
            if not data:
                raise RuntimeError(answer.decode(errors="replace"))
            answer += data
        first = time.monotonic()
        while link.recv(1 << 16):
            pass
    return began, first


def over_socket(port: int, seed: int) -> tuple[float, float]:
    """The same over the WebSocket, whose configuration was checked before."""
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}/v1/audio/speech/stream", compression=None, max_size=None) as link:
        config = {
            "type": "session.config",
            "response_format": "pcm",
            "stream_audio": True,
            "split_granularity": "none",
            "max_new_tokens": 3,
            "seed": seed,
        }
        link.send(json.dumps(config))
        link.send('{"type":"input.done"}')
        link.recv()
        began = time.monotonic()
        link.send(json.dumps({"type": "input.text", "text": SENTENCE}))
        link.send('{"type":"input.done"}')
        first = 0.0
        for message in link:
            if isinstance(message, bytes):
                first = first or time.monotonic()
            elif '"type":"error"' in message:
                raise RuntimeError(message)
            elif '"session.done"' in message:
                break
    return began, first


# --- the whole ----------------------------------------------------------------------------------------


def stages(entries: list[tuple[str, float]], began: float, first: float) -> dict[str, float]:
    """ms from the stamp before to each stamp of one request."""
    at: dict[str, float] = {}
    for name, when in entries:
        if began <= when <= first:
            at.setdefault(name, when)
    at["heard"] = first
    took = {}
    last = began
    for name, _ in ORDER:
        if name in at and at[name] >= last:
            took[name] = (at[name] - last) * 1e3
            last = at[name]
    return took


def measured(requests: int, *, device: str, size: str) -> dict[str, Any]:
    """The figures of both ways in."""
    from tts_gpu_model import adapter_options
    from tts_gpu_serve import toml

    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = adapter_options({"device": device, "size": size, "serve_slots": 4}, folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        create = "duplex.adapters.qwen3_tts.adapter:create"
        (folder / "gateway.toml").write_text(
            f'port = {port}\nadapter = ["{create}"]\nlog_level = "warning"\n'
            f"adapters = {toml({create: options})}\n"
        )
        paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {STAMPS: name, "PYTHONPATH": os.pathsep.join(paths)}
        gateway = subprocess.Popen(
            [sys.executable, str(here), "--serve", str(folder / "gateway.toml")], env=env
        )
        heard: dict[str, list[tuple[float, float]]] = {"http": [], "socket": []}
        ways: dict[str, Callable[[int, int], tuple[float, float]]] = {
            "http": over_http,
            "socket": over_socket,
        }
        try:
            _until_ready(port, gateway)
            for seed in range(20):
                ways[("http", "socket")[seed % 2]](port, seed)
            time.sleep(1.2)
            before = {part: _read(folder, part)["cpu_s"] for part in ("worker",)}
            for seed in range(requests):
                way = ("http", "socket")[seed % 2]
                heard[way].append(ways[way](port, seed))
            time.sleep(1.2)
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(30)
        parts = {part: _read(folder, part) for part in ("gateway", "worker")}
    entries = [tuple(entry) for part in parts.values() for entry in part["stamps"]]
    result: dict[str, Any] = {"worker_cpu_ms": 1e3 * (parts["worker"]["cpu_s"] - before["worker"]) / requests}
    for way, times in heard.items():
        each = [
            stages([e for e in entries if began <= e[1] <= first], began, first)
            for began, first in times
        ]  # fmt: skip
        table = {
            name: statistics.median([took.get(name, 0.0) for took in each])
            for name, _ in ORDER
            if any(name in took for took in each)
        }
        host = [sum(ms for name, ms in took.items() if name not in MODEL) for took in each]
        result[way] = {
            "stages": table,
            "first_audio_ms": statistics.median([(first - began) * 1e3 for began, first in times]),
            "host_ms": statistics.median(host),
            "host_p10_ms": statistics.quantiles(host, n=10)[0],
        }
    return result


def _read(folder: Path, part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{part}.json").read_text())
    return found


def _until_ready(port: int, gateway: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 240
    while gateway.poll() is None and time.monotonic() < until:
        try:
            over_http(port, 0)
        except (OSError, RuntimeError):  # it answers 503 while the model is loaded
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the gateway did not come up")


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="tiny", choices=("tiny", "0.6B", "1.7B"))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    result = measured(asked.requests, device=asked.device, size=asked.size)
    print("| stamp | HTTP, ms | WebSocket, ms |\n| --- | --- | --- |")
    for name, words in ORDER:
        row = [result[way]["stages"].get(name) for way in ("http", "socket")]
        print(f"| {words} | " + " | ".join("" if ms is None else f"{ms:.2f}" for ms in row) + " |")
    for key, words in (
        ("first_audio_ms", "**first audio**"),
        ("host_ms", "**host**"),
        ("host_p10_ms", "host, the fastest tenth"),
    ):
        print(f"| {words} | {result['http'][key]:.2f} | {result['socket'][key]:.2f} |")
    print(f"\nworker's CPU time a request: {result['worker_cpu_ms']:.2f} ms")
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    cli()
