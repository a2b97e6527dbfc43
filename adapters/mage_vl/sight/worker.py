"""The sight worker: one model, and the gate states of all sessions.

    python -m duplex.adapters.mage_vl.sight.worker --factory module:function --fd N --options JSON

The main thread launches one batch after the other in the order in which they come; the collector thread waits
for their results and tells them; the reader reads; the pulse says that the process lives, and ends it when
the device hangs. A gate state is changed by the main thread alone and lives as long as its session, or the
process. Exit codes are those of the frame engine's worker.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import NoReturn, TypeAlias

import msgspec

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
from duplex.adapters.engine.messages import Stop
from duplex.adapters.engine.model import Pending
from duplex.adapters.engine.outlet import Outlet
from duplex.adapters.engine.settings import WorkerSettings
from duplex.adapters.mage_vl.sight.arena import Arena, grow_file
from duplex.adapters.mage_vl.sight.messages import (
    Forget,
    Look,
    Looked,
    SightReady,
    SightStats,
    ToSight,
    Verdict,
)
from duplex.adapters.mage_vl.sight.model import Probabilities, SightModel, State, View
from duplex.adapters.mage_vl.sight.options import HostOptions

log = logging.getLogger("duplex.sight.worker")


@dataclass(slots=True, frozen=True)
class _Exit:
    code: int
    why: str


@dataclass(slots=True, frozen=True)
class _Launched:
    id: int
    fresh: tuple[bool, ...]
    pending: Pending[list[Probabilities]]


_Event: TypeAlias = Look | Forget | _Exit


class SightWorker:
    """One model behind one socket and one arena. `run` is the life of the process.

    Args:
        load: makes the model; called once, on the thread of `run`.
        leave: ends the process at once; called from other threads while the model is being loaded.
    """

    def __init__(
        self,
        sock: socket.socket,
        load: Callable[[], SightModel],
        options: HostOptions,
        settings: WorkerSettings | None = None,
        *,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._socket = sock
        self._load = load
        self._options = options
        self._settings = settings or WorkerSettings()
        self._leave = leave
        self._inbox: SimpleQueue[_Event] = SimpleQueue()
        self._launched: SimpleQueue[_Launched] = SimpleQueue()
        self._outlet = Outlet(sock, lambda: self.stop("the gateway is gone"))
        self._states: dict[int, State] = {}
        self._since: dict[int, float] = {}  # when each batch that is not over was launched, s
        self._serving = False
        self._over = threading.Event()

    def run(self) -> int:
        """Load, serve, and return the exit code."""
        self._thread("reader", self._read)
        began = monotonic()
        try:
            model = self._load()
            info = model.info
            layout = self._options.layout(depth=info.depth, token_bytes=info.token_bytes)
            grow_file(self._options.arena, layout)
            arena = Arena(self._options.arena, layout)
            model.share(arena.bytes)
            model.warm_up()
        except Exception as error:
            self._outlet.say(cannot_start(error, log))
            self._outlet.flush(1.0)
            return BROKEN
        gc.collect()
        gc.freeze()
        load_ms = (monotonic() - began) * 1e3
        log.info("%s is loaded and warm after %.1f s", info.name, load_ms / 1e3)
        self._serving = True
        self._outlet.say(SightReady(info=info, layout=layout, pid=os.getpid(), load_ms=load_ms))
        self._thread("collector", self._collect)
        self._thread("pulse", lambda: self._pulse(getattr(model, "memory_bytes", resident_bytes)))
        try:
            exit = self._serve(model, arena)
        except Exception:
            log.exception("the main thread failed")
            return BROKEN
        finally:
            self._over.set()
        log.log(logging.INFO if exit.code == STOPPED else logging.ERROR, "ends: %s", exit.why)
        return exit.code

    def stop(self, why: str, code: int = STOPPED) -> None:
        """End the process, from any thread. A model that is loading or in the middle of a batch is not waited
        for."""
        self._inbox.put(_Exit(code, why))
        if not self._serving or self._since:
            log.log(logging.INFO if code == STOPPED else logging.ERROR, "ends at once: %s", why)
            self._leave(code)

    # --- the main thread ----------------------------------------------------------------------------

    def _serve(self, model: SightModel, arena: Arena) -> _Exit:
        while True:
            match self._inbox.get():
                case Look() as look:
                    self._launch(model, arena, look)
                case Forget(session=session):
                    self._states.pop(session, None)
                case _Exit() as exit:
                    return exit

    def _launch(self, model: SightModel, arena: Arena, look: Look) -> None:
        shapes = [item.shape for item in look.items]
        fresh = tuple(item.gate and item.session not in self._states for item in look.items)
        for item, new in zip(look.items, fresh, strict=True):
            if new:
                self._states[item.session] = model.new_state()
        batch = [
            View(
                pixels=pixels,
                positions=positions,
                tokens=tokens,
                state=self._states[item.session] if item.gate else None,
            )
            for item, pixels, positions, tokens in zip(
                look.items,
                arena.pixels(look.slot, shapes),
                arena.positions(look.slot, shapes),
                arena.tokens(look.slot, shapes),
                strict=True,
            )
        ]
        self._since[look.id] = monotonic()
        self._launched.put(_Launched(look.id, fresh, model.launch(batch)))

    # --- the other threads --------------------------------------------------------------------------

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        watched_thread(f"sight {name}", body, self.stop, log)

    def _read(self) -> None:
        for message in messages(self._socket, ToSight):
            if isinstance(message, Stop):
                self.stop("told to")
                return
            self._inbox.put(message)
        self.stop(GONE)

    def _collect(self) -> None:
        last = 0.0
        while True:
            launched = self._launched.get()
            results = launched.pending.result()
            now = monotonic()
            began = max(self._since.pop(launched.id), last)
            last = now
            verdicts = tuple(
                Verdict(p_speak, new) for p_speak, new in zip(results, launched.fresh, strict=True)
            )
            self._outlet.say(Looked(id=launched.id, verdicts=verdicts, took_ms=(now - began) * 1e3))

    def _pulse(self, memory_bytes: Callable[[], int]) -> None:
        while not self._over.wait(self._settings.stats_s):
            self._outlet.say(SightStats(states=len(self._states), memory_bytes=memory_bytes()))
            oldest = min(list(self._since.values()), default=None)
            if oldest is not None and monotonic() - oldest > self._settings.stuck_s:
                self.stop(f"the device hangs: a batch takes more than {self._settings.stuck_s:g} s", BROKEN)


def main(arguments: Sequence[str] | None = None) -> int:
    """The process, but for its end: returns the exit code."""
    told = command("duplex.adapters.mage_vl.sight.worker", "Looks at video for all sessions.", arguments)
    options = msgspec.convert(told.options, HostOptions)
    worker = SightWorker(told.sock, lambda: _load(told, options), options, told.settings)
    on_signals(worker.stop)
    return worker.run()


def _load(told: Command, options: HostOptions) -> SightModel:
    model: SightModel = load_model(told.factory, options.model)
    return model


if __name__ == "__main__":
    leave(main())
