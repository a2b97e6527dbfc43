"""The worker process: a frame model, its scheduler and the threads around them.

    python -m duplex.adapters.engine.worker --factory module:function --fd N [--options JSON]

The gateway starts it with one end of a socket pair. The step thread (the main one) drives the model and waits
for nothing but its inbox. Others feed the inbox: the reader with what the gateway says, the collector with
frames that ended, the output thread with decodes whose audio it has sent; calls run on a thread of their own.
Nothing polls.

The process ends with 0 when it is told to stop, by `Stop`, SIGTERM, SIGINT or the end of the socket. A fault
that is no request's own ends it with 1: what the device holds then is not to be trusted, and a new process
is.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NoReturn, TypeAlias

import msgspec
import numpy as np

from duplex.adapters.engine.hosting import (
    BROKEN,
    GONE,
    STOPPED,
    Command,
    cannot_start,
    command,
    leave,
    load_model,
    messages,
    on_signals,
    resident_bytes,
    watched_thread,
)
from duplex.adapters.engine.messages import (
    Answer,
    Audio,
    Call,
    Ended,
    Failed,
    Ready,
    Start,
    Stats,
    Stop,
    ToWorker,
)
from duplex.adapters.engine.model import FrameModel, FrameResult, Pending
from duplex.adapters.engine.outlet import Outlet
from duplex.adapters.engine.settings import WorkerSettings
from duplex.adapters.engine.steps import LastWord, Output, RequestMessage, Stepper
from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.engine.worker")


@dataclass(slots=True, frozen=True)
class _Read:
    message: RequestMessage
    at: float


@dataclass(slots=True, frozen=True)
class _FrameEnd:
    result: FrameResult
    at: float


@dataclass(slots=True, frozen=True)
class _DecodeEnd:
    ended: float
    at: float


@dataclass(slots=True, frozen=True)
class _Exit:
    code: int
    why: str


_Event: TypeAlias = _Read | _FrameEnd | _DecodeEnd | _Exit


class Worker:
    """One model behind one socket. `run` is the life of the process.

    Args:
        load: makes the model; called once, on the thread of `run`.
        leave: ends the process at once; called from other threads while the model is being loaded.
    """

    def __init__(
        self,
        sock: socket.socket,
        load: Callable[[], FrameModel],
        settings: WorkerSettings | None = None,
        *,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._socket = sock
        self._load = load
        self._settings = settings or WorkerSettings()
        self._leave = leave
        self._inbox: SimpleQueue[_Event] = SimpleQueue()
        self._kept: list[_Event] = []  # out of the inbox, for the next step
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._frames: SimpleQueue[Pending[FrameResult]] = SimpleQueue()
        self._outputs: SimpleQueue[Output] = SimpleQueue()
        self._outlet = Outlet(sock, lambda: self.stop("the gateway is gone"))
        self._serving = False
        self._frame_since: float | None = None
        self._decode_since: float | None = None

    def run(self) -> int:
        """Load, serve, and return the exit code."""
        self._thread("reader", self._read)
        began = monotonic()
        try:
            model = self._load()
            model.warm_up()
        except Exception as error:
            self._outlet.say(cannot_start(error, log))
            self._outlet.flush(1.0)
            return BROKEN
        gc.collect()
        gc.freeze()  # what is loaded stays: a full collection would take longer than a frame
        load_ms = (monotonic() - began) * 1e3
        log.info("%s is loaded and warm after %.1f s", model.info.name, load_ms / 1e3)
        self._serving = True
        self._outlet.say(Ready(info=model.info, pid=os.getpid(), load_ms=load_ms))
        self._thread("collector", self._collect)
        self._thread("output", self._output)
        self._thread("calls", lambda: self._answer(model))
        try:
            exit = self._serve(model)
        except Exception:
            log.exception("the step thread failed")
            return BROKEN
        log.log(logging.INFO if exit.code == STOPPED else logging.ERROR, "ends: %s", exit.why)
        return exit.code

    def stop(self, why: str, code: int = STOPPED) -> None:
        """End the process, from any thread."""
        self._inbox.put(_Exit(code, why))
        if not self._serving:
            log.info("ends while loading: %s", why)
            self._leave(code)

    # --- the step thread ----------------------------------------------------------------------------

    def _serve(self, model: FrameModel) -> _Exit:
        stepper = Stepper(model, self._settings.policy)
        stats_ms = self._settings.stats_s * 1e3
        stats_due = _now() + stats_ms
        while True:
            for event in self._wait(min(stats_due, stepper.wake or stats_due)):
                match event:
                    case _Read():
                        self._take(stepper, event)
                    case _FrameEnd():
                        stepper.frame_done(event.result, event.at)
                    case _DecodeEnd():
                        stepper.decode_done(event.ended, event.at)
                    case _Exit():
                        return event
            launched = stepper.step(_now(), lambda: self._attend(stepper))
            for answer in launched.answers:
                self._outlet.end(answer)
            for frame in launched.frames:
                self._frames.put(frame)
            for output in launched.outputs:
                self._outputs.put(output)
            if (now := _now()) >= stats_due:
                stats_due = now + stats_ms
                self._outlet.say(_stats(stepper, model))
                if (what := self._stuck(now)) is not None:
                    return _Exit(
                        BROKEN, f"the device hangs: {what} takes more than {self._settings.stuck_s:g} s"
                    )

    def _wait(self, until: float) -> list[_Event]:
        """All that is in the inbox; waits until there is something or it is time."""
        events, self._kept = self._kept, []
        if events:
            until = 0.0
        try:
            events.append(self._inbox.get(timeout=max(0.0, (until - _now()) / 1e3)))
            while True:
                events.append(self._inbox.get_nowait())
        except Empty:
            return events

    def _attend(self, stepper: Stepper) -> None:
        """Take the messages that have come during a step; what ended meanwhile is for the next one."""
        try:
            while True:
                event = self._inbox.get_nowait()
                if isinstance(event, _Read):
                    self._take(stepper, event)
                else:
                    self._kept.append(event)
        except Empty:
            return

    def _take(self, stepper: Stepper, event: _Read) -> None:
        message = event.message
        if isinstance(message, Start):
            self._outlet.open(message.id)
        answer = stepper.take(message, event.at)
        if isinstance(answer, Ended):
            answer = msgspec.structs.replace(answer, waited_ms=_now() - event.at)
        if answer is not None:
            self._outlet.end(answer)

    def _stuck(self, now: float) -> str | None:
        for what, since in (("a frame", self._frame_since), ("a decode", self._decode_since)):
            if since is not None and now - since > self._settings.stuck_s * 1e3:
                return what
        return None

    # --- the other threads --------------------------------------------------------------------------

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        watched_thread(f"engine {name}", body, self.stop, log)

    def _read(self) -> None:
        for message in messages(self._socket, ToWorker):
            match message:
                case Call():
                    self._calls.put(message)
                case Stop():
                    self.stop("told to")
                    return
                case _:
                    self._inbox.put(_Read(message, _now()))
        self.stop(GONE)

    def _collect(self) -> None:
        while True:
            pending = self._frames.get()
            self._frame_since = _now()
            result = pending.result()
            self._frame_since = None
            self._inbox.put(_FrameEnd(result, _now()))

    def _output(self) -> None:
        while True:
            work = self._outputs.get()
            if isinstance(work, LastWord):
                self._outlet.audio([Audio(id=work.id, samples=b"", finish=work.finish)])
                continue
            self._decode_since = _now()
            samples = np.ascontiguousarray(work.pending.result(), dtype="<f4")
            self._decode_since = None
            ended = _now()
            self._outlet.audio(
                Audio(id=id, samples=row.tobytes(), finish=finish)
                for id, row, finish in zip(work.ids, samples, work.finish, strict=True)
            )
            self._inbox.put(_DecodeEnd(ended, _now()))

    def _answer(self, model: FrameModel) -> None:
        while True:
            call = self._calls.get()
            try:
                payload = model.call(call.name, call.payload)
            except DuplexError as error:
                self._outlet.say(Failed.of(call.id, error))
            except Exception as error:
                log.exception("the call %r failed", call.name)
                words = f"{call.name}: {type(error).__name__}: {error}"
                self._outlet.say(Failed(id=call.id, code=ErrorCode.ADAPTER_FAILED.value, message=words))
            else:
                self._outlet.say(Answer(id=call.id, payload=payload))


def _stats(stepper: Stepper, model: FrameModel) -> Stats:
    scheduler = stepper.scheduler
    counts = scheduler.take_counts()
    memory: Callable[[], int] = getattr(model, "memory_bytes", resident_bytes)
    return Stats(
        active=scheduler.active,
        waiting=scheduler.waiting,
        frames=counts.frames,
        launches=counts.launches,
        frame_ms=counts.frame_ms,
        decode_ms=counts.decode_ms,
        late=counts.late,
        memory_bytes=memory(),
    )


def _now() -> float:
    return monotonic() * 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    """The process, but for its end: returns the exit code."""
    told = command("duplex.adapters.engine.worker", "A frame engine's worker.", arguments)
    worker = Worker(told.sock, lambda: _load(told), told.settings)
    on_signals(worker.stop)
    return worker.run()


def _load(told: Command) -> FrameModel:
    model: FrameModel = load_model(told.factory, told.options)
    return model


if __name__ == "__main__":
    leave(main())
