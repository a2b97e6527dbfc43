"""Finding adapters: by entry point of group `duplex.adapters`, or by `module:factory`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from duplex.adapters.base import Adapter, NotConfigured
from duplex.config import ServerConfig
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.adapters")

GROUP = "duplex.adapters"
DISTRIBUTION = "duplex-gateway"
_EXTRAS = {
    "duplex.adapters.embedded": "embedded",
    "duplex.adapters.qwen3_tts": "qwen3-tts",
    "duplex.adapters.vllm": "vllm",
}
"""Which extra of ours brings what the adapters below a package need."""


def installed_adapters() -> dict[str, EntryPoint]:
    """Names and entry points of all adapters that are installed."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def load_adapters(config: ServerConfig) -> list[Adapter]:
    """The adapters that `config.adapter` names, or all installed ones that have what they need.

    Nothing is started. A name that was asked for and cannot be had is an error; one that merely is installed
    is left out: with a warning when a package is missing, silently when it has no options and needs some.

    Raises:
        DuplexError: `BAD_CONFIG`: an unknown name or option, a missing package (and what to install), two
            adapters for one model id, or no adapter at all.
    """
    known = installed_adapters()
    names = config.adapter or tuple(known)
    strangers = [name for name in config.adapters if name not in names and name not in known]
    if strangers:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"options for an adapter that is not there: {', '.join(strangers)}",
            param="adapters",
        )
    adapters: list[Adapter] = []
    missing: list[str] = []
    for name in names:
        try:
            adapters.append(load_adapter(name, config.adapters.get(name, {})))
        except NotConfigured as error:
            if config.adapter:
                raise
            log.info("left out: %s", error)
            missing.append(str(error))
        except DuplexError as error:
            if config.adapter or not isinstance(error.__cause__, ImportError):
                raise
            log.warning("left out: %s", error)
            missing.append(str(error))
    if not adapters:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, "; ".join(["there is no adapter to serve", *missing]), param="adapter"
        )
    ids = [adapter.info.id for adapter in adapters]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    if twice:
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"two adapters serve the model id {twice[0]!r}", param="adapter"
        )
    return adapters


def load_adapter(name: str, options: Mapping[str, Any]) -> Adapter:
    """One adapter, by entry-point name or `module:factory`.

    Raises:
        DuplexError: `BAD_CONFIG`; its `__cause__` is an `ImportError` when a package is missing.
    """
    factory = _factory(name)
    try:
        adapter = factory(options)
    except DuplexError:
        raise
    except ImportError as error:
        raise _missing(name, error) from error
    if not isinstance(adapter, Adapter):
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"adapter {name!r}: the factory gave {type(adapter).__name__}, which is no adapter "
            "(it needs info, start, open and stop)",
            param="adapter",
        )
    return adapter


def _factory(name: str) -> Callable[[Mapping[str, Any]], object]:
    if ":" not in name:
        point = installed_adapters().get(name)
        if point is None:
            known = ", ".join(installed_adapters()) or "none"
            raise DuplexError(
                ErrorCode.BAD_CONFIG,
                f"no adapter {name!r} is installed; there are: {known} (or give module:factory)",
                param="adapter",
            )
        target = point.value
    else:
        target = name
    module_name, _, attribute = target.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise _missing(name, error) from error
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        raise DuplexError(
            ErrorCode.BAD_CONFIG, f"adapter {name!r}: {module_name} has no {attribute!r}", param="adapter"
        )
    factory: Callable[[Mapping[str, Any]], object] = value
    return factory


def _missing(name: str, error: ImportError) -> DuplexError:
    """What is missing, and the command that brings it."""
    point = installed_adapters().get(name)
    target = point.value if point is not None else name
    module = target.partition(":")[0]
    lacking = error.name or str(error)
    if lacking == module or module.startswith(f"{lacking}."):
        words = f"adapter {name!r}: there is no module {lacking!r}"
    else:
        extra = next((extra for package, extra in _EXTRAS.items() if module.startswith(package)), None)
        if extra is not None:
            remedy = f'pip install "{DISTRIBUTION}[{extra}]"'
        else:
            remedy = f"pip install {lacking.partition('.')[0]}"
        words = f"adapter {name!r} needs {lacking!r}: {remedy}"
    return DuplexError(ErrorCode.BAD_CONFIG, words, param="adapter")
