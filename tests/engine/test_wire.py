"""Messages between gateway and worker, and what a worker says while nobody listens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Literal, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.engine.messages import Audio, Ended, FromWorker, Stats, Text, ToWorker
from duplex.adapters.engine.model import ModelInfo
from duplex.adapters.engine.outlet import Outlet
from duplex.adapters.engine.wire import MAX_MESSAGE, Unpacker, WireError, pack

NUMBERS = st.integers(0, 2**40)
INFO = st.builds(
    ModelInfo,
    **dict.fromkeys(("sample_rate", "frame_samples", "slots", "max_batch", "prefill_rows"), NUMBERS),
    name=st.text(),
    decode_frames=st.lists(NUMBERS).map(tuple),
    detail=st.dictionaries(st.text(), st.text()),
)
FIELDS = {
    bool: st.booleans(),
    bytes: st.binary(),
    float: st.floats(allow_nan=False),
    int: NUMBERS,
    int | None: st.none() | NUMBERS,
    str: st.text(),
    str | None: st.none() | st.text(),
    Literal["stop", "length"] | None: st.sampled_from([None, "stop", "length"]),
    ModelInfo: INFO,
}


def messages(union: object) -> st.SearchStrategy[msgspec.Struct]:
    """Any message of a direction, with anything in its fields."""
    return st.one_of(
        [
            st.builds(kind, **{name: FIELDS[type] for name, type in get_type_hints(kind).items()})
            for kind in get_args(union)
        ]
    )


@pytest.mark.parametrize("union", [ToWorker, FromWorker], ids=["to", "from"])
@given(data=st.data())
def test_messages_come_out_as_they_went_in_however_they_are_split(union: object, data: st.DataObject) -> None:
    sent = data.draw(st.lists(messages(union), max_size=6))
    stream = b"".join(map(pack, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    unpacker: Unpacker[msgspec.Struct] = Unpacker(union)
    got = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += unpacker.feed(stream[begin:end])
    assert got == sent


@pytest.mark.parametrize(
    "data",
    [
        (MAX_MESSAGE + 1).to_bytes(4, "big"),
        b"\0\0\0\1\xc1",
        pack(Ended(id=1, waited_ms=0)),  # the other direction's
        b"\0\0\0\0",
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Unpacker(ToWorker).feed(data)


# --- the worker's mouth ---------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def audio(id: int, size: int = 4, **fields: object) -> Audio:
    return Audio(id=id, samples=bytes(size), **fields)  # type: ignore[arg-type]


class Listener:
    """The gateway's end: reads when it is told to."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._unpacker: Unpacker[FromWorker] = Unpacker(FromWorker)
        self.heard: list[FromWorker] = []

    def until(self, last: FromWorker) -> list[FromWorker]:
        while last not in self.heard:
            self.heard += self._unpacker.feed(self._socket.recv(1 << 16))
        return self.heard


def test_nothing_of_a_request_follows_its_last_word(pair: tuple[socket.socket, socket.socket]) -> None:
    outlet, listener = Outlet(pair[0], lambda: None), Listener(pair[1])
    for id in (1, 2, 3):
        outlet.open(id)
    outlet.audio([audio(1), audio(2), audio(4)])  # nobody asked for 4
    outlet.end(Ended(id=1, waited_ms=0.5))
    outlet.audio([audio(1), audio(2, finish="stop")])
    outlet.audio([audio(2), audio(3)])
    outlet.end(Ended(id=2, waited_ms=0.5))
    outlet.end(Ended(id=1, waited_ms=0.5))
    outlet.end(Ended(id=3, waited_ms=0.5))
    heard = listener.until(Ended(id=3, waited_ms=0.5))
    assert heard == [
        *(audio(1), audio(2), Ended(id=1, waited_ms=0.5)),
        *(audio(2, finish="stop"), audio(3), Ended(id=3, waited_ms=0.5)),
    ]


def test_only_audio_waits_for_a_gateway_that_does_not_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """What was said meanwhile arrives whole and in order, and the audio of what was aborted meanwhile does
    not."""
    outlet, listener = Outlet(pair[0], lambda: None, most=1 << 20), Listener(pair[1])
    for id in (1, 2):
        outlet.open(id)
    large = audio(1, 3 << 20)
    outlet.audio([large])  # more than the socket takes
    waiting = threading.Thread(target=lambda: outlet.audio([audio(1, 8), audio(2, 8)]), daemon=True)
    waiting.start()
    outlet.say(
        said := Stats(
            active=1, waiting=0, frames=0, launches=0, frame_ms=0, decode_ms=0, late=0, memory_bytes=0
        )
    )
    outlet.end(Ended(id=1, waited_ms=0.0))
    assert waiting.is_alive()
    heard = listener.until(audio(2, 8))
    waiting.join()
    assert heard == [large, said, Ended(id=1, waited_ms=0.0), audio(2, 8)]
    outlet.flush(10)


def test_gateway_that_goes_away_is_noticed_once_and_holds_nobody_up(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    lost: list[int] = []
    gone = threading.Event()
    outlet = Outlet(pair[0], lambda: (lost.append(1), gone.set()), most=1)  # type: ignore[func-returns-value]
    outlet.open(1)
    outlet.audio([audio(1, 3 << 20)])
    waiting = threading.Thread(target=lambda: outlet.audio([audio(1)]), daemon=True)
    waiting.start()
    pair[1].close()
    assert gone.wait(10)
    waiting.join(10)
    assert not waiting.is_alive()
    outlet.audio([audio(1)])
    outlet.flush(10)
    assert lost == [1]


def test_text_survives_the_wire() -> None:
    (text,) = Unpacker(ToWorker).feed(pack(Text(id=1, text="ä\U0001f600", ended=True)))
    assert text == Text(id=1, text="ä\U0001f600", ended=True)
