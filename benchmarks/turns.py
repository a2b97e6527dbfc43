"""Interruptions: from the decision that the user speaks to the adapter's work being stopped.

    python benchmarks/turns.py [--sessions 64] [--quick] [--check]

One gateway in a process of its own, and a client for all its sessions. Every session is being answered, in
frames of 80 ms, and listens to its microphone all the time; at random times a user speaks over the answer (a
recording if one is given, else a synthetic voice), is heard by the embedded model's own voice activity
detection on its worker thread, and cuts the answer. Both ends of the measured time are taken in the gateway's
process: when the turn detector decided, on the worker, and when the adapter's `respond` was cancelled, on the
loop.

The machine's own part is measured beside it: a thread of the same process that does nothing else wakes the
same loop, 50 times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import uvloop
from gateway_client import Peer, Spec
from numpy.typing import NDArray

from duplex.adapters.base import AdapterInfo, BaseSession
from duplex.adapters.embedded.ears import Ears
from duplex.adapters.embedded.hearing import Hearing
from duplex.adapters.embedded.listen import Listener, ListenEvent, Sound
from duplex.adapters.embedded.signals import SignalBox
from duplex.adapters.embedded.silero import Silero
from duplex.config import ServerConfig
from duplex.core.types import (
    AudioDelta,
    AudioWindow,
    Delta,
    Modality,
    OpenSession,
    SessionSettings,
    Signal,
    SpeechContinued,
    SpeechStarted,
    SpeechStopped,
    Turn,
    Window,
)

BOUND_MS = 5.0
RATE = 16000
FRAME_MS = 80
"""Of the answers: a frame of a speech codec."""
MICROPHONE_MS = 40
"""Of the microphones: what browser clients send."""
ANSWER_RATE = 24000


# --- the gateway's side -------------------------------------------------------------------------------


class StampedListener(Listener):
    """Notes when it decided that the user speaks."""

    decided_ns = 0

    def hear(self, sound: Sound, level_dbfs: float, probability: float) -> list[ListenEvent]:
        events = super().hear(sound, level_dbfs, probability)
        if any(isinstance(event, SpeechStarted) for event in events):
            self.decided_ns = time.monotonic_ns()
        return events


class Heard(BaseSession):
    """Listens as the embedded voice does, and answers with a tone until it is stopped."""

    def __init__(self, adapter: HearingAdapter, settings: SessionSettings) -> None:
        self._adapter = adapter
        self._listener = StampedListener(settings.turn_detection)
        self._signals = SignalBox()
        self._ears = Ears(self._listener, adapter.hearing, self._on_heard, self._signals.fail)

    async def append(self, window: Window) -> None:
        if isinstance(window, AudioWindow):
            self._ears.push(window)

    def _on_heard(self, events: list[ListenEvent]) -> None:
        for event in events:
            if isinstance(event, SpeechStarted | SpeechContinued | SpeechStopped):
                self._signals.put(event)

    async def signals(self) -> AsyncIterator[Signal]:
        async for signal in self._signals.stream():
            yield signal

    async def respond(self, turn: Turn) -> AsyncIterator[Delta]:
        self._listener.decided_ns = 0
        began = time.monotonic()
        number = 0
        try:
            while True:
                yield AudioDelta(samples=self._adapter.chunk, sample_rate=ANSWER_RATE)
                number += 1
                await asyncio.sleep(max(0.0, began + number * FRAME_MS / 1000 - time.monotonic()))
        finally:
            if self._listener.decided_ns:
                self._adapter.delays_us.append((time.monotonic_ns() - self._listener.decided_ns) / 1000)

    async def close(self) -> None:
        await self._ears.close()
        self._signals.close()


class Machine:
    """How long a thread that does nothing else takes to wake the loop."""

    def __init__(self) -> None:
        self.wakes_us: list[float] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
            self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while True:
                time.sleep(0.02)
                loop.call_soon_threadsafe(self._woken, time.monotonic_ns())

    def _woken(self, since_ns: int) -> None:
        self.wakes_us.append((time.monotonic_ns() - since_ns) / 1000)


class HearingAdapter:
    """The model of the benchmark."""

    def __init__(self) -> None:
        self.info = AdapterInfo(
            id="hearing", input_modalities=(Modality.AUDIO,), output_modalities=(Modality.AUDIO,)
        )
        self.worker = ThreadPoolExecutor(1, "duplex-hearing")
        self.hearing: Hearing
        self.delays_us: list[float] = []
        self.machine = Machine()
        wave = np.sin(np.arange(ANSWER_RATE * FRAME_MS // 1000) * (2 * np.pi * 440 / ANSWER_RATE))
        self.chunk = (wave * 800).astype(np.int16)

    async def start(self) -> None:
        self.hearing = Hearing(self.worker, Silero())

    async def open(self, request: OpenSession) -> Heard:
        return Heard(self, request.settings)

    async def stop(self) -> None:
        self.worker.shutdown(wait=False)


def serve(port: int) -> None:
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from duplex.server.run import serve as run_server

    adapter = HearingAdapter()

    async def bench(request: Request) -> JSONResponse:
        adapter.machine.start()
        return JSONResponse(
            {
                "delays_us": adapter.delays_us,
                "wakes_us": adapter.machine.wakes_us,
                "cpu_s": time.process_time(),
            }
        )

    config = ServerConfig(port=port, max_sessions=1000, resume_grace_s=0.0)
    run_server(config, [adapter], extra_routes=[Route("/bench", bench)])


# --- the users ----------------------------------------------------------------------------------------


def voice(file: Path | None) -> NDArray[np.int16]:
    """Speech at 16 kHz, from its onset on."""
    if file is not None:
        import soundfile
        import soxr

        wave, rate = soundfile.read(file, dtype="float32", always_2d=True)
        speech = soxr.resample(wave.mean(axis=1), rate, RATE)
    else:
        import hibari
        import soxr

        speech = soxr.resample(
            np.asarray(hibari.Hibari()("Stop it now, please, that is enough."), np.float32), 24000, RATE
        )
    loud = np.flatnonzero(np.abs(speech) > 0.1 * np.abs(speech).max())
    return (np.clip(speech[loud[0] :][: RATE * 3 // 2], -1, 1) * 32767).astype(np.int16)


class User(Peer):
    """One session: a microphone that never stops, and now and then speech over the answer."""

    def __init__(self, spec: Spec, speech: NDArray[np.int16]) -> None:
        super().__init__(spec)
        step = RATE * MICROPHONE_MS // 1000
        frames = [speech[at : at + step] for at in range(0, len(speech) - step + 1, step)]
        self._speech = [message(frame) for frame in frames]
        self._silence = message(np.zeros(step, np.int16))
        self._saying: Iterator[bytes] = iter(())
        self.sounding = asyncio.Event()
        self.missed = 0

    def audio(self, stamp: int, size: int, now: int) -> None:
        self.sounding.set()

    async def microphone(self, phase_s: float) -> None:
        due = time.monotonic() + phase_s
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.transport.write(next(self._saying, self._silence))
            due += MICROPHONE_MS / 1000

    async def interrupt(self, times: int, dice: random.Random) -> None:
        for _ in range(times):
            self.cancelled.clear()
            self.sounding.clear()
            self.create()
            await self.sounding.wait()
            await asyncio.sleep(1 + 4 * dice.random())
            self._saying = iter(self._speech)
            try:
                await asyncio.wait_for(self.cancelled.wait(), 5)
            except TimeoutError:
                self.missed += 1
                self.send('{"type":"response.cancel"}')
            await asyncio.sleep(2.5)  # the rest of the speech, and the silence that ends its turn


def message(samples: NDArray[np.int16]) -> bytes:
    """A whole WebSocket frame with audio of the native dialect, masked with zeros."""
    payload = bytes((1, 1)) + RATE.to_bytes(2, "little") + bytes(12) + samples.astype("<i2").tobytes()
    return b"\x82\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload


async def talk(port: int, args: argparse.Namespace) -> int:
    """All users, all interruptions; returns how many were not heard."""
    dice = random.Random(5)
    speech = voice(args.recording)
    spec = Spec(port=port, sessions=args.sessions, steady_s=0, cancels=0, idle=0, binary=True)
    loop = asyncio.get_running_loop()
    users: list[User] = []
    for _ in range(args.sessions):
        _, user = await loop.create_connection(lambda: User(spec, speech), "127.0.0.1", port)
        await asyncio.wait_for(user.created.wait(), 30)
        users.append(user)
    phases = [dice.random() * MICROPHONE_MS / 1000 for _ in users]
    listening = [
        asyncio.ensure_future(user.microphone(phase)) for user, phase in zip(users, phases, strict=True)
    ]
    await asyncio.gather(*(user.interrupt(args.rounds, dice) for user in users))
    for task in listening:
        task.cancel()
    for user in users:
        user.transport.close()
    return sum(user.missed for user in users)


# --- the report ---------------------------------------------------------------------------------------


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(delays_us: list[float], sessions: int) -> dict[str, float]:
    ms = [delay / 1000 for delay in delays_us]
    return {
        "sessions": sessions,
        "interruptions": len(ms),
        "p50_ms": quantile(ms, 0.5),
        "p90_ms": quantile(ms, 0.9),
        "p99_ms": quantile(ms, 0.99),
        "max_ms": max(ms),
    }


async def measure(port: int, args: argparse.Namespace) -> dict[str, float]:
    import httpx

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for _ in range(200):
            try:
                await http.get("/health")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.1)
        begun, before = time.monotonic(), (await http.get("/bench")).json()
        missed = await talk(port, args)
        after = (await http.get("/bench")).json()
    found = report(after["delays_us"], args.sessions) | {"missed": missed}
    found |= {f"machine_{key}": value for key, value in report(after["wakes_us"], args.sessions).items()}
    found["server_cores"] = (after["cpu_s"] - before["cpu_s"]) / (time.monotonic() - begun)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8, help="interruptions of each session")
    parser.add_argument("--quick", action="store_true", help="two interruptions of each session")
    parser.add_argument("--recording", type=Path, help="what the users say; else a synthetic voice")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    parser.add_argument("--check", action="store_true", help="exit with 1 when the bound does not hold")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return 0
    if args.quick:
        args.rounds = 2
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    try:
        found = uvloop.run(measure(port, args))
    finally:
        server.terminate()
        server.wait(20)
    holds = found["p99_ms"] <= BOUND_MS
    load = os.getloadavg()[0]
    print(
        f"{found['sessions']:.0f} sessions, {found['interruptions']:.0f} interruptions, "
        f"{found['missed']:.0f} not heard; {found['server_cores']:.2f} cores, load {load:.1f}"
    )
    for name, prefix in (("decision to abort", ""), ("thread to loop alone", "machine_")):
        figures = ", ".join(f"{key} {found[f'{prefix}{key}_ms']:.2f}" for key in ("p50", "p90", "p99", "max"))
        print(f"  {name}: {figures} ms")
    ratio = found["p99_ms"] / found["machine_p99_ms"]
    print(
        f"{'holds' if holds else 'FAILS'}: p99 is {found['p99_ms'] / BOUND_MS:.2f} of {BOUND_MS:g} ms, "
        f"{ratio:.2f} of the machine's own"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    about = {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0)), "load": load}
    (args.out / "turns.json").write_text(json.dumps(found | about, indent=1))
    return int(args.check and not holds)


if __name__ == "__main__":
    sys.exit(main())
