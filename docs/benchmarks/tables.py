"""Write the tables of `docs/benchmarks.md` from the results beside this file.

    python docs/benchmarks/tables.py [--check]

`--check` writes nothing and ends with 1 when the page does not show the results.
"""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "benchmarks.md"
NOT_RECORDED = "The figures of a GPU have not been recorded yet."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def gateway(report: dict[str, Any]) -> str:
    rows = []
    for entry in report["results"]:
        for role in ("gateway", "floor"):
            seen = entry[role]
            rows.append(
                [
                    str(entry["sessions"]) if role == "gateway" else "",
                    role,
                    f"{seen['latency_p50_ms']:.2f} / {seen['latency_p99_ms']:.2f} ms",
                    f"{seen['stale_p50_ms']:.2f} / {seen['stale_p99_ms']:.2f} ms",
                    f"{seen['answer_p50_ms']:.2f} / {seen['answer_p99_ms']:.2f} ms",
                    f"{seen['stale_bytes']:.0f}",
                    f"{seen['lag_p99_ms']:.2f} ms",
                    f"{seen['cpu_us_per_frame']:.1f} µs",
                    f"{seen['cpu_percent_per_session']:.2f} %",
                ]
            )
        rows.append(["", "ratio", "", "", "", "", "", f"{entry['cpu_ratio']:.2f}", ""])
        burst = entry["burst"]
        cancels = [
            f"{burst[f'{key}_p50_ms']:.2f} / {burst[f'{key}_p99_ms']:.2f} ms" for key in ("stale", "answer")
        ]
        stale, lag = f"{burst['stale_bytes']:.0f}", f"{burst['lag_p99_ms']:.2f} ms"
        rows.append(["", "burst", "", *cancels, stale, lag, "", ""])
    head = [
        "sessions",
        "",
        "latency p50 / p99",
        "cancel to last byte p50 / p99",
        "cancel to answer p50 / p99",
        "stale bytes",
        "loop lag p99",
        "CPU a frame",
        "CPU a session",
    ]
    idle, at = report["idle_kb"], report["machine"]
    words = (
        f"An idle session costs {idle['gateway']:.0f} kB of memory, the floor's {idle['floor']:.0f} kB.",
        f"Python {at['python']}, {at['cores']} cores, load {at['load'][0]:.1f} at the end of the run;",
        "medians of the rounds.",
    )
    return f"{table(head, rows)}\n\n{' '.join(words)}"


def interruptions(report: dict[str, Any]) -> str:
    """Of this report and of those from other machines beside it, `turns_*.json`."""
    rows = []
    for run in (report, *(json.loads(file.read_text()) for file in sorted(HERE.glob("turns_*.json")))):
        machine = f"{run['cores']} cores, Python {run['python']}, load {run['load']:.1f}"
        for name, prefix in (("decision to abort", ""), ("thread to loop alone", "machine_")):
            figures = [f"{run[f'{prefix}{key}_ms']:.2f} ms" for key in ("p50", "p90", "p99", "max")]
            beside = [machine, f"{run['interruptions']:.0f}", f"{run['server_cores']:.2f}"]
            rows.append([*(beside if not prefix else ("", "", "")), name, *figures])
    return table(["machine", "interruptions", "gateway's cores", "", "p50", "p90", "p99", "max"], rows)


def codecs(report: dict[str, Any]) -> str:
    rows = [
        [
            row["name"],
            row["chunk"],
            f"{row['us_per_feed']:.1f} µs",
            f"{row['rtf_stream']:.5f}",
            f"{row['ratio']:.2f}",
        ]
        for row in (*report["encoders"], *report["decoders"])
        if row["chunk"] != "80 ms"
    ]
    head = ["codec", "chunk", "CPU a chunk", "real-time factor", "against the library on the whole"]
    return table(head, rows)


def lag(report: dict[str, Any]) -> str:
    rows = [
        [
            row["where"],
            str(row["sessions"]),
            f"{row['chunk_ms']} ms",
            f"{row['lag_p50_ms']:.2f} / {row['lag_p99_ms']:.2f} ms",
            f"{row['cpu_cores']:.2f}",
        ]
        for row in report["lag"]
        if row["pace"] == 1
    ]
    return table(["encoding on", "sessions", "chunks of", "loop lag p50 / p99", "cores used"], rows)


def first_audio(report: dict[str, Any]) -> str:
    rows = [
        [
            row["path"],
            f"{row['own_p50_ms']:.1f} ms",
            f"{row['served_p50_ms']:.1f} ms",
            f"{row['added_p50_ms']:.1f} ms",
        ]
        for row in report["first_audio"]
    ]
    return table(["path", "the voice alone, p50", "served, p50", "added, median of the differences"], rows)


def hour(report: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['format']}, {row['sample_rate']} Hz",
            str(row["samples_off"]),
            f"{row['growth_mb']:.1f} MB",
            f"{row['times_real_time']}×",
        ]
        for row in report["hour"]
    ]
    return table(["an hour of", "samples off", "memory growth", "faster than real time"], rows)


def benchmark(name: str) -> ModuleType:
    """A benchmark's own tables."""
    spec = importlib.util.spec_from_file_location(name, HERE.parents[1] / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tts_gpu(section: str) -> Callable[[dict[str, Any]], str]:
    """One table of the GPU benchmark; the section's plot below it, where there is one."""

    def render(report: dict[str, Any]) -> str:
        _, table_of = benchmark("tts_gpu_report").TABLES[section]
        shown: str = table_of(report)
        plot = {"frame": "tts_gpu_frame.png", "latency": "tts_gpu_first_audio.png"}.get(section)
        if plot is not None and (HERE / plot).exists():
            shown += f"\n\n```{{image}} benchmarks/{plot}\n:alt: The table above as a plot\n```"
        return shown

    return render


def tts_gpu_bounds(report: dict[str, Any]) -> str:
    module = benchmark("tts_gpu_report")
    return f"{module.verdict_table(report)}\n\n{module.machine_words(report)}"


def vision_gpu(report: dict[str, Any]) -> str:
    shown: str = benchmark("vision_gpu_report").text(report)
    at = report["machine"]
    words = f"{at['device']}, torch {at['torch']}, Python {at['python']}, {at['cores']} cores."
    return f"{shown}\n\n{words}"


PARTS = {
    "gateway": ("gateway.json", gateway),
    "interruptions": ("turns.json", interruptions),
    "codecs": ("codecs.json", codecs),
    "lag": ("codecs.json", lag),
    "first audio": ("speech.json", first_audio),
    "hour": ("speech.json", hour),
    "tts bounds": ("tts_gpu.json", tts_gpu_bounds),
    **{
        f"tts {section}": ("tts_gpu.json", tts_gpu(section))
        for section in ("frame", "codec", "peers", "latency", "load", "cancel", "exact")
    },
    "vision": ("vision_gpu.json", vision_gpu),
}


def filled(page: str) -> str:
    """The page with each part between its marks made anew from its file."""
    for name, (file, render) in PARTS.items():
        if (HERE / file).exists():
            text = render(json.loads((HERE / file).read_text()))
        else:
            text = NOT_RECORDED if name == "tts bounds" else ""
        page, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
        if count != 1:
            raise SystemExit(f"{PAGE.name} has no place for {name}")
    return page


def main() -> int:
    before = PAGE.read_text()
    after = filled(before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
