"""What the gateway and a preparer say to each other. `Failed` and `Stop` are the engine's.

The bytes of windows and the pixels of segments are in memory that both share, see `preparer_memory`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from duplex.adapters.engine.messages import Failed, Stop
from duplex.adapters.engine.wire import Message
from duplex.core.types import CodecWindow, ImageWindow, VideoWindow


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A window without its bytes, and the client's side information for it. `window` None: the input ends."""

    window: VideoWindow | ImageWindow | None = None
    codec: CodecWindow | None = None


class Prepare(Message, frozen=True, kw_only=True):
    """Prepare what is in a slot: a `Task`, then the window's data or its pictures; `sizes` in bytes. Ids are
    the gateway's, from 1. Answered by `Prepared` or `Failed`.

    `gap`: windows between the last one of this stream and this one are missing. A stream that is not known
    yet begins with its video's origin at `origin_ms`, and its last window's end at `end_ms`.
    """

    id: int
    stream: int
    slot: int
    sizes: tuple[int, ...]
    gap: bool = False
    origin_ms: float | None = None
    end_ms: float = 0.0


class Forget(Message, frozen=True, kw_only=True):
    """A session is over: what is done for it is given up at the next frame."""

    stream: int


class PreparerReady(Message, frozen=True, kw_only=True):
    """The preparer takes windows."""

    pid: int


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A `VisualInput` without its arrays, which are in the slot."""

    images: int
    height: int
    width: int
    frame_times: int
    segment_id: str
    pts_ms: float
    duration_ms: float


class Prepared(Message, frozen=True, kw_only=True):
    """A window is done; `segment` None: it is held back. `origin_ms`, `end_ms`: where its stream is now.
    `took_ms`: from its start to its end."""

    id: int
    segment: Segment | None
    origin_ms: float | None
    end_ms: float
    took_ms: float


class PreparerStats(Message, frozen=True, kw_only=True):
    """Sent regularly while a preparer lives. `streams`: sessions that it knows; `memory_bytes` of it."""

    streams: int
    memory_bytes: int


ToPreparer: TypeAlias = Prepare | Forget | Stop
FromPreparer: TypeAlias = PreparerReady | Prepared | PreparerStats | Failed
