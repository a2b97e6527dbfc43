"""What a session needs of the parts that prepare, look and write. Any of them can be replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from duplex.adapters.engine.language import Prompt
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.types import CodecWindow, HistoryItem, ImageWindow, VideoWindow

Media: TypeAlias = VideoWindow | ImageWindow | CodecWindow


class Stream(Protocol):
    """One session's input on its way to segments. Its methods block; they are called one at a time, in order,
    from any thread."""

    def prepare(self, window: Media) -> Sequence[VisualInput]:
        """The segments that a window completes; none while more is needed.

        Raises:
            DuplexError: the window cannot be used; the next one can.
        """
        ...

    def finish(self) -> Sequence[VisualInput]:
        """The input has ended: what was held back."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """How windows become segments."""

    def start(self) -> None:
        """Raise `DuplexError(BAD_CONFIG)` with what to install where a piece is missing."""
        ...

    def open(self) -> Stream: ...


class Picture(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One image of a segment as a prompt shows it.

    Attributes:
        key: names its content.
        time_s: for the prompt's `<X.X seconds>`.
        tokens: how many it takes in the prompt.
        data: embeddings, torch (tokens, hidden), or a JPEG's bytes.
        size: bytes of `data`.
    """

    key: str
    time_s: float
    tokens: int
    data: Any
    size: int


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
