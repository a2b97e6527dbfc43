"""Sight in the gateway: a worker process that all sessions share.

    sight = Sight(SightOptions(options={"model": "/models/mage-vl"}))
    await sight.start()
    eye = sight.open()
    seen = await eye.look(window)

Only asyncio here, and two threads that copy to and from shared memory; no torch. Nothing waits for the model
but those who await its answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np

from duplex.adapters.engine.lives import Lives
from duplex.adapters.engine.process import WorkerKind
from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.sight.arena import Arena, make_file, token_array
from duplex.adapters.mage_vl.sight.counts import Counts
from duplex.adapters.mage_vl.sight.eye import Eye, Glimpse
from duplex.adapters.mage_vl.sight.messages import (
    Forget,
    FromSight,
    Item,
    Look,
    Looked,
    SightInfo,
    SightReady,
    SightStats,
)
from duplex.adapters.mage_vl.sight.options import SightOptions
from duplex.adapters.mage_vl.sight.queue import LookQueue, Work
from duplex.adapters.mage_vl.sight.types import Seen, Tokens
from duplex.core.errors import DuplexError, ErrorCode

__all__ = ["Eye", "Seen", "Sight", "SightOptions", "Tokens"]

log = logging.getLogger("duplex.sight")

_KIND = WorkerKind(module="duplex.adapters.mage_vl.sight.worker", incoming=FromSight, ready=SightReady)


class Sight(Lives[SightReady]):
    """The model, and the line of windows for it.

    A worker that dies or says nothing for `hang_s` fails the looks that wait or run with `ADAPTER_FAILED`; it
    is started again, and until then looks fail at once with `ENGINE_DOWN`. Eyes go on afterwards, each with a
    fresh gate state.
    """

    def __init__(
        self, options: SightOptions, settings: EngineSettings | None = None, *, name: str = "sight worker"
    ) -> None:
        # the spec of a worker without an arena: `start` makes both
        super().__init__(name, options.spec(-1), settings or EngineSettings(), kind=_KIND)
        self.options = options
        self.stats: SightStats | None = None
        """The last that the worker told; None: it is down."""
        self.counts = Counts()
        self._queue: LookQueue[Glimpse] = LookQueue(
            most_patches=options.max_patches, most_sessions=options.max_sessions
        )
        self._file: int | None = None
        self._arena: Arena | None = None
        # one thread each way, so that batches keep their order
        self._filler: ThreadPoolExecutor | None = None
        self._taker: ThreadPoolExecutor | None = None
        self._eyes: dict[int, Eye] = {}
        self._forgotten: set[int] = set()  # closed with a window in flight
        self._sessions = count(1)
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[Looked]] = {}
        self._held: set[int] = set()  # slots
        self._running = 0  # batches that the worker has, or will have in a moment
        self._pumping = False
        self._batches: set[asyncio.Task[None]] = set()

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model.

        Raises:
            DuplexError: the worker cannot be started. It is not tried again.
        """
        self._file = make_file()
        self._fds = (self._file,)
        self._spec = self.options.spec(self._file)
        self._filler = ThreadPoolExecutor(1, "sight-fill")
        self._taker = ThreadPoolExecutor(1, "sight-take")
        try:
            await super().start()
        except BaseException:
            await self._release()
            raise

    async def stop(self) -> None:
        """End the worker. Looks that wait or run fail."""
        await super().stop()
        await self._release()

    async def _release(self) -> None:
        batches = [*self._batches]
        for batch in batches:
            batch.cancel()
        if batches:
            await asyncio.wait(batches)
        for copier in (self._filler, self._taker):
            if copier is not None:
                copier.shutdown(wait=False)
        self._filler = self._taker = None
        self._arena = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begun(self, ready: SightReady) -> None:
        assert self._file is not None
        self._arena = Arena(self._file, ready.layout)

    def _down(self, fault: str) -> None:
        self.stats = None
        self._running = 0
        self._forgotten.clear()
        error = DuplexError(ErrorCode.ADAPTER_FAILED, f"{self.name} {fault}")
        for work in self._queue.clear():
            work.window.fail(error)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.cancel()

    @property
    def healthy(self) -> bool:
        """The worker is up."""
        return self.ready is not None

    @property
    def info(self) -> SightInfo:
        """What was loaded.

        Raises:
            DuplexError: `ENGINE_DOWN`.
        """
        if self.ready is None:
            raise self._is_down()
        return self.ready.info

    def _is_down(self) -> DuplexError:
        return DuplexError(ErrorCode.ENGINE_DOWN, f"{self.name} {self.fault}")

    # --- sessions -----------------------------------------------------------------------------------

    def open(self) -> Eye:
        """A session's eye. Close it.

        Raises:
            DuplexError: `ENGINE_DOWN`.
        """
        if self.ready is None:
            raise self._is_down()
        eye = Eye(self, next(self._sessions))
        self._eyes[eye.id] = eye
        return eye

    def submit(self, glimpse: Glimpse, *, gate: bool) -> None:
        """An eye's next window.

        Raises:
            DuplexError: `ENGINE_DOWN`, `MEDIA_TOO_LARGE`.
        """
        if self.ready is None:
            raise self._is_down()
        patches = glimpse.shape.patches
        if patches > self.options.max_patches:
            raise DuplexError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"a window of {patches} patches, at most {self.options.max_patches} are looked at",
                param="data",
            )
        gate = gate and self.ready.info.gate
        old = self._queue.submit(glimpse.eye.id, glimpse, patches=patches, gate=gate, now=_now())
        if old is not None:
            old.window.drop()
        if not self._pumping:
            self._pumping = True  # in a moment: windows that come together go together
            asyncio.get_running_loop().call_soon(self._pump)

    def withdraw(self, glimpse: Glimpse) -> None:
        """Nobody wants it any more. What is in flight is only not told."""
        waits = self._queue.waiting(glimpse.eye.id)
        if waits is not None and waits.window is glimpse:
            self._queue.drop(glimpse.eye.id)
            self.counts.dropped += 1

    def forget(self, eye: Eye) -> None:
        """An eye is closed: its state is freed when what is in flight of it has landed."""
        if self._eyes.pop(eye.id, None) is None or self._process is None:
            return
        if self._queue.is_flying(eye.id):
            self._forgotten.add(eye.id)
        else:
            self._process.send(Forget(session=eye.id))

    # --- batches ------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what can go."""
        self._pumping = False
        while self.ready is not None and self._running < self.ready.info.depth:
            slot = next((n for n in range(self.ready.layout.slots) if n not in self._held), None)
            if slot is None or not (works := self._queue.take()):
                return
            self._running += 1
            self._held.add(slot)
            batch = asyncio.get_running_loop().create_task(self._run(works, slot, self.ready))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)

    async def _run(self, works: Sequence[Work[Glimpse]], slot: int, life: SightReady) -> None:
        """One batch, from its pixels to its tokens."""
        assert self._arena is not None
        loop = asyncio.get_running_loop()
        arena, filler, taker = self._arena, self._filler, self._taker
        glimpses = [work.window for work in works]
        in_worker = True
        try:
            await loop.run_in_executor(filler, _fill, arena, slot, glimpses)
            if self.ready is not life:
                return  # the looks have failed
            if not any(glimpse.wanted for glimpse in glimpses):
                self.counts.dropped += len(works)
                return
            looked = await self._ask(slot, works)
            if self.ready is not life:
                return
            in_worker = False
            self._running -= 1
            self._pump()
            for work, verdict in zip(works, looked.verdicts, strict=True):
                work.window.eye.judged(asked=work.gate, fresh=verdict.fresh)
            copies = await loop.run_in_executor(taker, _take_out, arena, slot, glimpses, life.info)
            self._tell(works, looked, copies)
        except Exception as error:
            log.exception("a batch failed")
            failed = DuplexError(ErrorCode.ADAPTER_FAILED, f"{self.name}: {type(error).__name__}: {error}")
            for glimpse in glimpses:
                glimpse.fail(failed)
        finally:
            self._held.discard(slot)
            if self.ready is life:
                self._running -= in_worker
                self._landed(works)
            self._pump()

    async def _ask(self, slot: int, works: Sequence[Work[Glimpse]]) -> Looked:
        """Let the worker look."""
        assert self._process is not None
        id = next(self._ids)
        answer: asyncio.Future[Looked] = asyncio.get_running_loop().create_future()
        self._answers[id] = answer
        items = tuple(Item(work.session, work.window.shape, work.gate) for work in works)
        self._process.send(Look(id=id, slot=slot, items=items))
        return await answer

    def _tell(self, works: Sequence[Work[Glimpse]], looked: Looked, copies: Sequence[Tokens | None]) -> None:
        now = _now()
        self.counts.batch(works, looked.took_ms, now)
        for work, verdict, tokens in zip(works, looked.verdicts, copies, strict=True):
            glimpse = work.window
            if tokens is None or not glimpse.wanted:
                self.counts.dropped += 1
                continue
            glimpse.see(
                Seen(
                    window=glimpse.window,
                    tokens=tokens,
                    p_speak=verdict.p_speak if work.gate else None,
                    lag_ms=now - work.arrived,
                    behind_ms=now - work.since,
                    merged=work.merged,
                    restarted=glimpse.eye.take_restarted(),
                    sessions=len(works),
                )
            )

    def _landed(self, works: Sequence[Work[Glimpse]]) -> None:
        for work in works:
            self._queue.done(work.session)
            if work.session in self._forgotten and self._process is not None:
                self._forgotten.discard(work.session)
                self._process.send(Forget(session=work.session))

    def _received(self, message: FromSight) -> None:
        match message:
            case Looked():
                answer = self._answers.pop(message.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case SightStats():
                self.stats = message

    # --- metrics ------------------------------------------------------------------------------------

    def figures(self) -> list[Figure]:
        """What `/metrics` shows: see docs/mage-vl.md."""
        since = self._queue.since()
        return self.counts.figures(
            up=self.ready is not None,
            sessions=len(self._eyes),
            waiting=len(self._queue),
            flying=self._queue.flying,
            wait_ms=0.0 if since is None else _now() - since,
            merged=self._queue.merged,
            restarts=self.restarts,
            stats=self.stats,
        )


def _now() -> float:
    """Milliseconds."""
    return asyncio.get_running_loop().time() * 1e3


def _fill(arena: Arena, slot: int, glimpses: Sequence[Glimpse]) -> None:
    """Copy windows into a slot. The interpreter is free meanwhile."""
    shapes = [glimpse.shape for glimpse in glimpses]
    for glimpse, pixels, positions in zip(
        glimpses, arena.pixels(slot, shapes), arena.positions(slot, shapes), strict=True
    ):
        np.copyto(pixels, glimpse.window.images)
        np.copyto(positions, glimpse.window.positions)


def _take_out(arena: Arena, slot: int, glimpses: Sequence[Glimpse], info: SightInfo) -> list[Tokens | None]:
    """Copy the tokens of those that are wanted out of a slot. The interpreter is free meanwhile."""
    parts = arena.tokens(slot, [glimpse.shape for glimpse in glimpses])
    return [
        Tokens(data=token_array(part, info.dtype).copy(), dtype=info.dtype) if glimpse.wanted else None
        for glimpse, part in zip(glimpses, parts, strict=True)
    ]
