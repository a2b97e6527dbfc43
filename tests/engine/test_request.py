"""A request in the gateway: what its consumer sees, and the credit that its pace gives."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from duplex.adapters.engine.messages import Audio, Credit, Failed, Text
from duplex.adapters.engine.request import EngineRequest, error_of
from duplex.core.errors import DuplexError, ErrorCode

FRAME = 4


class Sent(list[Text | Credit]):
    """What went to the worker."""


def request(window: int | None = 8) -> tuple[EngineRequest, Sent]:
    sent = Sent()
    return EngineRequest(7, sent.append, window=window, frame_samples=FRAME), sent


def audio(first: int, frames: int, finish: str | None = None) -> Audio:
    samples = np.arange(first * FRAME, (first + frames) * FRAME, dtype="<f4").tobytes()
    return Audio(id=7, samples=samples, finish=finish)  # type: ignore[arg-type]


async def test_credit_follows_what_is_taken_a_quarter_of_the_window_at_a_time() -> None:
    one, sent = request(window=8)
    for first in range(6):
        one.deliver(audio(first, 1))
    assert sent == []
    for _ in range(6):
        await anext(one)
    assert sent == [Credit(id=7, frames=10), Credit(id=7, frames=12), Credit(id=7, frames=14)]


async def test_no_credit_is_given_without_a_window_or_after_the_end() -> None:
    free, sent = request(window=None)
    free.deliver(audio(0, 50))
    await anext(free)
    ended, also = request(window=1)
    ended.deliver(audio(0, 1, "stop"))
    await anext(ended)
    assert sent == also == []


async def test_audio_comes_whole_and_ends_with_the_finish() -> None:
    one, _ = request()
    one.deliver(audio(0, 2))
    one.deliver(audio(2, 0, "length"))
    assert one.over
    chunks = [chunk async for chunk in one]
    assert [chunk.finish for chunk in chunks] == [None, "length"]
    np.testing.assert_array_equal(np.concatenate([c.samples for c in chunks]), np.arange(8, dtype=np.float32))
    assert chunks[0].samples.dtype == np.float32


async def test_fault_comes_after_the_audio_before_it_and_stays() -> None:
    one, sent = request()
    one.deliver(audio(0, 1))
    one.fail(DuplexError(ErrorCode.ADAPTER_FAILED, "it died"))
    assert len((await anext(one)).samples) == FRAME
    for _ in range(2):
        with pytest.raises(DuplexError, match="it died"):
            await anext(one)
    one.send_text("void")
    assert sent == []


async def test_closed_request_gives_nothing_of_what_had_come() -> None:
    one, sent = request()
    one.deliver(audio(0, 1))
    one.close()
    with pytest.raises(StopAsyncIteration):
        await anext(one)
    one.send_text("void")
    assert sent == []


async def test_whoever_waits_is_woken_by_audio_a_fault_or_the_end() -> None:
    for wake in ("audio", "fault", "close"):
        one, _ = request()
        waiting = asyncio.create_task(anext(one, None))
        await asyncio.sleep(0)
        match wake:
            case "audio":
                one.deliver(audio(0, 1))
                assert await waiting is not None
            case "fault":
                one.fail(DuplexError(ErrorCode.ADAPTER_FAILED, "it died"))
                with pytest.raises(DuplexError):
                    await waiting
            case "close":
                one.close()
                assert await waiting is None


async def test_audio_that_comes_while_its_reader_is_cancelled_is_not_lost() -> None:
    one, _ = request()
    waiting = asyncio.create_task(anext(one))
    await asyncio.sleep(0)
    one.deliver(audio(0, 1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len((await anext(one)).samples) == FRAME


def test_code_that_nobody_knows_is_a_fault_of_the_adapter() -> None:
    error = error_of(Failed(id=1, code="no_such_code", message="words", param="p"))
    assert (error.code, error.message, error.param) == (ErrorCode.ADAPTER_FAILED, "words", "p")
    assert error_of(Failed(id=1, code="bad_config", message="")).code is ErrorCode.BAD_CONFIG
