"""Cancels of a watching model while its gate is slow: 32 sessions, one engine, real sockets.

    python benchmarks/commentary.py [--sessions 32] [--cancels 40] [--gate-ms 500] [--clip FILE]
                                    [--out FILE] [--check]

The Mage-VL adapter with a gate that takes `--gate-ms` for each window and a decoder that gives a token every
5 ms, so that what is measured is the gateway. Every session shows a window each 200 ms, so that its gate is
always behind, asks questions, and cancels what comes of them: some while the answer still waits for the gate,
some while it is written. With `--clip` the windows are a second of that clip each, in real time, and are
decoded by the `codec` backend in its own processes. The server has one core, the client another, where
there are two.

* *gateway*: from reading `response.cancel` until `response.cancelled` is written to the socket;
* *client*: from sending the one until reading the other;
* *abort*: from the client's sending it until the decoder's request is closed, of answers that were being
  written.

`--check` ends with 1 when the 99th percentile in the gateway is above 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from duplex.adapters.engine.language import ChatPrompt, EngineInfo, Prompt, Sampling, TokenDelta
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.adapter import MageVl
from duplex.adapters.mage_vl.building import Windows
from duplex.adapters.mage_vl.chat import ServerWriter
from duplex.adapters.mage_vl.options import MageOptions
from duplex.adapters.mage_vl.ports import Backend, Glance, Picture, Stream, Visible
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.codecs.video_split import split_clip
from duplex.config import ServerConfig
from duplex.core.types import CodecWindow
from duplex.server.run import running_gateway

BOUND_MS: Final = 5.0
TOKEN_S: Final = 0.005
WINDOW_S: Final = 0.2
PATH: Final = "/v1/mage-vl/duplex"


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else float("nan")


# --- the server -----------------------------------------------------------------------------------------


class Paced:
    """A decoder that gives a token every 5 ms until it is stopped."""

    healthy = True
    fault = None
    info = EngineInfo(model="paced", prompts=("chat",), context_tokens=100_000)

    def __init__(self) -> None:
        self.closed_at: dict[str, float] = {}
        """When the request for a question was closed, by the question."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[TokenDelta, None]:
        assert isinstance(prompt, ChatPrompt)
        content = prompt.messages[-1]["content"]
        question = content if isinstance(content, str) else content[-1]["text"]
        try:
            for _ in range(sampling.max_tokens):
                await asyncio.sleep(TOKEN_S)
                yield TokenDelta(text="word ")
            yield TokenDelta(finish="length")
        finally:
            self.closed_at[question] = time.monotonic()

    def session(self) -> Any:
        raise NotImplementedError

    def figures(self) -> Iterable[Figure]:
        return ()


class SlowSight:
    """A gate that takes its time, for each session by itself, and says no."""

    healthy = True
    fault = None
    gate = True

    def __init__(self, gate_s: float) -> None:
        self.gate_s = gate_s
        self.looking = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self) -> SlowSight:
        return self

    def close(self) -> None: ...

    async def look(self, visual: VisualInput) -> Glance | None:
        self.looking += 1
        try:
            await asyncio.sleep(self.gate_s)
        finally:
            self.looking -= 1
        picture = Picture(key="k", time_s=0.0, tokens=1, data=b"", size=1)
        return Glance(
            pictures=(picture,),
            score=0.1,
            segment_id=visual.segment_id,
            pts_ms=visual.pts_ms,
            duration_ms=200.0,
        )

    def figures(self) -> Iterable[Figure]:
        return ()


class Plain:
    """Windows that need no decoding."""

    healthy = True
    fault = None
    takes_codec = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self) -> Stream:
        return self

    def pairing(self) -> None: ...

    def figures(self) -> Iterable[Figure]:
        return ()

    async def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        return VisualInput(
            images=np.zeros((1, 32, 32, 3), np.uint8),
            positions=np.zeros((1, 2, 2, 3), np.int32),
            times_s=np.zeros(1),
            segment_id="",
            pts_ms=0.0,
            duration_ms=200.0,
        )

    async def finish(self) -> VisualInput | None: ...

    def reset(self) -> None: ...

    def close(self) -> None: ...


async def serve(gate_ms: float, *, decode: bool) -> None:
    """Until standard input ends; then what was measured, as JSON."""
    engine, sight = Paced(), SlowSight(gate_ms / 1000)
    options = MageOptions(model="none", max_new_tokens=2000, answer_wait_s=60.0)
    backend: Backend = Windows(options, ThreadPoolExecutor(1)) if decode else Plain()
    adapter = MageVl(options, engine=engine, sight=sight, backend=backend, writer=ServerWriter())
    took_ms: list[float] = []
    busy: list[int] = []
    async with running_gateway(ServerConfig(port=0, max_sessions=1000), [adapter]) as gateway:
        latency: Any = gateway.runtime.metrics.cancel_latency
        observe = latency.observe

        def noted(value: float) -> None:
            took_ms.append(value * 1000)
            busy.append(sight.looking)
            observe(value)

        latency.observe = noted
        print(gateway.ws_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        print(json.dumps({"gateway_ms": took_ms, "busy": busy, "closed_at": engine.closed_at}), flush=True)


# --- the client -----------------------------------------------------------------------------------------


def windows_of(clip: str | None) -> list[tuple[str, float]]:
    """Messages, and for how long each is shown, seconds."""
    if clip is None:
        picture = base64.b64encode(b"\xff\xd8\xff picture").decode()
        data: dict[str, Any] = {"frames": [picture]}
        return [(json.dumps({"type": "input.append", "modality": "video", "data": data}), WINDOW_S)]
    messages = []
    for window in split_clip(clip, window_ms=1000):
        data = {"kind": window.kind, "data": {"video_base64": base64.b64encode(window.data).decode()}}
        message = {"type": "input.append", "modality": "video", "data": data}
        messages.append((json.dumps(message), window.duration_ms / 1000))
    return messages


async def session(
    url: str, number: int, windows: list[tuple[str, float]], cancels: int, found: dict[str, Any]
) -> None:
    from websockets.asyncio.client import connect

    rng = random.Random(number)
    async with connect(url + PATH, compression=None, max_queue=None) as ws:

        async def camera() -> None:
            await asyncio.sleep(rng.random())
            for window, length_s in itertools.cycle(windows):
                await ws.send(window)
                await asyncio.sleep(length_s)

        async def expect(type: str) -> None:
            while json.loads(await ws.recv())["type"] != type:
                pass

        watching = asyncio.create_task(camera())
        for turn in range(cancels):
            question = f"question {number}.{turn}"
            await ws.send(json.dumps({"type": "input.append", "modality": "text", "data": question}))
            await expect("response.created")
            written = rng.random() < 0.5
            if written:
                await expect("response.delta")
            await asyncio.sleep(rng.uniform(0.0, 0.1))
            begun = time.monotonic()
            await ws.send('{"type":"response.cancel"}')
            await expect("response.cancelled")
            found["client_ms"].append((time.monotonic() - begun) * 1000)
            if written:
                found["begun"][question] = begun
        watching.cancel()


async def load(url: str, sessions: int, windows: list[tuple[str, float]], cancels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"client_ms": [], "begun": {}}
    await asyncio.gather(*(session(url, number, windows, cancels, found) for number in range(sessions)))
    return found


def run(args: argparse.Namespace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, __file__, "--serve", "--gate-ms", str(args.gate_ms)]
    if args.clip:
        command += ["--clip", args.clip]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        if len(cores) > 1:
            os.sched_setaffinity(server.pid, {cores[0]})
            os.sched_setaffinity(0, {cores[1]})
        url = server.stdout.readline().strip()
        found = asyncio.run(load(url, args.sessions, windows_of(args.clip), args.cancels))
        server.stdin.close()
        told = json.loads(server.stdout.readline())
        server.wait(30)
    finally:
        server.kill()
    # both clocks are the machine's monotonic one
    aborts = [
        (told["closed_at"][q] - at) * 1000 for q, at in found["begun"].items() if q in told["closed_at"]
    ]
    figures = {"gateway": told["gateway_ms"], "client": found["client_ms"], "abort": aborts}
    return {
        "machine": {"cores": len(cores), "python": platform.python_version(), "load": os.getloadavg()},
        "sessions": args.sessions,
        "gate_ms": args.gate_ms,
        "gates_busy_least": min(told["busy"]),
        "gates_busy_mean": float(np.mean(told["busy"])),
        **{
            name: {
                "count": len(values),
                "p50_ms": quantile(values, 0.5),
                "p99_ms": quantile(values, 0.99),
                "max_ms": max(values, default=float("nan")),
            }
            for name, values in figures.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--cancels", type=int, default=40, help="of each session")
    parser.add_argument("--gate-ms", type=float, default=500.0)
    parser.add_argument("--clip", metavar="FILE", help="windows of this clip, decoded beside the gateway")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.gate_ms, decode=args.clip is not None))
        return 0
    report = run(args)
    print(f"{args.sessions} sessions, a gate of {args.gate_ms:g} ms; ", end="")
    print(f"{report['gates_busy_mean']:.1f} gates at work at a cancel, {report['gates_busy_least']} at least")
    for name in ("gateway", "client", "abort"):
        row = report[name]
        print(
            f"{name:8}  p50 {row['p50_ms']:6.2f} ms  p99 {row['p99_ms']:6.2f} ms  "
            f"max {row['max_ms']:6.2f} ms  of {row['count']}"
        )
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(args.check and not report["gateway"]["p99_ms"] <= BOUND_MS)


if __name__ == "__main__":
    sys.exit(main())
