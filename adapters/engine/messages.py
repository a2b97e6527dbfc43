"""What the gateway and a frame worker say to each other, as `wire.py` writes it.

Ids are the gateway's, from 1, one a request or call, never used twice in a worker's life. Id 0 is the worker
itself: a `Failed` of it says why it cannot start.
"""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from duplex.adapters.engine.model import ModelInfo
from duplex.adapters.engine.wire import Message
from duplex.core.errors import DuplexError


class Start(Message, frozen=True, kw_only=True):
    """Begin a request. `job` is the model's; `credit`: frames it may make until more credit comes, None: all;
    `first_frames`: frames that its first chunk of audio gathers; `goes_on`: it continues what its client
    hears already, and waits for a slot before those that do not."""

    id: int
    job: bytes
    credit: int | None = None
    first_frames: int = 1
    goes_on: bool = False


class Text(Message, frozen=True, kw_only=True):
    """More text of a request; `ended`: the last of it."""

    id: int
    text: str
    ended: bool = False


class Credit(Message, frozen=True, kw_only=True):
    """The request may make `frames` frames in all, counted from its start."""

    id: int
    frames: int


class Abort(Message, frozen=True, kw_only=True):
    """Stop a request between two frames. Answered by `Ended`, after which no audio of it follows; not
    answered when the request's last message was sent already."""

    id: int


class Call(Message, frozen=True, kw_only=True):
    """A job that is no stream. Answered by `Answer` or `Failed`."""

    id: int
    name: str
    payload: bytes


class Stop(Message, frozen=True, kw_only=True):
    """Finish nothing, free everything, exit 0."""


class Ready(Message, frozen=True, kw_only=True):
    """The model is loaded and warm."""

    info: ModelInfo
    pid: int
    load_ms: float


class Audio(Message, frozen=True, kw_only=True):
    """More audio of a request: `samples` is float32 little endian, mono; whole frames.

    `finish` is set with the last of it; that message may have no samples.
    """

    id: int
    samples: bytes
    finish: Literal["stop", "length"] | None = None


class Ended(Message, frozen=True, kw_only=True):
    """An aborted request's slot is free, `waited_ms` after the worker had read `Abort`."""

    id: int
    waited_ms: float


class Failed(Message, frozen=True, kw_only=True):
    """A request or call failed by name: `code` is an `ErrorCode` value."""

    id: int
    code: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, id: int, error: DuplexError) -> Self:
        """The failure of a request or call by this error."""
        return cls(id=id, code=error.code.value, message=error.message, param=error.param)


class Answer(Message, frozen=True, kw_only=True):
    """A call's result."""

    id: int
    payload: bytes


class Stats(Message, frozen=True, kw_only=True):
    """What a worker counts, sent once a second while it runs: also the sign that it lives.

    `active` slots and `waiting` requests of this moment; the rest since the last message: `frames` of all
    slots in `launches`, `frame_ms` and `decode_ms` the mean times of a launch, `late` chunks that came after
    the client's estimated buffer had run out. `memory_bytes` of the model.
    """

    active: int
    waiting: int
    frames: int
    launches: int
    frame_ms: float
    decode_ms: float
    late: int
    memory_bytes: int


ToWorker: TypeAlias = Start | Text | Credit | Abort | Call | Stop
FromWorker: TypeAlias = Ready | Audio | Ended | Failed | Answer | Stats
