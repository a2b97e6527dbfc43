"""What the gateway and the sight worker say to each other. `Failed` and `Stop` are the engine's."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from duplex.adapters.engine.messages import Failed, Stop
from duplex.adapters.engine.wire import Message
from duplex.adapters.mage_vl.sight.arena import Layout, Shape

TokenType: TypeAlias = Literal["float32", "bfloat16"]


class SightInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model is.

    `hidden`: numbers of a visual token, of type `dtype`; `gate`: it has a cognition gate; `depth`: batches
    that it works on at once (2: the next one's pixels are copied while one is computed); `detail` is for
    people.
    """

    name: str
    hidden: int
    dtype: TokenType
    gate: bool
    depth: int = 1
    detail: dict[str, str] = {}

    @property
    def token_bytes(self) -> int:
        """Bytes of one visual token."""
        return self.hidden * (4 if self.dtype == "float32" else 2)


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One window of a batch: whose, how large, and whether the gate is asked."""

    session: int
    shape: Shape
    gate: bool


class Look(Message, frozen=True, kw_only=True):
    """Look at a batch, whose pixels and positions are in a slot. Ids are the gateway's, from 1. Answered by
    `Looked`."""

    id: int
    slot: int
    items: tuple[Item, ...]


class Forget(Message, frozen=True, kw_only=True):
    """A session is over: its gate's state is not needed after the looks that were sent before."""

    session: int


class SightReady(Message, frozen=True, kw_only=True):
    """The model is loaded and warm, the arena divided by `layout`."""

    info: SightInfo
    layout: Layout
    pid: int
    load_ms: float


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What the gate said of one window: the probability to speak, at the last image at least; empty when it
    was not asked.
    `fresh`: it began without a state from before."""

    p_speak: tuple[float, ...]
    fresh: bool


class Looked(Message, frozen=True, kw_only=True):
    """A batch is done: the tokens are in its slot. `took_ms`: from its start on the device to its end."""

    id: int
    verdicts: tuple[Verdict, ...]
    took_ms: float


class SightStats(Message, frozen=True, kw_only=True):
    """Sent regularly while a worker lives. `states`: sessions whose gate has one; `memory_bytes`: of the
    model, or of the process where the device does not tell."""

    states: int
    memory_bytes: int


ToSight: TypeAlias = Look | Forget | Stop
FromSight: TypeAlias = SightReady | Looked | SightStats | Failed
