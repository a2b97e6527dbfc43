"""What waits in a client: bounded, in order, and worthless things dropped."""

import asyncio

import pytest

from duplex.clients import ConnectionLost, ReconnectBufferFull, SpeechStarted, SpeechStopped
from duplex.clients.buffers import Inbox, Outbox


def never(event):
    return False


async def test_events_come_in_order_and_then_the_end():
    inbox = Inbox(10, never)
    taking = asyncio.ensure_future(inbox.get())
    await asyncio.sleep(0)
    inbox.put([SpeechStarted(at_ms=1), SpeechStopped(at_ms=2)])
    inbox.end(ConnectionLost("over"))
    assert await taking == SpeechStarted(at_ms=1)
    assert await inbox.get() == SpeechStopped(at_ms=2)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="over"):
            await inbox.get()


async def test_room_waits_until_an_event_is_taken():
    inbox = Inbox(2, never)
    inbox.put([SpeechStarted(at_ms=1), SpeechStarted(at_ms=2)])
    room = asyncio.ensure_future(inbox.room())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not room.done()
    await inbox.get()
    await room


async def test_room_is_there_when_nobody_takes_any_more():
    inbox = Inbox(1, never)
    inbox.put([SpeechStarted(at_ms=1)])
    room = asyncio.ensure_future(inbox.room())
    await asyncio.sleep(0)
    inbox.unbound()
    await room


async def test_what_has_become_stale_is_dropped():
    stale = set()
    inbox = Inbox(10, lambda event: event.at_ms in stale)
    inbox.put([SpeechStarted(at_ms=at) for at in range(4)])
    stale |= {0, 2}
    assert [(await inbox.get()).at_ms for _ in range(2)] == [1, 3]


def test_the_outbox_is_bounded_in_bytes():
    outbox = Outbox(10)
    outbox.put("12345")
    outbox.put(b"12345")
    with pytest.raises(ReconnectBufferFull, match="10 bytes"):
        outbox.put("1")
    outbox.put("close", urgent=True)
    assert list(outbox.drain()) == ["12345", b"12345", "close"]
    assert len(outbox) == 0
    outbox.put("1234567890")


def test_what_could_not_be_sent_stays_in_the_outbox():
    outbox = Outbox(10)
    for frame in ("a", "b", "c"):
        outbox.put(frame)
    for frame in outbox.drain():
        if frame == "b":
            outbox.put("d")
            break
    assert list(outbox.drain()) == ["b", "c", "d"]
