"""Configuration: defaults < TOML file < environment < flags. An unknown key is refused by name."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


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
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    resume_grace_s: float = 30.0
    close_grace_s: float = 10.0
    drain_grace_s: float = 10.0
    response_stall_s: float = 60.0
    """A response that yields nothing for this long fails with `adapter_stuck`."""
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
    """Speech requests and utterances that are synthesised at one time; more get 429."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    adapters: dict[str, dict[str, Any]] = {}
    """Options of each adapter, by its name."""
