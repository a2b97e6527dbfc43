"""The closed error vocabulary.

Every fault that a client or an operator can meet has one code here. A code fixes three things that
must never differ between two places: whether it ends the session, the WebSocket close code it ends
it with, and the HTTP status of the same fault on a request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ErrorTraits(NamedTuple):
    """What a code implies. `close_code` is sent only when the fault is fatal."""

    fatal: bool
    close_code: int
    http_status: int


class ErrorCode(StrEnum):
    """Names of all faults. The wire carries the value."""

    # the message itself
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_TYPE = "missing_type"
    UNKNOWN_TYPE = "unknown_type"
    MISSING_MODALITY = "missing_modality"
    UNKNOWN_MODALITY = "unknown_modality"
    UNSUPPORTED_MODALITY = "unsupported_modality"
    INVALID_FRAME = "invalid_frame"
    INVALID_VALUE = "invalid_value"
    UNKNOWN_FIELD = "unknown_field"
    INVALID_BASE64 = "invalid_base64"
    MESSAGE_TOO_LARGE = "message_too_large"
    TOO_MANY_ERRORS = "too_many_errors"
    # the media inside it
    EMPTY_INPUT = "empty_input"
    INVALID_AUDIO = "invalid_audio"
    ODD_AUDIO_BYTES = "odd_audio_bytes"
    INVALID_MEDIA = "invalid_media"
    MEDIA_TOO_LARGE = "media_too_large"
    UNSUPPORTED_FORMAT = "unsupported_format"
    INPUT_OVERFLOW = "input_overflow"
    # turns and responses
    COMMIT_EMPTY = "commit_empty"
    NOTHING_TO_RESPOND_TO = "nothing_to_respond_to"
    RESPONSE_CANCEL_NOT_ACTIVE = "response_cancel_not_active"
    RESPONSE_ALREADY_ACTIVE = "conversation_already_has_active_response"
    RESPONSE_NOT_FOUND = "response_not_found"
    INVALID_PLAYBACK_CURSOR = "invalid_playback_cursor"
    ITEM_CREATE_INVALID = "item_create_invalid_item_id"
    ITEM_RETRIEVE_INVALID = "item_retrieve_invalid_item_id"
    ITEM_DELETE_INVALID = "item_delete_invalid_item_id"
    ITEM_TRUNCATE_INVALID = "item_truncate_invalid_item_id"
    SESSION_CLOSING = "session_closing"  # input after the client's close, or while the server drains
    # admission
    UNAUTHORIZED = "unauthorized"
    INVALID_SESSION_ID = "invalid_session_id"
    SESSION_ID_IN_USE = "session_id_in_use"
    SERVER_FULL = "server_full"
    DRAINING = "draining"
    MODEL_NOT_FOUND = "model_not_found"
    ENGINE_DOWN = "engine_down"
    BAD_CONFIG = "bad_config"
    RESUME_REJECTED = "resume_rejected"
    RESUME_ELSEWHERE = "resume_elsewhere"
    # voices
    VOICE_NOT_FOUND = "voice_not_found"
    VOICE_EXISTS = "voice_exists"
    VOICE_LIMIT = "voice_limit"
    # time and resources
    IDLE_TIMEOUT = "idle_timeout"
    CONFIG_TIMEOUT = "config_timeout"
    SLOW_READER = "slow_reader"
    TAKEN_OVER = "taken_over"
    # the model and the gateway
    ADAPTER_FAILED = "adapter_failed"
    ADAPTER_STUCK = "adapter_stuck"
    INTERNAL_ERROR = "internal_error"

    @property
    def traits(self) -> ErrorTraits:
        """Fatality, close code and HTTP status of this code."""
        return _TRAITS.get(self, _DEFAULT)

    @property
    def fatal(self) -> bool:
        """True when the session ends with this fault."""
        return self.traits.fatal


_DEFAULT = ErrorTraits(fatal=False, close_code=1008, http_status=400)

_TRAITS: dict[ErrorCode, ErrorTraits] = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorTraits(True, 1009, 413),
    ErrorCode.TOO_MANY_ERRORS: ErrorTraits(True, 4400, 400),
    ErrorCode.MEDIA_TOO_LARGE: ErrorTraits(False, 1009, 413),
    ErrorCode.INPUT_OVERFLOW: ErrorTraits(False, 1009, 413),
    ErrorCode.UNAUTHORIZED: ErrorTraits(True, 4401, 401),
    # the native contract closes with 4429 for a bad id, an id in use and a full server alike; the
    # code in the error frame and the close reason keeps them apart
    ErrorCode.INVALID_SESSION_ID: ErrorTraits(True, 4429, 400),
    ErrorCode.SESSION_ID_IN_USE: ErrorTraits(True, 4429, 409),
    ErrorCode.SERVER_FULL: ErrorTraits(True, 4429, 429),
    ErrorCode.DRAINING: ErrorTraits(True, 1012, 503),
    ErrorCode.MODEL_NOT_FOUND: ErrorTraits(True, 4404, 404),
    ErrorCode.ENGINE_DOWN: ErrorTraits(True, 1013, 503),
    ErrorCode.BAD_CONFIG: ErrorTraits(True, 4400, 400),
    ErrorCode.RESUME_REJECTED: ErrorTraits(True, 4410, 409),
    # 421: another server is to be asked
    ErrorCode.RESUME_ELSEWHERE: ErrorTraits(True, 4421, 421),
    ErrorCode.VOICE_NOT_FOUND: ErrorTraits(False, 1008, 404),
    ErrorCode.VOICE_EXISTS: ErrorTraits(False, 1008, 409),
    ErrorCode.VOICE_LIMIT: ErrorTraits(False, 1008, 409),
    ErrorCode.IDLE_TIMEOUT: ErrorTraits(True, 4408, 408),
    ErrorCode.CONFIG_TIMEOUT: ErrorTraits(True, 4408, 408),
    ErrorCode.SLOW_READER: ErrorTraits(True, 4408, 408),
    ErrorCode.TAKEN_OVER: ErrorTraits(True, 4409, 409),
    ErrorCode.ADAPTER_FAILED: ErrorTraits(False, 1011, 500),
    ErrorCode.ADAPTER_STUCK: ErrorTraits(True, 1011, 500),
    ErrorCode.INTERNAL_ERROR: ErrorTraits(True, 1011, 500),
}


class DuplexError(Exception):
    """A named fault.

    `message` is for the person who reads it and never carries secrets; `event_id` ties the fault to the
    client message that caused it; `param` names the field at fault; `owner` is the address of the gateway
    that has what was asked for.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        event_id: str | None = None,
        param: str | None = None,
        owner: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.event_id = event_id
        self.param = param
        self.owner = owner

    @property
    def fatal(self) -> bool:
        """True when the session ends with this fault."""
        return self.code.fatal

    def __repr__(self) -> str:
        return f"DuplexError({self.code.value!r}, {self.message!r})"
