"""Benchmarks of many parts on one GPU: each in a process of its own, with a share of the time.

A part is ended when its time is over; what it found until then counts.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

GRACE_S: Final = 15.0
"""How long a part may take to end by itself when its budget is spent."""


class Report:
    """The results, on disk after every line."""

    def __init__(self, file: Path, head: Mapping[str, Any]) -> None:
        self.file = file
        self.tree: dict[str, Any] = {**head, "parts": {}}

    def save(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.tree, indent=1) + "\n")
        new.replace(self.file)


def run(
    part: str, program: Path, tell: dict[str, Any], environment: Mapping[str, str], report: Report
) -> None:
    """One part in a process of its own, its lines into the report as they come."""
    entry: dict[str, Any] = {"lines": []}
    report.tree["parts"][part] = entry
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        spec, errors = Path(folder) / "spec.json", Path(folder) / "stderr"
        spec.write_text(json.dumps(tell))
        command = [sys.executable, str(program), part, str(spec)]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **environment}
            )
        # a start takes time that is no measurement: imports, weights, compilation
        timer = threading.Timer(tell["budget_s"] + GRACE_S, process.terminate)
        killer = threading.Timer(tell["budget_s"] + 2 * GRACE_S, process.kill)
        timer.start()
        killer.start()
        assert process.stdout is not None
        for line in process.stdout:
            entry["lines"].append(json.loads(line))
            report.save()
        entry["exit"] = process.wait()
        timer.cancel()
        killer.cancel()
        entry["seconds"] = round(time.monotonic() - began, 1)
        if entry["exit"] != 0:
            said = errors.read_bytes()
            report.file.with_name(f"{part}.stderr").write_bytes(said)
            entry["stderr"] = said[-4000:].decode(errors="replace")
    report.save()
    print(f"{part}: {entry['seconds']} s, {len(entry['lines'])} results, exit {entry['exit']}", flush=True)
    if "stderr" in entry:
        print(entry["stderr"][-1500:], flush=True)


def machine(device: str) -> dict[str, Any]:
    """Where it ran. In a process of its own, so that this one holds no device."""
    code = (
        "import json, sys, torch;"
        "gpu = torch.cuda.get_device_properties(0) if sys.argv[1] != 'cpu' else None;"
        "print(json.dumps({'torch': torch.__version__, 'device': gpu.name if gpu else 'cpu',"
        " 'device_bytes': gpu.total_memory if gpu else 0}))"
    )
    done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, check=True)
    return {
        **json.loads(done.stdout),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
