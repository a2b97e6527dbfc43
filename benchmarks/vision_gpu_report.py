"""The results of the Mage-VL benchmark as text, and what must hold of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

GATE_RATIO: Final = 1.2
"""The gate of the 100th segment over that of the first, at most."""
OVERHEAD_MS: Final = 2.0
"""The adapter over bare vLLM, at most: first token, a token, an abort."""
SESSIONS: Final = 32
WAYS: Final = ("bare", "engine", "session")


def lines(report: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [line for part in report["parts"].values() for line in part["lines"] if line["kind"] == kind]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return "\n".join(
        "| " + " | ".join(map(str, cells)) + " |" for cells in (head, ["---"] * len(head), *rows)
    )


def keeps_up(line: Mapping[str, Any]) -> bool:
    """A load of sessions that were all kept in real time: every window had the gate's word, 99 of 100 of them
    before the next window was due."""
    late = line["gate_ms"]["p99"]
    if late is None or line["coalesced"] or line["faults"]:
        return False
    return bool(line["scores"] == line["windows"] and late <= line["window_ms"])


def added_ms(line: Mapping[str, Any]) -> float:
    """What the adapter adds before the first token. Runs that did not look inside tell the difference of two
    medians, which has the noise of both."""
    if "added_ms" in line:
        return float(line["added_ms"]["p50"])
    return float(line["session_first_ms"] - line["bare_first_ms"])


def verdicts(report: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """What must hold: (what, measured, holds)."""
    for line in lines(report, "gate"):
        ratio = line["last_ms"] / line["first_ms"]
        what = f"gate, {line['images']} images: segment {line['segments']} over the first ≤ {GATE_RATIO}"
        yield what, f"{ratio:.2f}", ratio <= GATE_RATIO
    for line in lines(report, "answer"):
        first = added_ms(line)
        each = line["session_each_ms"] - line["bare_each_ms"]
        for words, more in (("first token", first), ("a token", each)):
            what = f"{line['shown']}: {words} over bare vLLM ≤ {OVERHEAD_MS} ms"
            yield what, f"{more:+.2f} ms", more <= OVERHEAD_MS
    for line in lines(report, "abort"):
        more = line["engine_ms"]["p50"] - line["bare_ms"]["p50"]
        yield f"abort over bare vLLM ≤ {OVERHEAD_MS} ms", f"{more:+.2f} ms", more <= OVERHEAD_MS
    for line in lines(report, "sessions"):
        if line["sessions"] >= SESSIONS and line["backend"] == "codec":
            what = f"{line['sessions']} sessions, windows of {line['window_ms'] / 1000:g} s, keep up"
            yield what, f"p99 {line['gate_ms']['p99']} ms", keeps_up(line)


def text(report: Mapping[str, Any]) -> str:
    """All tables that have rows."""
    return "\n\n".join(shown for shown in tables(report) if shown.count("\n") > 1)


def tables(report: Mapping[str, Any]) -> list[str]:
    return [
        table(
            ["gate, segment of", "first", "last", "ratio", "full history: first", "last"],
            [
                [
                    f"{line['images']} images",
                    f"{line['first_ms']:.2f} ms",
                    f"{line['last_ms']:.2f} ms",
                    f"{line['last_ms'] / line['first_ms']:.2f}",
                    f"{line['full_first_ms']:.2f} ms",
                    f"{line['full_last_ms']:.2f} ms",
                ]
                for line in lines(report, "gate")
            ],
        ),
        table(
            ["gate, sessions at once", "ms"],
            [[line["sessions"], f"{line['ms']:.2f}"] for line in lines(report, "gate_batch")],
        ),
        table(
            ["encoder", "tokens", "ms"],
            [
                [
                    f"{line['images']} × {line['width']}×{line['height']}",
                    line["tokens"],
                    f"{line['ms']:.2f}",
                ]
                for line in lines(report, "encoder")
            ],
        ),
        table(
            [
                "answer about",
                "prompt",
                "first token: vLLM",
                "engine",
                "session",
                "added by the adapter",
                "a token: vLLM",
                "engine",
                "session",
            ],
            [
                [
                    line["shown"],
                    line["prompt_tokens"],
                    *(f"{line[f'{way}_first_ms']:.2f} ms" for way in WAYS),
                    f"{added_ms(line):.2f} ms",
                    *(f"{line[f'{way}_each_ms']:.2f} ms" for way in WAYS),
                ]
                for line in lines(report, "answer")
            ],
        ),
        table(
            ["answers at once", "tokens/s", "first token p50", "a token"],
            [
                [
                    line["answers"],
                    line["tokens_a_second"],
                    f"{line['first_ms']['p50']:.0f} ms",
                    f"{line['each_ms']:.2f} ms",
                ]
                for line in lines(report, "batch")
            ],
        ),
        table(
            [
                "sessions",
                "windows",
                "by",
                "tokens a window",
                "gate p50 / p99",
                "first token p50 / p99",
                "given up",
                "keeps up",
            ],
            [
                [
                    line["sessions"],
                    f"{line['window_ms'] / 1000:g} s",
                    line["backend"],
                    line["tokens_a_window"],
                    f"{line['gate_ms']['p50']} / {line['gate_ms']['p99']} ms",
                    f"{line['first_ms']['p50']} / {line['first_ms']['p99']} ms",
                    line["coalesced"],
                    "yes" if keeps_up(line) else "no",
                ]
                for line in lines(report, "sessions")
            ],
        ),
        table(
            ["one lock, sessions", "windows", "gate p50 / p99", "first token p50", "took"],
            [
                [
                    line["sessions"],
                    line["windows"],
                    f"{line['gate_ms']['p50']} / {line['gate_ms']['p99']} ms",
                    f"{line['first_ms']['p50']} ms",
                    f"{line['took_s']} s of {line['seconds']:g}",
                ]
                for line in lines(report, "peer")
            ],
        ),
        table(
            ["must hold", "measured", ""],
            [[what, value, "yes" if good else "NO"] for what, value, good in verdicts(report)],
        ),
    ]
