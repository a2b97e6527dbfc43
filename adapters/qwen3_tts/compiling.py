"""Compiling Triton kernels on all cores before the first of them is launched.

Triton compiles a kernel when it is first launched, one after the other: a hundred kernels of about a second.
Here the launches are rehearsed without a device's work (`recorded`), and processes of their own compile what
they asked for into Triton's cache on disk (`compile_all`), from which the real launches then load.
`compile_ahead` does both.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import torch

log = logging.getLogger("duplex.qwen3_tts")

_PROCESSES: Final = 16
_CACHED_S: Final = 0.2
"""A kernel that is ready sooner came from the cache."""
_TIMEOUT_S: Final = 600.0


class Kernel(msgspec.Struct, frozen=True):
    """A launch as far as it decides what is compiled: `arguments` and `options` by position and by name, a
    tensor as its dtype's name."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@contextlib.contextmanager
def recorded() -> Iterator[list[Kernel]]:
    """While this lasts no Triton kernel is launched; the list then has those that would have been, once."""
    from triton.runtime.jit import JITFunction

    kernels: dict[bytes, Kernel] = {}

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = Kernel(
            module=self.fn.__module__,
            name=self.fn.__name__,
            arguments=tuple(
                _kept(value, parameter) for value, parameter in zip(args, self.params, strict=False)
            ),
            options={
                name: _kept(value, None) if isinstance(value, torch.Tensor) else value
                for name, value in options.items()
            },
        )
        kernels.setdefault(msgspec.msgpack.encode(kernel), kernel)

    run = JITFunction.run
    JITFunction.run = note
    found: list[Kernel] = []
    try:
        yield found
    finally:
        JITFunction.run = run
        found.extend(kernels.values())


def _kept(value: Any, parameter: Any) -> Any:
    """A value without what does not decide: a number of which only its type or its divisibility counts."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, float):
        return 0.5
    if not isinstance(value, int) or isinstance(value, bool) or parameter is None or parameter.is_constexpr:
        return value
    if parameter.do_not_specialize:
        return 3
    return value if value == 1 else 16 if value % 16 == 0 else 3


def compile_ahead(*rehearsals: Callable[[], None]) -> None:
    """Compile what the rehearsals would launch, all of it at once: one after the other, each would wait for
    its slowest kernel."""
    with recorded() as kernels:
        for rehearse in rehearsals:
            rehearse()
    compile_all(kernels)


def compile_all(kernels: Sequence[Kernel]) -> None:
    """Put them in Triton's cache. What cannot be compiled here is left to its launch, which says why."""
    begin = time.perf_counter()
    for done, kernel in enumerate(kernels, start=1):
        since = time.perf_counter()
        _compile([kernel])
        if time.perf_counter() - since >= _CACHED_S:  # from here on they may not be in the cache
            _compile_apart(kernels[done:])
            break
    log.info("%d kernels are there after %.1f s", len(kernels), time.perf_counter() - begin)


def _compile_apart(kernels: Sequence[Kernel]) -> None:
    """In processes of their own."""
    count = min(_PROCESSES, os.cpu_count() or 1, len(kernels))
    processes = []
    for i in range(count):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "duplex.adapters.qwen3_tts.compiling"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.msgpack.encode(kernels[i::count]))
        process.stdin.close()
        processes.append(process)
    for process in processes:
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _compile(kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        function = getattr(importlib.import_module(kernel.module), kernel.name)
        try:
            function.warmup(
                *(_given(value) for value in kernel.arguments),
                grid=(1,),
                **{name: _given(value) for name, value in kernel.options.items()},
            )
        except Exception as error:
            log.warning("%s was not compiled ahead: %s", kernel.name, error)


def _given(value: Any) -> Any:
    return getattr(torch, value["dtype"]) if isinstance(value, dict) else value


if __name__ == "__main__":
    _compile(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[Kernel]))
