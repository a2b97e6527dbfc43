"""Sight end to end: windows of a gateway in real worker processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_sight import POISON, FakeGate, expected_tokens, window
from sight_bench import SETTINGS, Hold, fake, figures, kill, open_files, seeing, until, workers

from duplex.adapters.mage_vl.sight.client import Eye, Seen, Sight
from duplex.adapters.mage_vl.sight.messages import SightReady
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    hold = Hold(tmp_path)
    yield hold
    hold.close()


async def seen(eye: Eye, what: VisualInput, *, gate: bool = True) -> Seen:
    """A look that nothing came between."""
    result = await eye.look(what, gate=gate)
    assert result is not None
    assert result.window is what
    return result


async def test_tokens_and_probabilities_are_those_of_the_window() -> None:
    async with seeing() as sight:
        assert (sight.info.name, sight.info.hidden, sight.info.dtype) == ("fake", 8, "float32")
        eye, gate = sight.open(), FakeGate()
        for seed in range(3):
            what = window(seed, images=seed + 1)
            result = await seen(eye, what)
            np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(what))
            assert result.tokens.shape == (seed + 1, 2, 8)
            assert result.p_speak == gate.look(what.images), "the state goes on from window to window"
            assert (result.merged, result.sessions, result.restarted) == (0, 1, False)
            assert 0 < result.lag_ms == result.behind_ms
        eye.close()


async def test_images_that_are_not_contiguous_are_seen_as_they_are() -> None:
    whole = window(1, images=6, width=64)
    every_other = VisualInput(
        images=whole.images[::2, :, ::-1],
        positions=whole.positions[::2],
        times_s=whole.times_s[::2],
        segment_id="",
        pts_ms=0,
        duration_ms=0,
    )
    async with seeing() as sight:
        result = await seen(sight.open(), every_other)
    np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(every_other))


async def test_bfloat16_tokens_keep_their_bits() -> None:
    async with seeing(fake(dtype="bfloat16")) as sight:
        what = window(5)
        result = await seen(sight.open(), what)
    assert result.tokens.data.dtype == np.uint16
    bits = expected_tokens(what).view(np.uint32) & 0xFFFF0000
    np.testing.assert_array_equal(result.tokens.numpy(), bits.view(np.float32))
    torch = pytest.importorskip("torch", reason="a tensor of bfloat16 needs torch")
    tensor = result.tokens.torch()
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.bfloat16, (2, 2, 8))
    np.testing.assert_array_equal(tensor.float().numpy(), result.tokens.numpy())


async def test_gate_is_asked_only_where_it_is_wanted() -> None:
    async with seeing() as sight:
        eye, gate = sight.open(), FakeGate()
        assert (await seen(eye, window(1), gate=False)).p_speak is None
        what = window(2)
        assert (await seen(eye, what)).p_speak == gate.look(what.images), "the first that it has seen"
        assert figures(sight)["gated"] == 1
    async with seeing(fake(gate=False)) as sight:
        assert (await seen(sight.open(), window(1))).p_speak is None


async def test_tokens_are_memory_of_their_own() -> None:
    """They stay as they are while their slot is used again, and after the worker has gone."""
    async with seeing() as sight:
        eye = sight.open()
        first = await seen(eye, window(1))
        kept = first.tokens.data.copy()
        for seed in range(2, 8):
            await seen(eye, window(seed))
    np.testing.assert_array_equal(first.tokens.data, kept)


async def test_what_waits_goes_in_one_batch(hold: Hold) -> None:
    """32 sessions: the first window goes alone, the other 31 together when the worker is free."""
    async with seeing(fake(**hold.options)) as sight:
        eyes = [sight.open() for _ in range(32)]
        windows = [window(seed, images=1 + seed % 3) for seed in range(32)]
        looks = [asyncio.create_task(seen(eyes[0], windows[0]))]
        await hold.launches(1)
        looks += [asyncio.create_task(seen(*both)) for both in zip(eyes[1:], windows[1:], strict=True)]
        await until(lambda: figures(sight)["waiting"] == 31)
        hold.let_go(2)
        results = await asyncio.gather(*looks)
        for what, result in zip(windows, results, strict=True):
            np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(what))
            assert result.p_speak == FakeGate().look(what.images)
        assert [result.sessions for result in results] == [1] + [31] * 31
        assert list(map(len, hold.launched())) == [1, 31]
        counted = figures(sight)
        assert (counted["batches"], counted["windows"], counted["sessions"]) == (2, 32, 32)
        await until(lambda: figures(sight)["gate_states"] == 32)


async def test_batches_are_bounded_in_sessions_and_patches(hold: Hold) -> None:
    async with seeing(fake(max_sessions=3, max_patches=40, **hold.options)) as sight:
        looks = [asyncio.create_task(seen(sight.open(), window(0)))]  # 2 images of 8 patches
        await hold.launches(1)
        looks += [
            asyncio.create_task(seen(sight.open(), window(images, images=images)))
            for images in (1, 1, 1, 1, 3, 3, 1, 1)
        ]
        await until(lambda: figures(sight)["waiting"] == 8)
        hold.let_go(9)
        await asyncio.gather(*looks)
        assert hold.launched() == [[2], [1, 1, 1], [1, 3], [3, 1, 1]]


async def test_next_batch_is_launched_while_one_is_computed(hold: Hold) -> None:
    """As many batches as the model works on at once, and no more: the rest is sent when one has ended."""
    async with seeing(fake(depth=2, max_sessions=1, **hold.options)) as sight:
        windows = [window(seed) for seed in range(4)]
        looks = [asyncio.create_task(seen(sight.open(), what)) for what in windows]
        await hold.launches(2)
        await until(lambda: (figures(sight)["flying"], figures(sight)["waiting"]) == (2, 2))
        assert len(hold.launched()) == 2
        hold.let_go(1)
        await looks[0]
        await hold.launches(3)
        assert not looks[1].done()
        hold.let_go(3)
        for what, result in zip(windows, await asyncio.gather(*looks), strict=True):
            np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(what))


async def test_newest_window_wins_and_the_others_are_told_at_once(hold: Hold) -> None:
    async with seeing(fake(**hold.options)) as sight:
        eye, gate = sight.open(), FakeGate()
        windows = [window(seed) for seed in range(5)]
        first = asyncio.create_task(eye.look(windows[0]))
        await hold.launches(1)
        later = []
        for what in windows[1:]:
            later.append(asyncio.create_task(eye.look(what, gate=what is windows[2])))
            await asyncio.sleep(0)
        # nothing was let go: those whose place was taken do not wait for the model
        assert await asyncio.gather(*later[:-1]) == [None, None, None]
        hold.let_go(2)
        result, last = await first, await later[-1]
        assert result is not None
        assert last is not None
        assert (result.window, last.window) == (windows[0], windows[4])
        assert (result.merged, last.merged) == (0, 3)
        assert last.behind_ms > last.lag_ms
        gate.look(windows[0].images)
        assert last.p_speak == gate.look(windows[4].images), "one of those it stands for asked the gate"
        assert figures(sight)["merged"] == 3


async def test_fault_38_windows_that_come_faster_than_the_model_do_not_pile_up(hold: Hold) -> None:
    """500 windows while the model is at one: two are looked at, one waits at any time."""
    async with seeing(fake(**hold.options)) as sight:
        eye = sight.open()
        looks = [asyncio.create_task(eye.look(window(0)))]
        await hold.launches(1)
        most = 0
        for seed in range(1, 500):
            looks.append(asyncio.create_task(eye.look(window(seed))))
            await asyncio.sleep(0)
            most = max(most, int(figures(sight)["waiting"]))
            assert sum(not look.done() for look in looks) <= 3, "in flight, waiting, about to be told"
        assert most == 1
        hold.let_go(500)
        results = [result for result in await asyncio.gather(*looks) if result is not None]
        assert [result.window.segment_id for result in results] == ["s0", "s499"]
        assert len(results) + sum(result.merged for result in results) == 500
        assert len(hold.launched()) == 2


async def test_abort_drops_what_waits_and_what_is_in_flight(hold: Hold) -> None:
    async with seeing(fake(**hold.options)) as sight:
        eye, other = sight.open(), sight.open()
        flying = asyncio.create_task(eye.look(window(0)))
        await hold.launches(1)
        waiting = asyncio.create_task(eye.look(window(1)))
        what = window(2)
        others = asyncio.create_task(seen(other, what))
        await until(lambda: figures(sight)["waiting"] == 2)
        eye.abort()
        assert await asyncio.gather(flying, waiting) == [None, None], "the model still holds its batch"
        assert figures(sight)["waiting"] == 1
        assert not others.done()
        hold.let_go(2)
        np.testing.assert_array_equal((await others).tokens.numpy(), expected_tokens(what))
        hold.let_go(1)
        again = await seen(eye, window(3))
        assert again.merged == 0
        assert [len(batch) for batch in hold.launched()] == [1, 1, 1]
        assert figures(sight)["dropped"] == 2


async def test_cancelled_look_is_dropped_alone(hold: Hold) -> None:
    async with seeing(fake(**hold.options)) as sight:
        eye = sight.open()
        flying = asyncio.create_task(eye.look(window(0)))
        await hold.launches(1)
        waiting = asyncio.create_task(eye.look(window(1)))
        await until(lambda: figures(sight)["waiting"] == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert figures(sight)["waiting"] == 0
        assert not flying.done()
        flying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flying
        hold.let_go(2)
        what = window(2)
        np.testing.assert_array_equal((await seen(eye, what)).tokens.numpy(), expected_tokens(what))
        assert figures(sight)["dropped"] == 2


async def test_slow_gate_delays_nothing_else_in_the_gateway(hold: Hold) -> None:
    """While a batch is held for ever: the loop turns, sessions open, abort, close; nothing waits for it."""
    async with seeing(fake(**hold.options)) as sight:
        eyes = [sight.open() for _ in range(32)]
        looks = [asyncio.create_task(eye.look(window(n))) for n, eye in enumerate(eyes)]
        await hold.launches(1)
        for eye in eyes:
            eye.abort()
        assert await asyncio.gather(*looks) == [None] * 32
        for eye in eyes:
            eye.close()
        assert figures(sight)["sessions"] == figures(sight)["waiting"] == 0
        assert figures(sight)["flying"] > 0, "the model has noticed nothing"
        hold.let_go(64)
        await until(lambda: figures(sight)["flying"] == 0)
        await until(lambda: figures(sight)["gate_states"] == 0)


async def test_closing_in_flight_frees_the_state_once_it_has_landed(hold: Hold) -> None:
    async with seeing(fake(**hold.options)) as sight:
        eye, idle = sight.open(), sight.open()
        hold.let_go(1)
        await seen(idle, window(1))
        await until(lambda: figures(sight)["gate_states"] == 1)
        flying = asyncio.create_task(eye.look(window(0)))
        await hold.launches(2)
        eye.close()
        eye.close()
        assert await flying is None
        with pytest.raises(DuplexError, match="closed") as caught:
            await eye.look(window(1))
        assert caught.value.code is ErrorCode.SESSION_CLOSING
        idle.close()
        hold.let_go(1)
        await until(lambda: figures(sight)["gate_states"] == 0)
        assert figures(sight)["sessions"] == figures(sight)["flying"] == 0


async def test_states_come_and_go_with_their_sessions() -> None:
    async with seeing() as sight:
        for _ in range(40):
            eyes = [sight.open() for _ in range(3)]
            await asyncio.gather(*(seen(eye, window(n)) for n, eye in enumerate(eyes)))
            for eye in eyes:
                eye.close()
        await until(lambda: figures(sight)["gate_states"] == 0)
        assert figures(sight)["windows"] == 120


async def test_window_larger_than_a_batch_is_refused_by_name() -> None:
    async with seeing(fake(max_patches=40)) as sight:
        with pytest.raises(DuplexError, match="a window of 48 patches, at most 40") as caught:
            await sight.open().look(window(images=6))
        assert caught.value.code is ErrorCode.MEDIA_TOO_LARGE
        await seen(sight.open(), window(images=5))


# --- the worker's end -----------------------------------------------------------------------------------


async def test_killed_worker_fails_its_looks_by_name_and_eyes_go_on(hold: Hold) -> None:
    """Under load: one batch in flight, a line behind it."""
    async with seeing(fake(**hold.options)) as sight:
        eyes = [sight.open() for _ in range(8)]
        hold.let_go(1)
        await seen(eyes[0], window(9))
        looks = [asyncio.create_task(eye.look(window(n))) for n, eye in enumerate(eyes)]
        await hold.launches(2)
        looks += [asyncio.create_task(eye.look(window(n + 20))) for n, eye in enumerate(eyes[:4])]
        await until(lambda: figures(sight)["flying"] == 8)
        await until(lambda: figures(sight)["waiting"] == 4)
        pid = kill(sight)
        for error in await asyncio.gather(*looks, return_exceptions=True):
            assert isinstance(error, DuplexError)
            assert error.code is ErrorCode.ADAPTER_FAILED
            assert error.message == "sight worker was killed by SIGKILL; it is started again"
        assert figures(sight)["waiting"] == figures(sight)["flying"] == 0
        await until(lambda: sight.healthy)
        assert workers() != [pid]
        assert figures(sight)["restarts"] == 1
        hold.let_go(100)
        for n, eye in enumerate(eyes):
            for turn in range(2):
                what = window(40 + n)
                result = await seen(eye, what)
                np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(what))
                assert result.restarted == (n == 0 and turn == 0), (
                    "only the first had a state, and is told once"
                )
        assert sight.fault is None


async def test_while_the_worker_is_down_looks_fail_at_once(hold: Hold) -> None:
    async with seeing(fake(**hold.options), backoff_s=600, backoff_most_s=600) as sight:
        eye = sight.open()
        looking = asyncio.create_task(eye.look(window()))
        await hold.launches(1)
        kill(sight)
        with pytest.raises(DuplexError):
            await looking
        assert not sight.healthy
        assert sight.fault == "was killed by SIGKILL; it is started again"
        for fails in (lambda: eye.look(window()), lambda: _open(sight)):
            with pytest.raises(DuplexError, match="killed by SIGKILL") as caught:
                await fails()
            assert caught.value.code is ErrorCode.ENGINE_DOWN
        assert figures(sight)["up"] == figures(sight)["gate_states"] == 0
        eye.close()


async def _open(sight: Sight) -> Eye:
    return sight.open()


@pytest.mark.parametrize("depth", [1, 2])
async def test_model_that_breaks_ends_the_worker_and_nothing_else(depth: int) -> None:
    async with seeing(fake(depth=depth)) as sight:
        eye = sight.open()
        with pytest.raises(DuplexError, match="ended with exit status 1") as caught:
            await eye.look(window(first=POISON))
        assert caught.value.code is ErrorCode.ADAPTER_FAILED
        await until(lambda: sight.healthy)
        await seen(eye, window(1))


async def test_device_that_hangs_ends_the_worker(hold: Hold) -> None:
    async with seeing(fake(stuck_s=0.3, **hold.options)) as sight:
        with pytest.raises(DuplexError, match="ended with exit status 1"):
            await sight.open().look(window())
        await until(lambda: sight.healthy)
        hold.let_go(1)
        await seen(sight.open(), window(1))


async def test_stopped_worker_is_found_hung(hold: Hold) -> None:
    async with seeing(fake(**hold.options), hang_s=1.0) as sight:
        looking = asyncio.create_task(sight.open().look(window()))
        await hold.launches(1)
        kill(sight, signal.SIGSTOP)
        with pytest.raises(DuplexError, match="said nothing for 1 s"):
            await looking
        await until(lambda: sight.healthy)


@pytest.mark.parametrize("depth", [1, 2])
async def test_stop_in_flight_fails_the_looks_and_waits_for_nobody(hold: Hold, depth: int) -> None:
    async with seeing(fake(depth=depth, max_sessions=2, **hold.options), stop_timeout_s=600) as sight:
        looks = [asyncio.create_task(sight.open().look(window(n))) for n in range(4)]
        await hold.launches(depth)
        await sight.stop()
        for error in await asyncio.gather(*looks, return_exceptions=True):
            assert isinstance(error, DuplexError)
            assert "is stopped" in error.message
        assert not sight.healthy


async def test_kills_at_any_moment_leave_nothing_behind(hold: Hold) -> None:
    """Six lives, each ended in the middle of traffic."""
    async with seeing(fake(depth=2, journal=hold.options["journal"]), backoff_s=0.01) as sight:
        eyes = [sight.open() for _ in range(6)]
        over = asyncio.Event()

        async def watch(eye: Eye, n: int) -> set[ErrorCode]:
            """Looks until the end; the faults that it met."""
            met = set()
            while not over.is_set():
                what = window(n)
                try:
                    result = await eye.look(what)
                except DuplexError as error:
                    met.add(error.code)
                    await until(lambda: sight.healthy)
                    continue
                assert result is not None
                np.testing.assert_array_equal(result.tokens.numpy(), expected_tokens(what))
            return met

        tasks = [asyncio.create_task(watch(eye, n)) for n, eye in enumerate(eyes)]
        fds = []
        for life in range(6):
            windows = figures(sight)["windows"]
            await until(lambda windows=windows: figures(sight)["windows"] > windows + 20)
            fds.append(open_files())
            kill(sight)
            await until(lambda life=life: sight.restarts == life + 1)
            await until(lambda: sight.healthy)
        over.set()
        for met in await asyncio.gather(*tasks):
            assert met <= {ErrorCode.ADAPTER_FAILED, ErrorCode.ENGINE_DOWN}
        assert len(set(fds[1:])) == 1, f"open files grow: {fds}"
        assert figures(sight)["flying"] == 0


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("refused", ErrorCode.BAD_CONFIG, "cannot start: there is no such checkpoint"),
        ("warm", ErrorCode.ADAPTER_FAILED, "RuntimeError: no kernels"),
    ],
)
async def test_worker_that_cannot_start_says_why(fault: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(DuplexError, match=words) as caught:
        async with seeing(fake(fault=fault)):
            pytest.fail("it started")
    assert caught.value.code is code


@pytest.mark.parametrize("error", [OSError("no address space"), RuntimeError("a fault")])
async def test_worker_that_the_gateway_cannot_use_is_not_left_behind(error: Exception) -> None:
    class Blind(Sight):
        def _begun(self, ready: SightReady) -> None:
            raise error

    sight = Blind(fake(), SETTINGS)
    with pytest.raises(type(error)):
        await sight.start()
    assert workers() == []
    assert not sight.healthy


async def test_start_after_stop_sees_again() -> None:
    async with seeing() as sight:
        await sight.stop()
        await sight.start()
        await seen(sight.open(), window())
