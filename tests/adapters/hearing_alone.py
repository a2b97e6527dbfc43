"""A listener by itself, and an activity model that needs no weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.hearing import Task, hear_together
from duplex.adapters.embedded.listen import Listener, ListenEvent
from duplex.adapters.embedded.vad import ActivityModel
from duplex.core.types import AudioWindow

Floats = NDArray[np.float32]


def loud_is_speech(frames: Floats, states: Floats) -> tuple[Floats, Floats]:
    """Every loud frame is speech."""
    return np.where(frames.max(axis=1) > 0.05, 0.95, 0.02).astype(np.float32), states


def hear_alone(
    model: ActivityModel, ear: Listener, *windows: AudioWindow, finish: bool = False
) -> list[ListenEvent]:
    """What the listener tells of these windows."""
    told: list[ListenEvent] = []
    task = Task(ear, windows=windows, finish=finish, on_events=told.extend, on_done=lambda _: None)
    hear_together(model, [task], lambda task, events: task.on_events(events))
    if task.error is not None:
        raise task.error
    return [*told, *task.events]
