"""The GPU benchmark measures what it says; its cheapest section runs on the CPU with a tiny model."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from duplex.adapters.base import AdapterInfo, AdapterSession
from duplex.adapters.speech import SpeechChunk, SpeechRequest, SpeechVoice
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality, OpenSession
from duplex.server.run import running_gateway

FOLDER = Path(__file__).parents[2] / "benchmarks"
RATE, FRAME = 24000, 1920


@pytest.fixture(autouse=True)
def benchmark_folder() -> Iterator[None]:
    """The benchmark's programs import one another by their bare names."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


# --- listeners ----------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module("tts_gpu_client"), "time", SimpleNamespace(perf_counter=lambda: now.now))
    return now


def test_a_chunk_behind_the_play_head_is_an_underrun_and_the_player_waits_for_it(
    clock: SimpleNamespace,
) -> None:
    hearing = module("tts_gpu_client").Hearing("http", probe=False)
    clock.now += 0.03
    hearing.heard(2 * FRAME)  # 80 ms, played until 0.11
    clock.now += 0.05
    hearing.heard(4 * FRAME)  # in time, played until 0.27
    clock.now += 0.25
    hearing.heard(2 * FRAME)  # 60 ms late: the player has waited, and now plays until 0.41
    clock.now += 0.07
    hearing.heard(2 * FRAME)
    assert hearing.first - hearing.asked == pytest.approx(0.03)
    assert [by for _, by in hearing.late] == pytest.approx([0.06])
    assert hearing.slack == pytest.approx([0.03, -0.06, 0.01])
    assert hearing.ends_at == pytest.approx(100.0 + 0.33 + 0.16)


class PacedSpeech:
    """80 ms frames when they are due, after `first_s`; `gap_s` late before the frame `stall`."""

    sample_rate = RATE
    voices = (SpeechVoice(id="vivian"),)

    def __init__(self, first_s: float, stall: int | None) -> None:
        self.first_s = first_s
        self.stall = stall
        self.asked: list[SpeechRequest] = []

    def validate(self, request: SpeechRequest) -> SpeechRequest:
        self.asked.append(request)
        return request

    async def synthesise(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncIterator[SpeechChunk]:
        async for _ in text:
            pass
        await asyncio.sleep(self.first_s)
        for index in range(request.max_new_tokens or 1):
            if index:
                await asyncio.sleep(0.3 if index == self.stall else 0.06)
            yield SpeechChunk(samples=np.zeros(FRAME, np.float32), sample_rate=RATE)


class PacedAdapter:
    info = AdapterInfo(id="paced", input_modalities=(Modality.TEXT,), output_modalities=(Modality.AUDIO,))

    def __init__(self, first_s: float = 0.05, stall: int | None = None) -> None:
        self.speech = PacedSpeech(first_s, stall)

    async def start(self) -> None: ...

    async def open(self, request: OpenSession) -> AdapterSession:
        raise DuplexError(ErrorCode.UNSUPPORTED_MODALITY, "speech only")

    async def stop(self) -> None: ...


async def heard(adapter: PacedAdapter, **orders: Any) -> dict[str, Any]:
    client = module("tts_gpu_client")
    async with running_gateway(ServerConfig(port=0), [adapter]) as gateway:
        port = int(gateway.ws_url.rpartition(":")[2])
        asked = client.Orders(port=port, settle_s=0.3, frames=(5, 8), **orders)
        found: dict[str, Any] = client.merged([await client.Client(asked).run()])
    return found


async def test_listeners_and_a_probe_hear_first_audio_over_both_transports() -> None:
    adapter = PacedAdapter()
    found = await heard(adapter, listeners=3, probes=1, probe_frames=1, seconds=2.5)
    assert found["faults"] == found["unanswered"] == found["underruns"] == 0
    assert found["streams"] >= 3
    for kind in ("first_http_ms", "first_socket_ms"):
        assert found[kind]["n"] >= 2
        assert 50 <= found[kind]["p50"] < 500
    assert found["first_ms"]["n"] == found["first_http_ms"]["n"] + found["first_socket_ms"]["n"]
    assert {request.max_new_tokens for request in adapter.speech.asked} <= {1, 5, 6, 7, 8, None}
    assert len({request.seed for request in adapter.speech.asked if request.seed is not None}) > 3


async def test_a_model_that_stalls_makes_every_stream_underrun() -> None:
    found = await heard(PacedAdapter(stall=2), listeners=2, seconds=2.0)
    assert found["underruns"] >= found["underrun_streams"] >= 2
    assert 100 < found["late_ms"]["p50"] < 1000


async def test_requests_at_a_rate_do_not_wait_for_one_another() -> None:
    found = await heard(PacedAdapter(first_s=0.6), rate=20.0, seconds=1.5)
    assert found["first_ms"]["n"] >= 8
    assert found["first_ms"]["p50"] < 1500


async def test_a_refusal_is_a_fault_with_the_gateways_words() -> None:
    client = module("tts_gpu_client")
    async with running_gateway(ServerConfig(port=0, max_speech_requests=1), [PacedAdapter()]) as gateway:
        port = int(gateway.ws_url.rpartition(":")[2])
        asked = client.Orders(port=port, settle_s=0.0, seconds=0.8, listeners=3, transports=("http",))
        found = client.merged([await client.Client(asked).run()])
    assert found["faults"] >= 1
    assert found["fault"].startswith("429")


# --- the floor and the report -------------------------------------------------------------------------


def test_the_floor_is_what_was_published_for_the_naive_loop() -> None:
    sizes = module("tts_gpu_sizes")
    floors = {batch: sizes.frame_bytes("1.7B", batch) / 4.3e9 for batch in (1, 8, 32, 64, 128)}
    assert floors == pytest.approx({1: 1.29, 8: 1.38, 32: 1.71, 64: 2.15, 128: 3.02}, abs=0.006)
    assert sizes.frame_bytes("0.6B", 1) < sizes.frame_bytes("1.7B", 1)


def spread(value: float, n: int = 50) -> dict[str, Any]:
    return {"n": n, "p50": value, "p95": value, "p99": value, "max": value}


def point(section: str, value: float, load: dict[str, Any], **changes: Any) -> dict[str, Any]:
    kinds = {f"first{kind}_ms": spread(value) for kind in ("", "_http", "_socket")}
    counts = {"underrun_streams": 0, "streams": 9, "underruns": 0, "slack_p1_ms": 40.0}
    machine = {"memory_bytes": 2**33, "gateway_cores": 0.5}
    return {"kind": section, "load": load, **kinds, **counts, **machine, **changes}


@pytest.fixture
def report() -> dict[str, Any]:
    batch = {"naive_ms": 6.4, "floor_ms": 1.3, "naive_ratio": 4.9, "ratio": 1.5, "streams": 40.0}
    peer = {"first_audio_ms": 300.0, "frame_ms": 20.0, "real_time": 3.0, "frames": 48}
    parts: dict[str, list[dict[str, Any]]] = {
        "frame": [
            {"kind": "copy", "bytes_per_s": 4.2e12, "reference_bytes_per_s": 4.3e12},
            {"kind": "batch", "batch": 64, "ours_ms": 4.0, **batch},
            {"kind": "batch", "batch": 1, "ours_ms": 2.0, **batch},
            {"kind": "codes", "batch": 8, "greedy": False, "identical": True},
        ],
        "codec": [{"kind": "decode", "batch": 64, "frames": 4, "ms": 5.12}],
        "engine": [
            {
                "kind": "cancel",
                "frame_ms": 4.0,
                "freed_ms": spread(0.5),
                "answered_ms": spread(0.7),
                "next_ms": spread(12.0),
            },
            {"kind": "audio", "batch": 8, "greedy": True, "identical": False, "difference": 1e-6},
        ],
        "serve": [
            point("latency", 45.0, {"rate": 20.0}),
            point("latency", 20.0, {"listeners": 0, "probes": 1}),
            point("load", 30.0, {"listeners": 256}),
        ],
        "qwen-tts": [{"kind": "utterance", **peer, "first_audio_ms": 4000.0}],
        "faster-qwen3-tts": [{"kind": "stream", "chunk_frames": 1, **peer}],
    }
    machine = {"device": "NVIDIA H200", "torch": "2.11.0", "python": "3.12.3", "cores": 16}
    return {
        "size": "1.7B",
        "machine": machine,
        "parts": {name: {"lines": lines} for name, lines in parts.items()},
    }


def found(report: dict[str, Any], part: str, kind: str, **where: Any) -> dict[str, Any]:
    lines: list[dict[str, Any]] = report["parts"][part]["lines"]
    return next(
        line
        for line in lines
        if line["kind"] == kind and all(line[key] == value for key, value in where.items())
    )


def test_every_bound_can_fail(report: dict[str, Any]) -> None:
    check = module("tts_gpu_report").verdicts
    assert len(check(report)) == 10
    assert all(holds for *_, holds in check(report))
    worse = (
        (found(report, "frame", "batch", batch=1), "ratio", 2.1),
        (found(report, "frame", "batch", batch=64), "ratio", 2.1),
        (found(report, "frame", "codes"), "identical", False),
        (found(report, "codec", "decode"), "ms", 5120.0),
        (found(report, "engine", "cancel")["freed_ms"], "p99", 4.1),
        (found(report, "serve", "latency", load={"rate": 20.0})["first_ms"], "p95", 50.1),
        (found(report, "serve", "latency", load={"listeners": 0, "probes": 1})["first_ms"], "p50", 25.1),
        (found(report, "serve", "latency", load={"listeners": 0, "probes": 1})["first_ms"], "p95", 40.1),
        (found(report, "serve", "load"), "underruns", 1),
        (found(report, "faster-qwen3-tts", "stream"), "first_audio_ms", 99.0),
    )
    for place, key, value in worse:
        before, place[key] = place[key], value
        assert [holds for *_, holds in check(report)].count(False) == 1, (key, value)
        place[key] = before


def test_what_was_not_measured_is_no_verdict_and_no_fault(report: dict[str, Any]) -> None:
    reports = module("tts_gpu_report")
    report["parts"] = {"frame": {"lines": report["parts"]["frame"]["lines"][:1]}}
    assert reports.verdicts(report) == []
    assert "4.20 TB/s" in reports.text(report)


def test_codec_and_frame_share_the_device(report: dict[str, Any]) -> None:
    both = {batch: (whole, streams) for batch, whole, streams in module("tts_gpu_report").with_codec(report)}
    # 5.12 ms for 256 frames: 20 µs each
    assert both[64] == pytest.approx((4.0 + 64 * 0.02, 64 * 80 / 5.28))


def test_report_is_shown(report: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots need matplotlib")
    reports = module("tts_gpu_report")
    shown = reports.text(report)
    for words in ("| 1 | 1.50 | 4.90 |", "qwen-tts, 48 frames at once | 200.0", "20 a second", "256 streams"):
        assert words in shown
    reports.plot(report, tmp_path)
    for name in ("tts_gpu_frame.png", "tts_gpu_first_audio.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


# --- parts, budgets, packing --------------------------------------------------------------------------


def test_a_part_that_fails_or_takes_too_long_leaves_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = module("gpu_parts")
    program = tmp_path / "program.py"
    monkeypatch.setattr(parts, "GRACE_S", 0.2)
    for end, exit in (("raise ValueError('broken')", 1), ("time.sleep(60)", -15)):
        program.write_text(f'import time\nprint(\'{{"kind": "seen"}}\', flush=True)\n{end}\n')
        report = parts.Report(tmp_path / "out.json", {"size": "tiny"})
        parts.run("part", program, {"budget_s": 2.0}, {}, report)
        entry = json.loads((tmp_path / "out.json").read_text())["parts"]["part"]
        assert entry["lines"] == [{"kind": "seen"}]
        assert entry["exit"] == exit
        assert ("broken" in entry["stderr"]) == (exit == 1)


def test_what_a_part_leaves_of_the_budget_is_shared_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = module("tts_gpu")
    now = SimpleNamespace(now=50.0)
    monkeypatch.setattr(whole, "time", SimpleNamespace(monotonic=lambda: now.now))
    monkeypatch.setattr(whole, "SHARES", {"one": 10, "two": 20, "three": 30})
    budget = whole.Budget(["120", "three=30"])
    assert budget.of("one", ["two", "three"]) == pytest.approx(30)
    now.now += 10
    assert budget.of("two", ["three"]) == pytest.approx(80)
    assert budget.of("three", []) == 30
    now.now += 200
    assert budget.of("two", ["three"]) == whole.LEAST_S
    with pytest.raises(SystemExit, match="no part"):
        whole.Budget(["four=7"])


def test_the_working_tree_is_linked_as_a_package(tmp_path: Path) -> None:
    module("packing").link_tree(tmp_path)
    points = entry_points(group="duplex.adapters").names
    code = (
        "import duplex.codecs, duplex.adapters.qwen3_tts.job, importlib.metadata as m;"
        "print(duplex.__path__[0]);"
        "print(*sorted(m.entry_points(group='duplex.adapters').names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "tree")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    path, names = done.stdout.splitlines()
    assert path == str(tmp_path / "tree" / "duplex")
    assert {"qwen3-tts", *points} <= set(names.split())


def test_the_codec_section_runs_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the model runs on torch")
    command = [sys.executable, str(FOLDER / "tts_gpu.py"), "--size", "tiny", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)  # its programs lie beside one another
    subprocess.run(
        [*command, "--only", "codec", "--out", str(tmp_path)], env=environment, check=True, timeout=100
    )
    part = json.loads((tmp_path / "tts_gpu.json").read_text())["parts"]["codec"]
    decodes = [line for line in part["lines"] if line["kind"] == "decode"]
    assert part["exit"] == 0
    assert {(line["batch"], line["frames"]) for line in decodes} == {
        (b, f) for b in (1, 2, 4) for f in (1, 4)
    }
    assert all(line["ms"] > 0 and line["fault"] is None for line in decodes)
