"""What is fixed for a session: its limits and what its model can do."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import Modality


class State(StrEnum):
    """Where a session stands. `listening`: the user gives input; `closing`: what runs may finish."""

    IDLE = "idle"
    LISTENING = "listening"
    RESPONDING = "responding"
    CLOSING = "closing"
    CLOSED = "closed"


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one session. Times in seconds."""

    idle_timeout_s: float = 300.0
    close_grace_s: float = 10.0
    resume_grace_s: float = 30.0
    response_stall_s: float = 60.0
    """A response that makes no progress for this long has failed."""
    input_stall_s: float = 5.0
    """Audio that stops in mid-speech for this long ends the user's turn."""
    max_errors: int = 16
    window_history: int = 64
    window_history_bytes: int = 32 * 1024 * 1024
    max_message_bytes: int = 8 * 1024 * 1024


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the core has to know of the model that serves the session."""

    id: str
    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]
    default_output_modalities: tuple[Modality, ...] | None = None
    """Of a client that names none; None for all."""
    proactive: bool = False
    voices: tuple[str, ...] = ()

    def default_output(self, *, speak: bool) -> tuple[Modality, ...]:
        """What a response gives when nobody named modalities; with `speak`, a text is to be spoken."""
        return (None if speak else self.default_output_modalities) or self.output_modalities

    def check_input(self, modality: Modality) -> None:
        """Raises `DuplexError(UNSUPPORTED_MODALITY)` for what the model does not take."""
        if modality not in self.input_modalities:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_MODALITY, f"unsupported input modality: {modality}", param="modality"
            )

    def check_output(self, modalities: tuple[Modality, ...] | None) -> None:
        """Raises `DuplexError(UNSUPPORTED_MODALITY)` for what the model does not give."""
        for modality in modalities or ():
            if modality not in self.output_modalities:
                raise DuplexError(
                    ErrorCode.UNSUPPORTED_MODALITY,
                    f"unsupported output modality: {modality}",
                    param="output_modalities",
                )
