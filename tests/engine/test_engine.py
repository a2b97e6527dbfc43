"""The engine end to end: requests of a gateway in real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from engine_bench import ENDLESS, job, running, spec, until, whole, workers
from fake_frames import FakeJob, expected

from duplex.adapters.engine.client import Engine, EngineRequest, EngineSettings
from duplex.adapters.engine.settings import WorkerSettings
from duplex.core.errors import DuplexError, ErrorCode


async def test_eight_streams_at_once_get_their_own_audio_exactly() -> None:
    """On four slots, so that half of them wait."""
    jobs = [FakeJob(tone=tone, text="abc" * tone, tail=30 + 7 * tone, rows=3 * tone + 1) for tone in range(8)]
    async with running(spec(slots=4, max_batch=3)) as engine:

        async def speak(fake: FakeJob) -> None:
            async with engine.request(msgspec.json.encode(fake)) as request:
                np.testing.assert_array_equal(await whole(request), expected(fake))
                assert request.finish == "stop"

        await asyncio.gather(*map(speak, jobs))
        assert engine.replicas[0].load == 0
        await _made_is(engine, {})


async def test_threads_of_a_worker_hold_one_another_up_for_less_than_a_frame() -> None:
    """Python lets a thread compute for 5 ms while others wait; a frame may be shorter than that."""
    async with running() as engine:
        assert msgspec.json.decode(await engine.call("switch", b"")) <= 0.001


async def test_length_finish_is_told() -> None:
    async with running() as engine, engine.request(job(1, tail=100, most=9)) as request:
        chunks = [chunk async for chunk in request]
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert sum(len(chunk.samples) for chunk in chunks) == 9 * 16


async def test_text_that_comes_late_is_spoken() -> None:
    fake = FakeJob(tone=3, text="ab", ended=False, tail=4)
    async with running() as engine, engine.request(msgspec.json.encode(fake)) as request:
        pieces = []
        async for chunk in request:
            pieces.append(chunk.samples)
            frames = sum(map(len, pieces)) // 16
            if frames == 2:
                request.send_text("cd")
            if frames == 4:
                request.send_text("e", ended=True)
        np.testing.assert_array_equal(np.concatenate(pieces), expected(fake, "abcde"))


async def test_leaving_a_request_frees_its_slot() -> None:
    """The one slot is held by a stream that never ends; the next request gets audio once it was left."""
    async with running(spec(slots=1, max_batch=1)) as engine:
        async with engine.request(job(1, tail=ENDLESS), credit=None) as first:
            await anext(first)
            waiting = engine.request(job(2, tail=5))
            second = await waiting.__aenter__()
            assert engine.replicas[0].load == 2
        np.testing.assert_array_equal(await whole(second), expected(FakeJob(tone=2, tail=5)))
        await waiting.__aexit__(None, None, None)
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        assert engine.replicas[0].load == 0


async def test_cancelled_task_aborts_its_request() -> None:
    async with running(spec(slots=1, max_batch=1)) as engine:
        speaking = asyncio.Event()

        async def speak() -> None:
            async with engine.request(job(1, tail=ENDLESS)) as request:
                async for _ in request:
                    speaking.set()

        task = asyncio.create_task(speak())
        await speaking.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with engine.request(job(2, tail=3)) as request:
            assert len(await whole(request)) == 3 * 16


async def test_request_left_before_it_was_admitted_is_forgotten() -> None:
    async with running(spec(slots=1, max_batch=1)) as engine, engine.request(job(1, tail=ENDLESS)) as first:
        await anext(first)
        async with engine.request(job(2, tail=3)):
            pass
        await until(lambda: engine.replicas[0].load == 1)
        await anext(first)


async def _made(engine: Engine) -> dict[str, int]:
    """Frames launched, by tone."""
    made: dict[str, int] = msgspec.json.decode(await engine.call("slots", b""))
    return made


async def _made_is(engine: Engine, made: dict[str, int]) -> None:
    async with asyncio.timeout(60):
        while await _made(engine) != made:
            pass


async def test_worker_is_never_further_ahead_than_its_credit() -> None:
    fake = FakeJob(tone=5, tail=40)
    async with running() as engine, engine.request(msgspec.json.encode(fake), credit=6) as request:
        await _made_is(engine, {"5": 6})
        pieces = []
        async for chunk in request:
            pieces.append(chunk.samples)
            taken = sum(map(len, pieces)) // 16
            if (made := await _made(engine)).get("5"):
                assert made["5"] <= taken + 6
        np.testing.assert_array_equal(np.concatenate(pieces), expected(fake))


async def test_first_chunk_is_as_large_as_asked_for() -> None:
    async with running() as engine, engine.request(job(1, tail=20), first_frames=4) as request:
        first = await anext(request)
        assert len(first.samples) == 4 * 16


async def test_bad_jobs_fail_by_name_and_alone() -> None:
    async with running() as engine, engine.request(job(1, tail=ENDLESS)) as good:
        await anext(good)
        for payload, code, param in (
            (job(2, fault="refused"), ErrorCode.VOICE_NOT_FOUND, "tone"),
            (b"{", ErrorCode.INVALID_VALUE, "job"),
        ):
            async with engine.request(payload) as bad:
                with pytest.raises(DuplexError) as caught:
                    await anext(bad)
            assert (caught.value.code, caught.value.param) == (code, param)
        async with engine.request(job(3, text="a", ended=False)) as late:
            await anext(late)
            late.send_text("\0")
            with pytest.raises(DuplexError, match="a NUL"):
                await anext(late)
        await anext(good)
        assert engine.replicas[0].load == 1
        assert engine.replicas[0].totals.restarts == 0


async def test_calls_are_answered_and_fail_by_name() -> None:
    async with running() as engine:
        payload = os.urandom(300_000)
        assert await engine.call("echo", payload) == payload
        with pytest.raises(DuplexError, match="no such voice") as caught:
            await engine.call("refuse", b"")
        assert (caught.value.code, caught.value.param) == (ErrorCode.VOICE_NOT_FOUND, "voice")
        with pytest.raises(DuplexError, match="ValueError: no call 'nonsense'") as caught:
            await engine.call("nonsense", b"")
        assert caught.value.code is ErrorCode.ADAPTER_FAILED
        assert engine.replicas[0].load == 0


async def test_requests_go_to_the_replica_with_fewest() -> None:
    async with running(spec(), spec()) as engine, contextlib.AsyncExitStack() as stack:
        for tone in range(6):
            await stack.enter_async_context(engine.request(job(tone, tail=ENDLESS)))
        assert [replica.load for replica in engine.replicas] == [3, 3]


async def _failure(request: EngineRequest) -> DuplexError:
    """What a request ends with, after the audio that came before."""
    with pytest.raises(DuplexError) as caught:
        await whole(request)
    return caught.value


def _pid(engine: Engine, replica: int) -> int:
    ready = engine.replicas[replica].ready
    assert ready is not None
    return ready.pid


async def test_killed_worker_fails_its_requests_by_name_and_is_started_again() -> None:
    async with (
        running(spec(frame_s=0.002), spec(frame_s=0.002)) as engine,
        contextlib.AsyncExitStack() as stack,
    ):
        requests = [
            await stack.enter_async_context(engine.request(job(tone, tail=ENDLESS))) for tone in range(4)
        ]
        for request in requests:
            await anext(request)
        dead, alive = engine.replicas
        pid, other = _pid(engine, 0), _pid(engine, 1)
        call = asyncio.create_task(dead.call("hang", b""))  # which is never answered
        await until(lambda: dead.load == 3)
        os.kill(pid, signal.SIGKILL)
        for request in requests[::2]:
            error = await _failure(request)
            assert error.code is ErrorCode.ADAPTER_FAILED
            assert "fake worker 0 was killed by SIGKILL" in error.message
        with pytest.raises(DuplexError, match="killed by SIGKILL") as caught:
            await call
        assert caught.value.code is ErrorCode.ADAPTER_FAILED
        assert dead.load == 0
        assert engine.healthy
        for request in requests[1::2]:  # the other one never noticed
            for _ in range(5):
                await anext(request)
        async with engine.request(job(8, tail=5)) as request:
            np.testing.assert_array_equal(await whole(request), expected(FakeJob(tone=8, tail=5)))
        await until(lambda: dead.ready is not None)
        assert _pid(engine, 0) != pid
        assert _pid(engine, 1) == other
        assert (dead.totals.restarts, alive.totals.restarts) == (1, 0)
        async with dead.request(job(9, tail=5), window=None, first_frames=1) as request:
            np.testing.assert_array_equal(await whole(request), expected(FakeJob(tone=9, tail=5)))


async def test_no_worker_left_refuses_at_once() -> None:
    async with running(backoff_s=600, backoff_most_s=600) as engine:
        os.kill(_pid(engine, 0), signal.SIGKILL)
        await until(lambda: not engine.healthy)
        assert engine.fault == "fake worker 0 was killed by SIGKILL; it is started again"
        with pytest.raises(DuplexError, match="killed by SIGKILL") as caught:
            async with engine.request(job(1)):
                pytest.fail("it was routed")
        assert caught.value.code is ErrorCode.ENGINE_DOWN
        with pytest.raises(DuplexError) as caught:
            await engine.call("echo", b"")
        assert caught.value.code is ErrorCode.ENGINE_DOWN


async def test_fault_of_the_model_ends_the_worker_and_nothing_else() -> None:
    async with running() as engine:
        async with engine.request(job(1, fault="crash")) as request:
            error = await _failure(request)
        assert error.code is ErrorCode.ADAPTER_FAILED
        assert "ended with exit status 1" in error.message
        await until(lambda: engine.healthy)
        async with engine.request(job(2, tail=3)) as request:
            assert len(await whole(request)) == 3 * 16


async def test_hung_worker_is_killed_and_started_again() -> None:
    async with running(hang_s=1.0) as engine, engine.request(job(1, tail=ENDLESS)) as request:
        await anext(request)
        pid = _pid(engine, 0)
        os.kill(pid, signal.SIGSTOP)
        error = await _failure(request)
        assert error.code is ErrorCode.ADAPTER_FAILED
        assert "said nothing for 1 s" in error.message
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await until(lambda: engine.healthy)
        async with engine.request(job(2, tail=3)) as request:
            assert len(await whole(request)) == 3 * 16


async def test_worker_that_has_nothing_to_do_is_not_taken_for_hung() -> None:
    async with running(spec(stats_s=0.05), hang_s=1.0) as engine:
        replica = engine.replicas[0]
        told = [replica.stats]

        def told_for_long() -> bool:
            if replica.stats is not told[-1]:
                told.append(replica.stats)
            return len(told) > 30

        await until(told_for_long)
        assert replica.totals.restarts == 0


async def test_device_that_hangs_ends_the_worker() -> None:
    stuck = msgspec.structs.replace(spec(frame_s=600), settings=WorkerSettings(stats_s=0.05, stuck_s=0.5))
    async with running(stuck) as engine, engine.request(job(1, tail=ENDLESS)) as request:
        error = await _failure(request)
        assert "ended with exit status 1" in error.message
        await until(lambda: engine.healthy)


async def test_pauses_between_restarts_grow(caplog: pytest.LogCaptureFixture) -> None:
    async with running(backoff_s=0.01, backoff_most_s=0.04) as engine:
        for life in range(4):
            os.kill(_pid(engine, 0), signal.SIGKILL)
            await until(lambda life=life: engine.replicas[0].totals.restarts == life + 1)
            await until(lambda: engine.healthy)
    pauses = [record.args[2] for record in caplog.records if "started again in" in record.msg]
    assert pauses == [0.01, 0.02, 0.04, 0.04]


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("refused", ErrorCode.BAD_CONFIG, "fake worker 1 cannot start: there is no such checkpoint"),
        ("crash", ErrorCode.ADAPTER_FAILED, "RuntimeError: no weights"),
        ("exit", ErrorCode.ENGINE_DOWN, "ended with exit status 7 before .*\n.*a library that gives up"),
    ],
)
async def test_worker_that_cannot_start_says_why(fault: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(DuplexError, match=words) as caught:
        async with running(spec(), spec(fault=fault)):
            pytest.fail("it started")
    assert caught.value.code is code


async def test_worker_that_loads_for_too_long_is_given_up() -> None:
    """And the other one, which is ready by then, does not stay behind."""
    with pytest.raises(DuplexError, match=r"worker 1 was not ready after 3 s") as caught:
        async with running(spec(), spec(fault="slow"), start_timeout_s=3):
            pytest.fail("it started")
    assert caught.value.code is ErrorCode.ENGINE_DOWN
    assert workers() == []


async def test_factory_that_is_not_there_is_told() -> None:
    nobody = msgspec.structs.replace(spec(), factory="nobody_has_this:load")
    with pytest.raises(DuplexError, match="No module named 'nobody_has_this'") as caught:
        async with running(nobody):
            pytest.fail("it started")
    assert caught.value.code is ErrorCode.BAD_CONFIG


async def test_start_that_is_cancelled_leaves_no_process() -> None:
    engine = Engine("fake", [spec(fault="slow")])
    task = asyncio.create_task(engine.start())
    await until(lambda: len(workers()) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers() == []


async def test_stop_ends_the_workers_and_fails_what_runs() -> None:
    engine = Engine("fake", [spec(), spec()])
    await engine.start()
    pids = [_pid(engine, 0), _pid(engine, 1)]
    async with engine.request(job(1, tail=ENDLESS)) as request:
        await anext(request)
        await engine.stop()
        assert (await _failure(request)).code is ErrorCode.ADAPTER_FAILED
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not engine.healthy


async def test_worker_that_does_not_stop_is_killed() -> None:
    engine = Engine("fake", [spec()], EngineSettings(stop_timeout_s=0.2))
    await engine.start()
    pid = _pid(engine, 0)
    os.kill(pid, signal.SIGSTOP)
    await engine.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_frames_are_counted_over_all_lives() -> None:
    async with running() as engine:
        replica = engine.replicas[0]
        for life in range(2):
            async with engine.request(job(1, tail=30)) as request:
                await whole(request)
            await until(lambda life=life: replica.totals.frames >= 30 * (life + 1))
            if not life:
                os.kill(_pid(engine, 0), signal.SIGKILL)
                await until(lambda: not engine.healthy)
                await until(lambda: engine.healthy)
        await until(lambda: replica.stats is not None)
        values = {figure.name: figure.value for figure in engine.figures()}
        assert values["engine_frames"] == 60
        assert values["engine_up"] == values["engine_restarts"] == 1
        assert values["engine_memory_bytes"] == 12345
        assert 62 <= values["engine_launches"] <= 64, "30 frames, the end, and one that was void by then"


def test_engine_runs_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not there on this platform")

    async def speak() -> None:
        async with running() as engine:
            async with engine.request(job(4, tail=20)) as request:
                np.testing.assert_array_equal(await whole(request), expected(FakeJob(tone=4, tail=20)))
            os.kill(_pid(engine, 0), signal.SIGKILL)
            await until(lambda: not engine.healthy)
            await until(lambda: engine.healthy)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(speak())


def test_gateway_and_worker_do_not_import_torch() -> None:
    code = (
        "import sys, duplex.adapters.engine.client, duplex.adapters.engine.worker;"
        "sys.exit(' '.join({'torch', 'transformers', 'triton'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
