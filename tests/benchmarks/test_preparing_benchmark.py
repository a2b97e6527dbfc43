"""The benchmark of preparing windows measures both ways, in small."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "preparing.py"


@pytest.mark.parametrize("live", [False, True])
def test_both_ways_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str], live: bool) -> None:
    spec = importlib.util.spec_from_file_location("preparing_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benchmark
    spec.loader.exec_module(benchmark)
    out = tmp_path / "preparing.json"
    told = ["--sessions", "2", "--threads", "2", "--processes", "1", "--seconds", "2", "--json", str(out)]
    assert benchmark.main([*told, *(["--live"] if live else [])]) == 0
    report = json.loads(out.read_text())
    assert [entry["load"] for entry in report["results"]] == ["flat out", "live"][: 1 + live]
    for entry in report["results"]:
        for way in ("threads", "processes"):
            seen = entry[way]
            assert seen["windows"] >= 1
            assert seen["took_p50_ms"] > 0
            assert seen["lag_p99_ms"] >= seen["lag_p50_ms"]
        assert entry["ratio"] > 0
    assert "processes / threads:" in capsys.readouterr().out
