"""A worker's process, from its start to its end: spawned, ready, watched, stopped or killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from duplex.adapters.engine.messages import Failed, FromWorker, Ready, Stop
from duplex.adapters.engine.request import error_of
from duplex.adapters.engine.settings import EngineSettings, WorkerSpec
from duplex.adapters.engine.wire import Message, Unpacker, WireError, pack
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.engine")

_LINES_KEPT: Final = 20
_MOST_LINE: Final = 2000  # characters
_TICKS: Final = 4
_EXIT_S: Final = 2.0  # for a worker whose socket is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """A sort of worker: the `module` that is its process, the union of messages that it may send, and which
    of these says that its model is loaded and warm. It also sends `Failed` with id 0 when it cannot start,
    and takes `Stop`."""

    module: str
    incoming: Any
    ready: type[Message]


FRAMES: Final = WorkerKind(module="duplex.adapters.engine.worker", incoming=FromWorker, ready=Ready)
"""Workers with a `FrameModel`."""


class WorkerProcess:
    """One process. Made by `start`; `ended` says how it ended, once it has.

    Silence is counted in ticks of the loop, not by the clock: a loop that was held up reads what the worker
    has said meanwhile before it finds it silent.
    """

    def __init__(
        self, name: str, kind: WorkerKind, settings: EngineSettings, on_message: Callable[[Any], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.kind = kind
        self.ended: asyncio.Future[str] = loop.create_future()
        self.ready: Any = None
        """The message of type `kind.ready`, once it has come."""
        self._settings = settings
        self._on_message = on_message
        self._output = _Output(name)
        self._fault: Failed | None = None
        self._first: asyncio.Future[Message] = loop.create_future()
        self._lost: asyncio.Future[str] = loop.create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._watching: asyncio.Task[None] | None = None
        self._silent_ticks = 0
        self._ticker: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls,
        spec: WorkerSpec,
        settings: EngineSettings,
        on_message: Callable[[Any], None],
        *,
        name: str,
        kind: WorkerKind = FRAMES,
        fds: Sequence[int] = (),
    ) -> WorkerProcess:
        """Spawn a worker and wait until its model is warm. Cancelling it leaves no process behind.

        Args:
            on_message: takes all messages but the first words.
            fds: file descriptors that it inherits under the same numbers; its options tell it what they are.

        Raises:
            DuplexError: it could not start: with the code that it gave, else `ENGINE_DOWN` and the last lines
                that it wrote.
        """
        self = cls(name, kind, settings, on_message)
        try:
            await self._spawn(spec, fds)
            await self._until_ready()
        except BaseException:
            await self._kill()
            raise
        return self

    def send(self, message: Message) -> None:
        """Say something, if it is still there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    async def stop(self) -> None:
        """End it: by a word, then by force. Returns when it is gone."""
        self.send(Stop())
        await asyncio.wait({self.ended}, timeout=self._settings.stop_timeout_s)
        if not self.ended.done():
            log.warning("%s did not stop within %g s", self.name, self._settings.stop_timeout_s)
        await self._kill()

    # --- start --------------------------------------------------------------------------------------

    async def _spawn(self, spec: WorkerSpec, fds: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        try:
            # a pipe of our own, not asyncio's: its `wait` would wait for the worker's own children as well
            await loop.connect_read_pipe(lambda: self._output, os.fdopen(reader, "rb", 0))
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a `duplex` folder in the current directory is not the package
                *("-m", self.kind.module),
                *("--factory", spec.factory, "--fd", str(theirs.fileno())),
                *("--options", msgspec.json.encode(spec.options).decode()),
                *("--settings", msgspec.json.encode(spec.settings).decode()),
                *("--log-level", logging.getLevelName(log.getEffectiveLevel())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=(theirs.fileno(), *fds),
                start_new_session=True,  # Ctrl-C is the gateway's, which drains first
                env={**os.environ, **spec.env},
            )
            self._transport, _ = await loop.create_unix_connection(lambda: _Link(self), sock=ours)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(writer)
        self._watching = loop.create_task(self._watch(self._process), name=f"watching {self.name}")

    async def _until_ready(self) -> None:
        timeout_s = self._settings.start_timeout_s
        either: set[asyncio.Future[Any]] = {self._first, self.ended}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._first.done():
            self.ready = self._first.result()
            self._tick()
            return
        how = self.ended.result() if self.ended.done() else f"was not ready after {timeout_s:g} s"
        if self._fault is not None:
            error = error_of(self._fault)
            raise DuplexError(error.code, f"{self.name} cannot start: {error.message}", param=error.param)
        await asyncio.wait({self._output.ended}, timeout=_EXIT_S if self.ended.done() else 0)
        tail = "\n".join(self._output.lines)
        wrote = f"; it wrote:\n{tail}" if tail else ""
        raise DuplexError(ErrorCode.ENGINE_DOWN, f"{self.name} {how} before its model was loaded{wrote}")

    # --- life ---------------------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        """The worker says something."""
        self._silent_ticks = 0
        if isinstance(message, self.kind.ready):
            if not self._first.done():
                self._first.set_result(message)
        elif isinstance(message, Failed) and message.id == 0:
            self._fault = message
        else:
            self._on_message(message)

    def lost(self, why: str) -> None:
        """Its socket is closed, or of no more use."""
        if not self._lost.done():
            self._lost.set_result(why)

    def _tick(self) -> None:
        if self._silent_ticks >= _TICKS:
            self.lost(f"said nothing for {self._settings.hang_s:g} s")
            return
        self._silent_ticks += 1
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(self._settings.hang_s / _TICKS, self._tick)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        exit = asyncio.ensure_future(process.wait())
        either: set[asyncio.Future[Any]] = {exit, self._lost}
        why = ""
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                why = self._lost.result()
                if not why:  # its end of the socket is closed: it is on its way out
                    await asyncio.wait({exit}, timeout=_EXIT_S)
            if not exit.done():
                _kill_group(process)
                await exit
        finally:
            exit.cancel()
            if self._ticker is not None:
                self._ticker.cancel()
            if self._transport is not None:
                self._transport.abort()
            if not self.ended.done():
                self.ended.set_result(why or _how(process.returncode))

    async def _kill(self) -> None:
        """Make sure that it is gone."""
        if self._process is not None and self._process.returncode is None:
            _kill_group(self._process)
        if self._watching is not None:
            await asyncio.wait({self._watching})
        elif self._process is not None:
            await self._process.wait()
        self._output.close()


class _Link(asyncio.Protocol):
    """The gateway's end of a worker's socket."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._unpacker: Unpacker[Message] = Unpacker(worker.kind.incoming)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._unpacker.feed(data):
                self._worker.received(message)
        except WireError as error:
            self._worker.lost(f"sent what is no message: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._worker.lost("")


class _Output(asyncio.Protocol):
    """What a worker writes to its standard output and error: into the log, and the last lines kept."""

    def __init__(self, name: str) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._name = name
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MOST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._log(line)

    def connection_lost(self, error: Exception | None) -> None:
        if self._rest:
            self._log(self._rest)
        self.ended.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _log(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()[:_MOST_LINE]
        if text:
            self.lines.append(text)
            level, _, words = text.partition(" ")
            number = logging.getLevelNamesMapping().get(level)
            log.log(number or logging.INFO, "%s: %s", self._name, words if number else text)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """The worker leads a group of its own, with whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _how(code: int | None) -> str:
    if code is None:
        return "is gone"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"
