"""One response, gathered from its events."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from duplex.clients.events import (
    AudioDelta,
    ClientEvent,
    ErrorMessage,
    ResponseCancelled,
    ResponseCreated,
    ResponseDone,
    TextDelta,
)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response that has ended.

    `audio` is all that came of it, in `codec` at `sample_rate`. `reason`: why it was cancelled, where the
    server says so. `error` is what it failed with. `others` are the events that came in between.
    """

    index: int
    status: Literal["done", "cancelled", "failed"]
    text: str = ""
    audio: bytes = b""
    codec: str = "pcm_s16le"
    sample_rate: int = 24000
    reason: str | None = None
    heard_ms: float | None = None
    heard_text: str | None = None
    error: ErrorMessage | None = None
    others: tuple[ClientEvent, ...] = ()

    @property
    def samples(self) -> NDArray[np.int16]:
        """The audio as samples, shape (n,). Raises `ValueError` for a codec that is not `pcm_s16le`."""
        if self.codec != "pcm_s16le":
            raise ValueError(f"audio in {self.codec} has to be decoded first")
        return np.frombuffer(self.audio, "<i2")


class ResponseGatherer:
    """Feed events; get the response that began first after the gatherer did."""

    def __init__(self) -> None:
        self.refusal: ErrorMessage | None = None
        """An error that came before any response began."""
        self._index: int | None = None
        self._text: list[str] = []
        self._audio: list[bytes] = []
        self._codec = "pcm_s16le"
        self._sample_rate = 24000
        self._error: ErrorMessage | None = None
        self._others: list[ClientEvent] = []

    def feed(self, event: ClientEvent) -> Response | None:
        """The response, once `event` has ended it."""
        index = self._index
        match event:
            case ResponseCreated() if index is None:
                self._index = event.response_index
            case ErrorMessage() if index is None:
                self.refusal = event
            case TextDelta() if event.response_index == index:
                self._text.append(event.text)
            case AudioDelta() if event.response_index == index:
                self._audio.append(event.data)
                self._codec, self._sample_rate = event.codec, event.sample_rate
            case ResponseDone() if event.response_index == index:
                return self._response(event.response_index, "done")
            case ResponseCancelled() if event.response_index == index:
                return self._cancelled(event)
            case _:
                if isinstance(event, ErrorMessage):
                    self._error = event
                self._others.append(event)
        return None

    def _cancelled(self, event: ResponseCancelled) -> Response:
        reason = event.reason if event.reason is not UNSET else None
        failed = reason == "failed" or (reason is None and self._error is not None)
        return self._response(
            event.response_index,
            "failed" if failed else "cancelled",
            reason=reason,
            heard_ms=event.heard_ms if event.heard_ms is not UNSET else None,
            heard_text=event.heard_text if event.heard_text is not UNSET else None,
            error=self._error if failed else None,
        )

    def _response(
        self,
        index: int,
        status: Literal["done", "cancelled", "failed"],
        *,
        reason: str | None = None,
        heard_ms: float | None = None,
        heard_text: str | None = None,
        error: ErrorMessage | None = None,
    ) -> Response:
        return Response(
            index=index,
            status=status,
            text="".join(self._text),
            audio=b"".join(self._audio),
            codec=self._codec,
            sample_rate=self._sample_rate,
            reason=reason,
            heard_ms=heard_ms,
            heard_text=heard_text,
            error=error,
            others=tuple(self._others),
        )
