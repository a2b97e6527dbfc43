"""The gateway's benchmark measures what it says, in small."""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("gateway_benchmark", FOLDER / "gateway.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("role", ["gateway", "floor"])
def test_one_small_round(benchmark: ModuleType, role: str) -> None:
    args = argparse.Namespace(seconds=0.4, cancels=4, binary=role == "gateway", idle=5)
    seen = benchmark.measure(role, 2, args)
    assert seen["frames"] > 10
    assert seen["stale_bytes"] == 0
    assert 0 < seen["latency_p50_ms"] <= seen["latency_p99_ms"] <= seen["latency_max_ms"]
    assert 0 < seen["answer_p50_ms"] <= seen["answer_p99_ms"]
    assert seen["cpu_us_per_frame"] > 0
    assert seen["lag_p99_ms"] >= 0


def figures(**changes: float) -> dict[str, float]:
    keys = (
        *("latency_p50_ms", "latency_p99_ms", "stale_p50_ms", "stale_p99_ms", "answer_p99_ms"),
        *("lag_p50_ms", "lag_p99_ms", "cpu_us_per_frame", "cpu_percent_per_session"),
    )
    return {**dict.fromkeys(keys, 1.0), "stale_bytes": 0.0, **changes}


@pytest.fixture
def report() -> dict[str, Any]:
    entry = {"sessions": 64, "cpu_ratio": 1.5} | {role: figures() for role in ("gateway", "floor", "burst")}
    return {"results": [entry], "idle_kb": {"gateway": 40.0, "floor": 10.0}}


def test_bounds_hold_or_do_not(benchmark: ModuleType, report: dict[str, Any]) -> None:
    assert all(holds for *_, holds in benchmark.verdicts(report))
    for role, key, value in (
        ("gateway", "latency_p99_ms", 10.1),
        ("gateway", "stale_bytes", 1.0),
        ("burst", "stale_p99_ms", 5.1),
        ("burst", "stale_bytes", 1.0),
    ):
        worse = copy.deepcopy(report)
        worse["results"][0][role][key] = value
        assert [holds for *_, holds in benchmark.verdicts(worse)].count(False) == 1
    report["results"][0]["sessions"] = 16
    assert benchmark.verdicts(report) == []


def test_one_stale_byte_in_any_round_counts(benchmark: ModuleType) -> None:
    rounds = [figures(), figures(stale_bytes=7.0, latency_p50_ms=9.0), figures()]
    middle = benchmark.median_of(rounds)
    assert (middle["stale_bytes"], middle["latency_p50_ms"]) == (7.0, 1.0)


def test_report_is_shown(benchmark: ModuleType, report: dict[str, Any], tmp_path: Path) -> None:
    text = benchmark.table(report)
    assert "1.50×" in text
    assert "idle session: gateway 40 kB, floor 10 kB" in text
    benchmark.plot(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
