"""One request in its slot, as the host knows it: how far it is, and how far it may go."""

from __future__ import annotations

from collections import deque
from typing import Final

from duplex.adapters.qwen3_tts.cloned import ClonedVoice
from duplex.adapters.qwen3_tts.core import FrameTicket
from duplex.adapters.qwen3_tts.job import TtsModelType
from duplex.adapters.qwen3_tts.prompt import Prompt
from duplex.adapters.qwen3_tts.text import TextEncoder

MOST_FRAMES: Final = 8192
"""The published checkpoints' own ceiling (`max_new_tokens` of `generation_config.json`): 655 s."""


def frame_ceiling(kind: TtsModelType, text_tokens: int) -> int:
    """Frames that a text of so many tokens may take where the request does not say.

    A model now and then misses its end and babbles on: one Base request in 200 to 300, by reports to its
    authors and to two servers. Speech takes some 4 frames a token. Base: at least 192 frames and 12 a token,
    as vllm-omni has it; a published ceiling of 6 a token cut slow speakers off. The other models can be
    instructed to speak slowly, and are given twice as much.
    """
    frames = max(192, 12 * text_tokens)
    return min(MOST_FRAMES, frames if kind == "base" else 2 * frames)


class SlotRun:
    """A request's bookkeeping. A `SlotView`; see `FrameModel` for what the words mean.

    `prefilled` prompt rows are in the cache; `launched` frames were launched, `decoded` of them given to the
    codec; text rows of frames before `uploaded` are on the device, and it knows where the text ends when
    `end_told`. `tickets` of the frames that are not decoded, each with its number among all launches of the
    model.
    """

    __slots__ = (
        "_asked",
        "_kind",
        "_most",
        "decoded",
        "encoder",
        "end_told",
        "launched",
        "prefilled",
        "prompt",
        "slot",
        "tickets",
        "uploaded",
        "voice",
    )

    def __init__(
        self,
        slot: int,
        prompt: Prompt,
        encoder: TextEncoder,
        voice: ClonedVoice | None = None,
        *,
        kind: TtsModelType,
        asked: int | None,
        positions: int,
    ) -> None:
        """`prompt` has all the text if it is in the whole layout. `asked`: the request's own ceiling, frames;
        `positions` that a slot has."""
        self.slot = slot
        self.prompt = prompt
        self.encoder = encoder
        self.voice = voice
        self.prefilled = self.launched = self.decoded = self.uploaded = 0
        self.end_told = False
        self.tickets: deque[tuple[int, FrameTicket]] = deque()
        self._kind = kind
        self._asked = asked
        self._most = min(MOST_FRAMES, positions - (prompt.size or len(prompt.rows)))

    def feed(self, text: str, *, ended: bool) -> None:
        """More of the text."""
        ids = self.encoder.feed(text)
        if ended:
            ids += self.encoder.end()
        self.prompt.add(ids, ended=ended)

    @property
    def limit(self) -> int:
        """Frames that the request may make, of what is known of its text. It grows with the text, and never
        holds up text that has not ended: a frame takes one token, and the ceiling has more for each."""
        if self._asked is not None:
            return min(self._most, self._asked)
        tokens = max(self.prompt.text_tokens, len(self.prompt.trailing))
        return min(self._most, frame_ceiling(self._kind, tokens))

    @property
    def room(self) -> int:
        """Frames that there are positions for; below 1 the prompt is too long."""
        return self._most

    @property
    def prompt_rows(self) -> int:
        """See `SlotView`."""
        return len(self.prompt.rows) - self.prefilled

    @property
    def steppable(self) -> bool:
        """See `SlotView`."""
        prompt = self.prompt
        return (
            self.prefilled == prompt.size
            and (prompt.ended or self.launched < len(prompt.trailing))
            and self.launched < self.limit
        )
