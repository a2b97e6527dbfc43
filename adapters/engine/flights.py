"""What the scheduler has launched and not seen end, and what it counts of it. Times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from duplex.adapters.engine.model import Finish
from duplex.adapters.engine.streams import Stream


@dataclass(slots=True, eq=False, kw_only=True)
class FrameFlight:
    """A launched frame. `prefill`: one went before it. `expected_ms` None: nobody knows how long it takes."""

    streams: tuple[Stream, ...]
    launched: float
    prefill: bool
    expected_ms: float | None

    @property
    def slots(self) -> list[int]:
        return [stream.slot for stream in self.streams]


@dataclass(slots=True, eq=False, kw_only=True)
class DecodeFlight:
    """A launched decode: `frames` frames of each stream; `finish` is set where they are the last. `ahead`: it
    was launched before the frames' results were read, and waits for them on the device."""

    streams: tuple[Stream, ...]
    frames: int
    finish: tuple[Finish | None, ...]
    launched: float
    ahead: bool = False

    @classmethod
    def of_first_frames(cls, streams: Sequence[Stream], now: float) -> DecodeFlight:
        """First frames go to the codec behind their launch: it waits for them on the device, where no thread
        has to wake up in between."""
        for stream in streams:
            stream.flying -= 1
            stream.decoding += 1
            stream.ahead += 1
        finish = (None,) * len(streams)
        return cls(streams=tuple(streams), frames=1, finish=finish, launched=now, ahead=True)

    @property
    def slots(self) -> list[int]:
        return [stream.slot for stream in self.streams]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted since the last time: see `messages.Stats`."""

    frames: int
    launches: int
    frame_ms: float
    decode_ms: float
    late: int
