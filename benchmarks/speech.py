"""What the speech endpoints add to a voice, and whether they keep time for an hour.

    python benchmarks/speech.py [--part first|hour|all] [--rounds 30] [--minutes 60] [--json FILE] [--check]

Part one is the first audio of the embedded voice: a gateway in a process of its own, and the bare
synthesiser in another one, say the same sentence in turns. `own` is the synthesiser's time for its first
chunk; `served` is from sending the text until the first byte of audio is here, over the speech WebSocket and
over HTTP. Of each round the difference is taken, so that what else the machine does meets both.

Part two streams an hour of a scripted voice through the WebSocket as one utterance, as fast as it goes: the
samples that arrive are counted, and the memory of the whole process (gateway and client) is watched.

`--check` ends with 1 when a bound does not hold: 15 ms at the median for the first byte, an exact clock and
flat memory for the hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import psutil
from websockets.asyncio.client import connect

from duplex.adapters.base import AdapterInfo, AdapterSession
from duplex.adapters.speech import SpeechChunk, SpeechRequest, SpeechVoice
from duplex.codecs import open_decoder
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, OpenSession
from duplex.server.run import running_gateway

BOUND_MS: Final = 15.0
FLAT_MB: Final = 8.0
"""Growth of the memory between the first tenth of the stream and its end that still counts as flat."""
SENTENCES: Final = (
    "It was the best of times, it was the worst of times.",
    "Your table is booked for half past seven.",
    "The next train to the airport leaves from platform nine.",
    "Thank you for calling, how can I help you today?",
    "There is a small chance of rain in the afternoon.",
)
RATE: Final = 24000


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))]


# --- part one: the first byte -------------------------------------------------------------------------

OWN: Final = """
import sys, time
from duplex.adapters.embedded.speech import Speech
speech = Speech()
speech.start()
print("ready", flush=True)
for line in sys.stdin:
    text = line.rstrip("\\n")
    began = time.perf_counter()
    next(iter(speech.speak(text)))
    print((time.perf_counter() - began) * 1000, flush=True)
"""
"""The synthesiser alone: a sentence in, the milliseconds of its first chunk out."""


@contextmanager
def own_voice() -> Iterator[Callable[[str], float]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def say(text: str) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(text + "\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield say
        process.stdin.close()


@contextmanager
def gateway_process() -> Iterator[str]:
    """A gateway with the embedded voice, on its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from duplex.cli import main; main()", "serve"]
    options = ["--adapter", "embedded-voice", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen([*command, *options]) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    with urllib.request.urlopen(f"{url}/ready") as answer:
                        if answer.status == 200:
                            break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


async def over_socket(url: str, text: str, options: Mapping[str, Any]) -> float:
    address = url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    async with connect(address, max_size=None, compression=None) as ws:
        config = {"type": "session.config", "stream_audio": True, **options}
        await ws.send(json.dumps(config))
        await ws.send('{"type":"input.done"}')
        await ws.recv()  # the configuration has been checked
        began = time.perf_counter()
        await ws.send(json.dumps({"type": "input.text", "text": text}))
        await ws.send('{"type":"input.done"}')
        while True:
            message = await ws.recv()
            if isinstance(message, bytes) or '"audio.chunk"' in message[:40]:
                return (time.perf_counter() - began) * 1000


async def over_http(client: httpx.AsyncClient, text: str, options: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    body = {"input": text, "stream_format": "audio", **options}
    async with client.stream("POST", "/v1/audio/speech", json=body) as response:
        async for _ in response.aiter_raw():
            return (time.perf_counter() - began) * 1000
    raise RuntimeError("no audio came")


PATHS: Final = {
    "socket pcm": ("socket", {"response_format": "pcm"}),
    "socket opus": ("socket", {"response_format": "opus"}),
    "socket mp3": ("socket", {"response_format": "mp3"}),
    "socket flac": ("socket", {"response_format": "flac"}),
    "socket pcm 16 kHz": ("socket", {"response_format": "pcm", "sample_rate": 16000}),
    "socket pcm, word times": ("socket", {"response_format": "pcm", "word_timestamps": True}),
    "http pcm": ("http", {"response_format": "pcm"}),
    "http opus": ("http", {"response_format": "opus"}),
}


async def first_audio(rounds: int) -> list[dict[str, Any]]:
    rows = []
    with own_voice() as own, gateway_process() as url:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            for name, (kind, options) in PATHS.items():
                pairs = []
                for n in range(rounds + 2):
                    text = SENTENCES[n % len(SENTENCES)]
                    alone = await asyncio.to_thread(own, text)
                    if kind == "socket":
                        served = await over_socket(url, text, options)
                    else:
                        served = await over_http(client, text, options)
                    pairs.append((alone, served))
                pairs = pairs[2:]  # the first of each open what they need
                added = [served - alone for alone, served in pairs]
                rows.append(
                    {
                        "path": name,
                        "own_p50_ms": statistics.median(alone for alone, _ in pairs),
                        "served_p50_ms": statistics.median(served for _, served in pairs),
                        "added_p50_ms": statistics.median(added),
                        "added_p90_ms": quantile(added, 0.9),
                        "ratio": statistics.median(served / alone for alone, served in pairs),
                    }
                )
    return rows


# --- part two: an hour --------------------------------------------------------------------------------


class Metronome:
    """A second of a ramp for each character of text: any lost or doubled sample is seen."""

    sample_rate = RATE
    voices = (SpeechVoice(id="metronome"),)

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        return request

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        ramp = (np.arange(RATE, dtype=np.int32) - RATE // 2).astype(np.int16)
        async for piece in text:
            for _ in piece:
                for at in range(0, RATE, RATE // 10):
                    await asyncio.sleep(0)
                    yield SpeechChunk(samples=ramp[at : at + RATE // 10], sample_rate=RATE)


class MetronomeAdapter:
    info = AdapterInfo(id="metronome", input_modalities=(Modality.TEXT,), output_modalities=(Modality.AUDIO,))
    speech = Metronome()

    async def start(self) -> None: ...

    async def open(self, request: OpenSession) -> AdapterSession:
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, "speech only")

    async def stop(self) -> None: ...


class Counter:
    """Counts the samples of a stream as they come."""

    def __init__(self, format: str) -> None:
        self.samples = 0
        self.rate = 0
        self._decoder = None if format == "pcm" else open_decoder({"opus": "ogg"}.get(format, format))
        self._odd = 0

    def feed(self, data: bytes) -> None:
        if self._decoder is None:
            self._odd += len(data)
            self.samples = self._odd // 2
        else:
            self._take(self._decoder.feed(data))

    def end(self) -> None:
        if self._decoder is not None:
            self._take(self._decoder.flush())
            self.rate = self._decoder.sample_rate

    def _take(self, samples: Any) -> None:
        self.samples += len(samples)


async def hour(minutes: int, format: str, rate: int) -> dict[str, Any]:
    """One utterance of that many minutes."""
    memory: list[float] = []
    process = psutil.Process()
    counter = Counter(format)
    began = time.perf_counter()
    async with running_gateway(ServerConfig(port=0), [MetronomeAdapter()]) as gateway:
        query = f"response_format={format}&sample_rate={rate}&stream_audio=true"
        address = f"{gateway.ws_url}/v1/audio/speech/stream?{query}&split_granularity=none&stream_text=true"
        async with connect(address, max_size=None, compression=None) as ws:
            await ws.send(json.dumps({"type": "input.text", "text": "x" * 60}))
            asked, tenths = 1, 0
            async for message in ws:
                if isinstance(message, bytes):
                    counter.feed(message)
                    if counter.samples >= (tenths + 1) * minutes * 6 * rate:
                        tenths += 1
                        memory.append(process.memory_info().rss / 1e6)
                elif '"session.done"' in message:
                    break
                if asked < minutes and counter.samples >= (asked - 2) * 60 * rate:
                    asked += 1  # the text is at most two minutes ahead of what was heard
                    await ws.send(json.dumps({"type": "input.text", "text": "x" * 60}))
                    if asked == minutes:
                        await ws.send('{"type":"input.done"}')
            counter.end()
    heard_rate = counter.rate or rate
    return {
        "format": format,
        "sample_rate": rate,
        "minutes": minutes,
        "samples_off": counter.samples - minutes * 60 * heard_rate,
        "memory_mb": [round(value, 1) for value in memory],
        "growth_mb": round(memory[-1] - memory[0], 1),
        "times_real_time": round(minutes * 60 / (time.perf_counter() - began)),
    }


# --- output -------------------------------------------------------------------------------------------


def print_rows(rows: list[dict[str, Any]]) -> None:
    head = list(rows[0])
    cells = [head] + [
        [f"{row[key]:.2f}" if isinstance(row[key], float) else str(row[key]) for key in head] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("first", "hour", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the results there; a part that is not run is kept")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    if args.json is not None and args.json.exists():
        result = json.loads(args.json.read_text())
    result["machine"] = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
    }
    holds = True
    if args.part in ("first", "all"):
        result["first_audio"] = asyncio.run(first_audio(args.rounds))
        print_rows(result["first_audio"])
        holds = holds and all(row["added_p50_ms"] <= BOUND_MS for row in result["first_audio"])
    if args.part in ("hour", "all"):
        forms = (("pcm", 24000), ("pcm", 44100), ("opus", 48000), ("flac", 16000))
        result["hour"] = [asyncio.run(hour(args.minutes, *form)) for form in forms]
        print_rows(result["hour"])
        holds = holds and all(
            row["samples_off"] == 0 and row["growth_mb"] <= FLAT_MB for row in result["hour"]
        )
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
