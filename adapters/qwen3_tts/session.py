"""A session that reads aloud: the client's text in, its speech out. It hears nothing and answers nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec

from duplex.adapters.base import BaseSession
from duplex.adapters.qwen3_tts.face import QwenSpeech
from duplex.adapters.qwen3_tts.rules import Rules
from duplex.adapters.speech import SpeechRequest
from duplex.adapters.text import has_words
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import (
    AudioDelta,
    Delta,
    Modality,
    SessionSettings,
    TextDelta,
    TextWindow,
    Turn,
    Window,
)


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`SessionSettings.options` of this model, as the fields of a speech request of the same names."""

    language: str = "Auto"
    seed: int | None = None
    max_new_tokens: int | None = None
    speed: float = 1.0


class ReadingSession(BaseSession):
    """One client. A turn's response is its text, in the session's voice, by its instructions and options."""

    def __init__(self, speech: QwenSpeech, rules: Rules, settings: SessionSettings) -> None:
        self._speech = speech
        self._rules = rules
        self._unspoken = False
        """Words were appended since the last response began."""
        self._rules.check_options(_request(settings))

    async def append(self, window: Window) -> None:
        if not isinstance(window, TextWindow):
            raise DuplexError(
                ErrorCode.UNSUPPORTED_MODALITY, f"unsupported input modality: {window.modality}"
            )
        self._unspoken = self._unspoken or has_words(window.text)

    async def commit(self) -> bool:
        return self._unspoken

    async def update(self, settings: SessionSettings) -> None:
        # what the task needs beside the options may come later: it is checked when something is to be said
        self._rules.check_options(_request(settings))

    async def respond(self, turn: Turn) -> AsyncGenerator[Delta, None]:
        self._unspoken = False
        text = turn.speak_text if turn.speak_text is not None else turn.question
        if text is None:
            raise DuplexError(ErrorCode.NOTHING_TO_RESPOND_TO, "there is no text to speak")
        if not has_words(text):
            raise DuplexError(ErrorCode.EMPTY_INPUT, "there are no words to speak", param="text")
        asked = msgspec.structs.replace(_request(turn.settings), task_type=self._rules.task)
        request = self._speech.validate(asked)
        yield TextDelta(text=text)
        if Modality.AUDIO not in turn.modalities:
            return
        async with aclosing(self._speech.synthesise(request, _once(text))) as chunks:
            async for chunk in chunks:
                if len(chunk.samples):
                    yield AudioDelta(samples=chunk.samples, sample_rate=chunk.sample_rate)


def _request(settings: SessionSettings) -> SpeechRequest:
    """What the settings ask of the model. Raises `DuplexError(UNKNOWN_FIELD or INVALID_VALUE)`."""
    try:
        options = msgspec.convert(settings.options, SessionOptions)
    except msgspec.ValidationError as error:
        code = ErrorCode.UNKNOWN_FIELD if "unknown field" in str(error) else ErrorCode.INVALID_VALUE
        raise DuplexError(code, f"options: {error}", param="options") from None
    return SpeechRequest(
        voice=settings.voice,
        instructions=settings.instructions,
        language=options.language,
        seed=options.seed,
        max_new_tokens=options.max_new_tokens,
        speed=options.speed,
    )


async def _once(text: str) -> AsyncIterator[str]:
    yield text
