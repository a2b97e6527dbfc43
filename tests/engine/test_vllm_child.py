"""vLLM's processes end with the gateway that started them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest
from engine_bench import until

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
async def test_a_process_of_the_engine_ends_when_its_gateway_is_killed(tmp_path: Path, marked: bool) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(PROGRAM)
    mark = {"DUPLEX_VLLM_ENDS_WITH_PARENT": "1"} if marked else {}
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(program), stdout=asyncio.subprocess.PIPE, env={**os.environ, **mark}
    )
    assert gateway.stdout is not None
    pid, _, threads = (await gateway.stdout.readline()).decode().partition(" ")
    child = psutil.Process(int(pid))
    try:
        assert ("duplex parent" in threads) is marked
        gateway.kill()
        await gateway.wait()
        if marked:
            await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        else:
            assert child.is_running(), "the process of another program is left alone"
    finally:
        if child.is_running():
            child.kill()
