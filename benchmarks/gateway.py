"""What the gateway adds: latency, cancels, loop lag, CPU and memory, each beside the floor.

    python benchmarks/gateway.py [--quick] [--sessions 1,16,64,200] [--seconds 8] [--rounds 3]
                                 [--out FOLDER] [--binary] [--check]

Real sockets, a scripted model that yields 20 ms chunks of 24 kHz PCM when they are due, the client in a
process of its own. The floor (`gateway_server.py`) is a bare uvicorn app that sends the same frames in the
same run; the two take turns, so that what else the machine does meets both. With two cores or more the server
has one of them for itself and the client another.

* *latency*: from the moment at which the model yields a chunk until the client has read it, kernel and client
  included, so that what the gateway adds is less;
* *cancel*: from sending `response.cancel` until the last audio byte, and until `response.cancelled`;
  `stale` counts audio bytes behind `response.cancelled`;
* *burst*: the same of a model that is far faster than speech (80 ms frames), whose audio waits in the
  gateway;
* *lag*: how late a 5 ms timer on the server's loop comes, watched while the cancels go on;
* *CPU*: of the server's process, for each frame sent;
* *idle*: memory that an open, silent session costs the server.

Of the rounds, each figure is the median; a machine that others use has outliers, the JSON has all rounds.
`--check` ends with 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROLES = ("gateway", "floor")

BOUND_SESSIONS = 64
BOUNDS: tuple[tuple[str, str, float], ...] = (
    ("latency_p99_ms", "latency p99 (ms)", 10.0),
    ("stale_p99_ms", "cancel to last stale byte, p99 (ms)", 5.0),
    ("stale_bytes", "bytes behind response.cancelled", 0.0),
    ("burst_stale_p99_ms", "burst: cancel to last stale byte, p99 (ms)", 5.0),
    ("burst_stale_bytes", "burst: bytes behind response.cancelled", 0.0),
    ("lag_p99_ms", "loop lag p99 (ms)", 10.0),
    ("cpu_ratio", "CPU per frame against the floor", 2.0),
    ("idle_kb", "memory of an idle session (kB)", 150.0),
)
"""What has to hold at 64 sessions on one core: at most these."""

COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("latency_p50_ms", "latency p50", 2),
    ("latency_p99_ms", "p99", 2),
    ("stale_p50_ms", "cancel→last p50", 2),
    ("stale_p99_ms", "p99", 2),
    ("answer_p99_ms", "cancel→answer p99", 2),
    ("stale_bytes", "stale", 0),
    ("lag_p99_ms", "lag p99", 2),
    ("cpu_us_per_frame", "CPU µs/frame", 1),
    ("cpu_percent_per_session", "CPU %/session", 3),
)


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else float("nan")


def cores() -> tuple[int | None, int | None]:
    """Of the server and of the client; None where there is no choice."""
    mine = sorted(os.sched_getaffinity(0))
    return (mine[0], mine[1]) if len(mine) > 1 else (None, None)


@contextmanager
def serving(role: str, core: int | None) -> Iterator[int]:
    """A server in a process of its own; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(FOLDER / "gateway_server.py"), role, str(port)]
    process = subprocess.Popen([*command, "-" if core is None else str(core)])
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/bench", timeout=5):
                    break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError(f"the {role} server did not come up") from None
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def load(**spec: Any) -> dict[str, Any]:
    """Run the client's process."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "gateway_client.py")],
        input=json.dumps(spec).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(role: str, sessions: int, args: argparse.Namespace) -> dict[str, float]:
    """One round of one server with one number of sessions."""
    server_core, client_core = cores()
    with serving(role, server_core) as port:
        raw = load(
            port=port,
            sessions=sessions,
            steady_s=args.seconds if role != "burst" else 1.0,
            cancels=max(args.cancels, sessions),
            idle=0,
            pause_s=0.2 if role != "burst" else 1.0,
            core=client_core,
            binary=args.binary and role != "floor",
        )
    return {
        "frames": raw["frames"],
        "frames_missed": max(0, raw["expected_frames"] - raw["frames"]),
        "latency_p50_ms": quantile(raw["latencies_us"], 0.5) / 1000,
        "latency_p99_ms": quantile(raw["latencies_us"], 0.99) / 1000,
        "latency_max_ms": max(raw["latencies_us"]) / 1000,
        "stale_p50_ms": quantile(raw["stale_us"], 0.5) / 1000,
        "stale_p99_ms": quantile(raw["stale_us"], 0.99) / 1000,
        "answer_p50_ms": quantile(raw["answer_us"], 0.5) / 1000,
        "answer_p99_ms": quantile(raw["answer_us"], 0.99) / 1000,
        "stale_bytes": raw["stale_bytes"],
        "lag_p50_ms": quantile(raw["lags_us"], 0.5) / 1000,
        "lag_p99_ms": quantile(raw["lags_us"], 0.99) / 1000,
        "cpu_us_per_frame": raw["cpu_us_per_frame"],
        "cpu_percent_per_session": 100 * raw["cpu_share"] / sessions,
        "client_cpu_percent": 100 * raw["client_cpu_share"],
    }


def weigh(role: str, args: argparse.Namespace) -> float:
    """Kilobytes of an idle session."""
    server_core, client_core = cores()
    with serving(role, server_core) as port:
        raw = load(port=port, sessions=0, steady_s=0, cancels=0, idle=args.idle, core=client_core)
    return float(raw["idle_bytes"]) / 1024


def median_of(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    middle["stale_bytes"] = max(r["stale_bytes"] for r in rounds)
    return middle


def run(args: argparse.Namespace) -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for sessions in args.sessions:
        rounds: dict[str, list[dict[str, float]]] = {role: [] for role in (*ROLES, "burst")}
        for number in range(args.rounds):
            for role in rounds:
                print(f"  {sessions} sessions, round {number + 1}, {role} …", file=sys.stderr, flush=True)
                rounds[role].append(measure(role, sessions, args))
        entry: dict[str, Any] = {"sessions": sessions, "rounds": rounds}
        entry |= {role: median_of(rounds[role]) for role in rounds}
        ratios = (
            g["cpu_us_per_frame"] / f["cpu_us_per_frame"]
            for g, f in zip(rounds["gateway"], rounds["floor"], strict=True)
        )
        entry["cpu_ratio"] = statistics.median(ratios)
        results.append(entry)
    return {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "system": platform.platform(),
            "load": os.getloadavg(),
        },
        "frames": {"ms": 20, "rate": 24000, "kind": "binary" if args.binary else "json"},
        "seconds": args.seconds,
        "results": results,
        "idle_kb": {role: weigh(role, args) for role in ROLES},
    }


def table(report: dict[str, Any]) -> str:
    names = ["sessions", "", *(name for _, name, _ in COLUMNS)]
    rows = [names]
    for entry in report["results"]:
        for role in ROLES:
            values = entry[role]
            rows.append(
                [str(entry["sessions"]), role, *(f"{values[key]:.{digits}f}" for key, _, digits in COLUMNS)]
            )
        ratios = []
        for key, _, _ in COLUMNS:
            floor = entry["floor"][key]
            ratio = entry["cpu_ratio"] if key == "cpu_us_per_frame" else entry["gateway"][key] / (floor or 1)
            ratios.append(f"{ratio:.2f}×" if floor else "")
        rows.append(["", "ratio", *ratios])
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append("")
    for entry in report["results"]:
        burst = entry["burst"]
        lines.append(
            f"burst, {entry['sessions']} sessions: cancel→last p50 {burst['stale_p50_ms']:.2f}, "
            f"p99 {burst['stale_p99_ms']:.2f}, stale {burst['stale_bytes']:.0f}, "
            f"lag p99 {burst['lag_p99_ms']:.2f}"
        )
    idle = report["idle_kb"]
    lines.append(f"idle session: gateway {idle['gateway']:.0f} kB, floor {idle['floor']:.0f} kB; times in ms")
    return "\n".join(lines)


def verdicts(report: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Each bound with what was measured, if 64 sessions were."""
    entry = next((e for e in report["results"] if e["sessions"] == BOUND_SESSIONS), None)
    if entry is None:
        return []
    seen = entry["gateway"] | {"cpu_ratio": entry["cpu_ratio"], "idle_kb": report["idle_kb"]["gateway"]}
    seen |= {f"burst_{key}": value for key, value in entry["burst"].items()}
    return [(words, seen[key], most, seen[key] <= most) for key, words, most in BOUNDS]


def plot(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    entries = report["results"]
    sessions = [entry["sessions"] for entry in entries]
    colours = {"gateway": "#1f6f8b", "floor": "#b0b0b0"}
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    panels = (
        (axes[0, 0], ("latency_p50_ms", "latency_p99_ms"), "chunk yielded to chunk read (ms)", 10.0),
        (axes[0, 1], ("stale_p99_ms", "answer_p99_ms"), "cancel to last byte / to answer, p99 (ms)", 5.0),
        (axes[1, 0], ("lag_p50_ms", "lag_p99_ms"), "loop lag (ms)", 10.0),
        (axes[1, 1], ("cpu_us_per_frame",), "CPU per frame (µs)", None),
    )
    for axis, keys, title, bound in panels:
        for role in ROLES:
            for key, style in zip(keys, ("--", "-") if len(keys) > 1 else ("-",), strict=True):
                values = [entry[role][key] for entry in entries]
                what = key.removesuffix("_ms").replace("_", " ")
                axis.plot(sessions, values, style, marker="o", color=colours[role], label=f"{role}: {what}")
        if bound is not None:
            axis.axhline(bound, color="#c0392b", linewidth=0.8, label="bound at 64 sessions")
            axis.set_yscale("symlog", linthresh=0.1)
            axis.set_ylim(bottom=0)
        axis.set_xscale("log")
        axis.set_xticks(sessions, map(str, sessions))
        axis.minorticks_off()
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("sessions of 20 ms, 24 kHz PCM")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    axes[1, 1].set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="1, 16 and 64 sessions, one short round")
    parser.add_argument("--sessions", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cancels", type=int, help="in all, at least one a session")
    parser.add_argument("--idle", type=int, default=200, help="sockets to weigh")
    parser.add_argument("--binary", action="store_true", help="binary frames instead of base64 in JSON")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound does not hold")
    args = parser.parse_args()
    quick = args.quick
    args.sessions = args.sessions or ([1, 16, 64] if quick else [1, 16, 64, 200])
    args.seconds = args.seconds or (2.0 if quick else 8.0)
    args.rounds = args.rounds or (1 if quick else 3)
    args.cancels = args.cancels or (64 if quick else 256)
    return args


def main() -> int:
    args = arguments()
    report = run(args)
    print(table(report))
    found = verdicts(report)
    if found:
        print(f"\nat {BOUND_SESSIONS} sessions on one core:")
        for words, value, most, holds in found:
            print(f"  {'holds' if holds else 'FAILS'}  {words}: {value:.2f}, at most {most:g}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gateway.json").write_text(json.dumps(report, indent=1))
    print(f"\nwritten: {args.out / 'gateway.json'}")
    if importlib.util.find_spec("matplotlib") is not None:
        plot(report, args.out / "gateway.png")
        print(f"written: {args.out / 'gateway.png'}")
    return int(args.check and not all(holds for *_, holds in found))


if __name__ == "__main__":
    sys.exit(main())
