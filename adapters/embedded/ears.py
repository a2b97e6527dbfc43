"""A session's listener on the shared worker: order kept, the event loop never waits, no task a window."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from duplex.adapters.embedded.hearing import Hearing, Task
from duplex.adapters.embedded.listen import Listener, ListenEvent
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import AudioWindow, TurnDetection

MAX_BACKLOG_MS: Final = 300_000.0
"""Audio that may wait to be heard. It is heard some hundred times faster than it was spoken."""
MAX_TASK_MS: Final = 960.0
"""Audio heard in one go, so that a session with much of it does not keep the others waiting."""


class Ears:
    """Feeds a `Listener` from the event loop.

    Audio waits until it completes a frame of the activity model; then one task hears all that waits. At most
    one task of a session is under way, which keeps the order and needs no lock.

    Args:
        on_events: called on the loop with what the listener told, in order.
        on_failure: called when it fails; nothing is heard any more.
    """

    def __init__(
        self,
        listener: Listener,
        hearing: Hearing,
        on_events: Callable[[list[ListenEvent]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._hearing = hearing
        self._on_events = on_events
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[AudioWindow] = deque()
        self._waiting_ms = 0.0
        self._needed_ms = listener.needed_ms
        self._task: Task | None = None
        self._idle = asyncio.Event()
        """No task is under way."""
        self._idle.set()
        self._configure: list[TurnDetection | None] = []
        self._judged: tuple[float, float] | None = None
        self._settling: list[asyncio.Future[None]] = []
        self._settling_now: list[asyncio.Future[None]] = []
        self._stall: asyncio.TimerHandle | None = None
        self._last_push = 0.0
        self._forget = False
        self._closed = False

    def push(self, window: AudioWindow) -> None:
        """Hear this. Returns at once.

        Raises:
            DuplexError: `INPUT_OVERFLOW` when too much waits.
        """
        if self._waiting_ms + window.duration_ms > MAX_BACKLOG_MS:
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW,
                f"more than {MAX_BACKLOG_MS / 1000:.0f} s of audio wait to be heard: this window was dropped",
            )
        self._last_push = self._loop.time()
        self._waiting.append(window)
        self._waiting_ms += window.duration_ms
        self._next()

    def configure(self, settings: TurnDetection | None) -> None:
        """Change turn detection, for audio that is not heard yet."""
        self._configure.append(settings)
        self._next()

    def judge(self, end_ms: float, complete: float) -> None:
        """How likely the turn is complete at the pause since `end_ms`: known from the next frame on."""
        self._judged = (end_ms, complete)

    def forget(self) -> None:
        """Drop what waits to be heard, and the turn that is open."""
        self._waiting.clear()
        self._waiting_ms = 0.0
        self._forget = True
        self._next()

    async def settle(self) -> None:
        """Hear all that waits, then end the turn that is open."""
        done = self._loop.create_future()
        self._settling.append(done)
        self._next()
        await done

    async def close(self) -> None:
        """Hear no more. The worker's step that is under way ends first."""
        self._closed = True
        self._waiting.clear()
        self._clear_stall()
        if self._task is not None:
            self._task.dropped = True
        await self._idle.wait()
        for done in [*self._settling, *self._settling_now]:
            done.cancel()

    # --- the task -----------------------------------------------------------------------------------

    def _next(self) -> None:
        if self._task is not None or self._closed:
            return
        if self._forget or self._configure or self._waiting_ms >= self._needed_ms or self._settling:
            windows = self._take()
            settings, self._configure = self._configure, []
            forget, self._forget = self._forget, False
            judged, self._judged = self._judged, None
            finish = bool(self._settling) and not self._waiting
            if finish:
                self._settling_now, self._settling = self._settling, []
            self._task = Task(
                self._listener,
                windows=windows,
                settings=settings,
                judged=judged,
                finish=finish,
                forget=forget,
                on_events=self._tell,
                on_done=self._heard,
            )
            self._idle.clear()
            self._hearing.do(self._task)

    def _take(self) -> list[AudioWindow]:
        """What waits, up to `MAX_TASK_MS`; a longer window is cut."""
        taken: list[AudioWindow] = []
        room_ms = MAX_TASK_MS
        while self._waiting and room_ms > 0:
            window = self._waiting.popleft()
            most = max(1, int(room_ms * window.sample_rate / 1000)) * 2
            if len(window.pcm) > most:
                rest = msgspec.structs.replace(window, pcm=window.pcm[most:])
                window = msgspec.structs.replace(window, pcm=window.pcm[:most])
                self._waiting.appendleft(rest)
            room_ms -= window.duration_ms
            taken.append(window)
        self._waiting_ms = sum(window.duration_ms for window in self._waiting)
        return taken

    def _heard(self, task: Task) -> None:
        self._task = None
        self._idle.set()
        settled, self._settling_now = self._settling_now, []
        if self._closed or task.dropped:
            for done in settled:
                done.cancel()
            return
        if task.error is not None:
            self._closed = True
            self._clear_stall()
            self._on_failure(task.error)
        else:
            self._needed_ms = self._listener.needed_ms
            if task.events:
                self._on_events(task.events)  # those that were told before came before this call
        for done in settled:
            if not done.done():
                done.set_result(None)
        self._watch()
        self._next()

    def _tell(self, events: list[ListenEvent]) -> None:
        if not self._closed:
            self._on_events(events)

    # --- input that stalls --------------------------------------------------------------------------

    def _watch(self) -> None:
        """Keep one timer while somebody speaks. It looks at the last window's time: a window sets none."""
        timeout_ms = self._listener.stall_timeout_ms
        if timeout_ms is None or self._closed:
            self._clear_stall()
        elif self._stall is None:
            self._stall = self._loop.call_later(timeout_ms / 1000, self._on_stall, timeout_ms / 1000)

    def _on_stall(self, timeout_s: float) -> None:
        self._stall = None
        if self._closed:
            return
        due = self._last_push + timeout_s
        if self._waiting_ms >= self._needed_ms or self._task is not None:
            due = self._loop.time() + timeout_s
        if due > self._loop.time():
            self._stall = self._loop.call_at(due, self._on_stall, timeout_s)
            return
        self._settling.append(self._loop.create_future())
        self._next()

    def _clear_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
