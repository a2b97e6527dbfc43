"""Windows a second, prepared by threads of one process and by processes, and how late the event loop gets.

    python benchmarks/preparing.py [--clip CLIP] [--sessions 32] [--threads 12] [--processes N] [--seconds 8]
                                   [--live] [--json FILE]

Both ways stand behind the same interface. For each number of sessions each way does the same:

* flat out: every session sends its next window of 1 s as soon as its last one is prepared;
* with `--live`, too: every session sends a window a second, from times spread over the second. A window that
  is not prepared when the next one comes makes the next ones late.

Told are windows a second of all sessions, the time from a window's sending to its segment, and the lag of the
event loop: by how much a task that sleeps 5 ms oversleeps. It needs no more than the gateway's core
dependencies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

import duplex.cli
from duplex.adapters.mage_vl.ports import Stream
from duplex.adapters.mage_vl.windows.backends import WindowOptions
from duplex.adapters.mage_vl.windows.preparers import Preparers, usual_count
from duplex.adapters.mage_vl.windows.preparing import Threads
from duplex.codecs.video_split import split_clip
from duplex.core.types import VideoWindow

CLIP: Final = Path(duplex.cli.__file__).parent / "media" / "clip.mp4"
THREADS: Final = 12
_TICK_S: Final = 0.005


def cut(clip: Path) -> list[VideoWindow]:
    return [
        VideoWindow(kind=w.kind, data=w.data, pts_ms=w.pts_ms, duration_ms=w.duration_ms)
        for w in split_clip(clip, window_ms=1000)
    ]


class Lag:
    """How late the event loop is, ms, while it is entered."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            self.ms.append((time.perf_counter() - began - _TICK_S) * 1e3)

    async def __aenter__(self) -> Lag:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()


async def session(
    stream: Stream,
    windows: Sequence[VideoWindow],
    until: float,
    took_ms: list[float],
    *,
    starts: float | None = None,
) -> None:
    """One session, from the start of the clip, again and again. `starts`: its first window's time, when it is
    a live one. `took_ms` gets the time of each window that is prepared before `until`."""
    number = 0
    while True:
        now = time.perf_counter()
        due = now if starts is None else starts + number
        if due >= until:
            return
        if due > now:
            await asyncio.sleep(due - now)
        if number % len(windows) == 0 and number:
            stream.reset()
        await stream.see(windows[number % len(windows)])
        if (now := time.perf_counter()) >= until:
            return
        took_ms.append((now - due) * 1e3)
        number += 1


async def measure(
    way: Threads | Preparers, windows: Sequence[VideoWindow], sessions: int, seconds: float, *, live: bool
) -> dict[str, float]:
    streams = [way.open() for _ in range(sessions)]
    await asyncio.gather(*(stream.see(windows[0]) for stream in streams))  # all is loaded and warm
    for stream in streams:
        stream.reset()
    took_ms: list[float] = []
    began, cpu = time.perf_counter(), os.times()
    async with Lag() as lag:
        await asyncio.gather(
            *(
                session(
                    stream,
                    windows,
                    began + seconds,
                    took_ms,
                    starts=began + number / sessions if live else None,
                )
                for number, stream in enumerate(streams)
            )
        )
    here = os.times()
    for stream in streams:
        stream.close()
    if not took_ms:
        raise SystemExit("no window was prepared in that time: give it more seconds")
    return {
        "windows": len(took_ms),
        "windows_per_s": len(took_ms) / seconds,
        "took_p50_ms": float(np.percentile(took_ms, 50)),
        "took_p99_ms": float(np.percentile(took_ms, 99)),
        "lag_p50_ms": float(np.percentile(lag.ms, 50)),
        "lag_p99_ms": float(np.percentile(lag.ms, 99)),
        "gateway_cpu_share": (here.user + here.system - cpu.user - cpu.system) / seconds,
    }


async def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    windows, options = cut(args.clip), WindowOptions()
    results = []
    loads = ["flat out", "live"] if args.live else ["flat out"]
    for sessions in args.sessions:
        for load in loads:
            entry: dict[str, Any] = {"sessions": sessions, "load": load}
            for name in ("threads", "processes"):
                pool = ThreadPoolExecutor(args.threads)
                way: Threads | Preparers = (
                    Threads.of(options, pool) if name == "threads" else Preparers(options, args.processes)
                )
                await way.start()
                try:
                    seen = await measure(way, windows, sessions, args.seconds, live=load == "live")
                finally:
                    await way.stop()
                    pool.shutdown()
                entry[name] = seen
                print(
                    f"{sessions:4d} sessions, {load:8s} {name:10s} {seen['windows_per_s']:7.1f} windows/s  "
                    f"each {seen['took_p50_ms']:7.1f} / {seen['took_p99_ms']:7.1f} ms (p50 / p99)  "
                    f"loop lag {seen['lag_p50_ms']:6.2f} / {seen['lag_p99_ms']:6.2f} ms  "
                    f"gateway {seen['gateway_cpu_share']:5.0%} of a core",
                    flush=True,
                )
            by_processes, by_threads = entry["processes"], entry["threads"]
            entry["ratio"] = by_processes["windows_per_s"] / by_threads["windows_per_s"]
            print(
                f"{sessions:4d} sessions, {load:8s} processes / threads: {entry['ratio']:.2f} x the windows, "
                f"loop lag p99 {by_threads['lag_p99_ms']:.2f} -> {by_processes['lag_p99_ms']:.2f} ms",
                flush=True,
            )
            results.append(entry)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clip", type=Path, default=CLIP)
    parser.add_argument("--sessions", type=int, nargs="+", default=[32])
    parser.add_argument("--threads", type=int, default=THREADS, help="of the one process")
    parser.add_argument("--processes", type=int, default=usual_count())
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    print(
        f"{os.cpu_count()} cores; {args.threads} threads against {args.processes} processes; {args.clip.name}"
    )
    results = asyncio.run(compare(args))
    if args.json:
        report = {
            "clip": args.clip.name,
            "cores": os.cpu_count(),
            "threads": args.threads,
            "processes": args.processes,
            "seconds": args.seconds,
            "results": results,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
