"""Sight over a long time, on another loop, and when the gateway dies."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import psutil
import pytest
from fake_sight import expected_tokens, window
from sight_bench import HERE, SETTINGS, Hold, fake, figures, kill, seeing, until

from duplex.adapters.mage_vl.sight.client import Eye, Sight
from duplex.core.errors import DuplexError

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def test_sight_runs_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not there on this platform")

    async def look() -> None:
        first = Sight(fake(), SETTINGS)  # with which uvloop opens files for itself, and keeps them
        await first.start()
        kill(first)
        await until(lambda: not first.healthy)
        await until(lambda: first.healthy)
        await first.stop()
        async with seeing() as sight:
            eye, what = sight.open(), window(3)
            for life in range(2):
                result = await eye.look(what)
                assert result is not None
                np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(what))
                assert result.restarted == (life == 1)
                if not life:
                    kill(sight)
                    await until(lambda: not sight.healthy)
                    await until(lambda: sight.healthy)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(look())


async def test_memory_is_bounded_however_many_windows_come() -> None:
    """20 sessions at a time, 200 in all, 4,000 windows of 100 KB of tokens each, half of them aborted or
    merged: neither process grows by more than a few dozen of them."""
    async with seeing(fake(hidden=1600)) as sight:
        assert sight.ready is not None
        worker, here = psutil.Process(sight.ready.pid), psutil.Process()
        memory: list[tuple[int, int]] = []
        for sessions in range(10):
            eyes = [sight.open() for _ in range(20)]
            for turn in range(10):
                what = window(turn, images=8)
                looks = [asyncio.create_task(eye.look(what)) for eye in eyes for _ in range(2)]
                if turn % 2:
                    await asyncio.sleep(0)
                    for eye in eyes[::2]:
                        eye.abort()
                seen = [result for result in await asyncio.gather(*looks) if result is not None]
                assert len(seen) <= 20 + 20
                del seen, looks
            for eye in eyes:
                eye.close()
            gc.collect()
            if sessions >= 4:
                memory.append((here.memory_info().rss, worker.memory_info().rss))
        await until(lambda: figures(sight)["gate_states"] == 0)
        for first, last in zip(memory[0], memory[-1], strict=True):
            assert last - first < 30 * 102_400 * 2, f"bytes grow: {memory}"
        assert figures(sight)["sessions"] == figures(sight)["flying"] == 0


@pytest.mark.parametrize("depth", [1, 2])
async def test_anything_at_any_time_ends_every_look_as_it_should(depth: int) -> None:
    """Sessions that look, give up, abort, close and come again in random order, over kills."""
    random = Random(depth)
    windows = [window(seed, images=1 + seed % 3) for seed in range(6)]
    tokens = [expected_tokens(what) for what in windows]
    fates: Counter[str] = Counter()

    async with seeing(fake(depth=depth, max_sessions=3, max_patches=64), backoff_s=0.01) as sight:

        async def look(eye: Eye, n: int) -> None:
            try:
                result = await eye.look(windows[n], gate=random.random() < 0.7)
            except DuplexError as error:
                fates[error.code.value] += 1
            except asyncio.CancelledError:
                fates["cancelled"] += 1
            else:
                fates["none" if result is None else "seen"] += 1
                if result is not None:
                    assert result.window is windows[n]
                    np.testing.assert_array_equal(result.tokens.numpy(), tokens[n])

        async def session() -> None:
            for _ in range(6):
                await until(lambda: sight.healthy)
                eye, looks = sight.open(), []
                for _ in range(random.randrange(1, 12)):
                    looks.append(asyncio.create_task(look(eye, random.randrange(6))))
                    match random.randrange(8):
                        case 0:
                            eye.abort()
                        case 1:
                            random.choice(looks).cancel()
                        case 2 | 3 | 4:
                            await looks[-1]
                        case _:
                            await asyncio.sleep(0)
                eye.close()
                await asyncio.wait(looks)
                for done in looks:
                    if not done.cancelled():
                        done.result()
                fates["looks"] += len(looks)

        sessions = [asyncio.create_task(session()) for _ in range(12)]
        for life in range(3):
            seen = fates["seen"]
            await until(lambda seen=seen: fates["seen"] > seen + 5 or all(map(asyncio.Task.done, sessions)))
            kill(sight)
            await until(lambda life=life: sight.restarts > life)
        await asyncio.gather(*sessions)
        # a task that is cancelled before it began has no fate
        assert sum(fates.values()) - fates["looks"] <= fates["looks"]
        assert fates["seen"] > 0
        assert set(fates) <= {
            "looks",
            "seen",
            "none",
            "cancelled",
            "adapter_failed",
            "engine_down",
            "session_closing",
        }
        await until(lambda: sight.healthy)
        await until(lambda: figures(sight)["gate_states"] == figures(sight)["flying"] == 0)
        assert figures(sight)["waiting"] == figures(sight)["sessions"] == 0
        eye = sight.open()
        result = await eye.look(windows[0])
        assert result is not None
        np.testing.assert_array_equal(result.tokens.numpy(), tokens[0])


async def test_worker_ends_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    """In the middle of a batch that never ends. What they shared has no name that could stay."""
    hold = Hold(tmp_path)
    code = (
        "import asyncio, sys, msgspec\n"
        "from fake_sight import window\n"
        "from sight_bench import fake, seeing\n"
        "async def main(told):\n"
        "    async with seeing(fake(**told)) as sight:\n"
        "        look = asyncio.create_task(sight.open().look(window()))\n"
        "        print(sight.ready.pid, flush=True)\n"
        "        await look\n"
        "asyncio.run(main(msgspec.json.decode(sys.argv[1])))\n"
    )
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", code, json.dumps(hold.options)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": HERE},
    )
    assert gateway.stdout is not None
    pid = int(await gateway.stdout.readline())
    worker = psutil.Process(pid)
    await hold.launches(1)
    if sys.platform == "linux":
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "memfd:duplex-sight" in maps
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    hold.close()


def test_operations_page_lists_the_metrics_of_sight() -> None:
    exported = {
        f"duplex_{figure.name}{'_total' if figure.kind == 'counter' else ''}": figure.kind
        for figure in Sight(fake()).figures()
    }
    page = OPERATIONS.read_text()
    assert dict(re.findall(r"^\| `(duplex_sight_\w+)` \| (\w+) \|", page, re.MULTILINE)) == exported


def test_gateway_does_not_import_torch() -> None:
    code = (
        "import sys, duplex.adapters.mage_vl.sight.client, duplex.adapters.mage_vl.sight.worker;"
        "sys.exit(' '.join({'torch', 'transformers', 'triton'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
