"""Load generator: many sessions that ask, listen and cut in, and what they saw.

`python -m duplex.clients.loadgen ws://127.0.0.1:8600/v1/duplex --sessions 64 --cancel-after-ms 500`

Each session repeats one turn: ask for a response, read it to its end or cancel it on the way, pause. All
share one event loop, without the conveniences of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from duplex.clients.load_session import Distribution, LoadOptions, LoadReport, LoadSession, Tally

__all__ = ["Distribution", "LoadOptions", "LoadReport", "main", "run"]

GRACE_S: Final = 15.0
"""How long sessions may take to end when the time is over. Those that do not count as `stuck`."""


async def run(options: LoadOptions) -> LoadReport:
    """Open the sessions, let them take turns, stop them, and tell what was seen."""
    tally = Tally()
    sessions = await _open(options, tally)
    running = [asyncio.create_task(session.run()) for session in sessions]
    if running:
        await asyncio.wait(running, timeout=options.duration_s)
        for session in sessions:
            session.stop()
        _, stuck = await asyncio.wait(running, timeout=GRACE_S)
        for task in stuck:
            tally.ended["stuck"] += 1
            task.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
    return tally.report(options)


async def _open(options: LoadOptions, tally: Tally) -> list[LoadSession]:
    """The sessions that were not refused."""

    async def open_one(session: LoadSession, delay_s: float) -> bool:
        await asyncio.sleep(delay_s)
        return await session.open()

    sessions = [LoadSession(options, tally) for _ in range(options.sessions)]
    step_s = options.ramp_s / max(1, len(sessions))
    opened = await asyncio.gather(*(open_one(session, n * step_s) for n, session in enumerate(sessions)))
    return [session for session, is_open in zip(sessions, opened, strict=True) if is_open]


def table(report: LoadReport) -> str:
    """The report for people."""
    lines = [
        f"sessions   {report.opened} opened",
        f"responses  {_counts(report.responses)}",
        f"received   {report.frames} frames, {report.audio_s:.1f} s of audio, "
        f"{report.stale_bytes} stale bytes, {report.underruns} underruns",
    ]
    faults = {"refused": report.refused, "ended": report.ended, "errors": report.errors}
    lines += [f"{name:<11}{_counts(counts)}" for name, counts in faults.items() if counts]
    lines.append(f"{'ms':<22}{'count':>8}{'mean':>10}{'p50':>10}{'p99':>10}{'max':>10}")
    for name in report.__struct_fields__:
        value = getattr(report, name)
        if isinstance(value, Distribution) and value.count:
            numbers = "".join(f"{number:>10.2f}" for number in (value.mean, value.p50, value.p99, value.max))
            lines.append(f"{name.removesuffix('_ms'):<22}{value.count:>8}{numbers}")
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {key}" for key, count in counts.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m duplex.clients.loadgen", description="Load a gateway with many sessions."
    )
    parser.add_argument("url", help="ws://host:port, with the path where it is not /v1/duplex")
    parser.add_argument("--sessions", type=int, default=1, metavar="N")
    parser.add_argument("--duration-s", type=float, default=10.0, metavar="S")
    parser.add_argument(
        "--ramp-s", type=float, default=1.0, metavar="S", help="open the sessions over this time"
    )
    parser.add_argument("--turn", choices=["speak", "text", "respond"], default="speak")
    parser.add_argument("--text", default=LoadOptions(url="").text, help="what is said or asked")
    parser.add_argument("--pause-ms", type=float, default=0.0, metavar="MS", help="between two turns")
    parser.add_argument(
        "--cancel-after-ms", type=float, metavar="MS", help="cancel each response this long after it began"
    )
    parser.add_argument("--uplink", action="store_true", help="send microphone audio all the while")
    parser.add_argument(
        "--stamped", action="store_true", help="audio is stamped: the scripted model, with its option stamped"
    )
    parser.add_argument("--frames", choices=["binary", "json"], default="binary")
    parser.add_argument("--model")
    parser.add_argument("--token")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0 when every session was opened and none ended before its time."""
    arguments = vars(_parser().parse_args(argv))
    as_json = arguments.pop("json")
    report = asyncio.run(run(LoadOptions(**arguments)))
    print(msgspec.json.encode(report).decode() if as_json else table(report))
    return 1 if report.refused or report.ended else 0


if __name__ == "__main__":
    sys.exit(main())
