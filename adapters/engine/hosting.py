"""What the process of any worker begins with: its command line, its model, signals, and how it says that it
cannot start.

    python -m MODULE --factory module:function --fd N [--options JSON] [--settings JSON]

The gateway starts it with one end of a socket pair.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from duplex.adapters.engine.messages import Failed
from duplex.adapters.engine.settings import WorkerSettings
from duplex.adapters.engine.wire import Unpacker
from duplex.core.errors import DuplexError, ErrorCode

STOPPED: Final = 0
BROKEN: Final = 1
"""Exit codes. A fault that is no request's own ends a worker: what the device holds then is not to be
trusted, and a new process is."""

GONE: Final = "the gateway's end of the socket is closed"
_READ: Final = 1 << 18  # bytes

SWITCH_INTERVAL_S: Final = 5e-4
"""How long a thread keeps the interpreter while others want it. The default, 5 ms, is more than a frame, and
who launches frames must not wait for one behind somebody who packs audio or encodes a voice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A worker's command line: the socket to the gateway, the model's `factory` and `options`, the worker's
    `settings`."""

    sock: socket.socket
    factory: str
    options: dict[str, Any]
    settings: WorkerSettings


def command(module: str, words: str, arguments: Sequence[str] | None = None) -> Command:
    """Read the command line, and make the process ready: logging, thread switches."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=words)
    parser.add_argument("--factory", required=True, help="module:function that makes the model")
    parser.add_argument("--fd", required=True, type=int, help="the socket to the gateway")
    parser.add_argument("--options", default="{}", help="the model's options, a JSON object")
    parser.add_argument("--settings", default="{}", help="the worker's own settings, a JSON object")
    parser.add_argument("--log-level", default="INFO")
    flags = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=flags.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return Command(
        sock=socket.socket(fileno=flags.fd),
        factory=flags.factory,
        options=msgspec.json.decode(flags.options, type=dict[str, Any]),
        settings=msgspec.json.decode(flags.settings, type=WorkerSettings),
    )


def load_model(factory: str, options: Mapping[str, Any]) -> Any:
    """What `module:function` makes of the options.

    Raises:
        DuplexError: `BAD_CONFIG`: there is no such function, or a package that it needs is missing.
    """
    module_name, _, name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{factory}: {error}") from error
    if not callable(function):
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{module_name} has no function {name!r}")
    return function(options)


def watched_thread(
    name: str, body: Callable[[], None], stop: Callable[[str, int], object], log: logging.Logger
) -> None:
    """Run `body` in a thread; one that fails ends the process, which is no use without it."""

    def run() -> None:
        try:
            body()
        except Exception:
            log.exception("the %s thread failed", name)
            stop(f"the {name} thread failed", BROKEN)

    threading.Thread(target=run, name=name, daemon=True).start()


def messages(sock: socket.socket, type: Any) -> Iterator[Any]:
    """What the gateway says, of a struct type or a union of them, until its end of the socket is closed."""
    unpacker: Unpacker[Any] = Unpacker(type)
    while True:
        try:
            data = sock.recv(_READ)
        except OSError:
            return
        if not data:
            return
        yield from unpacker.feed(data)


def on_signals(stop: Callable[[str], None]) -> None:
    """Be told of SIGTERM and SIGINT at once, whatever the main thread is in the middle of."""
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    signal.set_wakeup_fd(tells.detach())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)

    def watch() -> None:
        stop(signal.Signals(hears.recv(1)[0]).name)

    threading.Thread(target=watch, name="engine signals", daemon=True).start()


def cannot_start(error: Exception, log: logging.Logger) -> Failed:
    """The word that tells the gateway why; it is logged too."""
    if isinstance(error, DuplexError):
        log.error("cannot start: %s", error)
        return Failed.of(0, error)
    log.error("cannot start", exc_info=error)
    return Failed(id=0, code=ErrorCode.ADAPTER_FAILED.value, message=f"{type(error).__name__}: {error}")


def resident_bytes() -> int:
    """Memory of this process; 0 where the platform does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0  # no Linux


def leave(code: int) -> NoReturn:
    """End the process without waiting for its other threads: they, and the device's own, are in the middle of
    something."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
