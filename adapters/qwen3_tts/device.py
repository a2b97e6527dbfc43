"""Devices, and numbers on their way to them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from duplex.core.errors import DuplexError, ErrorCode


def find_device(name: str, param: str = "device") -> torch.device:
    """A device by its name, "auto" the first GPU or the CPU where there is none; a GPU with its number.

    Raises:
        DuplexError: `BAD_CONFIG`: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"there is no device {name!r}", param=param) from error
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if device.type == "cuda" and torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"there is no device {name!r}: the CPU and {count} GPUs are here",
            param=param,
        )
    return torch.device("cuda", device.index or 0)


def upload(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Integers as an int64 tensor on the device, without a wait for the device."""
    return send(torch.from_numpy(np.array(numbers, dtype=np.int64)), device)


def send(host: Tensor, device: torch.device) -> Tensor:
    """A tensor's copy on the device, without a wait for the device. On the CPU the tensor itself."""
    # torch keeps the pinned copy until the device has read it
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What is launched without naming a device goes to this one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream of a GPU; None on the CPU, where work is done when it is asked for."""
    make: Any = torch.cuda.Stream
    return make(device) if device.type == "cuda" else None


def new_event() -> torch.cuda.Event:
    """What the current stream has been given up to now, to be waited for."""
    make: Any = torch.cuda.Event
    event: torch.cuda.Event = make()
    event.record()
    return event


def is_over(event: torch.cuda.Event) -> bool:
    """True when the device has done all of it."""
    untyped: Any = event
    return bool(untyped.query())


def on_stream(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Work goes on a stream, where there is one."""
    return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()
