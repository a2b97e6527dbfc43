"""A model in 40 lines: it says back what it read, word by word, and what it heard."""

from collections import deque
from collections.abc import AsyncIterator, Mapping

import numpy as np

import duplex.core.types as t
from duplex.adapters.base import AdapterInfo, BaseSession
from duplex.core.errors import DuplexError, ErrorCode


class EchoSession(BaseSession):
    def __init__(self) -> None:
        self.heard: deque[t.AudioWindow] = deque(maxlen=1500)  # 30 s of 20 ms windows

    async def append(self, window: t.Window) -> None:
        if isinstance(window, t.AudioWindow):
            self.heard.append(window)

    async def respond(self, turn: t.Turn) -> AsyncIterator[t.Delta]:
        for word in (turn.speak_text or turn.question or "").split():
            yield t.TextDelta(text=word + " ")
        while self.heard and t.Modality.AUDIO in turn.modalities:
            window = self.heard.popleft()
            yield t.AudioDelta(samples=np.frombuffer(window.pcm, "<i2"), sample_rate=window.sample_rate)


class Echo:
    both = (t.Modality.TEXT, t.Modality.AUDIO)
    info = AdapterInfo(id="echo", input_modalities=both, output_modalities=both)

    def __init__(self, options: Mapping[str, object]) -> None:
        if options:
            raise DuplexError(ErrorCode.BAD_CONFIG, f"echo has no option {min(options)!r}")

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def open(self, request: t.OpenSession) -> EchoSession:
        return EchoSession()
