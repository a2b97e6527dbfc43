"""What an engine and its workers can be told."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scheduler's figures.

    `frame_depth` frames in flight at most, `decode_depth` decodes; `decode_work` frames of all slots that one
    decode takes at most. `lead_ms`: a frame is queued so long before the one ahead of it should end.
    `start_ms`: when the first audio should be there, counted from the request. `reserve_ms`: a client's
    buffer, above the time of two decodes, that gathers no longer. `comfort_ms`: a buffer that lets a stream
    wait while another one has no audio yet. `row_ms`: by how much a prompt row puts a prompt behind others.
    `wait_ms`: a request that has no slot by then is refused; below the gateway's `response_stall_s`, after
    which a model that is only busy would count as broken.
    """

    frame_depth: Annotated[int, Meta(ge=1, le=4)] = 2  # models keep the results of eight launches
    decode_depth: Annotated[int, Meta(ge=1)] = 2
    decode_work: int = 256
    lead_ms: float = 1.5
    start_ms: float = 40.0
    reserve_ms: float = 40.0
    comfort_ms: float = 1000.0
    row_ms: float = 0.1
    wait_ms: float = 45_000.0


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's own settings. `stats_s`: how often it tells its counts, seconds; `stuck_s`: a launch that
    takes longer means that the device hangs."""

    stats_s: float = 1.0
    stuck_s: float = 30.0
    policy: Policy = Policy()


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica. `factory` is the `module:function` that makes its model of `options`, which are JSON: the
    device is one of them. `env` is added to the process's environment."""

    factory: str
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    settings: WorkerSettings = WorkerSettings()


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How workers are kept alive; seconds.

    `start_timeout_s`: until a model is loaded and warm. `hang_s`: a worker that is silent for so long is
    killed; well above `WorkerSettings.stats_s`. `stop_timeout_s`: how long a worker may take to stop by
    itself. A worker that died is started again after `backoff_s`, doubled each time up to `backoff_most_s`;
    one that has lived for `stable_s` begins anew.
    """

    start_timeout_s: float = 600.0
    hang_s: float = 10.0
    stop_timeout_s: float = 5.0
    backoff_s: float = 0.5
    backoff_most_s: float = 30.0
    stable_s: float = 60.0
