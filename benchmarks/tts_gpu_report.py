"""What `tts_gpu.json` says, as tables, verdicts and plots. Only the standard library, but for the plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Report: TypeAlias = Mapping[str, Any]
Line: TypeAlias = Mapping[str, Any]
FRAME_MS = 80.0


def lines(report: Report, part: str, kind: str) -> list[Line]:
    """The results of that kind."""
    return [line for line in report["parts"].get(part, {}).get("lines", ()) if line["kind"] == kind]


def number(value: float | None, form: str = ".2f", unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


def pair(values: Line, unit: str = " ms") -> str:
    """p50 / p95."""
    if not values["n"]:
        return "–"
    return f"{number(values['p50'], '.1f')} / {number(values['p95'], '.1f')}{unit}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in body)


def batches(report: Report) -> list[Line]:
    return sorted(lines(report, "frame", "batch"), key=lambda line: line["batch"])


def decoded_ms(report: Report) -> float | None:
    """Codec time of one frame of one stream, in the launch that makes it cheapest."""
    found = [
        line["ms"] / (line["batch"] * line["frames"])
        for line in lines(report, "codec", "decode")
        if line["ms"] is not None
    ]
    return min(found, default=None)


def with_codec(report: Report) -> list[tuple[int, float, float]]:
    """(batch, ms of a frame with its decode, real-time streams), one after the other on the same device."""
    each = decoded_ms(report)
    if each is None:
        return []
    found = []
    for line in batches(report):
        if line["ours_ms"] is not None:
            whole = line["ours_ms"] + line["batch"] * each
            found.append((line["batch"], whole, line["batch"] * FRAME_MS / whole))
    return found


def frame_table(report: Report) -> str:
    both = {batch: (whole, streams) for batch, whole, streams in with_codec(report)}
    rows = []
    for line in batches(report):
        whole, streams = both.get(line["batch"], (None, None))
        rows.append(
            [
                str(line["batch"]),
                number(line["ratio"]),
                number(line["naive_ratio"]),
                number(line.get("graph_ms"), ".2f", " ms"),
                number(line["ours_ms"], ".2f", " ms"),
                number(line["naive_ms"], ".2f", " ms"),
                number(line["floor_ms"], ".2f", " ms"),
                number(line["streams"], ".0f"),
                number(whole, ".2f", " ms"),
                number(streams, ".0f"),
            ]
        )
    head = [
        "batch",
        "ours / floor",
        "naive / floor",
        "ours, graph",
        "ours, host",
        "naive",
        "floor",
        "streams",
    ]
    return table([*head, "with codec", "streams with codec"], rows)


def codec_table(report: Report) -> str:
    frame_ms = {line["batch"]: line["ours_ms"] for line in batches(report)}
    rows = []
    for line in sorted(lines(report, "codec", "decode"), key=lambda line: (line["batch"], line["frames"])):
        loop = frame_ms.get(line["batch"])
        share = line["ms"] / line["frames"] / loop if loop and line["ms"] else None
        rows.append(
            [
                str(line["batch"]),
                str(line["frames"]),
                number(share, ".2f"),
                number(line["ms"], ".2f", " ms"),
                number(line["ms"] and 1000 * line["ms"] / line["batch"] / line["frames"], ".0f", " µs"),
            ]
        )
    return table(["batch", "frames", "of a frame's time", "a launch", "a frame of one stream"], rows)


def alone(report: Report) -> float | None:
    """Our first audio at the socket with one stream, p50 ms."""
    for line in lines(report, "serve", "latency"):
        load = line["load"]
        if load.get("probes") and not load.get("listeners"):
            found: float | None = line["first_ms"]["p50"]
            return found
    return None


def peers(report: Report) -> Iterator[tuple[str, Line]]:
    """Each peer's last figures by what was asked of it."""
    for line in lines(report, "qwen-tts", "utterance")[-1:]:
        yield f"qwen-tts, {line['frames']} frames at once", line
    found = {line["chunk_frames"]: line for line in lines(report, "faster-qwen3-tts", "stream")}
    for chunk, line in sorted(found.items()):
        yield f"faster-qwen3-tts, chunks of {chunk}", line


def peer_table(report: Report) -> str:
    ours, first = alone(report), batches(report)
    frame_ms = first[0]["ours_ms"] if first and first[0]["batch"] == 1 else None
    rows = [["ours, at the socket", "1", number(ours, ".1f", " ms"), number(frame_ms, ".2f", " ms"), ""]]
    for name, line in peers(report):
        times = line["first_audio_ms"] / ours if ours else None
        rows.append(
            [
                name,
                number(times, ".1f"),
                number(line["first_audio_ms"], ".1f", " ms"),
                number(line["frame_ms"], ".2f", " ms"),
                number(line["real_time"], ".2f", "×"),
            ]
        )
    return table(["", "first audio / ours", "first audio", "a frame", "faster than real time"], rows)


def load_name(load: Mapping[str, Any]) -> str:
    if load.get("rate"):
        return f"{load['rate']:g} a second"
    streams = load.get("listeners", 0) + load.get("probes", 0)
    return f"{streams} stream{'s' if streams > 1 else ''}"


def latency_table(report: Report) -> str:
    rows = [
        [
            load_name(line["load"]),
            pair(line["first_ms"]),
            pair(line["first_http_ms"]),
            pair(line["first_socket_ms"]),
            str(line["first_ms"]["n"]),
            f"{line['underrun_streams']} of {line['streams']}",
        ]
        for line in sorted(lines(report, "serve", "latency"), key=lambda line: _order(line["load"]))
    ]
    head = ["load", "first audio p50 / p95", "HTTP", "WebSocket", "requests", "streams that underran"]
    return table(head, rows)


def load_table(report: Report) -> str:
    rows = [
        [
            load_name(line["load"]),
            f"{line['underrun_streams']} of {line['streams']}",
            str(line["underruns"]),
            number(line["slack_p1_ms"], ".0f", " ms"),
            pair(line["first_ms"]),
            number(line["memory_bytes"] and line["memory_bytes"] / 2**30, ".1f", " GiB"),
            number(line["gateway_cores"], ".2f"),
        ]
        for line in sorted(lines(report, "serve", "load"), key=lambda line: _order(line["load"]))
    ]
    head = ["streams", "underran", "underruns", "least slack p1", "first audio p50 / p95", "device memory"]
    return table([*head, "gateway's cores"], rows)


def _order(load: Mapping[str, Any]) -> tuple[float, int]:
    return load.get("rate", 0.0), load.get("listeners", 0) + load.get("probes", 0)


def cancel_table(report: Report) -> str:
    rows = []
    for line in lines(report, "engine", "cancel"):
        frame_ms = line["frame_ms"]
        for name, key in (
            ("abort read until the slot is free", "freed_ms"),
            ("abort sent until the answer is here", "answered_ms"),
            ("abort sent until the next request's first audio", "next_ms"),
        ):
            seen = line[key]
            frames = seen["p99"] / frame_ms if seen["p99"] is not None and frame_ms else None
            rows.append(
                [
                    name,
                    number(frames),
                    number(seen["p50"], ".2f", " ms"),
                    number(seen["p99"], ".2f", " ms"),
                    str(seen["n"]),
                ]
            )
    return table(["", "p99 in frames", "p50", "p99", "aborts"], rows)


def exact_table(report: Report) -> str:
    found = [(line, "codes") for line in lines(report, "frame", "codes")]
    found += [(line, "audio") for line in lines(report, "engine", "audio")]
    rows = [
        [
            what,
            "greedy" if line["greedy"] else "sampled",
            str(line["batch"]),
            "yes" if line["identical"] else "no",
            number(line.get("difference"), ".1e") if what == "audio" else "",
        ]
        for line, what in found
    ]
    return table(["", "", "rows in company", "identical", "largest difference"], rows)


TABLES: Mapping[str, tuple[str, Callable[[Report], str]]] = {
    "frame": ("The frame loop", frame_table),
    "codec": ("The codec", codec_table),
    "peers": ("First audio beside others", peer_table),
    "latency": ("First audio at the socket", latency_table),
    "load": ("Streams at once", load_table),
    "cancel": ("Cancels", cancel_table),
    "exact": ("The same seed", exact_table),
}


def at_batch(report: Report, batch: int, key: str) -> float | None:
    return next((line[key] for line in batches(report) if line["batch"] == batch), None)


def at_load(report: Report, part: str, key: str, **load: float) -> Any:
    for line in lines(report, "serve", part):
        asked = line["load"]
        streams = asked.get("listeners", 0) + asked.get("probes", 0)
        if load == ({"rate": asked["rate"]} if asked.get("rate") else {"streams": streams}):
            return line["first_ms"][key] if key in line["first_ms"] else line[key]
    return None


def verdicts(report: Report) -> list[tuple[str, str, str, bool]]:
    """What has to hold, of what was measured: words, figure, bound, whether it holds."""
    most = max((streams for *_, streams in with_codec(report)), default=None)
    ours = alone(report)
    waits = [line["first_audio_ms"] / ours for _, line in peers(report)] if ours else []
    aborted = [
        line for line in lines(report, "engine", "cancel") if line["freed_ms"]["n"] and line["frame_ms"]
    ]
    freed = max((line["freed_ms"]["p99"] / line["frame_ms"] for line in aborted), default=None)
    checks: list[tuple[str, float | None, float, str]] = [
        ("frame / floor at batch 1", at_batch(report, 1, "ratio"), 2.0, "most"),
        ("frame / floor at batch 64", at_batch(report, 64, "ratio"), 2.0, "most"),
        ("real-time streams with codec", most, 400.0, "least"),
        ("first audio p50 at 1 stream, ms", ours, 25.0, "most"),
        ("first audio p95 at 1 stream, ms", at_load(report, "latency", "p95", streams=1), 40.0, "most"),
        ("first audio p95 at 20 requests/s, ms", at_load(report, "latency", "p95", rate=20.0), 50.0, "most"),
        ("sooner than the fastest peer, times", min(waits, default=None), 5.0, "least"),
        ("underruns at 256 streams", at_load(report, "load", "underruns", streams=256), 0.0, "most"),
        ("abort until the slot is free p99, frames", freed, 1.0, "most"),
        ("codes that differ in a batch", _differing(lines(report, "frame", "codes")), 0.0, "most"),
    ]
    return [
        (
            words,
            f"{value:.2f}",
            f"{'at most' if side == 'most' else 'at least'} {bound:g}",
            value <= bound if side == "most" else value >= bound,
        )
        for words, value, bound, side in checks
        if value is not None
    ]


def _differing(found: list[Line]) -> float | None:
    return float(sum(not line["identical"] for line in found)) if found else None


def machine_words(report: Report) -> str:
    at = report["machine"]
    words = (
        f"{report['size']}, {at['device']}, torch {at['torch']}, Python {at['python']}, {at['cores']} cores."
    )
    copied = lines(report, "frame", "copy")
    if copied:
        words += (
            f" A large copy moved {copied[0]['bytes_per_s'] / 1e12:.2f} TB/s in this run; "
            f"the floor is over {copied[0]['reference_bytes_per_s'] / 1e12:.2f} TB/s."
        )
    return words


def verdict_table(report: Report) -> str:
    rows = [[*cells, "holds" if good else "does not hold"] for *cells, good in verdicts(report)]
    return table(["", "measured", "bound", ""], rows)


def text(report: Report) -> str:
    """All tables, for a terminal."""
    parts = [machine_words(report)]
    for title, render in TABLES.values():
        shown = render(report)
        if shown.count("\n") > 1:
            parts.append(f"{title}\n{shown}")
    parts.append(f"Bounds\n{verdict_table(report)}")
    return "\n\n".join(parts)


def plot(report: Report, folder: Path) -> None:
    """`tts_gpu_frame.png` and `tts_gpu_first_audio.png`, of what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    measured = [line for line in batches(report) if line["ours_ms"] is not None]
    if measured:
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        sizes = [line["batch"] for line in measured]
        axes.plot(sizes, [line["ours_ms"] for line in measured], "o-", label="ours")
        naive = [(line["batch"], line["naive_ms"]) for line in measured if line["naive_ms"]]
        if naive:
            axes.plot(*zip(*naive, strict=True), "s-", label="PyTorch in one CUDA graph")
        axes.plot(sizes, [line["floor_ms"] for line in measured], "k--", label="bytes floor")
        axes.set(xscale="log", xlabel="batch", ylabel="ms a frame", ylim=(0, None))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.legend(frameon=False)
        figure.savefig(folder / "tts_gpu_frame.png", dpi=110)
        plt.close(figure)
    points = sorted(lines(report, "serve", "latency"), key=lambda line: _order(line["load"]))
    points = [line for line in points if line["first_ms"]["n"]]
    if points:
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        places = range(len(points))
        for name, mark in (("p50", "o"), ("p95", "^")):
            axes.plot(places, [line["first_ms"][name] for line in points], mark, label=name)
        axes.set_xticks(places, [load_name(line["load"]) for line in points], rotation=30, ha="right")
        axes.set(ylabel="first audio at the socket, ms", ylim=(0, None))
        axes.legend(frameon=False)
        figure.savefig(folder / "tts_gpu_first_audio.png", dpi=110)
        plt.close(figure)
