"""What a session needs of the parts that prepare, look and write. Any of them can be replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from duplex.adapters.engine.language import Prompt
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.windows.source import Visible
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.types import CodecWindow, HistoryItem

if TYPE_CHECKING:
    from duplex.adapters.mage_vl.windows.pairing import Pairing

Media: TypeAlias = Visible | CodecWindow


class Stream(Protocol):
    """One session's windows on their way to segments. One at a time, in order; nothing here holds up the
    loop, which alone calls."""

    async def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        """The segment of a window, with the side information that the client sent for it; None: all of it is
        held back until more comes.

        Raises:
            DuplexError: the window cannot be used; the next one can.
        """
        ...

    async def finish(self) -> VisualInput | None:
        """The input has ended: what was held back."""
        ...

    def reset(self) -> None:
        """Windows were dropped before the next one."""
        ...

    def close(self) -> None:
        """Free it, at once, whatever is being done."""
        ...


class Backend(Protocol):
    """How windows become segments: `healthy` and `fault` as in `duplex.adapters.health`."""

    @property
    def healthy(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...

    @property
    def takes_codec(self) -> bool:
        """Clients may send side information of their own: `codec_window`."""
        ...

    async def start(self) -> None:
        """Raise `DuplexError(BAD_CONFIG)` with what to install where a piece is missing."""
        ...

    async def stop(self) -> None: ...

    def open(self) -> Stream:
        """For one session."""
        ...

    def pairing(self) -> Pairing | None:
        """For one session: windows and the client's side information for them; None: there is none."""
        ...

    def figures(self) -> Iterable[Figure]: ...


class Picture(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One image of a segment as a prompt shows it.

    Attributes:
        key: names its content.
        time_s: for the prompt's `<X.X seconds>`; None: a still, which has no time.
        tokens: visual tokens of it.
        data: embeddings, torch (tokens, hidden), or a JPEG's bytes.
        size: bytes of `data`.
        runs: of a canvas: its tokens in runs of one source frame each, as (seconds, tokens).
    """

    key: str
    time_s: float | None
    tokens: int
    data: Any
    size: int
    runs: tuple[tuple[float, int], ...] = ()


class Glance(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A segment that was looked at. `score`: the gate's probability at its last image; None: no gate."""

    pictures: tuple[Picture, ...]
    score: float | None
    segment_id: str
    pts_ms: float
    duration_ms: float

    @property
    def tokens(self) -> int:
        return sum(picture.tokens for picture in self.pictures)

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(picture.size for picture in self.pictures)


class Eye(Protocol):
    """One session's eye."""

    async def look(self, visual: VisualInput) -> Glance | None:
        """Look at a segment; None: it was given up for a newer one. Cancelling it drops the work.

        Raises:
            DuplexError: that segment is lost; the eye goes on.
        """
        ...

    def close(self) -> None:
        """Forget the session, at once."""
        ...


class Sight(Protocol):
    """What looks: `healthy` and `fault` as in `duplex.adapters.health`."""

    @property
    def healthy(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...

    @property
    def gate(self) -> bool:
        """Its glances have scores: the model can speak unasked."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self) -> Eye:
        """Raises `DuplexError(ENGINE_DOWN)`."""
        ...

    def figures(self) -> Iterable[Figure]: ...


class Draft(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prompt, and how many tokens it has; an estimate where only a server can count."""

    prompt: Prompt
    tokens: int


class Writer(Protocol):
    """Puts pictures and words into the form that the language engine takes."""

    def draft(
        self,
        pictures: Sequence[Picture],
        question: str,
        *,
        instructions: str = "",
        said: Sequence[HistoryItem] = (),
    ) -> Draft:
        """`pictures` oldest first; `said`: the conversation before, in text."""
        ...
