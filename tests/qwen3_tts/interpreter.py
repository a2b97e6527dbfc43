"""Kernels in Triton's interpreter, in a process of their own: it is chosen at Triton's import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def interpreted(script: str, *arguments: str) -> str:
    """What a script of this folder prints there."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
