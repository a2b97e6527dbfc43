"""Pictures and words as the model reads them: ids, and how many they are before any engine sees them.

    <|im_start|>system\\n … <|im_end|>\\n
    <|im_start|>user\\n … <|im_end|>\\n<|im_start|>assistant\\n … <|im_end|>\\n      what was said before
    <|im_start|>user\\n
    <0.0 seconds><|vision_start|><|image_pad|>*n<|vision_end|>                     each picture, oldest first
    … the question …<|im_end|>\\n
    <|im_start|>assistant\\n

The template is ChatML. Frames and canvases are written as the authors' processor writes them: frames without
line breaks between them; of a canvas each run of tokens that come from one source frame, with that frame's
time and a line break. A still has no time. A prompt holds one `<|image_pad|>` a picture, which the model's
processor spreads to as many as the picture has tokens, or for a canvas to its runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.language import MediaItem, MediaPrompt, TokenPrompt, length_of
from duplex.adapters.mage_vl.config import MageConfig
from duplex.adapters.mage_vl.ports import Draft, Picture
from duplex.adapters.mage_vl.text import Text, load_text
from duplex.core.types import HistoryItem

DEFAULT_QUESTION: Final = "Please describe the video content in detail based on the provided information."
"""What the authors' streaming demo asks of every segment."""

Runs: TypeAlias = Sequence[tuple[float, int]]
"""Of a canvas: (seconds, visual tokens) of each run of tokens that come from one source frame."""

_ROLES: Final = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pixels:
    """A frame or canvas that the engine's own vision encoder is to look at.

    Attributes:
        image: uint8 (H, W, 3), RGB; H and W are multiples of 32.
        positions: int32 (H // 16, W // 16, 3): (source frame index, row, column) of each 16 x 16 patch.
    """

    image: NDArray[np.uint8]
    positions: NDArray[np.int32]

    @property
    def tokens(self) -> int:
        """Visual tokens that it becomes."""
        height, width, _ = self.image.shape
        return int(height // 32 * (width // 32))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """A canvas whose tokens do not stand side by side in the prompt.

    Attributes:
        data: Embeddings or `Pixels`.
        ids: What its one `<|image_pad|>` becomes: as many of them as it has tokens, and what is between them.
    """

    data: Any
    ids: tuple[int, ...]


class ChatWriter:
    """Puts pictures and words into the form that an engine takes which runs the model itself: a `Writer`."""

    def __init__(self, text: Text, config: MageConfig) -> None:
        """See `load`."""
        self._text = text
        self._start = text.control["<|im_start|>"]
        self._end = text.control["<|im_end|>"]
        self._pad = config.image_token_id
        self._open = config.vision_start_token_id
        self._close = config.vision_end_token_id

    @classmethod
    def load(cls, folder: Path, config: MageConfig) -> ChatWriter:
        """With the tokenizer of a checkpoint's folder. Raises `DuplexError` (`BAD_CONFIG`)."""
        return cls(load_text(folder, config), config)

    def draft(
        self,
        pictures: Sequence[Picture],
        question: str,
        *,
        instructions: str = "",
        said: Sequence[HistoryItem] = (),
    ) -> Draft:
        """A prompt and its exact number of tokens.

        Args:
            pictures: Oldest first, with torch embeddings (tokens, hidden size) or `Pixels` as data.
            question: Empty for `DEFAULT_QUESTION`.
            instructions: Empty for the system line of the checkpoint's template.
            said: The conversation before. Calls and what they gave are left out: the model knows no tools.
        """
        ids = tuple(self._text.encode(self._parts(pictures, question, instructions, said)))
        if not pictures:
            return Draft(prompt=TokenPrompt(ids=ids), tokens=len(ids))
        items = tuple(self._item(picture) for picture in pictures)
        prompt = MediaPrompt(ids=ids, items=items)
        tokens = length_of(prompt)
        assert tokens is not None
        return Draft(prompt=prompt, tokens=tokens)

    def _parts(
        self, pictures: Sequence[Picture], question: str, instructions: str, said: Sequence[HistoryItem]
    ) -> Iterator[str | int]:
        """Text, and control tokens by their ids."""
        if system := instructions or self._text.system:
            yield from self._message("system", system)
        for item in said:
            if item.role in _ROLES and item.text and not item.call_id:
                yield from self._message(item.role, item.text)
        yield self._start
        yield "user\n"
        for picture in pictures:
            if picture.time_s is not None:
                yield _tag(picture.runs[0][0] if picture.runs else picture.time_s)
            yield self._open
            yield self._pad
            yield self._close
            if picture.runs:
                yield "\n"
        yield question or DEFAULT_QUESTION
        yield self._end
        yield "\n"
        yield self._start
        yield "assistant\n"

    def _item(self, picture: Picture) -> MediaItem:
        if len(picture.runs) < 2:
            return MediaItem(key=picture.key, data=picture.data, tokens=picture.tokens)
        ids: list[int] = []
        for seconds, tokens in picture.runs:
            if ids:
                ids += self._text.encode((self._close, f"\n{_tag(seconds)}", self._open))
            ids += [self._pad] * tokens
        data = Spread(data=picture.data, ids=tuple(ids))
        return MediaItem(key=picture.key, data=data, tokens=len(ids))

    def _message(self, role: str, text: str) -> Iterator[str | int]:
        yield self._start
        yield f"{role}\n{text}"
        yield self._end
        yield "\n"


def runs_of(positions: NDArray[np.int32], frame_times_s: NDArray[np.float64]) -> Runs:
    """The runs of a canvas, in the order of its tokens.

    Args:
        positions: (H // 16, W // 16, 3), as `Pixels` has them; the 2 x 2 patches of a token are of one frame.
        frame_times_s: Seconds of each source frame, by its index.
    """
    frames = positions[::2, ::2, 0].reshape(-1)
    starts = np.flatnonzero(np.diff(frames, prepend=frames[0] - 1))
    lengths = np.diff(starts, append=len(frames))
    return tuple(
        (float(frame_times_s[frames[start]]), int(length))
        for start, length in zip(starts, lengths, strict=True)
    )


def _tag(seconds: float) -> str:
    return f"<{seconds:.1f} seconds>"
