"""The gateway's end of one preparer: the line of windows for it, and what becomes of them when it dies."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

import msgspec

from duplex.adapters.engine.lives import Lives
from duplex.adapters.engine.messages import Failed
from duplex.adapters.engine.process import WorkerKind
from duplex.adapters.engine.request import error_of
from duplex.adapters.engine.settings import EngineSettings, WorkerSpec
from duplex.adapters.mage_vl.windows.preparer_memory import (
    KEPT_BYTES,
    SLOT_BYTES,
    Slots,
    make_slots,
    segment_bytes,
)
from duplex.adapters.mage_vl.windows.preparer_messages import (
    Forget,
    FromPreparer,
    Prepare,
    Prepared,
    PreparerReady,
    PreparerStats,
    Task,
)
from duplex.adapters.mage_vl.windows.preparer_process import MODULE, HostOptions
from duplex.adapters.mage_vl.windows.preparing import Counts
from duplex.adapters.mage_vl.windows.side_information import KEYS
from duplex.adapters.mage_vl.windows.source import Place
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import CodecWindow, ImageWindow, VideoWindow

_KIND: Final = WorkerKind(module=MODULE, incoming=FromPreparer, ready=PreparerReady)

THREADS: Final = 2
"""Windows that a preparer works on at once: a long one does not hold up all others, and decoding leaves the
interpreter to the other."""
_SLOTS: Final = THREADS + 1
"""One more, to be filled meanwhile."""


class Preparer(Lives[PreparerReady]):
    """One process, and the sessions that are pinned to it.

    A session has one window at a time in the line, which is first in, first out. When the process dies the
    windows that it had are lost, by name; those in the line wait until it is started again, or fail too when
    that fails.

    Args:
        spec: of the worker; its options are those of the streams.
        counts: of all preparers.
    """

    def __init__(self, name: str, spec: WorkerSpec, settings: EngineSettings, counts: Counts) -> None:
        super().__init__(name, spec, settings, kind=_KIND)
        self.sessions = 0
        self.stats: PreparerStats | None = None
        """The last that it told; None: it is down."""
        self._plain_spec = spec
        self._counts = counts
        self._copier: ThreadPoolExecutor | None = None  # one thread: windows keep their order
        self._file: int | None = None
        self._slots: Slots | None = None
        self._free: list[int] = []
        self._line: deque[asyncio.Future[int]] = deque()
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[Prepared | Failed]] = {}
        self._jobs: set[asyncio.Task[VisualInput | None]] = set()
        self._alive = self._hopeless = False

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process.

        Raises:
            DuplexError: it cannot be started. It is not tried again.
        """
        self._file = make_slots(_SLOTS)
        try:
            self._slots, self._free = Slots(self._file, _SLOTS), list(range(_SLOTS))
            self._copier = ThreadPoolExecutor(1, "windows-copy")
            self._fds = (self._file,)
            host = HostOptions(
                memory=self._file, slots=_SLOTS, threads=THREADS, streams=self._plain_spec.options
            )
            self._spec = msgspec.structs.replace(self._plain_spec, options=msgspec.to_builtins(host))
            await super().start()
        except BaseException:
            self._release()
            raise

    async def stop(self) -> None:
        """End the process. Windows that wait or run fail."""
        await super().stop()
        self._fail_line()
        if self._jobs:
            await asyncio.wait([*self._jobs])
        self._release()

    def _release(self) -> None:
        copier, self._copier = self._copier, None
        if copier is not None:
            copier.shutdown(wait=False)
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begun(self, ready: PreparerReady) -> None:
        self._alive, self._hopeless = True, False
        asyncio.get_running_loop().call_soon(self._serve)

    def _down(self, fault: str) -> None:
        self.stats = None
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(self._lost())
        if not self._alive:  # it could not be started again
            self._fail_line()
        self._alive = False

    def _fail_line(self) -> None:
        self._hopeless = True
        while self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_exception(self._lost())

    def _lost(self) -> DuplexError:
        return DuplexError(ErrorCode.ADAPTER_FAILED, f"{self.name} {self.fault}")

    def _received(self, message: FromPreparer) -> None:
        match message:
            case Prepared() | Failed():
                answer = self._answers.pop(message.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case PreparerStats():
                self.stats = message

    # --- windows ------------------------------------------------------------------------------------

    async def prepare(self, stream: PreparedStream, task: Task, parts: Sequence[bytes]) -> VisualInput | None:
        """A stream's next window. Cancelling it does not wait for what the process does.

        Raises:
            DuplexError: what the process says of the window; `MEDIA_TOO_LARGE`; `ADAPTER_FAILED`: it died.
        """
        if self._hopeless or self._slots is None:
            raise self._lost()
        job = asyncio.get_running_loop().create_task(self._run(self._slots, stream, task, parts))
        self._jobs.add(job)
        job.add_done_callback(self._done)
        return await asyncio.shield(job)

    def forget(self, stream: int) -> None:
        """A session is over."""
        self.sessions -= 1
        if self._process is not None:
            self._process.send(Forget(stream=stream))

    def _done(self, job: asyncio.Task[VisualInput | None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled():
            # the exception is looked at here, where nobody else waits for the job any more
            self._counts.ended(job.exception())

    async def _run(
        self, slots: Slots, stream: PreparedStream, task: Task, parts: Sequence[bytes]
    ) -> VisualInput | None:
        self._counts.open += 1
        try:
            slot = await self._slot()
            try:
                return await self._in_slot(slots, slot, stream, task, parts)
            finally:
                self._free.append(slot)
                self._serve()
        finally:
            self._counts.open -= 1

    async def _slot(self) -> int:
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line.append(waiter)
        self._serve()
        return await waiter

    def _serve(self) -> None:
        """Let those that are first in the line have what is free."""
        while self.ready is not None and self._free and self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_result(self._free.pop())

    async def _in_slot(
        self, slots: Slots, slot: int, stream: PreparedStream, task: Task, parts: Sequence[bytes]
    ) -> VisualInput | None:
        loop, life = asyncio.get_running_loop(), self.ready
        stream.check_open()
        used = SLOT_BYTES
        try:
            sizes = await loop.run_in_executor(self._copier, _fill, slots, slot, task, parts)
            stream.check_open()
            if life is None or self.ready is not life:
                raise self._lost()
            answer = await self._ask(stream, slot, sizes)
            used = sum(sizes)
            if isinstance(answer, Failed):
                raise error_of(answer)
            stream.place = Place(answer.origin_ms, answer.end_ms)
            self._counts.took_ms += answer.took_ms
            segment = answer.segment
            if segment is None:
                return None
            used = max(used, segment_bytes(segment))
            stream.check_open()
            return await loop.run_in_executor(self._copier, slots.take_segment, slot, segment)
        finally:
            if used > KEPT_BYTES:
                await loop.run_in_executor(self._copier, slots.shrink, slot)

    async def _ask(self, stream: PreparedStream, slot: int, sizes: tuple[int, ...]) -> Prepared | Failed:
        assert self._process is not None
        answer: asyncio.Future[Prepared | Failed] = asyncio.get_running_loop().create_future()
        id = next(self._ids)
        self._answers[id] = answer
        gap, stream.gap = stream.gap, False
        self._process.send(
            Prepare(
                id=id,
                stream=stream.id,
                slot=slot,
                sizes=sizes,
                gap=gap,
                origin_ms=stream.place.origin_ms,
                end_ms=stream.place.end_ms,
            )
        )
        return await answer


class PreparedStream:
    """One session's windows on their way to segments, by a preparer of which it is one of the `sessions`. Its
    methods belong to the event loop."""

    def __init__(self, preparer: Preparer, id: int) -> None:
        self.id = id
        self.gap = False
        self.place = Place()
        self._preparer = preparer
        self._closed = False
        preparer.sessions += 1

    async def see(
        self, window: VideoWindow | ImageWindow, codec: CodecWindow | None = None
    ) -> VisualInput | None:
        """What a window shows; None while the decoder holds its frames back, to come with the next.

        Raises:
            DuplexError: that window cannot be used, or was lost with the process. The next one can be used,
                from the stream's next key frame on.
        """
        parts = (window.data,) if isinstance(window, ImageWindow) else (window.data, *window.frames)
        return await self._preparer.prepare(self, Task(window=window, codec=codec), parts)

    async def finish(self) -> VisualInput | None:
        """The input ends: what was held back."""
        return await self._preparer.prepare(self, Task(), ())

    def reset(self) -> None:
        """Windows between the last and the next are missing."""
        self.gap = True

    def close(self) -> None:
        """Give up what is being done, at the next frame."""
        if not self._closed:
            self._closed = True
            self._preparer.forget(self.id)

    def check_open(self) -> None:
        """Raise `DuplexError(SESSION_CLOSING)` after `close`."""
        if self._closed:
            raise DuplexError(ErrorCode.SESSION_CLOSING, "the session was closed")


def _fill(slots: Slots, slot: int, task: Task, parts: Sequence[bytes]) -> tuple[int, ...]:
    """In a thread: put a window into a slot. Returns the sizes of what is there.

    Raises:
        DuplexError: `MEDIA_TOO_LARGE`; `INVALID_VALUE`: side information that is of no numbers.
    """
    window = task.window
    if isinstance(window, VideoWindow):
        window = msgspec.structs.replace(window, data=b"", frames=(), metadata={})
    elif window is not None:
        window = msgspec.structs.replace(window, data=b"")
    data = [_head(window, task.codec), *parts]
    sizes = tuple(map(len, data))
    if sum(sizes) > SLOT_BYTES:
        words = f"a window of {sum(sizes):,} bytes; the limit is {SLOT_BYTES:,}"
        raise DuplexError(ErrorCode.MEDIA_TOO_LARGE, words, param="data")
    slots.put(slot, data)
    return sizes


def _head(window: VideoWindow | ImageWindow | None, codec: CodecWindow | None) -> bytes:
    if codec is None:
        return msgspec.msgpack.encode(Task(window=window))
    looked_at = {key: value for key, value in codec.codec.items() if key in KEYS}
    codec = msgspec.structs.replace(codec, codec=looked_at, metadata={})
    try:
        return msgspec.msgpack.encode(Task(window=window, codec=codec))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        words = f"the codec window: {error}"
        raise DuplexError(ErrorCode.INVALID_VALUE, words, param="data.codec") from error
