"""`duplex demo`: all of it at work, in a minute, with the numbers."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from duplex.cli.demo_steps import Stage, Step, commentary, exchange, passage
from duplex.cli.errors import CommandError
from duplex.cli.gateway import COMMENTARY, VOICE, settings, started
from duplex.cli.timeline import Timeline

STEPS: Final[tuple[Callable[[Stage], Awaitable[Step]], ...]] = (passage, exchange, commentary)


def run(args: argparse.Namespace) -> int:
    """Run the steps, write the files, print the table: 0 when everything worked."""
    out = Path(args.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{out}: cannot be made ({error.strerror})") from error
    timeline = Timeline()
    steps: list[Step] = []
    begin = time.monotonic()
    try:
        asyncio.run(_steps(args, out, timeline, steps))
    finally:
        if steps:  # of a demo that broke off, what there is
            timeline.save(out / "timeline.jsonl")
    plotted = not args.no_plot and _plot(timeline, out / "timeline.png")
    print()
    print(table(steps))
    files = ["passage.wav", "exchange.wav", "comments.txt", "timeline.jsonl"]
    print(f"\n{out}/: {', '.join([*files, 'timeline.png'] if plotted else files)}")
    print(f"{time.monotonic() - begin:.0f} s in all")
    faults = [f"{step.name}: {fault}" for step in steps for fault in step.faults]
    for fault in faults:
        print(f"FAILED  {fault}", file=sys.stderr)
    return 1 if faults else 0


async def _steps(args: argparse.Namespace, out: Path, timeline: Timeline, steps: list[Step]) -> None:
    print("starting a gateway …", flush=True)
    config = settings(args, {"host": "127.0.0.1", "port": 0, "adapter": (VOICE, COMMENTARY)})
    begin = time.monotonic()
    async with started(config) as gateway:
        print(f"ready after {time.monotonic() - begin:.1f} s on {gateway.url}", flush=True)
        stage = Stage(gateway=gateway, timeline=timeline, out=out)
        for number, step in enumerate(STEPS, 1):
            print(f"\n{number}  {_TITLES[number - 1]}", flush=True)
            done = await step(stage)
            steps.append(done)
            for note in done.notes:
                print(f"    {note}", flush=True)


_TITLES: Final = (
    "A passage is spoken, and cut in the middle of a word.",
    "A spoken exchange, from a recording: speech over the answer stops it.",
    "A clip is streamed as a camera would, and commented on.",
)


def _plot(timeline: Timeline, path: Path) -> bool:
    if find_spec("matplotlib") is None:
        print('no timeline.png: pip install "duplex-gateway[embedded]" brings matplotlib', file=sys.stderr)
        return False
    from duplex.cli.demo_steps import film
    from duplex.cli.plot import plot_timeline

    plot_timeline(timeline.rows, path, films={"clip": film()})
    return True


def table(steps: list[Step]) -> str:
    """The measured numbers, a line a step, and what they mean."""
    head = ("", "first audio", "cut → last byte", "cut → cancelled", "stale bytes", "real-time factor", "")
    rows = [
        (
            f"{number}  {step.name}",
            _ms(step.first_audio_ms),
            _ms(step.last_byte_ms),
            _ms(step.cancelled_ms),
            "–" if step.stale_bytes is None else str(step.stale_bytes),
            "–" if step.factor is None else f"{step.factor:.3f}",
            "FAILED" if step.faults else "ok",
        )
        for number, step in enumerate(steps, 1)
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, len(head) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join([*lines, "", *_MEANING])


_MEANING: Final = (
    "first audio       1: from the request; 2: from the end of the question, with the silence that ends it",
    "cut               1: from response.cancel; 2: from the first sound of the speech that interrupts",
    "real-time factor  1: time to make speech over its length; 2, 3: CPU time, client too, over the length",
)


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
