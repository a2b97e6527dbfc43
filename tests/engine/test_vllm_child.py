"""vLLM's processes end with the gateway that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import multiprocessing, os, threading, time
from duplex.adapters.engine.vllm_child import register

def child():
    register()
    print(os.getpid(), [thread.name for thread in threading.enumerate()], flush=True)
    time.sleep(600)

if __name__ == "__main__":
    register()  # the gateway's own process: nobody to watch
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(600)
"""


@pytest.mark.parametrize("marked", [True, False])
def test_a_process_of_the_engine_ends_when_its_gateway_is_killed(tmp_path: Path, marked: bool) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(PROGRAM)
    mark = {"DUPLEX_VLLM_ENDS_WITH_PARENT": "1"} if marked else {}
    with subprocess.Popen(
        [sys.executable, "-P", str(program)], stdout=subprocess.PIPE, text=True, env={**os.environ, **mark}
    ) as gateway:
        assert gateway.stdout is not None
        pid, _, threads = gateway.stdout.readline().partition(" ")
        child = psutil.Process(int(pid))
        try:
            assert ("duplex parent" in threads) is marked
            gateway.kill()
            gateway.wait()
            if marked:
                assert gateway.stdout.read() == "", "nobody holds it any more"
            else:
                assert child.is_running(), "the process of another program is left alone"
        finally:
            if child.is_running():
                child.kill()
