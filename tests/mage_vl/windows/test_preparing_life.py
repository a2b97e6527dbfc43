"""Preparers that die, many sessions, and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import psutil
import pytest
from held_windows import FOLDER
from mage_fakes import FakeEngine, FakeSight, FakeWriter, Watched
from preparing_bench import (
    CODEC,
    CODECS,
    HERE,
    Held,
    expected,
    figures,
    kill,
    open_files,
    pid_of,
    pieces,
    preparing,
    processes_here,
    same,
    stills,
    until,
)

from duplex.adapters.mage_vl.adapter import MageVl
from duplex.adapters.mage_vl.options import MageOptions
from duplex.adapters.mage_vl.ports import Stream
from duplex.adapters.mage_vl.windows.backends import WindowOptions
from duplex.adapters.mage_vl.windows.preparers import Preparers
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import GateScore, InputRejected, OpenSession, SessionSettings, VideoWindow


async def test_sessions_see_what_one_process_would() -> None:
    """32 of them at once, each its own windows in order."""
    wanted = expected(pieces())
    async with preparing(CODEC, 2) as made:

        async def session() -> None:
            stream = made.open()
            for window, segment in zip(pieces(), wanted, strict=False):
                same(await stream.see(window), segment)
            same(await stream.finish(), wanted[-1])
            stream.close()

        await asyncio.gather(*(session() for _ in range(32)))
        counts = figures(made)
        assert counts["prepared"] == 32 * len(wanted)
        assert counts["refused"] == counts["preparing"] == counts["preparer_restarts"] == 0
        assert [one.sessions for one in made.preparers] == [0, 0]
        await until(lambda: all(p.stats is not None and not p.stats.streams for p in made.preparers))


async def test_killed_preparer_costs_the_windows_that_it_had(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path, processes=2) as made:
        first, second = made.preparers
        mine, others = [made.open() for _ in range(12)][::2], [made.open() for _ in range(2)]
        assert first.sessions == 7
        for stream in mine:
            assert await stream.see(stills("before", 1000.0)) is not None
        lost = [asyncio.ensure_future(stream.see(stills(f"hold-{n}"))) for n, stream in enumerate(mine[:2])]
        other = asyncio.ensure_future(others[1].see(stills("hold-other")))
        await held.begins("hold-0", "hold-1", "hold-other")
        waiting = [asyncio.ensure_future(stream.see(stills("w", 3500.0))) for stream in mine[2:]]
        await until(lambda: len(first._line) == len(waiting) - 1)  # one has the slot that was free
        untouched = pid_of(second)
        killed = kill(first)

        for task in lost:
            with pytest.raises(DuplexError, match="preparer 1 was killed by SIGKILL") as fault:
                await task
            assert fault.value.code is ErrorCode.ADAPTER_FAILED
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(DuplexError, match="SIGKILL"):
            raise ends[0] if isinstance(ends[0], BaseException) else AssertionError(ends[0])
        for segment in ends[1:]:  # they waited for its next life
            assert not isinstance(segment, BaseException)
            assert segment is not None
            assert segment.times_s.tolist() == [2.5]  # their video still began at 1 s
        assert pid_of(first) != killed
        assert (first.restarts, second.restarts) == (1, 0)
        assert made.healthy

        assert not other.done()
        assert pid_of(second) == untouched
        held.let_go("hold-other")
        assert await other is not None
        for stream in mine:
            assert await stream.see(stills("after")) is not None


async def test_live_stream_goes_on_at_its_next_key_frame() -> None:
    wanted = expected(pieces())
    async with preparing() as made:
        stream = made.open()
        same(await stream.see(pieces()[0]), wanted[0])
        kill(made.preparers[0])
        await until(lambda: made.preparers[0].restarts == 1 and made.healthy)
        with pytest.raises(DuplexError, match="no key frame yet"):
            await stream.see(pieces()[1])
        same(await stream.see(pieces()[0]), wanted[0])
        same(await stream.see(pieces()[1]), wanted[1])


async def test_window_that_kills_is_not_tried_again(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path) as made:
        stream = made.open()
        for life in range(3):
            with pytest.raises(DuplexError, match="SIGKILL"):
                await stream.see(stills("die"))
            assert await stream.see(stills(f"next-{life}")) is not None
        assert held.begun() == [name for life in range(3) for name in ("die", f"next-{life}")]
        assert figures(made)["preparer_restarts"] == 3


async def test_what_waits_fails_when_there_is_no_next_life(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path) as made:
        streams = [made.open() for _ in range(8)]
        tasks = [asyncio.ensure_future(s.see(stills(f"hold-{n}"))) for n, s in enumerate(streams)]
        await held.begins("hold-0", "hold-1")
        (tmp_path / "broken").touch()
        kill(made.preparers[0])
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, DuplexError)
            assert end.code is ErrorCode.ADAPTER_FAILED
        with pytest.raises(DuplexError, match="could not be started again"):
            await streams[0].see(stills())
        assert not made.healthy
        assert made.fault is not None
        assert "preparer 1 could not be started again" in made.fault
        (tmp_path / "broken").unlink()
        await until(lambda: made.healthy)
        assert made.fault is None
        assert await streams[0].see(stills()) is not None


async def test_nothing_is_left_of_a_start_that_fails(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(DuplexError, match=r"preparer . cannot start: it is broken") as fault:
        async with preparing(held=tmp_path, processes=2):
            raise AssertionError("it started")
    assert fault.value.code is ErrorCode.BAD_CONFIG


async def test_files_processes_and_memory_are_constant() -> None:
    """200 sessions of clips, stills and faults, over kills of both preparers."""
    async with preparing(CODEC, 2) as made:

        async def session(number: int) -> None:
            stream = made.open()
            window = pieces()[0] if number % 3 else VideoWindow(kind="video/mp4", data=b"rubbish")
            try:
                await stream.see(window)
                await stream.see(stills())
            except DuplexError as error:
                codes.add(error.code)
            stream.close()

        codes: set[ErrorCode] = set()
        seen: list[tuple[int, int]] = []
        memory: list[int] = []
        for turn in range(10):
            sessions = [asyncio.ensure_future(session(number)) for number in range(20)]
            if turn in (3, 6):
                kill(made.preparers[turn == 6])
            await asyncio.gather(*sessions)
            await until(lambda: all(one.ready is not None for one in made.preparers))
            assert all(one.sessions == 0 and len(one._free) == 3 for one in made.preparers)
            gc.collect()
            seen.append((open_files(), len(processes_here())))
            if turn >= 7:
                memory.append(sum(psutil.Process(pid_of(one)).memory_info().rss for one in made.preparers))
        assert codes <= {ErrorCode.INVALID_MEDIA, ErrorCode.ADAPTER_FAILED}
        assert len(set(seen)) == 1, seen
        assert max(memory) - memory[0] < 24 << 20, memory
        assert figures(made)["preparer_restarts"] == 2


async def test_anything_at_any_time_ends_every_window_as_it_should(tmp_path: Path) -> None:
    """Sessions that close, give up and come again in random order, over kills."""
    random = Random(5)
    fates: Counter[str] = Counter()
    async with preparing(held=tmp_path, processes=2, backoff_s=0.01) as made:

        async def see(stream: Stream, name: str) -> None:
            try:
                segment = await stream.see(stills(name))
            except DuplexError as error:
                fates[error.code.value] += 1
            else:
                assert segment is not None
                assert segment.segment_id == name
                fates["seen"] += 1

        async def session(number: int) -> None:
            for turn in range(6):
                stream = made.open()
                for window in range(random.randrange(1, 6)):
                    kind = random.choice(["", "", "", "break-", "hold-", "die-" if turn == 3 else ""])
                    task = asyncio.ensure_future(see(stream, f"{kind}{number}-{turn}-{window}"))
                    if kind == "hold-" or not random.randrange(6):
                        await asyncio.sleep(random.random() * 0.02)
                        if random.randrange(2):
                            task.cancel()
                        stream.close()
                        await asyncio.wait({task})
                        break
                    await task
                stream.close()

        await asyncio.gather(*(session(number) for number in range(10)))
        assert set(fates) <= {"seen", "invalid_media", "adapter_failed", "session_closing"}
        assert fates["seen"] > 10
        await until(lambda: figures(made)["preparing"] == 0)
        await until(lambda: all(one.ready is not None for one in made.preparers))
        assert all(one.sessions == 0 and len(one._free) == 3 for one in made.preparers)
        await until(lambda: all(p.stats is not None and not p.stats.streams for p in made.preparers))
        for _ in made.preparers:
            assert await made.open().see(stills("last")) is not None


async def test_stop_ends_what_is_being_prepared(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path) as made:
        tasks = [asyncio.ensure_future(made.open().see(stills(f"hold-{n}"))) for n in range(6)]
        await held.begins("hold-0", "hold-1")
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(end, DuplexError)
        assert end.code is ErrorCode.ADAPTER_FAILED


async def test_preparers_end_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    held = Held(tmp_path)
    code = (
        "import asyncio, sys, pathlib\n"
        "from preparing_bench import Held, pid_of, preparing, stills\n"
        "async def main(folder):\n"
        "    async with preparing(held=folder) as made:\n"
        "        see = asyncio.create_task(made.open().see(stills('hold')))\n"
        "        print(pid_of(made.preparers[0]), flush=True)\n"
        "        await see\n"
        "asyncio.run(main(pathlib.Path(sys.argv[1])))\n"
    )
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", code, str(tmp_path)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, CODECS]), FOLDER: str(tmp_path)},
    )
    assert gateway.stdout is not None
    worker = psutil.Process(int(await gateway.stdout.readline()))
    await held.begins("hold")
    if sys.platform == "linux":
        assert "memfd:duplex-windows" in Path(f"/proc/{worker.pid}/maps").read_text()
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


class _Backend(Preparers):
    takes_codec = False

    def pairing(self) -> None:
        return None


async def test_session_is_told_of_a_window_that_was_lost_and_goes_on(tmp_path: Path) -> None:
    """The whole session on a real preparer: an `InputRejected` by name, and the next window is looked at."""
    held = Held(tmp_path)
    backend = _Backend(
        WindowOptions(),
        1,
        factory="held_windows:streams",
        env={"PYTHONPATH": HERE, FOLDER: str(tmp_path)},
    )
    adapter = MageVl(
        MageOptions(model="none"),
        engine=FakeEngine(),
        sight=FakeSight(),
        backend=backend,
        writer=FakeWriter(),
    )
    await adapter.start()
    try:
        watched = Watched(await adapter.open(OpenSession(session_id="s", settings=SessionSettings())))
        await watched.session.append(stills("hold", 0.0))
        await held.begins("hold")
        kill(backend.preparers[0])
        await watched.until(lambda: watched.all(InputRejected))
        (lost,) = watched.all(InputRejected)
        assert lost.code is ErrorCode.ADAPTER_FAILED
        assert "windows preparer 1 was killed by SIGKILL" in lost.message
        await watched.session.append(stills("next", 1000.0))
        await watched.session.finish()
        assert [score.segment_id for score in watched.all(GateScore)] == ["next"]
        await watched.close()
        assert backend.preparers[0].sessions == 0
    finally:
        await adapter.stop()
    assert processes_here() == []
