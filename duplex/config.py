"""Configuration: defaults < TOML file < environment < flags. An unknown key is refused by name."""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.facts import SessionLimits


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a gateway process. Environment: `DUPLEX_` + the upper-case name."""

    host: str = "127.0.0.1"
    port: int = 8600
    adapter: tuple[str, ...] = ()
    """Entry-point names or `module:factory`; empty: all installed ones."""
    default_model: str | None = None
    default_video_model: str | None = None
    auth_token: str | None = None
    max_sessions: int = 64
    max_message_bytes: int = 8 * 1024 * 1024
    max_errors: int = 16
    """Consecutive bad messages before the session ends with 4400."""
    idle_timeout_s: float = 300.0
    config_timeout_s: float = 10.0
    """For dialects whose first message configures the session: how long it may take."""
    open_timeout_s: float = 30.0
    """An adapter that takes longer to open a session refuses it with `adapter_stuck`."""
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    resume_grace_s: float = 30.0
    resume_hold_s: float = 5.0
    """How long what is being said waits for a client that vanished; longer is stale."""
    redis_url: str | None = None
    """Where gateways tell each other which of them has a session (`redis://…`); None: they do not."""
    advertised_url: str | None = None
    """How clients reach this gateway (`wss://gw1.example`): told to those that ask another for it."""
    journal_s: float = 30.0
    journal_bytes: int = 2 * 1024 * 1024
    """Bounds of what is kept of a session's messages for a client that comes back: 30 s of 24 kHz PCM in
    base64 are 1.9 MB."""
    close_grace_s: float = 10.0
    drain_grace_s: float = 10.0
    response_stall_s: float = 60.0
    """A response that yields nothing for this long fails with `adapter_failed`; any other call of an adapter
    that takes as long ends its session with `adapter_stuck`."""
    abort_timeout_s: float = 5.0
    """An adapter that does not stop within this after a cancel loses its session."""
    slow_reader_timeout_s: float = 10.0
    max_queue_bytes: int = 4 * 1024 * 1024
    max_queue_audio_s: float = 8.0
    encoder_threads: int = 2
    window_history: int = 64
    speaker_samples_dir: str | None = None
    """Folder of uploaded voices; None: uploads are refused. Also the environment's `SPEAKER_SAMPLES_DIR`."""
    speaker_max_uploaded: int = 1000
    """Most voices stored. Also the environment's `SPEAKER_MAX_UPLOADED`."""
    custom_voice_dir: str | None = None
    """Folder of precomputed voices, with its `custom_voice_manifest.json`."""
    ref_audio_dir: str | None = None
    """Folder that `file:` URLs of `ref_audio` may name; None: no file URLs."""
    ref_audio_hosts: tuple[str, ...] = ()
    """Hosts (`name` or `name:port`) that http URLs of `ref_audio` may name."""
    max_speech_requests: int = 64
    """Speech requests and speech sockets at one time; more get 429."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    adapters: dict[str, dict[str, Any]] = {}
    """Options of each adapter, by its name."""

    def session_limits(self) -> SessionLimits:
        """The bounds of one session."""
        return SessionLimits(
            idle_timeout_s=self.idle_timeout_s,
            close_grace_s=self.close_grace_s,
            resume_grace_s=self.resume_grace_s,
            response_stall_s=self.response_stall_s,
            max_errors=self.max_errors,
            window_history=self.window_history,
            max_message_bytes=self.max_message_bytes,
        )


PREFIX = "DUPLEX_"
NOT_SETTINGS = frozenset(
    {
        "DUPLEX_CONFIG",
        "DUPLEX_CACHE",
        "DUPLEX_SHARED",
        "DUPLEX_URL",
        "DUPLEX_TOKEN",
        "DUPLEX_LLM_API_KEY",
        "DUPLEX_VLLM_ENDS_WITH_PARENT",
    }
)
"""Variables with the prefix that are no settings of the server: where its file and its cache are, and what
clients, tests and engines read."""

_ALIASES = {"SPEAKER_SAMPLES_DIR": "speaker_samples_dir", "SPEAKER_MAX_UPLOADED": "speaker_max_uploaded"}
"""Names of other speech servers' variables, for what they call the same."""
_LISTS = ("adapter", "ref_audio_hosts")
"""Keys whose value in the environment is a list with commas."""

_AT_LEAST_ONE = (
    "max_sessions",
    "max_errors",
    "encoder_threads",
    "window_history",
    "speaker_max_uploaded",
    "max_speech_requests",
)
_POSITIVE = (
    "idle_timeout_s",
    "config_timeout_s",
    "open_timeout_s",
    "ping_interval_s",
    "ping_timeout_s",
    "response_stall_s",
    "abort_timeout_s",
    "slow_reader_timeout_s",
    "max_queue_audio_s",
    "journal_s",
)
_NOT_NEGATIVE = ("resume_grace_s", "resume_hold_s", "journal_bytes", "close_grace_s", "drain_grace_s")
_MIN_BYTES = 1024


def load_config(
    flags: Mapping[str, Any] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServerConfig:
    """The settings of this process.

    `flags` are values by field name; a flag that is None was not given. `file` is a TOML file, by default the
    one that `DUPLEX_CONFIG` names. `environ` defaults to the process's.

    Raises:
        DuplexError: `BAD_CONFIG`, with the key at fault in `param` and where it came from in the message.
    """
    variables = os.environ if environ is None else environ
    path = file if file is not None else variables.get("DUPLEX_CONFIG") or None
    values: dict[str, Any] = {}
    if path is not None:
        values.update(_from_file(Path(path)))
    values.update(_from_environment(variables))
    for key, value in (flags or {}).items():
        if value is not None:
            values[key] = _checked(key, value, "flags", strict=True)
    return validate(ServerConfig(**values))


def validate(config: ServerConfig) -> ServerConfig:
    """`config` itself when its values make sense together. Raises `DuplexError(BAD_CONFIG)`."""

    def check(ok: bool, key: str, words: str) -> None:
        if not ok:
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"{key} must be {words}, not {getattr(config, key)!r}", param=key
            )

    check(0 <= config.port <= 65535, "port", "from 0 to 65535")
    check(config.auth_token != "", "auth_token", "not empty (leave it out for no token)")
    check(
        config.advertised_url is None or config.advertised_url.startswith(("ws://", "wss://")),
        "advertised_url",
        "an address with ws:// or wss://",
    )
    told = config.redis_url is None or config.advertised_url is not None
    check(told, "advertised_url", "set with redis_url")
    for key in _AT_LEAST_ONE:
        check(getattr(config, key) >= 1, key, "at least 1")
    for key in _POSITIVE:
        check(math.isfinite(getattr(config, key)) and getattr(config, key) > 0, key, "more than 0")
    for key in _NOT_NEGATIVE:
        check(math.isfinite(getattr(config, key)) and getattr(config, key) >= 0, key, "0 or more")
    for key in ("max_message_bytes", "max_queue_bytes"):
        check(getattr(config, key) >= _MIN_BYTES, key, f"at least {_MIN_BYTES}")
    return config


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"cannot read the configuration file {path}: {error.strerror}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{path} is not TOML: {error}") from None
    return {key: _checked(key, value, str(path), strict=True) for key, value in table.items()}


def _from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in variables.items():
        if name in _ALIASES:
            key = _ALIASES[name]
            if PREFIX + key.upper() in variables:
                continue
        elif name.startswith(PREFIX) and name not in NOT_SETTINGS:
            key = name.removeprefix(PREFIX).lower()
        else:
            continue
        value: Any = text
        if key in _LISTS:
            value = [part.strip() for part in text.split(",") if part.strip()]
        elif key == "adapters":
            try:
                value = msgspec.json.decode(text)
            except msgspec.DecodeError as error:
                raise DuplexError(
                    ErrorCode.BAD_CONFIG, f"{name} is not a JSON object: {error}", param=key
                ) from None
        values[key] = _checked(key, value, f"environment, {name}", strict=False)
    return values


_TYPES = {field.name: field.type for field in msgspec.structs.fields(ServerConfig)}


def _checked(key: str, value: Any, source: str, *, strict: bool) -> Any:
    """The value in its field's type. `strict` False takes numbers that are written as text."""
    if key not in _TYPES:
        close = difflib.get_close_matches(key, _TYPES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"unknown configuration key {key!r} ({source}){hint}", param=key
        )
    try:
        return msgspec.convert(value, _TYPES[key], strict=strict)
    except msgspec.ValidationError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{key} ({source}): {error}", param=key) from None
