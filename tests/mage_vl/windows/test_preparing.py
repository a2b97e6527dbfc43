"""Windows prepared in other processes: the same as in this one, faults and all."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from preparing_bench import (
    CODEC,
    Held,
    expected,
    figures,
    picture,
    pid_of,
    pieces,
    preparing,
    same,
    stills,
    until,
)

from duplex.adapters.mage_vl.building import Windows
from duplex.adapters.mage_vl.options import MageOptions
from duplex.adapters.mage_vl.ports import Stream
from duplex.adapters.mage_vl.windows import preparer, preparers
from duplex.adapters.mage_vl.windows.backends import WindowOptions, open_windows
from duplex.adapters.mage_vl.windows.preparer_memory import KEPT_BYTES
from duplex.adapters.mage_vl.windows.preparer_process import BROKE_IT
from duplex.adapters.mage_vl.windows.preparers import Preparers
from duplex.adapters.mage_vl.windows.preparing import Threads
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, ImageWindow, VideoWindow

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
FRAMES = WindowOptions(backend="frames", num_frames=3)


async def check_all(stream: Stream, options: WindowOptions) -> None:
    """Every kind of window, and what is held back."""
    here = open_windows(options)
    for window in pieces():
        same(await stream.see(window), here.see(window))
    same(await stream.finish(), here.finish())
    image = ImageWindow(data=picture(), pts_ms=5000.0)
    same(await stream.see(image), here.see(image))
    window = VideoWindow(kind="", frames=(picture(),) * 3, segment_id="ü", pts_ms=6000.0, duration_ms=900.0)
    same(await stream.see(window), here.see(window))
    costs = [[[float(i * j) for j in range(6)] for i in range(4)] for _ in range(3)]
    codec = {"bit_cost": costs, "not looked at": object}
    said = CodecWindow(kind="x", codec=codec, segment_id="ü", metadata={"any": object})
    same(await stream.see(window, said), here.see(window, said))
    stream.reset()
    here.reset()
    for window in pieces()[1:3]:  # there is no key frame to go on at
        for see in (stream.see(window), asyncio.to_thread(here.see, window)):
            with pytest.raises(DuplexError, match="no key frame yet"):
                await see


@pytest.mark.parametrize("options", [CODEC, FRAMES], ids=["codec", "frames"])
async def test_segments_are_those_of_this_process(options: WindowOptions) -> None:
    async with preparing(options) as made:
        await check_all(made.open(), options)
        counts = figures(made)
        assert counts["prepared"] == len(pieces()) + 4
        assert (counts["refused"], counts["preparing"]) == (2, 0)
        assert counts["preparing_seconds"] > 0


async def test_threads_make_the_same() -> None:
    with ThreadPoolExecutor(2) as pool:
        made = Threads.of(CODEC, pool)
        await made.start()
        await check_all(made.open(), CODEC)
        counts = {figure.name: figure.value for figure in made.figures()}
        assert (counts["windows_prepared"], counts["windows_refused"]) == (len(pieces()) + 4, 2)
        await made.stop()


@pytest.mark.parametrize(
    ("window", "codec"),
    [
        (VideoWindow(kind="video/mp4", data=b""), None),
        (VideoWindow(kind="video/mp4", data=b"rubbish" * 100), None),
        (VideoWindow(kind="audio/mpeg", data=b"rubbish" * 100), None),
        (VideoWindow(kind="", frames=(b"",)), None),
        (ImageWindow(data=b"\xff\xd8\xff rubbish"), None),
        (VideoWindow(kind="", frames=(b"x",)), CodecWindow(kind="", codec={"bit_cost": [[1]]})),
    ],
    ids=["empty", "rubbish", "kind", "no picture", "image", "side information"],
)
async def test_faults_have_their_code_words_and_place(
    window: VideoWindow | ImageWindow, codec: CodecWindow | None
) -> None:
    with pytest.raises(DuplexError) as here:
        open_windows(CODEC).see(window, codec)
    async with preparing() as made:
        stream = made.open()
        with pytest.raises(DuplexError) as there:
            await stream.see(window, codec)
        for name in ("code", "message", "param"):
            assert getattr(there.value, name) == getattr(here.value, name)
        same(await stream.see(pieces()[0]), expected(pieces()[:1])[0])  # the next one can be used


async def test_window_that_breaks_its_preparation_is_refused_alone(tmp_path: Path) -> None:
    async with preparing(held=tmp_path) as made:
        stream, pid = made.open(), pid_of(made.preparers[0])
        with pytest.raises(DuplexError, match=BROKE_IT) as broken:
            await stream.see(stills("break"))
        assert broken.value.code is ErrorCode.INVALID_MEDIA
        assert await stream.see(stills("next")) is not None
        assert pid_of(made.preparers[0]) == pid


@pytest.mark.parametrize("value", [[1 << 70], [object], object])
async def test_side_information_that_cannot_be_sent_is_refused(value: object) -> None:
    async with preparing() as made:
        stream = made.open()
        with pytest.raises(DuplexError, match="the codec window: ") as refused:
            await stream.see(stills(), CodecWindow(kind="", codec={"packet_bytes": value}))
        assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, "data.codec")
        assert await stream.see(stills()) is not None


async def test_window_that_has_no_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with preparing() as made:
        stream = made.open()
        monkeypatch.setattr(preparer, "SLOT_BYTES", 5000)
        with pytest.raises(DuplexError, match=r"a window of [\d,]+ bytes; the limit is 5,000") as refused:
            await stream.see(stills("big").__class__(kind="", data=bytes(5000)))
        assert refused.value.code is ErrorCode.MEDIA_TOO_LARGE
        monkeypatch.undo()
        assert await stream.see(stills()) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux alone")
async def test_memory_of_a_large_window_is_given_back() -> None:
    large = VideoWindow(kind="video/mp4", data=bytes(range(256)) * (24 << 12))
    async with preparing() as made:
        (one,) = made.preparers
        stream = made.open()
        for _ in range(4):
            with pytest.raises(DuplexError):
                await stream.see(large)
        assert one._file is not None
        assert len(large.data) == 24 << 20
        used = Path(f"/proc/self/fd/{one._file}").stat().st_blocks * 512
        assert 0 < used <= KEPT_BYTES * 3


# --- sessions ---------------------------------------------------------------------------------------


async def test_sessions_go_where_there_are_fewest() -> None:
    async with preparing(FRAMES, 2) as made:
        streams = [made.open() for _ in range(4)]
        assert [one.sessions for one in made.preparers] == [2, 2]
        streams[0].close()
        streams[0].close()  # once more is nothing
        assert [one.sessions for one in made.preparers] == [1, 2]
        made.open()
        assert [one.sessions for one in made.preparers] == [2, 2]


async def test_close_gives_up_what_is_being_prepared_and_nothing_else(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path) as made:
        first, second, third = made.open(), made.open(), made.open()
        pid = pid_of(made.preparers[0])
        gone = asyncio.ensure_future(first.see(stills("hold-1")))
        stays = asyncio.ensure_future(second.see(stills("hold-2")))
        waits = asyncio.ensure_future(third.see(stills("third")))
        await held.begins("hold-1", "hold-2")
        first.close()
        with pytest.raises(DuplexError) as closed:
            await gone
        assert closed.value.code is ErrorCode.SESSION_CLOSING
        assert (await waits) is not None
        assert not stays.done()
        held.let_go("hold-2")
        assert (await stays) is not None
        with pytest.raises(DuplexError):
            await first.see(stills("late"))
        assert pid_of(made.preparers[0]) == pid
        counts = figures(made)
        assert (counts["prepared"], counts["refused"], counts["preparing"]) == (2, 0, 0)


async def test_a_cancelled_session_does_not_wait_for_the_process(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path) as made:
        stream = made.open()
        seeing = asyncio.ensure_future(stream.see(stills("hold")))
        await held.begins("hold")
        seeing.cancel()
        await asyncio.wait({seeing})
        assert seeing.cancelled()
        assert figures(made)["preparing"] == 1  # the process has it still
        stream.close()
        await until(lambda: figures(made)["preparing"] == 0)
        (one,) = made.preparers
        await until(lambda: one.stats is not None and one.stats.streams == 0)


async def test_first_come_first_served(tmp_path: Path) -> None:
    held = Held(tmp_path)
    async with preparing(held=tmp_path) as made:
        names = [f"hold-{n}" for n in range(preparer.THREADS)]
        held_up = [asyncio.ensure_future(made.open().see(stills(name))) for name in names]
        await held.begins(*names)
        others = [f"s{n}" for n in range(12)]
        waiting = [asyncio.ensure_future(made.open().see(stills(name))) for name in others]
        await until(lambda: figures(made)["preparing"] == len(names) + len(others))
        held.let_go(names[0])  # one of the threads goes on, alone
        assert all(seen is not None for seen in await asyncio.gather(*waiting))
        assert set(held.begun()[: len(names)]) == set(names)
        assert held.begun()[len(names) :] == others
        for name in names[1:]:
            held.let_go(name)
        await asyncio.gather(*held_up)


# --- what it is made of -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (MageOptions(model="m"), Preparers),
        (MageOptions(model="m", preparers=3), Preparers),
        (MageOptions(model="m", preparers=0), Threads),
        (MageOptions(model="m", backend="cv-preinfer"), Threads),
    ],
)
def test_the_options_say_who_prepares(options: MageOptions, kind: type) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(Windows(options, pool)._made, kind)


def test_half_of_the_cores_from_one_to_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for cores in (1, 2, 5, 16, 64):
        monkeypatch.setattr(preparers.os, "sched_getaffinity", lambda _, n=cores: range(n), raising=False)
        counts[cores] = preparers.usual_count()
    assert counts == {1: 1, 2: 1, 5: 2, 16: 8, 64: 8}


def test_a_preparer_imports_no_model() -> None:
    code = (
        "import sys\n"
        "import duplex.adapters.mage_vl.windows.preparer_process, duplex.adapters.mage_vl.windows.preparers\n"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_operations_page_lists_the_metrics() -> None:
    exported = {
        f"duplex_{figure.name}{'_total' if figure.kind == 'counter' else ''}": figure.kind
        for figure in Preparers(CODEC).figures()
    }
    listed = dict(re.findall(r"^\| `(duplex_windows_\w+)` \| (\w+) \|", OPERATIONS.read_text(), re.MULTILINE))
    assert listed.pop("duplex_windows_coalesced_total") == "counter"
    assert listed == exported
