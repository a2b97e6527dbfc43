"""The worker that hears for all sessions: what waits of all of them is heard together, in one hop.

A hop to another thread and back costs as much as a frame's work, and each has two threads ask for Python's
global lock. So there is one hop for all that waits, and the activity model hears a frame of each session in
one run, without the lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future

from duplex.adapters.embedded.listen import Listener, ListenEvent, Sound
from duplex.adapters.embedded.vad import ActivityModel, hear
from duplex.core.types import AudioWindow, SpeechStarted, TurnDetection


class Task:
    """What a session wants to be done next. At most one task of a session is under way.

    Args:
        settings: of turn detection, the last of which stays.
        judged: a pause (its beginning, ms) and how likely the turn was complete there.
        finish: end the turn that is open when all is heard.
        forget: drop it before.
        on_events: called on the loop when speech begins, with all events so far.
        on_done: called on the loop when all is done, after the last `on_events`. The events of the rest are
            in `events`, and what was raised in `error`.
    """

    __slots__ = (
        "dropped",
        "error",
        "events",
        "finish",
        "forget",
        "judged",
        "listener",
        "on_done",
        "on_events",
        "settings",
        "windows",
    )

    def __init__(
        self,
        listener: Listener,
        *,
        windows: Sequence[AudioWindow] = (),
        settings: Sequence[TurnDetection | None] = (),
        judged: tuple[float, float] | None = None,
        finish: bool = False,
        forget: bool = False,
        on_events: Callable[[list[ListenEvent]], None],
        on_done: Callable[[Task], None],
    ) -> None:
        self.listener = listener
        self.windows = windows
        self.settings = settings
        self.judged = judged
        self.finish = finish
        self.forget = forget
        self.on_events = on_events
        self.on_done = on_done
        self.events: list[ListenEvent] = []
        self.error: Exception | None = None
        self.dropped = False
        """Its session hears no more: set at any time, by any thread."""

    def sounds(self) -> Iterator[Sound]:
        """All that there is to hear; what is to be done before and behind it is done on the way."""
        listener = self.listener
        for turns in self.settings:
            listener.configure(turns)
        if self.judged is not None:
            listener.judge(*self.judged)
        if self.forget:
            self.events += listener.forget()
        for window in self.windows:
            for sound in listener.feed(window):
                if self.dropped:
                    return
                yield sound
        if self.finish:
            yield from listener.rest()
            self.events += listener.finish()


def hear_together(
    model: ActivityModel, tasks: Sequence[Task], on_speech: Callable[[Task, list[ListenEvent]], None]
) -> None:
    """Do the tasks, each of another session, side by side: a frame of each, then the next of each.

    What one raises is its own error; what the model raises is everybody's. `on_speech` gets the events of a
    task as soon as speech begins in it: it may interrupt, and does not wait for the rest.
    """
    going = [(task, task.sounds()) for task in tasks]
    while going:
        still: list[tuple[Task, Iterator[Sound]]] = []
        sounds: list[Sound] = []
        for task, source in going:
            try:
                sound = next(source, None)
            except Exception as error:
                task.error = error
                continue
            if sound is not None:
                still.append((task, source))
                sounds.append(sound)
        if sounds:
            try:
                heard = hear(model, [task.listener.activity for task, _ in still], [s.frame for s in sounds])
            except Exception as error:
                for task, _ in still:
                    task.error = error
                return
            for (task, _), sound, (level, probability) in zip(still, sounds, heard, strict=True):
                told = task.listener.hear(sound, level, probability)
                if told:
                    task.events += told
                    if any(type(event) is SpeechStarted for event in told):
                        events, task.events = task.events, []
                        on_speech(task, events)
            time.sleep(0)  # of a silence the model hears nothing: let the loop have the lock in between
        going = still


class Hearing:
    """Hears on a worker thread, for the sessions of an event loop. What comes while it works waits for its
    next hop.

    Args:
        worker: must not be used for anything that takes long.
    """

    def __init__(self, worker: Executor, model: ActivityModel) -> None:
        self._worker = worker
        self._model = model
        self._waiting: list[Task] = []
        self._working = False

    def do(self, task: Task) -> None:
        """Do this. Returns at once."""
        self._waiting.append(task)
        if not self._working:
            self._start()

    def _start(self) -> None:
        tasks, self._waiting = self._waiting, []
        self._working = True
        loop = asyncio.get_running_loop()

        def on_speech(task: Task, events: list[ListenEvent]) -> None:
            loop.call_soon_threadsafe(task.on_events, events)

        def worked(job: Future[None]) -> None:  # on the worker, or where it is shut down
            try:
                loop.call_soon_threadsafe(self._done, job, tasks)
            except RuntimeError:
                self._working = False  # the loop is closed, and with it all sessions

        try:
            job = self._worker.submit(hear_together, self._model, tasks, on_speech)
        except RuntimeError as error:  # it is shut down
            job = Future()
            job.set_exception(error)
        job.add_done_callback(worked)

    def _done(self, job: Future[None], tasks: list[Task]) -> None:
        self._working = False
        error = None if job.cancelled() else job.exception()
        for task in tasks:
            if isinstance(error, Exception):
                task.error = task.error or error
            task.dropped = task.dropped or job.cancelled()
            task.on_done(task)
        if self._waiting and not self._working:
            self._start()
