"""Carries the scheduler's plans out on a model: what the worker's step thread does, without its threads.

Times are ms of one monotonic clock, as in `scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.engine.messages import Abort, Credit, Ended, Failed, Start, Text
from duplex.adapters.engine.model import Finish, FrameModel, FrameResult, Pending
from duplex.adapters.engine.scheduler import Scheduler
from duplex.adapters.engine.settings import Policy
from duplex.adapters.engine.streams import Stream
from duplex.core.errors import DuplexError, ErrorCode

RequestMessage: TypeAlias = Start | Text | Credit | Abort


@dataclass(slots=True, frozen=True, kw_only=True)
class AudioWork:
    """A launched decode: a row of `pending` for each of `ids`, with `finish` where it is the last of it."""

    pending: Pending[NDArray[np.float32]]
    ids: tuple[int, ...]
    finish: tuple[Finish | None, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class LastWord:
    """A request is finished; all its audio is in the work before this."""

    id: int
    finish: Finish


Output: TypeAlias = AudioWork | LastWord


@dataclass(slots=True, kw_only=True)
class Launched:
    """What a step has launched, in order, and the answers that it has at once.

    `frames` are to be collected in order and told to `Stepper.frame_done`; `outputs` in order, each
    `AudioWork` told to `Stepper.decode_done`.
    """

    answers: list[Ended | Failed] = field(default_factory=list)
    frames: list[Pending[FrameResult]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


class Stepper:
    """One model and its requests. Every call comes from one thread, and none waits for the device.

    A `DuplexError` of a request fails that request; anything else that the model raises comes out of here,
    and then nothing can be said of the model's state.
    """

    def __init__(self, model: FrameModel, policy: Policy | None = None) -> None:
        self._model = model
        self.scheduler = Scheduler(model.info, policy)
        self._finished: list[LastWord] = []

    @property
    def wake(self) -> float | None:
        """When to step again though nothing has happened; None: not before something does."""
        return self.scheduler.wake

    def take(self, message: RequestMessage, now: float) -> Ended | Failed | None:
        """A message of the gateway, read at `now`; the answer that it has at once."""
        scheduler = self.scheduler
        match message:
            case Start():
                scheduler.start(
                    message.id,
                    message.job,
                    now,
                    credit=message.credit,
                    first_frames=message.first_frames,
                    goes_on=message.goes_on,
                )
            case Text():
                slot = scheduler.text(message.id, message.text, ended=message.ended)
                if slot is not None:
                    try:
                        self._model.add_text(slot, message.text, ended=message.ended)
                    except DuplexError as error:
                        scheduler.abort(message.id)
                        self._free()
                        return Failed.of(message.id, error)
            case Credit():
                scheduler.grant(message.id, message.frames)
            case Abort():
                if scheduler.abort(message.id):
                    self._free()
                    return Ended(id=message.id, waited_ms=0.0)
        return None

    def frame_done(self, result: FrameResult, now: float) -> None:
        """The oldest frame in flight has ended."""
        for id, finish in self.scheduler.frame_done(result, now):
            self._finished.append(LastWord(id=id, finish=finish))

    def decode_done(self, ended: float, now: float) -> None:
        """The oldest decode in flight `ended`, and its audio went out `now`."""
        self.scheduler.decode_done(ended, now)

    def step(self, now: float, attend: Callable[[], None] = lambda: None) -> Launched:
        """Launch all that can be launched.

        Args:
            attend: called behind each launch, and may `take` messages: so an abort waits for one launch, and
                not for all that a step makes.
        """
        scheduler, model = self.scheduler, self._model
        launched = Launched()
        launched.outputs += self._finished
        self._finished.clear()
        self._free()
        while (stream := scheduler.admit()) is not None:
            if (failed := self._begin(stream)) is not None:
                launched.answers.append(failed)
            attend()
        while True:
            if work := scheduler.plan_prefill(now):
                model.prefill(work)
                attend()
            frame = scheduler.plan_frame(now)
            if frame is not None:
                launched.frames.append(model.launch_frame(frame.slots))
                attend()
            while (decode := scheduler.plan_decodes(now)) is not None:
                pending = model.launch_decode(decode.slots, decode.frames)
                ids = tuple([stream.id for stream in decode.streams])
                launched.outputs.append(AudioWork(pending=pending, ids=ids, finish=decode.finish))
                attend()
            if frame is None and not work:
                break
        launched.answers += [self._refused(stream, now) for stream in scheduler.overdue(now)]
        return launched

    def _refused(self, stream: Stream, now: float) -> Failed:
        waited_s = (now - stream.arrived) / 1e3
        words = f"all {self._model.info.slots} slots have been taken for {waited_s:.0f} s: try again later"
        return Failed.of(stream.id, DuplexError(ErrorCode.SERVER_FULL, words))

    def _begin(self, stream: Stream) -> Failed | None:
        """Begin an admitted request, with the text that came before it had a slot."""
        model, scheduler = self._model, self.scheduler
        try:
            view = model.begin(stream.slot, stream.job)
        except DuplexError as error:
            scheduler.refused(stream)
            return Failed.of(stream.id, error)
        try:
            for text, ended in joined(stream.text):
                model.add_text(stream.slot, text, ended=ended)
        except DuplexError as error:
            scheduler.abort(stream.id)
            self._free()
            return Failed.of(stream.id, error)
        scheduler.begun(stream, view)
        return None

    def _free(self) -> None:
        for slot in self.scheduler.released():
            self._model.free(slot)


def joined(text: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Pieces of text as one piece, ended if its last one is."""
    return [("".join(piece for piece, _ in text), text[-1][1])] if text else []
