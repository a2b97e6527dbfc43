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

    The scheduler looks at every slot every step: what it asks is worked out when something changes.

    Attributes:
        prompt_rows: prompt rows that are there and not in the cache.
        prefilled: prompt rows in the cache.
        launched: frames that were launched.
        decoded: frames that were given to the codec.
        limit: frames that the request may make, of what is known of its text. It grows with the text, and
            never holds up text that has not ended: a frame takes one token, the ceiling has more for each.
        room: frames that there are positions for; below 1 the prompt is too long.
        uploaded: frames whose text rows were sent to the device.
        end_told: the device knows where the text ends.
        send_at: launched frames from which on the device lacks text, or its end.
        tickets: of the frames that are not decoded, each with its number among all launches of the model.
    """

    __slots__ = (
        "_asked",
        "_kind",
        "_until",
        "decoded",
        "encoder",
        "end_told",
        "launched",
        "limit",
        "prefilled",
        "prompt",
        "prompt_rows",
        "room",
        "send_at",
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
        self.room = min(MOST_FRAMES, positions - (prompt.size or len(prompt.rows)))
        self._changed()

    @property
    def steppable(self) -> bool:
        """See `SlotView`."""
        return self.launched < self._until

    def feed(self, text: str, *, ended: bool) -> None:
        """More of the text."""
        ids = self.encoder.feed(text)
        if ended:
            ids += self.encoder.end()
        self.prompt.add(ids, ended=ended)
        self._changed()

    def add_prefilled(self, rows: int) -> None:
        """More prompt rows are in the cache."""
        self.prefilled += rows
        self._changed()

    def sent(self, uploaded: int) -> None:
        """The device has the text rows of so many frames, and the end of a text that has ended."""
        self.uploaded = uploaded
        self.end_told = self.prompt.ended
        self._changed()

    def _changed(self) -> None:
        prompt = self.prompt
        texts = len(prompt.trailing)
        self.prompt_rows = len(prompt.rows) - self.prefilled
        ceiling = self._asked
        if ceiling is None:
            ceiling = frame_ceiling(self._kind, max(prompt.text_tokens, texts))
        self.limit = min(self.room, ceiling)
        if self.prefilled != prompt.size:
            self._until = 0
        else:
            self._until = self.limit if prompt.ended else min(self.limit, texts)
        self.send_at = self.uploaded if self.uploaded < texts else MOST_FRAMES
        if prompt.ended and not self.end_told:
            self.send_at = 0
