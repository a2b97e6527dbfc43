"""Writing a session's turns down: drafts in, partial and final texts out, one recognition at a time.

What is overtaken is skipped: a partial that a newer draft replaces is never decoded, and the final text of a
turn is the one that was decoded ahead at its last pause, if nothing was said after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.asr import Recognition
from duplex.adapters.embedded.listen import Draft, DraftKind

MIN_CONFIDENCE: Final = 0.45
"""Below it nothing was said: hum, hiss and silence decode to "You" with 0.3 to 0.45, speech has over 0.7."""


class Transcriber:
    """One session's.

    Args:
        recognise: decodes off the event loop.
        busy: True while others wait for the recogniser; partials are left out then.
        on_text: called with (text, final) when the turn's text has changed or is final. A final text may be
            empty: what sounded like speech had no words.
        on_failure: called when the recogniser fails; nothing is written down any more.
        on_pause: awaited with (end_ms, samples, text) of the turn so far when it may be over.
    """

    def __init__(
        self,
        recognise: Callable[[NDArray[np.float32]], Awaitable[Recognition]],
        busy: Callable[[], bool],
        on_text: Callable[[str, bool], None],
        on_failure: Callable[[Exception], None],
        on_pause: Callable[[float, NDArray[np.float32], str], Awaitable[None]] | None = None,
    ) -> None:
        self._on_pause = on_pause
        self._recognise = recognise
        self._busy = busy
        self._on_text = on_text
        self._on_failure = on_failure
        self._drafts: deque[Draft] = deque()
        self._segments: list[str] = []
        self._ahead: tuple[float, str] | None = None
        self._told = ""
        self._task: asyncio.Task[None] | None = None

    def put(self, draft: Draft) -> None:
        """Write this down when its turn comes."""
        if draft.kind is DraftKind.PARTIAL and self._busy():
            return
        while self._drafts and self._overtakes(draft, self._drafts[-1]):
            self._drafts.pop()
        self._drafts.append(draft)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="transcriber")

    async def idle(self) -> None:
        """Wait until all that was put is written down."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Drop what is not written down."""
        self._drafts.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @staticmethod
    def _overtakes(draft: Draft, waiting: Draft) -> bool:
        if waiting.kind is DraftKind.PARTIAL:
            return True
        # the final text can be had from the draft ahead of it
        same = draft.kind is DraftKind.FINAL and draft.end_ms == waiting.end_ms
        return waiting.kind is DraftKind.AHEAD and not same

    async def _run(self) -> None:
        try:
            while self._drafts:
                await self._write(self._drafts.popleft())
        except Exception as error:
            self._drafts.clear()
            self._on_failure(error)
        finally:
            self._task = None

    async def _write(self, draft: Draft) -> None:
        if draft.kind is DraftKind.FINAL and self._ahead is not None and self._ahead[0] == draft.end_ms:
            text = self._ahead[1]
        else:
            heard = await self._recognise(draft.samples) if len(draft.samples) else None
            text = heard.text if heard is not None and heard.confidence >= MIN_CONFIDENCE else ""
        self._ahead = (draft.end_ms, text) if draft.kind is DraftKind.AHEAD else None
        if draft.kind is DraftKind.DROPPED:
            self._segments.clear()
        whole = " ".join(filter(None, [*self._segments, text]))
        if draft.kind in (DraftKind.FINAL, DraftKind.DROPPED):
            self._told = ""
            self._segments.clear()
            self._on_text(whole, True)
            return
        if draft.kind is DraftKind.SEGMENT and text:
            self._segments.append(text)
        if whole and whole != self._told:
            self._told = whole
            self._on_text(whole, False)
        if draft.kind is DraftKind.AHEAD and self._on_pause is not None:
            await self._on_pause(draft.end_ms, draft.samples, whole)
